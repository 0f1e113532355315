#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# slow
# timeout: 2600
# cost: 500
# needs: helper_file_store train_gpt verify doctor
"""Checkpoints on NFS 4.2, as several clients see it: a server and three clients, each a kernel of its own (tests/cluster), with
attribute caches of 0, 3 and 60 seconds, hard and soft. What one client did, the others must see at once, however long theirs
remember; of two that want one name, one gets it; and whoever loses power, client or server, and for how long, the next run
goes on with the same losses bit for bit, and nothing is left behind. Needs root and `tests/cluster/box install --instances`.

usage: test_nfs.py HELPER_FILE_STORE TRAIN_GPT VERIFY DOCTOR [PART...]
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BOX = os.path.join(HERE, "cluster", "box")
PROGRAMS = sys.argv[1:5]
PARTS = sys.argv[5:]
LIMIT = 240  # seconds; nothing here waits so long unless it is wrong
SERVER, ONE, TWO, THREE = "i1", "i2", "i3", "i4"
LAST = 40  # step of runs that are to be disturbed before it
SMALL = "--layers 1 --width 32 --heads 2 --context 16 --ranks 1 --every 1".split()

os.environ["NFS_LEASE"] = "10"


def there(name):
    return f"/mnt/share/{name}"


def box(*words, status=0):
    done = subprocess.run([BOX, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=LIMIT, check=False)
    assert status is None or done.returncode == status, f"box {words} ended with {done.returncode}: {done.stdout}"
    return done.stdout


def on(machine, command, status=0):
    return box("on", machine, "sh", "-c", command, status=status)


def until(what, reached):
    limit = time.monotonic() + LIMIT
    while not reached():
        assert time.monotonic() < limit, f"waited in vain: {what}"
        time.sleep(0.5)


def mount(options, *machines):
    for machine in machines:
        on(machine, "! mountpoint -q /mnt/nfs || umount /mnt/nfs")
        box("nfs-mount", machine, SERVER, options)


class Client:
    """A helper_file_store on a machine."""

    def __init__(self, machine, directory):
        self.process = subprocess.Popen([BOX, "on", machine, there("helper_file_store"), directory],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def heard(self):
        line = self.process.stdout.readline()
        assert line, "the client has ended"
        return line.rstrip("\n")

    def ask(self, line):
        self.tell(line)
        return self.heard()

    def expect(self, line, answer):
        got = self.ask(line)
        assert got == answer, f"{line}: {got!r}, not {answer!r}"

    def kill(self):
        self.process.kill()  # and so its command
        self.process.wait()


# --- One client sees what another one did ------------------------------------------------------------------------------------

def names(directory):
    """Whatever a client remembers of names, that they are there or not, it goes by what is there."""
    a, b = Client(ONE, directory), Client(TWO, directory)
    for key in ("file", "step/file", "step/deep/er/file"):
        b.expect(f"size {key}", "none")  # remembered as absent, as are the directories
        b.expect(f"read {key}", "none")
        b.expect("list ", "none")
        a.expect(f"put {key} hello", "done")
        b.expect(f"size {key}", "5")
        b.expect(f"read {key}", "hello")
        b.expect("list ", f"{key}=5")
        b.expect("keys ", key)
        b.expect(f"publish {key} mine", "exists")
        a.expect(f"remove {key}", "done")
        b.expect(f"size {key}", "none")
        b.expect(f"read {key}", "none")
        b.expect("keys ", "none")
        a.expect(f"put {key} different", "done")
        b.expect(f"size {key}", "9")
        b.expect(f"read {key}", "different")
        b.expect(f"remove_if {key} hello", "kept")
        b.expect(f"remove_if {key} different", "done")
        a.expect(f"size {key}", "none")
        # The directories went with it: a finds that out when it makes the next one.
        assert on(THREE, f"ls -A {directory}") == "", "a directory without a file is left"
        a.expect(f"put {key} again", "done")
        b.expect(f"read {key}", "again")
        b.expect(f"remove {key}", "done")
        a.expect("keys ", "none")
    a.kill()
    b.kill()


def races(directory):
    """Of three clients that want one name, one gets it, and all see whose it is."""
    clients = [Client(machine, directory) for machine in (ONE, TWO, THREE)]
    for i in range(15):
        for j, client in enumerate(clients):
            client.tell(f"publish race/{i} of-{j}")
        answers = [client.heard() for client in clients]
        assert sorted(answers) == ["done", "exists", "exists"], answers
        for client in clients:
            client.expect(f"read race/{i}", f"of-{answers.index('done')}")
    for i in range(15):
        clients[i % 3].expect(f"remove race/{i}", "done")
    assert on(ONE, f"ls -A {directory}") == ""
    for client in clients:
        client.kill()


def writers(directory):
    """Who lives is seen from other hosts, also after the file got its name; who is dead is cleaned up after."""
    a, b = Client(ONE, directory), Client(TWO, directory)
    a.expect("create step/data", "done")
    b.expect("leftovers ", "none")
    part = b.ask("live ")
    assert re.fullmatch(r"step/data\.[0-9a-f]{16}\.part", part), part
    assert b.ask(f"discard {part}").startswith("error storage.exists"), "a live writer's file was removed"
    a.expect("finish", "done")
    b.expect("lives step/data", "yes")
    b.expect("leftovers ", "none")
    b.expect("keys ", "step/data")
    assert ".nfs" not in on(TWO, f"ls -A {directory}/step"), "a file of which only this client knows"
    a.expect("close", "done")
    b.expect("lives step/data", "no")
    b.expect("live ", "none")
    assert on(TWO, f"ls -A {directory}/step") == "data\n"
    b.expect("remove step/data", "done")
    # A process that ends.
    a.expect("create step/data", "done")
    a.kill()
    until("its lock is free", lambda: b.ask("live ") == "none")
    part = b.ask("leftovers ")
    assert part.startswith("step/data."), part
    b.expect(f"discard {part}", "done")
    assert on(ONE, f"ls -A {directory}") == "", "a directory without a file is left"
    b.kill()


def leases(directory):
    """What one client reads, neither the retention nor a removal of another one takes away, however long that remembers names."""
    trainer, reader, remover = (Client(machine, directory) for machine in (ONE, TWO, THREE))
    for client in (reader, remover):
        client.expect("steps", "none")  # remembered as empty
    trainer.expect("save 1", "done")
    trainer.expect("save 2", "done")
    reader.expect("hold 1", "held")
    trainer.expect("save 3", "done")
    trainer.expect("save 4", "done")
    for client in (trainer, reader, remover):
        client.expect("steps", "1 3 4")
    remover.expect("delete 1", "leased")
    reader.expect("load 1", "7")
    reader.expect("release", "done")
    trainer.expect("save 5", "done")
    for client in (reader, remover):
        client.expect("steps", "4 5")
    reader.expect("hold 3", "gone")
    # Of one who wants to read and one who removes, one is told that it may.
    held = 0
    for step in range(6, 18):
        trainer.expect(f"save {step}", "done")
        (first, second) = (reader, remover) if step % 2 else (remover, reader)
        words = {reader: f"hold {step}", remover: f"delete {step}"}
        for client in (first, second):
            client.tell(words[client])
        answers = {client: client.heard() for client in (reader, remover)}
        assert (answers[reader], answers[remover]) in (("held", "leased"), ("gone", "done")), answers
        held += answers[reader] == "held"
        if answers[reader] == "held":
            reader.expect(f"load {step}", str(step * 7))
            reader.expect("release", "done")
            remover.expect(f"delete {step}", "done")
    print(f"  {held} of 12 steps were read, the others removed", flush=True)
    # A reader that dies delays nobody for longer than its lock. Its name goes when a run resumes.
    trainer.expect("save 18", "done")
    reader.expect("hold 18", "held")
    reader.kill()
    until("its lock is free", lambda: remover.ask("delete 18") == "done")
    trainer.kill()
    remover.kill()
    left = on(ONE, f"cd {directory} && find . -name 'lease-*' ! -name 'lease-00000018.reads.*' -o -name '.nfs*'")
    assert left == "", f"left behind: {left}"


def each_mount():
    for options in ("actimeo=0,hard", "actimeo=3,hard", "actimeo=60,hard", "actimeo=60,soft"):
        mount(options, ONE, TWO, THREE)
        for part in (names, races, writers, leases):
            directory = f"/mnt/nfs/{part.__name__}"
            on(ONE, f"rm -rf {directory}; mkdir {directory}")
            part(directory)
        print(f"  {options}: seen at once", flush=True)
    told = on(ONE, f"{there('doctor')} /mnt/nfs")
    for wanted in ("nfs4", r"^weaker +requests wait for the server: mounted with soft$", r"^right +locks reach other hosts",
                   "links are used"):
        assert re.search(wanted, told, re.MULTILINE), told
    mount("nocto,hard", ONE)
    told = on(ONE, f"{there('doctor')} /mnt/nfs", status=None)
    assert re.search(r"^single job +an open asks the server: mounted with nocto$", told, re.MULTILINE), told
    mount("actimeo=60,hard", ONE, TWO, THREE)


# --- Runs ---------------------------------------------------------------------------------------------------------------------------

def training(machine, store, steps, *more, losses=None):
    command = [there("train_gpt"), "--store", store, "--steps", str(steps), *SMALL, "--losses", losses or "/mnt/tmp/losses", *more]
    return subprocess.Popen([BOX, "on", machine, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True)


def ended(run):
    """The output of a run that must have succeeded."""
    told, _ = run.communicate(timeout=LIMIT)
    assert run.returncode == 0, told
    return told


def await_line(run, pattern):
    for line in run.stdout:
        if re.search(pattern, line):
            return
    raise AssertionError(f"the run ended without {pattern!r}")


def losses_of(machine):
    return dict(line.split()[:2] for line in on(machine, "cat /mnt/tmp/losses").splitlines() if line and line[0].isdigit())


def good(store, machine, undisturbed):
    """The last run's losses are those of the undisturbed one, every checkpoint is whole, and nothing else is there."""
    seen = losses_of(machine)
    assert seen and all(undisturbed[step] == loss for step, loss in seen.items()), (seen, undisturbed)
    assert "every digest is right" in on(machine, f"{there('verify')} {store}")
    left = on(machine, f"cd {store} && find . -name '*.part' -o -name '.nfs*' -o -name 'lease-*' -o -type d -empty")
    assert left == "", f"left behind: {left}"


def first_run():
    ended(training(THREE, "/mnt/tmp/undisturbed", LAST + 1, "--mode", "sync", "--keep", "1"))
    return losses_of(THREE)


def kills(undisturbed):
    """Killed while a save is copied or written, in each way of saving; the next run is on another client."""
    cases = [(mode, "after") for mode in ("thread", "process", "overlapped-thread", "overlapped-process")]
    cases += [(mode, "before") for mode in ("overlapped-thread", "overlapped-process")]
    for mode, when in cases:
        store = f"/mnt/nfs/kill-{mode}-{when}"
        run = training(ONE, store, 6, "--mode", mode, f"--kill-{when}-release", "4")
        told, _ = run.communicate(timeout=LIMIT)
        assert run.returncode != 0 and "step 2 committed" in told, told
        told = ended(training(TWO, store, 6, "--mode", mode, "--keep", "2"))
        assert re.search(r"step [34] loaded", told), told
        good(store, TWO, undisturbed)
    for mode in ("sync", "direct", "overlapped-process"):  # at any moment, with its worker
        store = f"/mnt/nfs/kill-{mode}"
        run = training(ONE, store, 24, "--mode", mode)
        await_line(run, "step 3 committed")
        run.kill()
        run.communicate(timeout=LIMIT)
        told = ended(training(TWO, store, 24, "--mode", mode, "--keep", "2"))
        assert re.search(r"step ([3-9]|1[0-9]|2[0-4]) loaded", told), told
        good(store, TWO, undisturbed)


def power_of_a_client(undisturbed):
    """At some moment of a save; the next run is on another client, while the server still believes in the first."""
    for mode in ("sync", "overlapped-thread", "overlapped-process"):
        store = f"/mnt/nfs/client-{mode}"
        run = training(TWO, store, LAST, "--mode", mode)
        await_line(run, "step 3 committed")
        box("power-off", TWO)
        run.kill()  # nobody tells it that its other end is lost
        run.communicate(timeout=LIMIT)
        told = ended(training(ONE, store, LAST, "--mode", "sync", "--keep", "2"))
        assert int(re.search(r"step (\d+) loaded", told).group(1)) >= 3, told
        box("boot", TWO)
        mount("actimeo=60,hard", TWO)
        # What the server held for the lost client is free at the latest once that is back: then the rest can go.
        ended(training(TWO, store, LAST + 1, "--mode", "sync", "--keep", "2"))
        good(store, TWO, undisturbed)


def writer_loses_power():
    """What a lost client leaves: names that others know, are told to be nobody's once its lease is over, and remove."""
    directory = "/mnt/nfs/lost"
    on(ONE, f"mkdir {directory}")
    unfinished, finished, watching = Client(TWO, directory), Client(TWO, directory), Client(ONE, directory)
    unfinished.expect("create step/unfinished", "done")
    finished.expect("create step/finished", "done")
    finished.expect("finish", "done")
    watching.expect("lives step/finished", "yes")
    box("power-off", TWO)
    begin = time.monotonic()
    until("the lost client's locks are free", lambda: watching.ask("live ") == "none")
    print(f"  its locks were free after {time.monotonic() - begin:.0f} s of leases of {os.environ['NFS_LEASE']} s", flush=True)
    watching.expect("lives step/finished", "no")
    left = watching.ask("leftovers ").split()
    assert len(left) == 2, left
    for part in left:
        watching.expect(f"discard {part}", "done")
    assert on(ONE, f"ls -A {directory}/step") == "finished\n"
    watching.expect("remove step/finished", "done")
    assert on(ONE, f"ls -A {directory}") == ""
    for client in (unfinished, finished, watching):
        client.kill()
    box("boot", TWO)
    mount("actimeo=60,hard", TWO)


def power_of_the_server(undisturbed):
    for seconds, options, mode in ((5, "actimeo=60,hard", "overlapped-thread"), (60, "actimeo=60,hard", "overlapped-process"),
                                   (30, "actimeo=60,soft,timeo=20,retrans=1", "thread")):
        mount(options, ONE, TWO)
        store = f"/mnt/nfs/server-{seconds}"
        on(ONE, f"mkdir {store}")
        holder = Client(TWO, store)
        holder.expect("create held", "done")
        run = training(ONE, store, LAST, "--mode", mode, "--keep", "3")
        await_line(run, "step 3 committed")
        box("power-off", SERVER)
        time.sleep(seconds)  # what is tried is that nobody serves for so long
        box("nfs-server", SERVER)
        told, _ = run.communicate(timeout=LIMIT)
        if "soft" in options:
            # Saves may fail, and the last one of a run is its status; training goes on.
            print(f"  soft: {len(re.findall('the save of step', told))} saves failed", flush=True)
        else:
            assert run.returncode == 0 and "failed" not in told, told
            # It has its lock again, before anybody else could take it.
            watching = Client(ONE, store)
            lives = watching.ask("live ")
            assert lives.startswith("held."), f"a lock was lost with the server: {lives}"
            watching.kill()
        holder.kill()
        mount("actimeo=60,hard", ONE, TWO)
        looking = Client(ONE, store)
        until("the holder's lock is free", lambda: looking.ask("live ") == "none")
        looking.expect(f"discard {looking.ask('leftovers held')}", "done")  # no name that a run would clean up
        looking.kill()
        ended(training(TWO, store, LAST + 1, "--mode", "sync", "--keep", "3"))
        good(store, TWO, undisturbed)


def clocks(undisturbed):
    """One client is ten minutes ahead, one ten minutes behind; three runs follow each other, two clients take turns."""
    on(TWO, "date -s '+10 minutes'")
    on(THREE, "date -s '-10 minutes'")
    for part in (names, races, writers, leases):
        directory = f"/mnt/nfs/clock-{part.__name__}"
        on(ONE, f"mkdir {directory}")
        part(directory)
    store = "/mnt/nfs/clocks"
    for steps, machine in ((3, ONE), (6, TWO), (9, THREE), (12, ONE)):
        told = ended(training(machine, store, steps, "--mode", "sync", "--keep", "2"))
        assert steps == 3 or f"step {steps - 3} loaded" in told, told
        good(store, machine, undisturbed)


def two_runs(undisturbed):
    """Two runs that should not be in one directory: each step is one's, what is told as committed was, and all of it loads."""
    store = "/mnt/nfs/two"
    runs = [training(machine, store, 10, "--mode", "thread", "--keep", "0") for machine in (ONE, TWO)]
    told = [run.communicate(timeout=LIMIT)[0] for run in runs]
    steps = [re.findall(r"step (\d+) committed", text) for text in told]
    assert not set(steps[0]) & set(steps[1]), f"both were told that a step is theirs: {told}"
    assert set(steps[0]) | set(steps[1]) <= set(re.findall(r"^step (\d+)", on(THREE, f"{there('verify')} {store}"), re.MULTILINE))
    ended(training(THREE, store, 12, "--mode", "sync"))
    good(store, THREE, undisturbed)


def inside():
    share = os.path.join(os.environ["CAIRN_BOX"], "share")
    for program in PROGRAMS:
        shutil.copy(program, share)
    subprocess.run([BOX, "nfs-server", SERVER], check=True, timeout=LIMIT, stderr=subprocess.DEVNULL)
    for machine in (ONE, TWO, THREE):
        box("boot", machine)
    print(on(ONE, "echo Linux $(uname -r)"), end="", flush=True)
    mount("actimeo=60,hard", ONE, TWO, THREE)
    undisturbed = first_run()
    for part in (each_mount, kills, power_of_a_client, writer_loses_power, power_of_the_server, clocks, two_runs):
        if PARTS and part.__name__ not in PARTS:
            continue
        begin = time.monotonic()
        if part.__code__.co_argcount:
            part(undisturbed)
        else:
            part()
        print(f"{part.__name__}: {time.monotonic() - begin:.0f} s", flush=True)


def main():
    if os.environ.get("CAIRN_BOX"):
        inside()
        return 0
    told = subprocess.run([BOX, "run", "--hosts", "0", "--instances", "true"], stderr=subprocess.PIPE, text=True, check=False)
    if told.returncode == 77:
        print(told.stderr, end="")
        return 77
    for program in PROGRAMS:
        with open(program, "rb") as file:
            if re.search(rb"__[at]san_init", file.read()):
                print("instances have no room for programs with sanitizers; skipped")
                return 77
    return subprocess.run([BOX, "run", "--hosts", "0", "--instances", sys.executable, os.path.abspath(__file__),
                           *map(os.path.abspath, PROGRAMS), *PARTS], check=False).returncode


signal.alarm(2500)  # what waits for a line of another program ends, too
sys.exit(main())

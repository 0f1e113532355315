#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# optimised
# needs: train_gpt evaluate inspect first_save
# cost: 45
"""Runs the examples as a user does: trains, kills, resumes on other numbers of processes, damages, inspects, evaluates.

usage: test_train_gpt.py TRAIN_GPT EVALUATE INSPECT FIRST_SAVE
"""

import glob
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import numpy

from python.programs import expect, run

TRAIN, EVALUATE, INSPECT, FIRST_SAVE = (os.path.abspath(path) for path in sys.argv[1:5])
HERE = os.path.dirname(os.path.abspath(__file__))
STEPS, EVERY = 8, 2
KILLED = 128 + signal.SIGKILL  # as train_gpt tells it of its ranks
STOPPED = 75  # its status when it was asked to stop
SHAPE = ["--layers", "1", "--width", "16", "--heads", "2", "--context", "16"]


def train(directory, ranks, *more, shape=None, every=EVERY, keep=0, status=0):
    return run(TRAIN, *(SHAPE if shape is None else shape), "--steps", STEPS, "--every", every, "--keep", keep, "--ranks",
               ranks, "--checkpoints", directory, "--losses", losses_of(directory), *more, status=status)


def losses_of(directory):
    return directory + ".losses"


def losses(directory):
    """{step: loss as a hexadecimal float} of the last run in this directory."""
    with open(losses_of(directory), encoding="utf-8") as file:
        return {int(step): loss for step, loss in map(str.split, file)}


def held_out(output):
    return re.search(r"held-out loss .*\((.*)\)$", output, re.MULTILINE).group(1)


def step_directory(directory, step):
    return os.path.join(directory, f"step-{step:08d}")


def copy_until(source, target, step):
    """A directory that holds the checkpoints of source up to a step."""
    shutil.copytree(source, target)
    for name in os.listdir(target):
        if int(name.removeprefix("step-")) > step:
            shutil.rmtree(os.path.join(target, name))
    return target


def same_losses(directory, reference, first):
    expected = {step: loss for step, loss in reference.items() if step >= first}
    assert losses(directory) == expected, f"{directory}: {losses(directory)} instead of {expected}"


def digests_of(directory, step, pattern):
    """The digests of the chunks of an item, in rank order."""
    return re.findall(r"xxh3 ([0-9a-f]{16})$", run(INSPECT, directory, "--step", step, "--items", pattern), re.MULTILINE)


def check_ranks(root, reference, directory, output):
    assert sorted(reference) == list(range(1, STEPS + 1)), reference
    for ranks in (1, 2, 8):
        fresh = os.path.join(root, f"fresh{ranks}")
        assert held_out(train(fresh, ranks)) == held_out(output)
        same_losses(fresh, reference, 1)
    for ranks in (1, 2, 4, 8):
        resumed = copy_until(directory, os.path.join(root, f"resumed{ranks}"), 4)
        told = train(resumed, ranks)
        expect(told, "^resumed from the checkpoint of step 4$")
        assert held_out(told) == held_out(output)
        same_losses(resumed, reference, 5)
        expect(run(INSPECT, resumed), rf"^step {STEPS}  .* UTC  {ranks} ranks?  ")
        rng = digests_of(resumed, STEPS, "rng")
        assert len(set(rng)) == ranks, rng
        shared = min(ranks, 4)
        assert rng[:shared] == digests_of(directory, STEPS, "rng")[:shared], "the generators did not come back"
        assert digests_of(resumed, STEPS, "data_loader") == digests_of(directory, STEPS, "data_loader")
        expect(run(EVALUATE, resumed), re.escape(f"({held_out(output)})"))


def check_modes(root, reference):
    for mode in ("sync", "thread", "process", "overlapped-thread", "overlapped-process", "direct"):
        directory = os.path.join(root, mode)
        told = train(directory, 2, "--mode", mode)
        for step in range(EVERY, STEPS + 1, EVERY):
            expect(told, rf"^save +{step}  stalled training for [0-9.]+ ms ")
        starts = re.findall(r"^cairn: step \d+ committed: .*; a worker was ready in [0-9.]+ ms$", told, re.MULTILINE)
        assert len(starts) == ("process" in mode), told
        same_losses(directory, reference, 1)
        assert len(re.findall("every digest is right", run(INSPECT, directory, "--verify"))) == STEPS // EVERY


def check_kill(root, reference, mode):
    """4 ranks, killed; 2 ranks, killed; 1 rank to the end."""
    directory = os.path.join(root, "killed." + mode)
    for ranks, kill, first in ((4, 4, 1), (2, 6, 3)):
        train(directory, ranks, "--mode", mode, "--kill-after-release", kill, status=KILLED)
        left = os.listdir(step_directory(directory, kill))
        assert "manifest.cairn" not in left and len(left) == ranks, left
        assert all(name.endswith(".part") for name in left), left
        # Training has gone on for one step after the save.
        same_losses(directory, {step: loss for step, loss in reference.items() if step <= kill + 1}, first)
        expect(run(INSPECT, directory), rf"^step {kill}  was interrupted: {ranks} unfinished files, no manifest$")
        expect(run(INSPECT, directory, "--watch", "--for", 1), rf"^step {kill}  was interrupted")
    expect(train(directory, 1, "--mode", mode), "^resumed from the checkpoint of step 4$")
    same_losses(directory, reference, 5)
    assert not glob.glob(directory + "/*/*.part")
    run(INSPECT, directory, "--verify")


def check_kill_processes(root, reference):
    """The processes that write outlive the ranks: what was released is committed, what was not is given up, all by itself."""
    directory = os.path.join(root, "killed.processes")
    mode = ("--mode", "overlapped-process")
    train(directory, 4, *mode, "--announce", "--kill-before-release", 4, status=KILLED)
    assert len(glob.glob(directory + "/lease-run.*")) == 1, os.listdir(directory)  # by which a follower knows that it has died
    same_losses(directory, {step: loss for step, loss in reference.items() if step <= 4}, 1)
    expect(train(directory, 2, *mode, "--kill-after-release", 6, status=KILLED), "^resumed from the checkpoint of step 2$")
    # Training has gone on for one step after the save. The next run waits for the processes, where they are not done.
    same_losses(directory, {step: loss for step, loss in reference.items() if step <= 7}, 3)
    expect(train(directory, 1, *mode, "--announce"), "^resumed from the checkpoint of step 6$")
    assert not glob.glob(directory + "/lease-run.*"), os.listdir(directory)
    same_losses(directory, reference, 7)
    assert not glob.glob(directory + "/*/*.part")
    run(INSPECT, directory, "--verify")


def check_lost_host(root, reference):
    """Every step is held in the memory of two hosts; one is killed in a save, and lost; 2 ranks go on one step before."""
    directory = os.path.join(root, "lost.host")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        hosts = ("--tier", memory, "--hosts", 2, "--partner-copies", 1, "--persist", 3)
        told = train(directory, 4, *hosts, "--kill-before-release", 5, "--kill-host", 1, every=1, status=None)
        if "this build has no links" in told:
            print("no host was lost: this build has no links")
            return
        expect(told, r"^train_gpt: rank [23] \(process [0-9]+\) was ended by signal 9: Killed$")
        expect(told, r"^train_gpt: rank [01]: \[cairn.peer.lost\]")
        assert "cairn.usage." not in told, told  # the survivors did nothing wrong
        same_losses(directory, {step: loss for step, loss in reference.items() if step <= 5}, 1)
        shutil.rmtree(os.path.join(memory, "host-1"))
        told = train(directory, 2, *hosts, every=1)
        expect(told, "of ranks 2, 3, which were lost, were rebuilt from what the others kept$")
        expect(told, "^resumed from the checkpoint of step 4$")
        same_losses(directory, reference, 5)
        assert os.listdir(memory) == [], os.listdir(memory)
    expect(run(INSPECT, directory, "--verify"), rf"^step {STEPS}  verified: .*every digest is right$")


def processes_of(launcher, count):
    """The processes of its ranks, by rank, once there are so many."""
    with open(f"/proc/{launcher}/task/{launcher}/children", encoding="utf-8") as file:
        children = file.read().split()
    commands = {}
    for child in children:
        with open(f"/proc/{child}/cmdline", encoding="utf-8") as file:
            commands[int(file.read().split("\0--rank\0")[1].split("\0")[0])] = int(child)
    assert sorted(commands) == list(range(count)), commands
    return commands


def wait_until_gone(processes, seconds=240):
    """Until none of them runs; who has nobody to wait for it may stay as a zombie."""
    deadline = time.monotonic() + seconds
    for process in processes:
        while True:
            try:
                with open(f"/proc/{process}/stat", encoding="utf-8") as file:
                    state = file.read().rpartition(")")[2].split()[0]
            except (FileNotFoundError, ProcessLookupError):
                break
            if state in "ZX":
                break
            assert time.monotonic() < deadline, f"process {process} still runs (state {state})"
            time.sleep(0.01)


class endless_run:
    """4 ranks that train until somebody ends them. They have begun when it is entered; its end leaves no process."""

    def __init__(self, directory, *more):
        self.command = [TRAIN, *SHAPE, "--steps", "1000000000", "--every", "100000", "--ranks", "4", "--checkpoints", directory,
                        *map(str, more)]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while not self.process.stdout.readline().startswith("step "):
            assert self.process.poll() is None, self.process.communicate()
        self.ranks = processes_of(self.process.pid, 4)
        return self

    def tell_ranks(self, number):
        for process in self.ranks.values():
            try:
                os.kill(process, number)
            except ProcessLookupError:
                pass

    def end(self, status):
        """What it says on stderr; it must end with this status."""
        _, told = self.process.communicate(timeout=300)  # reads both: a rank that prints meanwhile must not die of that
        assert self.process.returncode == status, (self.process.returncode, told)
        wait_until_gone(self.ranks.values())
        return told

    def __exit__(self, *_):
        self.process.kill()
        self.tell_ranks(signal.SIGKILL)


def check_processes(root):
    """A rank is killed or stands still, the launcher is killed: all end, and leave nothing behind. Those that are asked to stop save before."""
    directory = os.path.join(root, "processes")
    with endless_run(directory) as run_:
        for process in run_.ranks.values():
            with open(f"/proc/{process}/maps", encoding="utf-8") as file:
                maps = file.read()
            assert "memfd:" in maps and "/dev/shm/" not in maps, "the memory that ranks share has a name that they can leave behind"
        os.kill(run_.ranks[2], signal.SIGKILL)
        told = run_.end(KILLED)
        # One that waited for a rank which ended because of it names that one.
        for rank in (0, 1, 3):
            expect(told, rf"^train_gpt: rank {rank}: \[cairn\.peer\.lost\] .*\(rank [0-3][,)]")
        expect(told, r"^train_gpt: rank [013]: \[cairn\.peer\.lost\] .*\(rank 2[,)]")
        expect(told, rf"^train_gpt: rank 2 \(process {run_.ranks[2]}\) was ended by signal 9: Killed$")
    with endless_run(directory, "--timeout", 5) as run_:
        os.kill(run_.ranks[1], signal.SIGSTOP)
        told = run_.end(1)
        expect(told, r"^train_gpt: rank [023]: \[cairn\.timeout\.peer\] .*\(rank 1[,)]")
    with endless_run(directory) as run_:
        # As Slurm does it: the ranks first, later everyone, and again.
        for each in (signal.SIGCONT, signal.SIGTERM):
            run_.tell_ranks(each)
        for each in (signal.SIGTERM, signal.SIGCONT, signal.SIGTERM):
            run_.tell_ranks(each)
            run_.process.send_signal(each)
        step = int(re.search(r"^cairn: step (\d+) committed", run_.end(STOPPED), re.MULTILINE).group(1))
    again = run(TRAIN, *SHAPE, "--steps", step + 1, "--ranks", 2, "--checkpoints", directory)
    expect(again, rf"^resumed from the checkpoint of step {step}$")
    with endless_run(directory) as run_:
        run_.process.kill()
        assert "train_gpt: " not in run_.end(-signal.SIGKILL)


def check_mpi(root, reference):
    """The ranks of mpirun: the same losses; what 4 of them saved, 2 processes resume."""
    if not shutil.which("mpirun"):
        print("not tried with MPI: there is no mpirun")
        return
    directory = os.path.join(root, "mpi")
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                   # What Open MPI keeps until its end is no leak of ours.
                   "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"}

    def mpirun(steps, *more):
        command = ["mpirun", "--oversubscribe", "-n", "4", TRAIN, *SHAPE, "--steps", steps, "--every", EVERY, "--keep", 0,
                   "--checkpoints", directory, "--losses", losses_of(directory), *more]
        return subprocess.run([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                              text=True, timeout=600, check=False, env=environment)

    done = mpirun(4)
    if "this build has no MPI" in done.stdout:
        print("not tried with MPI: this build has none")
        return
    assert done.returncode == 0, done.stdout
    expect(done.stdout, ", 4 ranks, ")
    same_losses(directory, {step: loss for step, loss in reference.items() if step <= 4}, 1)
    expect(train(directory, 2), "^resumed from the checkpoint of step 4$")
    same_losses(directory, reference, 5)
    done = mpirun(STEPS, "--ranks", 2)
    assert done.returncode != 0, done.stdout
    expect(done.stdout, "mpirun started 4 ranks and --ranks says 2; leave --ranks away")


def check_damage(root, directory, reference):
    damaged = copy_until(directory, os.path.join(root, "damaged"), STEPS)
    victim = sorted(glob.glob(step_directory(damaged, STEPS) + "/rank-00002.*.safetensors"))[0]
    with open(victim, "r+b") as file:
        file.seek(5000)
        byte = file.read(1)
        file.seek(5000)
        file.write(bytes([byte[0] ^ 1]))
    name = f"step-{STEPS:08d}/{os.path.basename(victim)}"
    told = run(INSPECT, damaged, "--verify", status=4)
    expect(told, rf"^inspect: step {STEPS} is damaged: \[cairn\.corrupt\.digest\] .*file {re.escape(name)}, offset [0-9]+")
    assert len(re.findall("every digest is right", told)) == STEPS // EVERY - 1
    told = train(damaged, 4)
    expect(told, rf"^cairn: step {STEPS} is passed over: \[cairn\.corrupt\.digest\]")
    expect(told, f"^resumed from the checkpoint of step {STEPS - EVERY}$")
    same_losses(damaged, reference, STEPS - EVERY + 1)
    run(INSPECT, damaged, "--verify")


def check_refusals(root, directory):
    other = ["--layers", "2", *SHAPE[2:]]
    expect(train(directory, 2, shape=other, status=1), "are of another model; give the options that it was trained with")
    expect(train(directory, 2, "--seed", 2, status=1), "was made with another text, seed")
    text = os.path.join(root, "other.txt")
    with open(text, "w", encoding="utf-8") as file:
        file.write("other words " * 200)
    expect(train(directory, 2, "--text", text, status=1), "was made with another text, seed")
    for wrong, sentence in ((["--ranks", 3], "must be a multiple of --ranks 3"),
                            (["--ranks", 0], "must be a number from 1 to 1024, not 0"),
                            (["--timeout", 0], "must be a number from 1 to 1000000, not 0"),
                            (["--mode", "fast"], "must be sync, thread, process, overlapped-thread, overlapped-process or direct, not fast"),
                            (["--width", 30, "--heads", 4], "must be a multiple of --heads 4"),
                            (["--text", root + "/nothing"], "Path does not exist"),
                            (["--steps", "many"], "must be a number from 1"),
                            (["--kill-after-release", 3], "must be a multiple of --every"),
                            (["--mode", "direct", "--kill-after-release", 20], "needs a --mode that copies"),
                            (["--mode", "process", "--kill-before-release", 20], "needs an overlapped --mode"),
                            (["--mode", "thread", "--tier", "/dev/shm/none"], "needs an overlapped --mode"),
                            (["--partner-copies", 1], "is needed by --partner-copies and --hosts"),
                            (["--kill-host", 0], "needs --kill-before-release, --partner-copies and --hosts, which is greater"),
                            (["--sideways"], "--sideways")):
        expect(run(TRAIN, *wrong, status=2), re.escape(sentence))
    for program in (TRAIN, EVALUATE, INSPECT):
        expect(run(program, "--help"), "Usage: ")
    expect(run(EVALUATE, root, status=1), "there is no checkpoint in")
    expect(run(EVALUATE, directory, "--step", 999, status=1), "no committed checkpoint of step 999")
    run(EVALUATE, status=2)


def check_inspect(root, directory):
    told = run(INSPECT, directory)
    expect(told, rf"^{STEPS // EVERY} checkpoints in ")
    expect(told, rf"^step {STEPS}  [0-9-]+ [0-9:]+ UTC  4 ranks  [0-9.]+ kB in 4 files  [0-9]+ items$")
    told = run(INSPECT, directory, "--step", STEPS)
    expect(told, r"^adam\.m +tensor +F32 +\[[0-9]+\] .*4 chunks, ranks 0-3$")
    expect(told, r"^    offsets \[0\] sizes \[[0-9]+\]  [0-9]+ bytes at [0-9]+ of rank 0's file 0  xxh3 [0-9a-f]{16}$")
    expect(told, r"^config\.layers +value +U64 +8 bytes")
    expect(told, r"^rng +per-rank bytes .* 4 chunks, ranks 0-3$")
    files = {f"step-{STEPS:08d}/{os.path.basename(path)}": os.path.getsize(path)
             for path in glob.glob(step_directory(directory, STEPS) + "/*.safetensors")}
    listed = dict(re.findall(r"^(step-\S+)  ([0-9]+) bytes$", told, re.MULTILINE))
    assert {name: int(size) for name, size in listed.items()} == files, listed
    told = run(INSPECT, directory, "--items", "adam.?", "--verify")
    assert re.findall(r"^(\S+) +tensor", told, re.MULTILINE) == ["adam.m", "adam.v"], told
    expect(told, f"^step {STEPS}  verified: ")
    expect(run(INSPECT, directory, "--items", "nothing", status=3), "no item matches this pattern")
    expect(run(INSPECT, directory, "--step", 3, status=3), "no committed checkpoint of step 3")
    expect(run(INSPECT, root, "--verify", status=3), "there is no checkpoint in")
    expect(run(INSPECT, root + "/nothing", status=3), "does not exist")
    run(INSPECT, directory, "--watch", "--verify", status=2)


def check_watch(root):
    """inspect --watch, started before the run, tells of each checkpoint, and ends well with SIGINT."""
    directory = os.path.join(root, "watched")
    os.mkdir(directory)
    with subprocess.Popen([INSPECT, directory, "--watch"], stdout=subprocess.PIPE, text=True) as watcher:
        try:
            assert watcher.stdout.readline().startswith("watching ")
            train(directory, 2)
            seen = []
            while len(seen) < STEPS // EVERY:
                line = watcher.stdout.readline()
                if re.match(r"step [0-9]+  \S+ \S+ UTC ", line):
                    seen.append(int(line.split()[1]))
                assert line, seen
            assert seen == list(range(EVERY, STEPS + 1, EVERY)), seen
            watcher.send_signal(signal.SIGINT)
            assert watcher.wait(240) == 0
        finally:
            watcher.kill()


def check_follow(root):
    """evaluate --follow, started before the run, measures each checkpoint that it sees and the last one, and ends well."""
    directory = os.path.join(root, "followed")
    os.mkdir(directory)
    with subprocess.Popen([EVALUATE, directory, "--follow", "--gone-after", "100000"], stdout=subprocess.PIPE, text=True) as follower:
        try:
            output = train(directory, 2)
            seen = []
            while not seen or seen[-1] != STEPS:
                line = follower.stdout.readline()
                assert line.startswith("step "), line
                seen.append(int(line.split()[1]))
            assert sorted(set(seen)) == seen, seen
            assert held_out(line) == held_out(output)
            follower.send_signal(signal.SIGTERM)
            assert follower.wait(240) == 0
        finally:
            follower.kill()
    told = run(EVALUATE, directory, "--follow", "--gone-after", 0)
    expect(told, re.escape(f"({held_out(output)})"))
    expect(told, "^the trainer has gone$")


def check_keep(root):
    directory = os.path.join(root, "kept")
    told = train(directory, 2, "--failures-every", 24, keep=2)
    expect(told, "^cairn: step 8 committed: .*; save about every [0-9]+ s$")
    assert sorted(os.listdir(directory)) == ["step-00000006", "step-00000008"], os.listdir(directory)


def check_stock_safetensors(root, trained):
    """What first_save and train_gpt write opens with the stock package; the values are those that were trained."""
    directory = os.path.join(root, "first_save")
    for last in (3, 6):
        expect(run(FIRST_SAVE, directory), f"^step {last} is committed")
    weights = numpy.full((512, 64), 0.5, numpy.float32)
    for step in range(1, 7):
        weights -= numpy.float32(0.01) * weights
        expected = {"weights": {"dtype": "F32", "shape": [512, 64], "sha256": hashlib.sha256(weights.tobytes()).hexdigest()},
                    "learning_rate": {"dtype": "F64", "shape": [], "hex": numpy.float64(0.01).tobytes().hex()}}
        with open(os.path.join(step_directory(directory, step), "expected.json"), "w", encoding="utf-8") as file:
            json.dump(expected, file)
    checker = os.path.join(HERE, "python", "check_safetensors.py")
    told = run(sys.executable, checker, directory)
    assert len(re.findall(": 1 files, 2 tensors$", told, re.MULTILINE)) == 6, told
    expect(run(sys.executable, checker, trained), "^adam.m F32 .* in 4 parts$")


def main():
    with tempfile.TemporaryDirectory() as root:
        directory = os.path.join(root, "reference")
        output = train(directory, 4)
        reference = losses(directory)
        check_ranks(root, reference, directory, output)
        check_modes(root, reference)
        for mode in ("thread", "overlapped-thread"):
            check_kill(root, reference, mode)
        check_kill_processes(root, reference)
        check_lost_host(root, reference)
        check_processes(root)
        check_mpi(root, reference)
        check_damage(root, directory, reference)
        check_refusals(root, directory)
        check_inspect(root, directory)
        check_watch(root)
        check_follow(root)
        check_keep(root)
        check_stock_safetensors(root, directory)


if __name__ == "__main__":
    main()

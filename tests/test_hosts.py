#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# optimised
# needs: train_gpt helper_s3_server verify
# cost: 12
"""train_gpt on three hosts with two ranks each (tests/cluster): one of them loses power in mid-save, the others name it, two
hosts go on, and then three again, with the losses of one host, bit by bit. Needs root and what `tests/cluster/box install`
installs. test_hosts_slow.py tries all ways to start ranks, with all stores.

usage: test_hosts.py TRAIN_GPT HELPER_S3_SERVER VERIFY [CASE...]
"""

import fnmatch
import os
import re
import shutil
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "cluster"))
from jobs import BOX, Job, box, signal_on  # noqa: E402  pylint: disable=wrong-import-position
from python.mpi import starter  # noqa: E402  pylint: disable=wrong-import-position

LIMIT = 240  # seconds; nothing here waits so long unless it is wrong
STOPPED = 75  # the status of a rank that saved because it was asked to stop
SHAPE = "--layers 1 --width 32 --heads 2 --context 16 --micro-batches 12".split()
# By what the ranks come together, where the store is, and whether hosts hold saves for each other.
SHORT = [("sockets", "s3", True)]


def losses_in(path):
    with open(path, encoding="utf-8") as file:
        return dict(line.split() for line in file if line.endswith("\n"))


class Case:
    """Starts of one run, of which all losses are kept. Sockets tell soon which host is lost; with MPI only the end of a wait does."""

    def __init__(self, name, by, kind, tier, server):
        self.by, self.has_tier, self.environment = by, tier, {}
        box_directory = os.environ["CAIRN_BOX"]
        # What hosts share, or what instances do: its name on the head, and on them.
        self.here, self.shared, self.hosts = box_directory + "/shared", box_directory + "/shared", ["h1", "h2", "h3"]
        if kind == "nfs":
            self.here, self.shared, self.hosts = box_directory + "/share", "/mnt/share", ["i2", "i3", "i4"]
            self.store = f"/mnt/nfs/{name}"
        elif kind == "directory":
            self.store = f"{self.shared}/{name}"
        else:
            address = box("s3", "h4", server, "--all-addresses", "--access-key=A", "--secret-key=S", "--bucket=bucket").split()[-1]
            self.store = f"s3://bucket/{name}?endpoint=http://{address}"
            self.environment = {"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "S", "AWS_EC2_METADATA_DISABLED": "true"}
        self.kind, self.name = kind, name
        self.how = ["--tier", "/dev/shm/tier", "--persist", "4", "--partner-copies", "1"] if tier else ["--mode", "overlapped-thread"]
        self.waits = ["--timeout", "60", "--lost-after", "3"] if by == "sockets" else ["--timeout", "8"]
        self.seen = {}

    def start(self, hosts):
        return Job(self.shared + "/train_gpt", hosts, [*SHAPE, "--store", self.store, "--steps", "1000000", "--every", "1", *self.waits,
                                                       "--losses", f"{self.shared}/{self.name}.losses", *self.how], self.by, self.environment)

    def boot(self, host):
        box("boot", host)
        if self.kind == "nfs":
            box("nfs-mount", host, "i1", "actimeo=60,hard")

    def keep_losses(self):
        """Of the start that has ended. A step that was trained again had the same loss."""
        for step, loss in losses_in(f"{self.here}/{self.name}.losses").items():
            assert self.seen.setdefault(step, loss) == loss, f"step {step} was trained twice, with different losses"


def lose_a_host(case):
    """The second host loses power in mid-save. @returns the step that nothing may fall behind"""
    lost = case.hosts[1]
    job = case.start(case.hosts)
    safe = 0
    if case.has_tier:
        safe = int(job.wait_for(r"step (\d+) is redundant").group(1))
        job.wait_for(r"step \d+ committed")
        # Its workers stand still: what the others save meanwhile cannot become a checkpoint of the store.
        assert signal_on(lost, "STOP", "^cairn-worker ") == 2
        job.wait_for(rf"^save +{job.committed() + 8} ")
    else:
        job.wait_for(r"step 3 committed")
    box("power-off", lost)
    begin = time.monotonic()
    # With MPI one alone may come to say it: it ends the others.
    for rank in (0, 1, 4, 5) if case.by == "sockets" else ["[0145]"]:
        named = job.wait_for(rf"^train_gpt: rank {rank}: \[cairn\.(peer\.lost|timeout\.peer)\] .*rank [23] on {lost}\b")
    print(f"  {time.monotonic() - begin:.1f} s after the loss: {named.string}", flush=True)
    safe = max(safe, job.committed())
    job.kill(without=[lost])
    case.keep_losses()
    return safe


def lost_and_back(case):
    safe = lose_a_host(case)
    job = case.start([case.hosts[0], case.hosts[2]])
    begun = int(job.wait_for(r"^resumed from the checkpoint of step (\d+)").group(1))
    assert begun >= safe, f"step {safe} was safe, and the run went on at {begun}"
    assert ("which were lost, were rebuilt" in job.text()) <= case.has_tier
    job.wait_for(rf"^save +{begun + 4} ")
    job.wait_for(r"step \d+ committed")
    safe = job.committed()
    job.kill()
    case.keep_losses()
    case.boot(case.hosts[1])
    job = case.start(case.hosts)
    begun = int(job.wait_for(r"^resumed from the checkpoint of step (\d+)").group(1))
    assert begun >= safe, f"step {safe} was safe, and the run went on at {begun}"
    job.wait_for(rf"^save +{begun + 4} ")
    assert signal_on(case.hosts[0], "TERM", "^[^ ]*train_gpt ") == 2
    if case.by == "mpi" and starter(case.here + "/train_gpt")[1] == "MPICH":
        # MPI_Finalize of MPICH over UCX mostly waits for ever among hosts, in programs without cairn, too.
        job.wait_for(r"^asked to stop: step \d+ is saved")
        until = time.monotonic() + LIMIT
        while any(left_on(host) for host in case.hosts) and time.monotonic() < until:
            time.sleep(0.2)
        left = {host: left_on(host) for host in case.hosts}
        job.kill()
    else:
        statuses = job.wait(LIMIT)
        assert set(statuses) == {STOPPED}, job.text()
        left = {host: left_on(host) for host in case.hosts}
    case.keep_losses()
    assert not any(left.values()), f"left: {left}\n{job.text()[-3000:]}"


def left_on(host):
    """What is in the memory of a host, but for what MPICH keeps there while it runs."""
    return box("on", host, "find", "/dev/shm", "-mindepth", "1", "-not", "-name", "mpich*", "-not", "-name", "ucx_*")


def undisturbed(program, steps):
    """The losses of one rank on one host."""
    here = os.environ["CAIRN_BOX"] + "/undisturbed"
    # Without a limit of its own: it trains alone what six ranks have trained, which on a busy machine takes several times as long as they did.
    subprocess.run([program, *SHAPE, "--ranks", "1", "--steps", str(steps), "--every", "1000000", "--store", here, "--losses", here + ".losses"],
                   check=True, stdout=subprocess.DEVNULL)
    return losses_in(here + ".losses")


def inside(train, server, verify, cases):
    for directory in ("shared", "share"):  # hosts have a /tmp of their own
        for program in (train, server, verify):
            shutil.copy(program, os.path.join(os.environ["CAIRN_BOX"], directory))
    server = os.environ["CAIRN_BOX"] + "/shared/" + os.path.basename(server)
    seen = {}
    if any(kind == "nfs" for _, kind, _ in cases):
        subprocess.run([BOX, "nfs-server", "i1"], check=True, timeout=LIMIT, stderr=subprocess.DEVNULL)
        for host in ("i2", "i3", "i4"):
            box("boot", host)
            box("nfs-mount", host, "i1", "actimeo=60,hard")
    for by, kind, tier in cases:
        case = Case(name_of(by, kind, tier), by, kind, tier, server)
        begin = time.monotonic()
        lost_and_back(case)
        command = ["env", *[f"{name}={value}" for name, value in case.environment.items()], f"{case.shared}/verify", case.store]
        told = box("on", case.hosts[0], *command)
        assert "every digest is right" in told, told
        if kind != "s3":
            left = box("on", case.hosts[0], "find", case.store, "-name", "*.part", "-o", "-name", "lease-*", "-o", "-name", ".nfs*", "-o", "-type", "d", "-empty")
            assert not left, f"left behind: {left}"
        seen[case.name] = case.seen
        print(f"{case.name}: {time.monotonic() - begin:.1f} s", flush=True)
    expected = undisturbed(train, max(int(step) for each in seen.values() for step in each))
    for name, each in seen.items():
        assert each and all(expected[step] == loss for step, loss in each.items()), f"{name}: the losses differ from those of one host"


def name_of(by, kind, tier):
    return f"{by}-{kind}" + ("-tier" if tier else "")


def main(cases, limit=840):
    signal.alarm(limit)  # what waits for a line of another program ends, too
    arguments = sys.argv[1:4]
    cases = [case for case in cases if not sys.argv[4:] or any(fnmatch.fnmatch(name_of(*case), wanted) for wanted in sys.argv[4:])]
    if os.environ.get("CAIRN_BOX"):
        inside(*arguments, cases)
        return 0
    def box_runs(*options):
        told = subprocess.run([BOX, "run", *options, "true"], stderr=subprocess.PIPE, text=True, check=False)
        print(told.stderr, end="", flush=True)
        return told.returncode != 77

    if not box_runs("--hosts", "0"):
        return 77
    with open(arguments[0], "rb") as file:
        if re.search(rb"__[at]san_init", file.read()):
            print("this is tried with programs without sanitizers alone; skipped")
            return 77
    if not starter(arguments[0]) and any(case[0] == "mpi" for case in cases):
        print("not tried with MPI: nothing starts programs of the one that train_gpt was built with", flush=True)
        cases = [case for case in cases if case[0] != "mpi"]
    instances = ["--instances"] if any(kind == "nfs" for _, kind, _ in cases) else []
    if instances and not box_runs("--hosts", "0", *instances):
        print("not tried with NFS: see above", flush=True)
        instances, cases = [], [case for case in cases if case[1] != "nfs"]
    if not cases:
        return 77
    return subprocess.run([BOX, "run", "--hosts", "4", *instances, sys.executable, os.path.abspath(sys.argv[0]), *map(os.path.abspath, arguments),
                           *[name_of(*case) for case in cases]], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(SHORT))

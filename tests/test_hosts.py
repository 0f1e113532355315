#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# optimised
# needs: train_gpt helper_s3_server verify
# cost: 30
"""train_gpt on three hosts with two ranks each (tests/cluster): one of them loses power in mid-save, the others name it, two
hosts go on, and then three again, with the losses of one host, bit by bit. Needs root and what `tests/cluster/box install`
installs. test_hosts_slow.py tries all ways to start ranks, with all stores.

usage: test_hosts.py TRAIN_GPT HELPER_S3_SERVER VERIFY [CASE...]
"""

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

LIMIT = 60  # seconds; nothing here waits so long unless it is wrong
SHAPE = "--layers 1 --width 32 --heads 2 --context 16 --micro-batches 12".split()
# By what the ranks come together, where the store is, and whether hosts hold saves for each other.
SHORT = [("sockets", "directory", True), ("sockets", "s3", False)]
SIX = ["h1", "h2", "h3"]


def losses_in(path):
    with open(path, encoding="utf-8") as file:
        return dict(line.split() for line in file if line.endswith("\n"))


class Case:
    """Starts of one run, of which all losses are kept. Sockets tell soon which host is lost; with MPI only the end of a wait does."""

    def __init__(self, program, name, by, store, environment=None, tier=False):
        self.program, self.by, self.store, self.environment, self.has_tier = program, by, store, environment, tier
        self.how = ["--tier", "/dev/shm/tier", "--persist", "4", "--partner-copies", "1"] if tier else ["--mode", "overlapped-thread"]
        self.losses = os.path.join(os.environ["CAIRN_BOX"], "shared", name + ".losses")
        self.waits = ["--timeout", "60", "--lost-after", "3"] if by == "sockets" else ["--timeout", "8"]
        self.seen = {}

    def start(self, hosts, steps=1_000_000):
        return Job(self.program, hosts, [*SHAPE, "--store", self.store, "--steps", str(steps), "--every", "1", *self.waits,
                                         "--losses", self.losses, *self.how], self.by, self.environment)

    def keep_losses(self):
        """Of the start that has ended. A step that was trained again had the same loss."""
        for step, loss in losses_in(self.losses).items():
            assert self.seen.setdefault(step, loss) == loss, f"step {step} was trained twice, with different losses"


def lose_a_host(case):
    """h2 loses power in mid-save. @returns the step that nothing may fall behind"""
    job = case.start(SIX)
    safe = 0
    if case.has_tier:
        safe = int(job.wait_for(r"step (\d+) is redundant").group(1))
        job.wait_for(r"step \d+ committed")
        # Its workers stand still: what the others save meanwhile cannot become a checkpoint of the store.
        assert signal_on("h2", "STOP", "^cairn-worker ") == 2
        job.wait_for(rf"^save +{job.committed() + 8} ")
    else:
        job.wait_for(r"step 3 committed")
    box("power-off", "h2")
    begin = time.monotonic()
    # With MPI one alone may come to say it: it ends the others.
    for rank in (0, 1, 4, 5) if case.by == "sockets" else ["[0145]"]:
        named = job.wait_for(rf"^train_gpt: rank {rank}: \[cairn\.(peer\.lost|timeout\.peer)\] .*rank [23] on h2\b")
    print(f"  {time.monotonic() - begin:.1f} s after the loss: {named.string}", flush=True)
    safe = max(safe, job.committed())
    job.kill(without=["h2"])
    case.keep_losses()
    return safe


def lost_and_back(case):
    safe = lose_a_host(case)
    job = case.start(["h1", "h3"])
    begun = int(job.wait_for(r"^resumed from the checkpoint of step (\d+)").group(1))
    assert begun >= safe, f"step {safe} was safe, and the run went on at {begun}"
    assert ("which were lost, were rebuilt" in job.text()) <= case.has_tier
    job.wait_for(rf"^save +{begun + 4} ")
    job.wait_for(r"step \d+ committed")
    safe = job.committed()
    job.kill()
    case.keep_losses()
    box("boot", "h2")
    job = case.start(SIX, steps=job.last_step() + 6)
    statuses = job.wait(LIMIT)
    assert not any(statuses), job.text()
    begun = int(re.search(r"^resumed from the checkpoint of step (\d+)", job.text(), re.MULTILINE).group(1))
    assert begun >= safe, f"step {safe} was safe, and the run went on at {begun}"
    case.keep_losses()
    for host in SIX:
        assert not box("on", host, "ls", "-A", "/dev/shm"), f"something is left on {host}"


def undisturbed(program, steps):
    """The losses of one rank on one host."""
    shared = os.path.join(os.environ["CAIRN_BOX"], "shared")
    subprocess.run([program, *SHAPE, "--ranks", "1", "--steps", str(steps), "--every", "1000000", "--store", shared + "/undisturbed",
                    "--losses", shared + "/undisturbed.losses"], check=True, timeout=LIMIT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return losses_in(shared + "/undisturbed.losses")


def store_of(kind, name, server):
    """(URL, what the environment says for it, whether nothing is left in it)"""
    shared = os.environ["CAIRN_BOX"] + "/shared"
    if kind == "directory":
        return f"{shared}/{name}", {}
    box("boot", "h4")
    address = box("s3", "h4", server, "--all-addresses", "--access-key=A", "--secret-key=S", "--bucket=bucket").split()[-1]
    return f"s3://bucket/{name}?endpoint=http://{address}", {"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "S", "AWS_EC2_METADATA_DISABLED": "true"}


def inside(train, server, verify, cases):
    shared = os.environ["CAIRN_BOX"] + "/shared"
    program, server, verify = (shutil.copy(each, shared) for each in (train, server, verify))  # hosts have a /tmp of their own
    seen = {}
    for by, kind, tier in cases:
        name = f"{by}-{kind}" + ("-tier" if tier else "")
        begin = time.monotonic()
        url, environment = store_of(kind, name, server)
        case = Case(program, name, by, url, environment, tier)
        lost_and_back(case)
        told = subprocess.run([verify, url], env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT).stdout
        assert "every digest is right" in told, told
        if kind == "directory":
            left = subprocess.run(["find", url, "-name", "*.part", "-o", "-name", "lease-*", "-o", "-type", "d", "-empty"], stdout=subprocess.PIPE,
                                  text=True, check=True).stdout
            assert not left, f"left behind: {left}"
        seen[name] = case.seen
        print(f"{name}: {time.monotonic() - begin:.1f} s", flush=True)
    expected = undisturbed(program, max(int(step) for each in seen.values() for step in each))
    for name, each in seen.items():
        assert each and all(expected[step] == loss for step, loss in each.items()), f"{name}: the losses differ from those of one host"


def main(cases):
    arguments = sys.argv[1:4]
    if os.environ.get("CAIRN_BOX"):
        wanted = [case for case in cases if not sys.argv[4:] or f"{case[0]}-{case[1]}" + ("-tier" if case[2] else "") in sys.argv[4:]]
        inside(*arguments, wanted)
        return 0
    told = subprocess.run([BOX, "run", "--hosts", "0", "true"], stderr=subprocess.PIPE, text=True, check=False)
    if told.returncode == 77:
        print(told.stderr, end="")
        return 77
    return subprocess.run([BOX, "run", sys.executable, os.path.abspath(sys.argv[0]), *map(os.path.abspath, arguments), *sys.argv[4:]],
                          check=False).returncode


if __name__ == "__main__":
    signal.alarm(600)  # what waits for a line of another program ends, too
    sys.exit(main(SHORT))

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# needs: socket_ranks
# cost: 10
"""Processes that torchrun's environment brings together over sockets save, lose a rank, which all others name, and go on
from their checkpoint.

usage: test_socket_ranks.py SOCKET_RANKS
"""

import os
import re
import signal
import subprocess
import sys
import tempfile

PROGRAM = os.path.abspath(sys.argv[1])
RANKS = 4
LIMIT = 240  # seconds; nothing here waits so long unless it is wrong


class Job:
    """Ranks as torchrun starts them. MASTER_PORT is a number to them: nobody listens there."""

    def __init__(self, directory, steps, run, key="0123456789abcdef" * 4):
        def begin(rank):
            environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR="localhost", MASTER_PORT="29400",
                               TORCHELASTIC_RUN_ID=run, CAIRN_JOB_KEY=key)
            return subprocess.Popen([PROGRAM, directory, str(steps)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        self.ranks = [begin(rank) for rank in range(RANKS)]

    def read_until(self, rank, text):
        for line in self.ranks[rank].stdout:
            if text in line:
                return
        raise AssertionError(f"rank {rank} ended before it said '{text}': {self.ranks[rank].stderr.read()}")

    def end(self):
        return [(each.wait(LIMIT), said) for each, said in ((each, each.communicate(timeout=LIMIT)) for each in self.ranks)]

    def kill(self):
        for each in self.ranks:
            if each.poll() is None:
                each.kill()


def main():
    run = f"test-{os.getpid()}"
    with tempfile.TemporaryDirectory() as directory:
        jobs = []
        try:
            # Without end, until a rank is killed in the middle of it.
            jobs.append(Job(directory + "/checkpoints", 1_000_000, run))
            jobs[-1].read_until(0, ": step 3 committed")
            jobs[-1].ranks[2].send_signal(signal.SIGKILL)
            for rank, (status, (_, errors)) in enumerate(jobs[-1].end()):
                if rank == 2:
                    assert status == -signal.SIGKILL, status
                    continue
                assert status == 1, (rank, status, errors)
                # Whoever hears it last may hear first that another one has left for it.
                assert ("rank 2" if rank == 0 else "rank ") in errors, (rank, errors)

            # Again: from what was committed last, whichever step that was. A few steps more.
            jobs.append(Job(directory + "/checkpoints", 1, run + "-again"))
            begun = set()
            for rank, (status, (text, errors)) in enumerate(jobs[-1].end()):
                assert status == 0, (rank, status, errors)
                begun.add(int(re.search(rf"rank {rank} of 4: begins after step (\d+)", text).group(1)))
            assert len(begun) == 1 and begun.pop() >= 3, begun
        finally:
            for job in jobs:
                job.kill()
    print("a rank was lost, named by all others, and all went on")


signal.alarm(2 * LIMIT)  # what waits for a line of another program ends, too
main()

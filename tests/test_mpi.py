#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# needs: helper_mpi_ranks
# cost: 25
"""Runs helper_mpi_ranks as MPI jobs of 8, 4, 2 and 1 ranks, one of which a rank dies in, by the MPI that it was built with.

usage: test_mpi.py HELPER_MPI_RANKS
"""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile

from python.mpi import starter
from python.programs import expect

HELPER = os.path.abspath(sys.argv[1])
# Open MPI keeps what it allocates at its start until the end, most of it in modules that it has unloaded by then: a leak
# check can neither tell it from cairn's memory nor suppress it by name. All else of AddressSanitizer stays on.
ENVIRONMENT = {**os.environ, "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0",
               # Tests run as root in containers, where Open MPI refuses it unless it is told twice.
               "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def run(command, status=0):
    """The output of a command, which must end with this status (any, if None), with all that it has started."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT,
                               stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise AssertionError(f"{command} did not end:\n{output}") from None
    assert status is None or process.returncode == status, f"{command} ended with {process.returncode}:\n{output}"
    return output


def mpirun(ranks, *arguments, options=(), status=0):
    return run([MPIRUN, *OPTIONS, *options, "-n", str(ranks), HELPER, *arguments], status)


def check_suite(root):
    """The conformance suite and more on each world; what 8 ranks saved, 4 resume, and 2, and 1 that mpirun has not started."""
    directory = os.path.join(root, "checkpoints")
    for ranks in (8, 4, 2):
        told = mpirun(ranks, "save" if ranks == 8 else "suite", directory)
        passed = re.findall(r"test cases: *([0-9]+) \| *\1 passed \| *0 failed", told)
        assert len(passed) == ranks, told
    expect(run([HELPER, "suite", directory]), "Status: SUCCESS!")


def check_killed(root):
    """Rank 2 of 4 dies by SIGKILL. mpirun is told to leave the others alone: as users start it, it ends them all."""
    told = os.path.join(root, "told")
    os.mkdir(told)
    # What mpirun makes of such a job differs between versions (MPICH's ends all of it, whatever it is told); what the ranks were told is in their files.
    output = mpirun(4, "killed", told, options=["--enable-recovery"], status=None)
    assert sorted(os.listdir(told)) == ["0", "1", "3"], (os.listdir(told), output)
    for rank in "013":
        with open(os.path.join(told, rank), encoding="utf-8") as file:
            barrier, duplicate = file.read().split("\n")
        host = re.escape(socket.gethostname())
        expect(barrier, rf"^\[cairn\.timeout\.peer\] rank 2 did not arrive at barrier .* by the deadline \(rank 2, got rank 2 on {host}\)$")
        expect(duplicate, r"^\[cairn\.timeout\.peer\] not all ranks made an mpi_communicator by the deadline")
    # Without that option, the job ends as a whole.
    mpirun(4, "killed", told, status=128 + signal.SIGKILL)


def check_plain():
    # Open MPI has words of its own, as when it was stopped and goes on.
    sentences = [line for line in run([HELPER, "plain"]).splitlines() if line.startswith("[cairn.")]
    assert len(sentences) == 3, sentences
    expect(sentences[0], r"^\[cairn\.usage\.bad_option\] MPI is not initialised; call MPI_Init_thread")
    expect(sentences[1], r"^\[cairn\.usage\.bad_option\] MPI was initialised for programs of one thread.* instead of MPI_Init ")
    expect(sentences[2], r"^\[cairn\.usage\.bad_option\] MPI was finalised already")


if __name__ == "__main__":
    START = starter(HELPER)
    if START is None:
        sys.exit("test_mpi: nothing starts programs of this MPI (Debian and Ubuntu: apt-get install openmpi-bin; MPICH: apt-get install mpich)")
    MPIRUN, WHOSE = START
    OPTIONS = []
    if WHOSE == "Open MPI":
        # More ranks than cores; and no complaint that a container allows no reads of another process's memory.
        OPTIONS = ["--oversubscribe", "--bind-to", "none", "--mca", "btl_vader_single_copy_mechanism", "none"]
    with tempfile.TemporaryDirectory() as scratch:
        check_suite(scratch)
        if WHOSE == "Open MPI":
            check_killed(scratch)
        else:
            print(f"how ranks die is tested with Open MPI only, not with {WHOSE}")
    check_plain()

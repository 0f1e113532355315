# SPDX-License-Identifier: Apache-2.0
"""Which MPI a program was built with, and what starts its ranks: several can be installed beside each other."""

import shutil
import subprocess


def starter(program):
    """The command that starts ranks of the program, and whose it is: "Open MPI", "MPICH" or "another". None where there is none."""
    with open(program, "rb") as file:
        text = file.read()
    if b"libmpich.so" in text:  # as Debian calls it
        names = ["mpiexec.hydra"]
    else:
        names = ["mpirun.openmpi", "mpirun"] if b"libmpi" in text else []
    command = next((path for path in map(shutil.which, names) if path), None)
    if not command:
        return None
    # Open MPI calls itself OpenRTE where its launcher was not called mpirun.
    told = subprocess.run([command, "--version"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False).stdout
    return command, "Open MPI" if "Open MPI" in told or "OpenRTE" in told else "MPICH" if "HYDRA" in told else "another"

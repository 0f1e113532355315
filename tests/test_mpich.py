#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# slow
# needs: helper_s3_server verify
# timeout: 3600
"""test_mpi.py and the MPI cases of test_hosts_slow.py with MPICH, in a build of their own, mpich beside this one: tests are
otherwise built with the MPI that CMake finds first. Needs Debian's mpich and libmpich-dev, which may be installed beside Open MPI.

usage: test_mpich.py HELPER_S3_SERVER VERIFY
"""

import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SERVER, VERIFY = map(os.path.abspath, sys.argv[1:3])
BUILD = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(VERIFY))), "mpich")


def run(*command, may_skip=False):
    status = subprocess.run(command, cwd=os.path.dirname(HERE), stdin=subprocess.DEVNULL, check=False).returncode
    if status and not (may_skip and status == 77):
        sys.exit(f"test_mpich: {command[:3]} ended with {status}")


def main():
    if not shutil.which("mpicxx.mpich") or not shutil.which("mpiexec.hydra"):
        print("MPICH is not here (Debian and Ubuntu: apt-get install mpich libmpich-dev); skipped")
        return 77
    with open(VERIFY, "rb") as file:
        if re.search(rb"__[at]san_init", file.read()):
            print("this is tried from a build without sanitizers alone; skipped")
            return 77
    run("cmake", "--preset", "release", "-B", BUILD, "-DMPI_CXX_COMPILER=mpicxx.mpich", f"-DCAIRN_PYTHON={sys.executable}")
    run("cmake", "--build", BUILD, "--parallel", str(os.cpu_count()), "--target", "helper_mpi_ranks", "train_gpt")
    run(sys.executable, os.path.join(HERE, "test_mpi.py"), os.path.join(BUILD, "tests", "helper_mpi_ranks"))
    run(sys.executable, os.path.join(HERE, "test_hosts_slow.py"), os.path.join(BUILD, "examples", "train_gpt"), SERVER, VERIFY, "mpi-*", may_skip=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

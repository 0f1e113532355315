#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times one load of a safetensors file by Python's safetensors: each tensor copied into an array of numpy that is there.
bench_load --peers calls it in turns with its own loads.

usage: load_peer.py [--cold] [--new-memory] FILE

Prints the seconds. --cold: FILE is taken out of the page cache before, else it is read into it. --new-memory: the arrays'
memory is not touched before.
"""

import argparse
import os
import time

import numpy
from safetensors import safe_open


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--new-memory", action="store_true")
    parser.add_argument("file")
    arguments = parser.parse_args()
    places = {}
    with safe_open(arguments.file, framework="numpy") as file:
        for name in file.keys():
            part = file.get_slice(name)
            places[name] = numpy.empty(part.get_shape(), dtype={"F32": numpy.float32}[part.get_dtype()])
            if not arguments.new_memory:
                places[name].fill(1)
    with open(arguments.file, "rb") as file:
        if arguments.cold:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        else:
            while file.read(1 << 20):
                pass
    begin = time.monotonic()
    with safe_open(arguments.file, framework="numpy") as file:
        for name in file.keys():
            places[name][...] = file.get_tensor(name)
    print(f"{time.monotonic() - begin:.6f}")


main()

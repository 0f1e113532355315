#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times one load of a safetensors file by another program: each tensor copied into memory that is there. bench_load --peers
calls it in turns with its own loads.

usage: load_peer.py [--by safetensors|hf|dcp] [--scratch DIRECTORY] [--cold] [--new-memory] FILE

Prints the seconds. --by: Python's safetensors; PyTorch's reader of safetensors files (HuggingFaceStorageReader); or its reader
of its own checkpoints (torch.distributed.checkpoint), for which it saves the tensors of FILE once in the scratch directory.
--cold: the files are taken out of the page cache before, else they are read into it. --new-memory: the memory is not touched
before. Status 77 and a sentence on stderr where Python lacks what it takes.
"""

import argparse
import os
import pathlib
import sys
import time
import warnings

try:
    import numpy
    from safetensors import safe_open
except ImportError as why:
    sys.exit(f"load_peer.py: Python lacks what it takes: {why}")


def seconds_of(load):
    begin = time.monotonic()
    load()
    return time.monotonic() - begin


def prepare_cache(files, cold):
    for path in files:
        with open(path, "rb") as file:
            if cold:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                while file.read(1 << 20):
                    pass


def by_safetensors(path, arguments):
    places = {}
    with safe_open(path, framework="numpy") as file:
        for name in file.keys():
            part = file.get_slice(name)
            places[name] = numpy.empty(part.get_shape(), dtype={"F32": numpy.float32}[part.get_dtype()])
            if not arguments.new_memory:
                places[name].fill(1)

    def load():
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():
                places[name][...] = file.get_tensor(name)

    prepare_cache([path], arguments.cold)
    return seconds_of(load)


def by_torch(path, arguments):
    try:
        import torch
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint import HuggingFaceStorageReader
    except ImportError as why:
        print(f"load_peer.py: left out: {why}", file=sys.stderr)
        sys.exit(77)
    warnings.simplefilter("ignore")  # that it is a single process
    with safe_open(path, framework="numpy") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}
        place = pathlib.Path(arguments.scratch) / f"peer-{arguments.by}"
        if not place.exists():
            place.mkdir()
            if arguments.by == "hf":  # it takes every safetensors file of a directory
                (place / "model.safetensors").symlink_to(path.resolve())
            else:
                dcp.save({name: torch.from_numpy(file.get_tensor(name)) for name in shapes}, checkpoint_id=place)
    for _ in range(2):  # the first one imports what a load needs
        places = {name: torch.empty(shape, dtype=torch.float32) for name, shape in shapes.items()}
        if not arguments.new_memory:
            for tensor in places.values():
                tensor.fill_(1)
        prepare_cache([each for each in place.rglob("*") if each.is_file()], arguments.cold)
        reader = HuggingFaceStorageReader(str(place)) if arguments.by == "hf" else dcp.FileSystemReader(place)
        seconds = seconds_of(lambda: dcp.load(places, storage_reader=reader))
    with safe_open(path, framework="numpy") as file:
        for name in (min(shapes), max(shapes)):
            if places[name].numpy().tobytes() != file.get_tensor(name).tobytes():
                sys.exit(f"load_peer.py: {arguments.by} brought other bytes of {name}")
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--by", default="safetensors", choices=["safetensors", "hf", "dcp"])
    parser.add_argument("--scratch", default=".")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--new-memory", action="store_true")
    parser.add_argument("file", type=pathlib.Path)
    arguments = parser.parse_args()
    load = by_safetensors if arguments.by == "safetensors" else by_torch
    print(f"{load(arguments.file, arguments):.6f}")


main()

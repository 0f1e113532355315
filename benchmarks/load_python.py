#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times what Python has for loads to a GPU, from a cold cache: safetensors on a data file of a checkpoint, and torch.load on
the same tensors, which torch.save wrote. bench_load_cuda calls it and puts its figures beside its own.

usage: load_python.py [--pairs N] [--device cuda] --scratch DIRECTORY FILE.safetensors

Prints a line for each, "safetensors SECONDS...", and lines behind "#". Status 77 and a sentence where Python has no torch, no
safetensors, or no device.
"""

import argparse
import os
import pathlib
import sys
import time

try:
    import torch
    from safetensors.torch import load_file
except ImportError as why:
    print(f"# left out: Python lacks what it takes ({why})")
    sys.exit(77)


def make_cold(path):
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def seconds_of(load, path, device):
    make_cold(path)
    begin = time.monotonic()
    tensors = load(path)
    if device != "cpu":
        torch.cuda.synchronize()
    seconds = time.monotonic() - begin
    assert all(t.device.type == device for t in tensors.values())
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--scratch", type=pathlib.Path, required=True, help="for the file of torch.save, which is removed")
    parser.add_argument("file")
    arguments = parser.parse_args()
    device = arguments.device
    if device == "cuda" and not torch.cuda.is_available():
        print("# left out: PyTorch sees no GPU")
        return 77
    saved = arguments.scratch / "saved-by-torch.pt"
    try:
        tensors = load_file(arguments.file, device="cpu")
        torch.save(tensors, saved)
        del tensors
        rivals = {"safetensors": (lambda path: load_file(path, device=device), arguments.file),
                  "torch.load": (lambda path: torch.load(path, map_location=device, weights_only=True), saved)}
        seconds = {name: [] for name in rivals}
        for turn in range(-1, arguments.pairs):  # the first is not counted: the allocator keeps its memory for the others
            for name, (load, path) in rivals.items():
                took = seconds_of(load, path, device)
                if turn >= 0:
                    seconds[name].append(took)
    finally:
        saved.unlink(missing_ok=True)
    print(f"# torch {torch.__version__}")
    for name, all_of_it in seconds.items():
        print(name, *(f"{s:.6f}" for s in all_of_it))
    return 0


sys.exit(main())

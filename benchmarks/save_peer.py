#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times saves of float tensors by PyTorch's distributed checkpoint (DCP). bench_storage --peers calls it in turns with its own.

usage: save_peer.py --bytes N --tensors N --scratch DIRECTORY

Prints the seconds until a synchronous save was durable, and those for which training waited in an asynchronous one (the second
of two: the first makes its buffers). Status 77 and a sentence on stderr where Python lacks what it takes.
"""

import argparse
import pathlib
import shutil
import sys
import time
import warnings

try:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
except ImportError as why:
    print(f"save_peer.py: left out: {why}", file=sys.stderr)
    sys.exit(77)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--tensors", type=int, required=True)
    parser.add_argument("--scratch", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    each = max(1, arguments.bytes // arguments.tensors // 4)
    state = {f"layers.{i}.weight": torch.full((each,), float(i)) for i in range(arguments.tensors)}
    place = arguments.scratch / "peer-save"

    def timed(save):
        begin = time.monotonic()
        ended = save()
        seconds = time.monotonic() - begin
        if ended is not None:
            ended.result()
        shutil.rmtree(place)
        return seconds

    def writer():
        return dcp.FileSystemWriter(place, sync_files=True, thread_count=2)

    timed(lambda: dcp.save(state, storage_writer=writer()) and None)
    durable = timed(lambda: dcp.save(state, storage_writer=writer()) and None)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    blocked = [timed(lambda: dcp.async_save(state, storage_writer=writer())) for _ in range(2)][-1]
    dist.destroy_process_group()
    print(f"{durable:.6f} {blocked:.6f}")


main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the programs for checkpoints cost with very many items: seconds, and the most memory that each held.

bench_tools.py DIRECTORY_OF_PROGRAMS [--items 100000] [--bytes 1024] [--turns 3] [--directory .] [--json FILE]

Two checkpoints of so many tensors, of which every tenth differs, are imported from safetensors that this writes itself;
then each program looks at them in turn. Beside them, `names` is Python's json module, which reads the same names once.
"""
import argparse
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time


def write_model(path, items, size, changed):
    header, at = {}, 0
    for i in range(items):
        header[f"layers.{i // 8}.block.{i % 8}.weight"] = {"dtype": "F32", "shape": [size // 4], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    one, other = struct.pack("<f", 0.5) * (size // 4), struct.pack("<f", 0.75) * (size // 4)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for i in range(items):
            file.write(other if changed and i % 10 == 0 else one)


def run(*command, status=0):
    """Seconds, and the most memory in bytes."""
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen([str(c) for c in command], stdout=out)
        _, ended, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        if os.waitstatus_to_exitcode(ended) != status:
            raise SystemExit(f"{command[0]} ended with {os.waitstatus_to_exitcode(ended)}, not {status}")
    return seconds, used.ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", help="where inspect, diff, stat and import_safetensors are, such as build/release/examples")
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--bytes", type=int, default=1024, help="of each item, a multiple of 4")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--directory", default=".", help="where to write, with room for four times the items")
    parser.add_argument("--json", help="file for the figures: an array of {name, value, unit}")
    o = parser.parse_args()
    program = lambda name: os.path.join(o.programs, name)  # noqa: E731
    root = tempfile.mkdtemp(prefix="bench-tools-", dir=o.directory)
    try:
        model, store = root + "/model.safetensors", root + "/checkpoints"
        imported = []
        for step in (1, 2):
            write_model(model, o.items, o.bytes, changed=step == 2)
            imported.append(run(program("import_safetensors"), model, store, "--step", step))
        with open(model, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            text = file.read(length)
        rows = {
            "items (inspect --step 1 --json)": lambda: run(program("inspect"), store, "--step", 1, "--json"),
            "diff by digests": lambda: run(program("diff"), store, store, "--step-a", 1, "--step-b", 2, "--json", status=1),
            "diff --values": lambda: run(program("diff"), store, store, "--step-a", 1, "--step-b", 2, "--values", "--json", status=1),
            "stat": lambda: run(program("stat"), store, "--step", 1, "--json"),
        }
        figures = {name: [] for name in rows}
        names = []
        for _ in range(o.turns):
            for name, work in rows.items():
                figures[name].append(work())
            begin = time.perf_counter()
            json.loads(text)
            names.append(time.perf_counter() - begin)
        told = [("import_safetensors", imported)] + list(figures.items())
        out = []
        for name, measured in told:
            seconds, memory = statistics.median(s for s, _ in measured), max(m for _, m in measured)
            print(f"{name:34} {seconds:8.3f} s  {memory / 1e6:8.1f} MB")
            out += [{"name": name, "value": seconds, "unit": "s"}, {"name": name + "/memory", "value": memory, "unit": "B"}]
        print(f"{'names (json.loads of a header)':34} {statistics.median(names):8.3f} s")
        out.append({"name": "names", "value": statistics.median(names), "unit": "s"})
        if o.json:
            with open(o.json, "w", encoding="utf-8") as file:
                json.dump(out, file, indent=1)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    sys.exit(main())

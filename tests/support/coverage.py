#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints which part of the lines of include/cairn the tests ran, for each room and in total.

usage: coverage.py --tree BUILD --source ROOT [--least PERCENT] [--lines FILE]

BUILD was compiled with -fprofile-instr-generate -fcoverage-mapping; its tests ran with
LLVM_PROFILE_FILE=BUILD/coverage/%4m.profraw. `--lines` writes each line that no test ran to FILE. The status is 1 below
`--least`. Processes that were killed told nothing: what only they ran counts as not run.
"""
import argparse
import glob
import json
import os
import shutil
import subprocess
import sys


def tool(name):
    for candidate in (name + "-16", name):
        if shutil.which(candidate):
            return candidate
    sys.exit(f"coverage.py: there is no {name}; install llvm-16")


def programs(tree):
    """Those with coverage in them, of the tests and examples."""
    for folder in ("tests", "examples"):
        for path in sorted(glob.glob(os.path.join(tree, folder, "*"))):
            if os.path.isfile(path) and os.access(path, os.X_OK) and open(path, "rb").read(4) == b"\x7fELF":
                if not os.path.basename(path).startswith("cairn_fuzz"):
                    yield path


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tree", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--least", type=float, default=0)
    parser.add_argument("--lines")
    options = parser.parse_args()
    raw = sorted(glob.glob(os.path.join(options.tree, "coverage", "*.profraw")))
    if not raw:
        sys.exit("coverage.py: no test wrote a profile")
    merged = os.path.join(options.tree, "coverage", "merged.profdata")
    subprocess.run([tool("llvm-profdata"), "merge", "-sparse", "-failure-mode=all", "-o", merged, *raw], check=True)
    found = list(programs(options.tree))
    objects = [found[0]] + [word for path in found[1:] for word in ("-object", path)]
    include = os.path.realpath(os.path.join(options.source, "include", "cairn"))
    # LCOV's format gives the counts of each line, over all instances of a template.
    export = subprocess.run(
        [tool("llvm-cov"), "export", "-format=lcov", "-instr-profile", merged, *objects,
         "-ignore-filename-regex", r"/(usr|tests|examples|benchmarks)/", "-num-threads=2"],
        check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    lines = {}
    current = None
    for line in export.splitlines():
        if line.startswith("SF:"):
            # A compiler cache may give an object that was made of the same header in another clone.
            name = line[3:].rpartition("/include/cairn/")[2]
            known = "/include/cairn/" in line and os.path.exists(os.path.join(include, name))
            current = lines.setdefault(name, {}) if known else None
        elif line.startswith("DA:") and current is not None:
            number, count = line[3:].split(",")[:2]
            current[int(number)] = max(current.get(int(number), 0), int(count))
    rooms = {}
    missed = []
    for name, counts in sorted(lines.items()):
        room = name.split(os.sep)[0] + "/" if os.sep in name else name
        ran, all_lines = rooms.get(room, (0, 0))
        rooms[room] = (ran + sum(1 for c in counts.values() if c > 0), all_lines + len(counts))
        missed += [f"{name}:{number}" for number, count in sorted(counts.items()) if count == 0]
    if options.lines:
        with open(options.lines, "w", encoding="utf-8") as out:
            out.write("\n".join(missed) + "\n")
    total = (sum(r for r, _ in rooms.values()), sum(n for _, n in rooms.values()))
    if total[1] == 0:
        sys.exit("coverage.py: no line of include/cairn is in the profiles")
    print("lines of include/cairn that the tests ran:")
    for room, (ran, all_lines) in [*sorted(rooms.items()), ("all", total)]:
        print(f"  {100 * ran / all_lines:6.1f} %  {ran:5d} of {all_lines:5d}  {room}")
    percent = 100 * total[0] / total[1]
    if percent < options.least:
        print(f"coverage: {percent:.1f} % is less than the {options.least:g} % that are wanted"
              + (f"; the lines are in {options.lines}" if options.lines else ""))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

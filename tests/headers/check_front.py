#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the contract pages behind a program bring none of the standard headers that cost a compiler most.

usage: check_front.py --compiler C --program FILE --exceptions FILE -- FLAG...

The program is parsed as one that links cairn::compiled. Each page of cairn that includes such a header itself must be in the
list of exceptions, in a line `page: header...  # reason`. The list may only shrink: what it names in vain is printed.
"""

import argparse
import pathlib
import re
import subprocess
import sys

COSTLY = {"thread", "mutex", "condition_variable", "stop_token", "chrono", "sstream", "filesystem", "functional", "map",
          "unordered_map", "atomic"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--program", required=True)
    parser.add_argument("--exceptions", required=True, type=pathlib.Path)
    parser.add_argument("flags", nargs="*")
    arguments = parser.parse_args()
    run = subprocess.run([arguments.compiler, "-std=c++20", "-fsyntax-only", "-H", "-DCAIRN_COMPILED", *arguments.flags,
                          arguments.program], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if run.returncode != 0:
        sys.exit(f"check_front: {arguments.program} does not compile:\n{run.stderr[-4000:]}")
    pages = set()
    for line in run.stderr.splitlines():
        match = re.match(r"\.+ (?:.*/)?include/(cairn/\S+\.hpp)$", line)
        if match:
            pages.add(match.group(1))
    include = next(pathlib.Path(flag[2:]) for flag in arguments.flags if flag.startswith("-I"))
    found = {}
    for page in sorted(pages):
        names = set(re.findall(r"^#include <(\w+)>", (include / page).read_text(encoding="utf-8"), re.MULTILINE)) & COSTLY
        if names:
            found[page] = names
    if not pages:
        sys.exit("check_front: the program includes no page of cairn")
    allowed = {}
    for line in arguments.exceptions.read_text(encoding="utf-8").splitlines():
        match = re.match(r"(cairn/\S+): ([\w ]+?) *# *\S", line)
        if match:
            allowed[match.group(1)] = set(match.group(2).split())
    bad = 0
    for page, names in found.items():
        for name in sorted(names - allowed.get(page, set())):
            bad += 1
            print(f"{page}: brings <{name}> to every program; do without it, or say why in {arguments.exceptions.name}")
    for page, names in allowed.items():
        for name in sorted(names - found.get(page, set())):
            print(f"{arguments.exceptions.name}: {page} brings <{name}> no more: take it out of the list")
    print(f"check_front: {len(pages)} pages, {sum(map(len, found.values()))} costly headers, {bad} without a reason")
    sys.exit(bad > 0)


main()

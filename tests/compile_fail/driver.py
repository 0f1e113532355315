#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that a file does not compile, and that each compiler says what the file expects.

usage: driver.py --compiler C [--compiler C]... FILE -- FLAG...
       driver.py --compiler C [--compiler C]... --self-test

FILE has one or more lines `// expect: REGEX` (any compiler), `// expect-gcc: REGEX` or `// expect-clang: REGEX`. Each
regex must match the compiler's messages; the source lines that a compiler quotes do not count. The test passes only if
every compiler refuses the file and says every expected thing.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile


def family(compiler):
    return "clang" if "clang" in os.path.basename(compiler) else "gcc"


def expectations(text, compiler):
    found = re.findall(r"^// expect(-gcc|-clang)?: *(.*\S) *$", text, re.MULTILINE)
    return [regex for which, regex in found if which in ("", "-" + family(compiler))]


def problems(path, compiler, flags):
    """Returns what is wrong with this file and this compiler: an empty list is a pass."""
    expected = expectations(path.read_text(encoding="utf-8"), compiler)
    if not expected:
        return ["the file has no `// expect: REGEX` line"]
    no_quotes = "-fno-caret-diagnostics" if family(compiler) == "clang" else "-fno-diagnostics-show-caret"
    command = [compiler, "-std=c++20", "-fsyntax-only", no_quotes, *flags, str(path)]
    if family(compiler) == "gcc":
        command.insert(1, "-fconcepts-diagnostics-depth=8")
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          env={**os.environ, "LC_ALL": "C"}, check=False)
    if done.returncode == 0:
        return ["it compiles, but must not"]
    missing = [f"no message matches: {regex}" for regex in expected if not re.search(regex, done.stdout)]
    if missing:
        missing.append("the messages were:\n" + done.stdout[:6000])
    return missing


def self_test(compilers):
    """The driver must tell apart a case that is right and every way in which a case can be wrong."""
    refused = 'static_assert(sizeof(int) == 1, "cairn says what to do");\n'
    cases = [
        ("right", "// expect: cairn says what to do\n" + refused, None),
        ("compiles", "// expect: cairn says what to do\nint main() {}\n", "it compiles"),
        ("other message", "// expect: something else entirely\n" + refused, "no message matches"),
        ("one of two", "// expect: cairn says\n// expect: nobody says this\n" + refused, "no message matches"),
        ("nothing expected", refused, "no `// expect"),
        ("quoted source only", "// expect: only_in_the_source\nint only_in_the_source_ = nowhere;\n", "no message matches"),
    ]
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for compiler in compilers:
            for title, text, reason in cases:
                path = pathlib.Path(folder, "sample.cpp")
                path.write_text(text, encoding="utf-8")
                got = problems(path, compiler, [])
                if (reason is None and got) or (reason is not None and not any(reason in line for line in got)):
                    wrong.append(f"{os.path.basename(compiler)}, {title}: expected {reason}, got {got}")
    if wrong:
        sys.exit("compile_fail driver: its self-test failed\n" + "\n".join(wrong))
    print(f"self-test: {len(cases)} cases on {len(compilers)} compilers are told apart")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compiler", action="append", required=True)
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("file", nargs="?", type=pathlib.Path)
    parser.add_argument("flags", nargs="*")
    arguments = parser.parse_args()
    if arguments.self_test:
        self_test(arguments.compiler)
        return
    if arguments.file is None:
        parser.error("name the file to compile")
    failed = False
    for compiler in arguments.compiler:
        for problem in problems(arguments.file, compiler, arguments.flags):
            failed = True
            print(f"{arguments.file.name} ({os.path.basename(compiler)}): {problem}")
    if failed:
        sys.exit(1)
    print(f"{arguments.file.name}: refused as expected by {len(arguments.compiler)} compilers")


main()

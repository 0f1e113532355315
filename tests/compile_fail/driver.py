#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that a file does not compile, and that each compiler says what the file expects.

usage: driver.py --compiler C [--compiler C]... [--precompiled FOLDER] FILE -- FLAG...
       driver.py --compiler C [--compiler C]... --precompile FOLDER -- FLAG...
       driver.py --compiler C [--compiler C]... --self-test

FILE has one or more lines `// expect: REGEX` (any compiler), `// expect-gcc: REGEX` or `// expect-clang: REGEX`. Each
regex must match the compiler's messages; the source lines that a compiler quotes do not count. The test passes only if
every compiler refuses the file and says every expected thing. A line `// errors: N` wants N errors and no more: what follows
from a mistake hides the sentence about it.

Most of the time would go into the same large header in each file: --precompile compiles it once for each compiler, and with
--precompiled the files that include it start from there.
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


HEADER = "cairn/checkpointer.hpp"


def precompiled(folder, compiler):
    """Where g++ finds it by itself, where FOLDER/gcc comes first in the path; clang takes it by name."""
    return pathlib.Path(folder, family(compiler), HEADER + (".pch" if family(compiler) == "clang" else ".gch"))


def precompile(folder, compilers, flags):
    for compiler in compilers:
        target = precompiled(folder, compiler)
        target.parent.mkdir(parents=True, exist_ok=True)
        source = target.with_name("precompiled.hpp")
        source.write_text(f"#include <{HEADER}>\n", encoding="utf-8")
        new = target.with_name("new")  # never half a file
        subprocess.run([compiler, "-std=c++20", *flags, "-x", "c++-header", str(source), "-o", str(new)], check=True)
        new.replace(target)


def start_from(folder, compiler, text):
    """The flags with which a file starts from the precompiled header, where it includes it before anything else."""
    first = re.search(r"^#include <([^>]+)>", text, re.MULTILINE)
    if folder is None or first is None or first.group(1) != HEADER:
        return []
    if family(compiler) == "clang":
        return ["-include-pch", str(precompiled(folder, compiler))]
    return ["-Winvalid-pch", f"-I{pathlib.Path(folder, family(compiler))}"]


def problems(path, compiler, flags, folder=None):
    """Returns what is wrong with this file and this compiler: an empty list is a pass."""
    text = path.read_text(encoding="utf-8")
    expected = expectations(text, compiler)
    if not expected:
        return ["the file has no `// expect: REGEX` line"]
    if stray := re.search(r"^//.*[^/ \n].*\b(expect(-gcc|-clang)?|errors):", text, re.MULTILINE):
        return [f"`{stray.group(1)}:` does not begin its line, so that nothing looks for it"]
    no_quotes = "-fno-caret-diagnostics" if family(compiler) == "clang" else "-fno-diagnostics-show-caret"
    command = [compiler, "-std=c++20", "-fsyntax-only", no_quotes, *start_from(folder, compiler, text), *flags, str(path)]
    if family(compiler) == "gcc":
        command.insert(1, "-fconcepts-diagnostics-depth=8")
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          env={**os.environ, "LC_ALL": "C"}, check=False)
    if done.returncode == 0:
        return ["it compiles, but must not"]
    missing = [f"no message matches: {regex}" for regex in expected if not re.search(regex, done.stdout)]
    wanted = re.search(r"^// errors: *([0-9]+)", text, re.MULTILINE)
    told = len(re.findall(r" error: ", done.stdout))
    if wanted and told != int(wanted.group(1)):
        missing.append(f"there are {told} errors, not {wanted.group(1)}")
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
        ("as many errors", "// expect: cairn says\n// errors: 1\n" + refused, None),
        ("an error beside it", "// expect: cairn says\n// errors: 1\n" + refused + "int a = nowhere;\n", "there are 2 errors"),
        ("nothing expected", refused, "no `// expect"),
        ("two in one line", "// expect: cairn says expect: nobody says this\n" + refused, "does not begin its line"),
        ("a number behind", "// expect: cairn says\n// what to do errors: 7\n" + refused, "does not begin its line"),
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
    parser.add_argument("--precompile", metavar="FOLDER")
    parser.add_argument("--precompiled", metavar="FOLDER")
    parser.add_argument("file", nargs="?", type=pathlib.Path)
    parser.add_argument("flags", nargs="*")
    arguments = parser.parse_args()
    if arguments.self_test:
        self_test(arguments.compiler)
        return
    if arguments.precompile is not None:
        flags = [*filter(None, [arguments.file and str(arguments.file)]), *arguments.flags]
        precompile(arguments.precompile, arguments.compiler, flags)
        return
    if arguments.file is None:
        parser.error("name the file to compile")
    failed = False
    for compiler in arguments.compiler:
        for problem in problems(arguments.file, compiler, arguments.flags, arguments.precompiled):
            failed = True
            print(f"{arguments.file.name} ({os.path.basename(compiler)}): {problem}")
    if failed:
        sys.exit(1)
    print(f"{arguments.file.name}: refused as expected by {len(arguments.compiler)} compilers")


main()

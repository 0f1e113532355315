#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles every header of cairn alone, after hostile macros, two at a time, and prints the CPU seconds of each.

usage: check_headers.py --compiler C --include DIR [--table FILE] [--jobs N] -- FLAG...

A header with a line `// opt-in: TARGET...` among its first lines needs optional dependencies: it is compiled with the flags that
--optional gives for it, without the hostile macros (which the other library's headers need not stand), and only listed where
there are none.
With clang, a few large headers are precompiled, each alone, and a header that includes one of them starts from there, which takes
less than half of the time: it could not see more if it were compiled alone. For the same reason headers that include one another
are compiled in one run, the included ones first, unless a later one defines a class that an earlier one only declares: what an
earlier one instantiates at the end of the run would find it. Where a run fails, each of its headers is compiled alone.
A header `*.h` is for C, too: it is compiled as C99 and as C++17, and with --nvcc as CUDA C++ where nvcc is installed.
Bodies (impl/*.ipp) come with their pages. With clang, a page that reaches one is compiled alone as a contract, without any, and
with them where that may show more: where one of these bodies includes the page, so that it may be read before the page has ended.
The seconds are those of both, and a run's are those of its last header.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wsign-conversion", "-Wshadow", "-Werror"]
# What says that the bodies of core, and of what is opted into, lie in libraries.
COMPILED = ["-DCAIRN_COMPILED", "-DCAIRN_COMPILED_S3", "-DCAIRN_COMPILED_ZSTD", "-DCAIRN_COMPILED_PARITY", "-DCAIRN_COMPILED_INTERPROCESS", "-DCAIRN_COMPILED_MPI", "-DCAIRN_COMPILED_LINKS"]
UMBRELLA = "cairn/cairn.hpp"
CLASS = r"\b(?:class|struct)\s+(?:\[\[[^\]]*\]\]\s*)?(?:alignas\([^)]*\)\s*)?(\w+)(?:\s+final)?\s*"


def compile_source(command, source):
    """Returns (succeeded, CPU seconds with all child processes, output)."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output,
                                   env={**os.environ, "LC_ALL": "C"})
        try:
            process.stdin.write(source.encode())
            process.stdin.close()
        except BrokenPipeError:
            pass
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        return process.returncode == 0, usage.ru_utime + usage.ru_stime, output.read().decode(errors="replace")


def opt_in(path):
    with open(path, encoding="utf-8") as file:
        for _, line in zip(range(12), file):
            match = re.match(r"// opt-in: *(.+)$", line)
            if match:
                return match.group(1).strip()
    return None


def cairn_includes(path, bodies):
    """The headers of cairn that this one includes, whatever is defined, with its bodies or without."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if bodies and re.match(r"# *if !defined\(CAIRN_COMPILED", line):
            continue
        if re.match(r"# *if", line):
            break
        match = re.match(r"#include <(cairn/[^>]+\.[hi]pp)>", line)
        if match:
            found.append(match.group(1))
    return found


def find_closures(include, names, bodies):
    """Of each header: it and all of cairn that it includes, with their bodies or without."""
    closures = {}

    def closure(name):
        if name not in closures:
            closures[name] = {name}  # ends a cycle
            closures[name] = {name}.union(*(closure(each) for each in cairn_includes(include / name, bodies)))
        return closures[name]

    return {name: set(closure(name)) for name in names}


def find_bases(include, flags, closures):
    """For each header that has one, a large one that it includes, with its flags: few serve many, as each is compiled twice.

    A header that compiles after one that it includes anyway, and that compiles alone, compiles alone.
    """
    weights = {}
    for name in flags:  # roughly what takes time: the lines of cairn, and headers of others
        text = [(include / each).read_text(encoding="utf-8") for each in closures[name]]
        others = {each for part in text for each in re.findall(r"^#include <(?!cairn/)([^>]+)>", part, re.MULTILINE)}
        weights[name] = sum(part.count("\n") for part in text) + 200 * len(others)
    users = {name: [each for each in flags if each != name and name in closures[each] and flags[each] == flags[name]]
             for name in flags}
    bases = {}

    def gain(name):
        return sum(max(0, weights[name] - weights.get(bases.get(each), 0)) for each in users[name] if each not in bases.values())

    while True:
        best = max((name for name in flags if name not in bases.values()), key=gain)
        if gain(best) < 2 * weights[best]:
            return bases
        bases.pop(best, None)
        for each in users[best]:
            if each not in bases.values() and weights[best] > weights.get(bases.get(each), 0):
                bases[each] = best


def find_chains(include, names, flags, closures, bases):
    """The names in as few lists as possible, each for one run: headers of the same flags and base, each included by the next one."""
    text = {each: re.sub(r"//.*", "", (include / each).read_text(encoding="utf-8")) for each in set().union(*closures.values())}
    defined, declared = {}, {}
    for name in names:
        whole = "\n".join(text[each] for each in closures[name])
        defined[name] = set(re.findall(CLASS + r"(?::(?!:)|\{)", whole))
        declared[name] = set(re.findall(CLASS + ";", whole)) - defined[name]
    later = {name: [each for each in names
                    if name in closures[each] and each not in closures[name] and flags[each] == flags[name]
                    and bases.get(each) == bases.get(name) and not declared[name] & defined[each]] for name in names}
    before = {}  # a largest matching: of each header the one before it

    def follow(name, tried):
        for each in later[name]:
            if each not in tried:
                tried.add(each)
                if each not in before or follow(before[each], tried):
                    before[each] = name
                    return True
        return False

    for name in names:
        follow(name, set())
    chains = []
    for name in set(names) - set(before.values()):
        chain = [name]
        while chain[0] in before:
            chain.insert(0, before[chain[0]])
        chains.append(chain)
    return sorted(chains)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--include", required=True, type=pathlib.Path)
    parser.add_argument("--table", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--nvcc", action="store_true")
    parser.add_argument("--optional", action="append", default=[], metavar="TARGET=FLAGS",
                        help="the flags, separated by |, of headers that say `// opt-in: TARGET`")
    parser.add_argument("flags", nargs="*")
    arguments = parser.parse_args()

    hostile = pathlib.Path(__file__).with_name("hostile.hpp")
    # GNU mode, because it predefines the macros linux and unix.
    base = [arguments.compiler, "-x", "c++", "-std=gnu++20", *WARNINGS, *arguments.flags]
    optional = {}
    for each in arguments.optional:
        target, _, flags = each.partition("=")
        optional[target] = [flag for flag in flags.split("|") if flag]
    names = sorted(str(path.relative_to(arguments.include)) for path in arguments.include.glob("cairn/**/*.hpp"))
    c_names = sorted(str(path.relative_to(arguments.include)) for path in arguments.include.glob("cairn/**/*.h"))
    if not names:
        sys.exit(f"check_headers: there is no header in {arguments.include}/cairn")

    nvcc = None
    if arguments.nvcc:
        nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")

    reasons = {name: opt_in(arguments.include / name) for name in names}
    flags = {}  # of each header that can be compiled here
    for name in names:
        targets = reasons[name].split() if reasons[name] else []
        if all(target in optional for target in targets):
            flags[name] = [flag for target in targets for flag in optional[target]] if targets else ["-include", str(hostile)]
    clang = "clang" in os.path.basename(arguments.compiler)
    whole = find_closures(arguments.include, flags, bodies=True)
    ways = {False: dict(flags)}  # by whether bodies lie in a library: the flags of each header that is compiled this way
    closures = {False: whole}
    if clang:
        ways[True] = {name: flags[name] for name in flags if any(each.endswith(".ipp") for each in whole[name])}
        closures[True] = find_closures(arguments.include, ways[True], bodies=False)
        of_bodies = find_closures(arguments.include, {each for name in flags for each in whole[name] if each.endswith(".ipp")}, bodies=True)
        ways[False] = {name: flags[name] for name in flags if name == UMBRELLA or name not in ways[True]
                       or any(name in of_bodies[each] for each in whole[name] if each.endswith(".ipp"))}
    bases = {way: find_bases(arguments.include, ways[way], closures[way]) if clang else {} for way in ways}
    done = {(way, name): threading.Event() for way in ways for name in bases[way].values()}

    def precompiled(way, name):
        return folder / (("contract+" if way else "") + name.replace("/", "+") + ".pch")

    def check_precompiled(way, chain, more, twice):
        """Returns (succeeded, CPU seconds) of headers after their base, or of a base, which is precompiled for the others."""
        own, spent, good = flags[chain[0]], 0.0, True
        on = bases[way].get(chain[0], chain[0])
        if chain[0] in bases[way]:
            done[way, on].wait()
        else:
            source = precompiled(way, on).with_suffix(".hpp")
            source.write_text(twice, encoding="utf-8")
            good, spent, _ = compile_source([*base, *own, *more, "-x", "c++-header", "-fpch-instantiate-templates",
                                             "-o", str(precompiled(way, on)), str(source)], "")
        if good:
            if "-include" in own:
                own = []  # the base has had it
            # For a base: what a compiler looks at when the program's source ends.
            good, seconds, _ = compile_source([*base, "-include-pch", str(precompiled(way, on)), *own, *more,
                                               "-fsyntax-only", "-"], twice)
            spent += seconds
        return good, spent

    def check(way, chain):
        """Returns the (name, succeeded, CPU seconds, output) of each header of one run."""
        if chain[0] not in flags:
            return [(chain[0], None, reasons[chain[0]], "")]
        more = COMPILED if way else []
        good, spent = False, 0.0
        twice = {name: f"#include <{name}>\n#include <{name}>\n" for name in chain}
        if chain[0] in bases[way] or (way, chain[0]) in done:
            try:
                good, spent = check_precompiled(way, chain, more, "".join(twice.values()))
            finally:
                if (way, chain[0]) in done:
                    done[way, chain[0]].set()
        elif len(chain) > 1:
            good, spent, _ = compile_source([*base, *flags[chain[0]], *more, "-fsyntax-only", "-"], "".join(twice.values()))
        if good:
            return [(name, True, spent if name == chain[-1] else 0.0, "") for name in chain]
        # That a header is wrong is decided, and said, by compiling all of it.
        results = []
        for name in chain:
            good, seconds, output = compile_source([*base, *flags[name], *more, "-fsyntax-only", "-"], twice[name])
            results.append((name, good, seconds, output if good or not way else "without bodies:\n" + output))
        return results

    def check_c(name):
        twice, seconds = f"#include <{name}>\n#include <{name}>\nint main(void) {{ return 0; }}\n", 0.0
        for language in (["c", "-std=c99", "-Wstrict-prototypes"], ["c++", "-std=c++17"]):
            command = [arguments.compiler, "-x", *language, *WARNINGS, *arguments.flags, "-include", str(hostile)]
            good, more, output = compile_source([*command, "-fsyntax-only", "-"], twice)
            seconds += more
            if not good:
                break
        if good and nvcc:
            with tempfile.NamedTemporaryFile("w", suffix=".cu") as file:
                file.write(f"#include <{name}>\n__global__ void kernel(float* x) {{ *x = 1; }}\nint main() {{ return 0; }}\n")
                file.flush()
                command = [nvcc, "-std=c++17", "--Werror", "all-warnings", "-I", str(arguments.include)]
                good, more, output = compile_source([*command, "-c", "-o", "/dev/null", file.name], "")
                seconds += more
        return name, good, seconds, output

    lines = [f"CPU seconds of each header, after hostile macros ({os.path.basename(arguments.compiler)})"]
    if nvcc:
        lines.append(f"  *.h also by {nvcc}")
    failed = []
    tasks = [(way, [name]) for way, name in done]  # bases before those that wait for them
    tasks += [(False, [name]) for name in names if name not in flags]
    for way in ways:
        others = [name for name in ways[way] if (way, name) not in done]
        chains = find_chains(arguments.include, others, flags, closures[way], bases[way]) if clang else [[name] for name in others]
        tasks += [(way, chain) for chain in chains]
    with tempfile.TemporaryDirectory(dir=arguments.table.parent if arguments.table else None) as temporary, \
            concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        folder = pathlib.Path(temporary)
        results = {}
        checked = [each for run in pool.map(lambda task: check(*task), tasks) for each in run]
        for name, good, seconds, output in [*checked, *pool.map(check_c, c_names)]:
            before = results.get(name, (True, 0.0, ""))
            results[name] = (None, seconds, "") if good is None else (before[0] and good, before[1] + seconds, before[2] + output)
        for name, (good, seconds, output) in sorted(results.items()):
            if good is None:
                lines.append(f"  opt-in  {name} ({seconds})")
                continue
            lines.append(f"  {seconds:6.2f}  {name}{'' if good else '  FAILED'}")
            if not good:
                failed.append(name)
                lines.append("\n".join(output.splitlines()[:40]))
    lines.append(f"{len(results)} headers, {len(failed)} failed")
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    if arguments.table:
        arguments.table.write_text(text, encoding="utf-8")
    if failed:
        sys.exit(f"check_headers: these do not compile alone: {', '.join(failed)}")


main()

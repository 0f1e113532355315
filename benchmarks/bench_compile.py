#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What programs with cairn cost a compiler, beside a program with nlohmann/json in the same run.

Every program of benchmarks/compile, and examples/ten_lines.cpp, is compiled in turn, once a round; a row is the median over the rounds of processor
seconds (user and system, of the compiler and all that it starts), the ratio to the nlohmann/json program of the same round,
compiler and level, the compiler's memory, and the size of the object. No compiler cache is asked.

Mode header_only: as a program that links cairn::cairn; compiled: as one that links cairn::compiled (or cairn::contracts, and has
the bodies in another file). The row `library` is what that library, or that other file, costs once.
"""
import argparse
import json
import os
import pathlib
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = {p.stem: p for p in [*(ROOT / "benchmarks/compile").glob("*.cpp"), ROOT / "examples/ten_lines.cpp"]}
TWIN = "json_twin"
LIBRARY = "library"  # all bodies in one file
MODES = {"header_only": [], "compiled": ["-DCAIRN_COMPILED"]}
COMPONENTS = ["-DCAIRN_COMPILED_S3", "-DCAIRN_COMPILED_ZSTD", "-DCAIRN_COMPILED_PARITY", "-DCAIRN_COMPILED_INTERPROCESS", "-DCAIRN_COMPILED_MPI"]
# What a program includes besides cairn; it is left out where that is not installed.
NEEDS = {"whole_job": ["mpi", "curl/curl.h", "openssl/evp.h", "expat.h", "boost/interprocess/mapped_region.hpp"]}


def mpi_flags():
    wrapper = shutil.which("mpicxx")
    if not wrapper:
        return None
    shown = subprocess.run([wrapper, "-showme:compile"], capture_output=True, text=True)
    if shown.returncode != 0:  # MPICH's
        shown = subprocess.run([wrapper, "-compile_info"], capture_output=True, text=True)
    return [f for f in shlex.split(shown.stdout) if f.startswith("-I")] if shown.returncode == 0 else None


def extra_flags(compiler, name):
    """The flags that a program needs, or None where something is not installed."""
    flags = []
    for need in NEEDS.get(name, []):
        if need == "mpi":
            found = mpi_flags()
            if found is None:
                return None
            flags += found
        elif subprocess.run([compiler, "-fsyntax-only", "-x", "c++", "-"], input=f"#include <{need}>", text=True,
                            stderr=subprocess.DEVNULL).returncode != 0:
            return None
    return flags


def compile_once(command, out):
    """(processor seconds, bytes of memory of the largest process, bytes of the object)"""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"bench_compile: this command failed:\n  {shlex.join(command)}\n{said.decode(errors='replace')[:4000]}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, os.stat(out).st_size


def main():
    programs = sorted(set(SOURCES) - {TWIN})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compilers", default="g++,clang++-16", metavar="A,B", help="default: %(default)s")
    parser.add_argument("--levels", default="O0,O2", metavar="A,B", help="default: %(default)s")
    parser.add_argument("--mode", default=",".join(MODES), metavar="A,B", help="default: %(default)s")
    parser.add_argument("--programs", default=",".join(programs), metavar="A,B", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="default: %(default)s")
    parser.add_argument("--include", default=str(ROOT / "include"), metavar="DIR", help="cairn's headers; default: those of this tree")
    parser.add_argument("--flags", default="", help="more flags of the compiler, such as -DNDEBUG")
    parser.add_argument("--json", metavar="FILE", help="writes all figures")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds is at least 1")
    chosen = [p for p in options.programs.split(",") if p]
    for name in chosen:
        if name not in programs:
            parser.error(f"there is no program '{name}'; there are {', '.join(programs)}")
    modes = options.mode.split(",")
    for mode in modes:
        if mode not in MODES:
            parser.error(f"there is no mode '{mode}'; there are {', '.join(MODES)}")
    compilers = []
    for compiler in options.compilers.replace("=", "").split(","):
        if shutil.which(compiler):
            compilers.append(compiler)
        else:
            print(f"{compiler} is left out: it is not installed", file=sys.stderr)
    if not compilers:
        sys.exit("bench_compile: none of the compilers is installed")

    environment = {**os.environ, "CCACHE_DISABLE": "1"}
    os.environ.update(environment)
    rows = []
    print(f"{'compiler':<12}{'level':<7}{'program':<18}{'mode':<13}{'seconds':>9}{'ratio':>8}{'memory':>9}{'object':>10}")
    with tempfile.TemporaryDirectory() as work:
        out = os.path.join(work, "out.o")
        library = pathlib.Path(work) / "library.cpp"
        library.write_text("#include <cairn/implementation.hpp>\n", encoding="utf-8")
        sources = {**SOURCES, LIBRARY: library}
        for compiler in compilers:
            known = {name: extra_flags(compiler, name) for name in chosen}
            for name, flags in known.items():
                if flags is None:
                    print(f"{name} is left out: something that it includes is not installed", file=sys.stderr)
            cases = [(TWIN, "")] + [(name, mode) for name in chosen if known[name] is not None for mode in modes]
            cases += [(LIBRARY, "compiled")] if "compiled" in modes else []
            for level in options.levels.split(","):
                level = level if level.startswith("-") else "-" + level
                seen = {case: [] for case in cases}
                for _ in range(options.rounds):
                    for name, mode in cases:
                        flags = [*MODES.get(mode, []), *(COMPONENTS if mode == "compiled" and NEEDS.get(name) else [])]
                        command = [compiler, "-std=c++20", level, *shlex.split(options.flags), "-I", options.include,
                                   *flags, *(known.get(name) or []), "-c", str(sources[name]), "-o", out]
                        seen[name, mode].append(compile_once(command, out))
                for name, mode in cases:
                    seconds = [s for s, _, _ in seen[name, mode]]
                    ratios = [s / t for s, (t, _, _) in zip(seconds, seen[TWIN, ""])]
                    row = {"compiler": compiler, "level": level, "program": name, "mode": mode,
                           "seconds": statistics.median(seconds), "ratio": statistics.median(ratios),
                           "all_seconds": seconds,
                           "memory_bytes": statistics.median(m for _, m, _ in seen[name, mode]),
                           "object_bytes": seen[name, mode][-1][2]}
                    rows.append(row)
                    print(f"{compiler:<12}{level:<7}{name:<18}{mode:<13}{row['seconds']:>9.2f}{row['ratio']:>8.2f}"
                          f"{row['memory_bytes'] / 1e6:>6.0f} MB{row['object_bytes'] / 1e6:>7.2f} MB", flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"rounds": options.rounds, "flags": options.flags, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()

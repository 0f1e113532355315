#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the last column of the table "What survives what" in docs/tiers.md of the tests that try its rows.

usage: survival.py --check ROOT        whether each row has a test, each named test a row, and the page says so
       survival.py --run ROOT BUILD    runs these tests in BUILD and writes the column; a test that fails or is not there ends it
       survival.py --self-test

A row has a key at the end of its first cell, <!-- key -->; a test case names it in a comment of its own line directly above:
// survives: key, another key
"""
import os
import re
import subprocess
import sys

PAGE = "docs/tiers.md"
MARK = re.compile(r'^// survives: ([a-z, -]+)\nTEST_CASE\(\s*((?:"(?:[^"\\\n]|\\.)*"\s*)+)\)', re.MULTILINE)
ROW = re.compile(r"^(\|.* <!-- ([a-z-]+) --> \|.*\| ).*( \|)$", re.MULTILINE)


def tests_of(sources):
    """{key: [(test, case)]} of {test: text of its file}."""
    found = {}
    for test, text in sorted(sources.items()):
        marks = MARK.findall(text)
        if len(marks) != text.count("// survives: "):
            raise ValueError(f"{test}: a line '// survives: ' does not stand directly above a TEST_CASE")
        for keys, pieces in marks:
            name = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', pieces))
            for key in keys.split(", "):
                found.setdefault(key, []).append((test, name))
    return found


def table_of(page, tests):
    """The page with the column as it should be."""
    rows = [key for _, key, _ in ROW.findall(page)]
    table = re.search(r"^## What survives what\n.*?^\|---[^\n]*\n((?:\|[^\n]*\n)*)", page, re.MULTILINE | re.DOTALL)
    for line in table.group(1).splitlines() if table else ():
        if not ROW.match(line):
            raise ValueError(f"a row of {PAGE} has no key: {line}")
    for key in set(rows) ^ set(tests):
        raise ValueError(f"{key} has " + ("no test" if key in rows else f"no row in {PAGE}"))

    def row(found):
        cases = {}
        for test, name in tests[found.group(2)]:
            cases.setdefault(test, []).append(name)
        told = ". ".join(f"`{test}`: " + "; ".join(names) for test, names in cases.items())
        return found.group(1) + told + found.group(3)
    return ROW.sub(row, page)


def run(build, tests):
    with open(os.path.join(build, "tests", "test_targets.txt"), encoding="utf-8") as file:
        programs = dict(line.split() for line in file)
    for test, name in sorted({case for cases in tests.values() for case in cases}):
        command = [os.path.join(build, "tests", programs[test]), f"--source-file=*/{test}.cpp", "--test-case=" + name.replace(",", "?")]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0 or not re.search(r"test cases: *[1-9][0-9]* \| *[1-9][0-9]* passed \| *0 failed", done.stdout):
            raise ValueError(f"{test}: '{name}' has not passed:\n{done.stdout}")
        print(f"{test}: {name}: passed", flush=True)


def self_test():
    source = '// survives: power, fire\nTEST_CASE("a, " "b") {\n// survives: fire\nTEST_CASE("c") {\n'
    tests = tests_of({"test_x": source})
    assert tests == {"power": [("test_x", "a, b")], "fire": [("test_x", "a, b"), ("test_x", "c")]}, tests
    page = "| power <!-- power --> | all | old |\n| fire <!-- fire --> | none |  |\n"
    wanted = "| power <!-- power --> | all | `test_x`: a, b |\n| fire <!-- fire --> | none | `test_x`: a, b; c |\n"
    assert table_of(page, tests) == wanted, table_of(page, tests)
    for broken_page, broken in ((page, {"power": tests["power"]}), (page, {**tests, "flood": tests["fire"]})):
        try:
            table_of(broken_page, broken)
        except ValueError:
            continue
        raise AssertionError("a row without a test, or a test without a row, is not found")
    for broken in (lambda: tests_of({"test_x": "// survives: fire\n\nTEST_CASE(\"c\")"}),
                   lambda: table_of(f"## What survives what\n\n|---|\n{page}| flood | none | |\n", tests)):
        try:
            broken()
        except ValueError:
            continue
        raise AssertionError("a mark that is nowhere, or a row without a key, is not found")


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return 0
    if len(sys.argv) < 3 or (sys.argv[1], len(sys.argv)) not in (("--check", 3), ("--run", 4)):
        print(__doc__, file=sys.stderr)
        return 2
    root = sys.argv[2]
    sources = {}
    for name in os.listdir(os.path.join(root, "tests")):
        if name.startswith("test_") and name.endswith(".cpp"):
            with open(os.path.join(root, "tests", name), encoding="utf-8") as file:
                sources[name[:-4]] = file.read()
    path = os.path.join(root, PAGE)
    with open(path, encoding="utf-8") as file:
        page = file.read()
    try:
        tests = tests_of(sources)
        wanted = table_of(page, tests)
        if sys.argv[1] == "--run":
            run(sys.argv[3], tests)
            with open(path, "w", encoding="utf-8") as file:
                file.write(wanted)
        elif wanted != page:
            raise ValueError(f"{PAGE} is not what the tests say: build them, then python3 tests/docs/survival.py --run . BUILD")
    except (ValueError, KeyError) as error:
        print(f"survival.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

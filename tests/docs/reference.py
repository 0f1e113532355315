#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sees that every public name has a comment, as Doxygen reads the headers.

usage: reference.py DOXYGEN DOXYFILE XML_FOLDER
       reference.py --self-test DOXYGEN

Public is what stands in namespace cairn, or as a public type within a public class, outside of `detail`: classes, concepts, functions,
variables, aliases, enumerations. One comment serves all overloads of a name, and that of a tag `name_t` its constant `name`. Members of classes need none:
the concept of a class says what they do. The status is 77 where Doxygen is not installed.
"""
import collections
import pathlib
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

TYPES = ("class", "struct", "union", "concept")


def text(element):
    return "" if element is None else "".join(element.itertext()).strip()


def has_comment(element):
    return any(text(element.find(kind)) for kind in ("briefdescription", "detaileddescription", "inbodydescription"))


def plain(name):
    """Without the inline namespace."""
    return name.replace("::v1::", "::")


def public_names(folder):
    """{name: [(where, whether it has a comment)]}."""
    names = collections.defaultdict(list)

    def add(name, element):
        name = plain(name)
        parts = name.split("::")
        if parts[0] != "cairn" or len(parts) < 2 or "detail" in parts or "<" in name:
            return
        at = element.find("location")
        where = "" if at is None else f"{at.get('file')}:{at.get('line')}"
        names[name].append((where, has_comment(element)))

    for path in sorted(pathlib.Path(folder).glob("*.xml")):
        for compound in xml.etree.ElementTree.parse(path).getroot().iter("compounddef"):
            kind, name = compound.get("kind"), text(compound.find("compoundname"))
            if kind in TYPES and compound.get("prot") in ("public", None):
                add(name, compound)
            elif kind == "namespace" and not name.startswith("std"):
                for member in compound.iter("memberdef"):
                    if member.get("kind") != "friend":
                        add(f"{name}::{text(member.find('name'))}", member)
    return names


def undocumented(names):
    """Sentences on names without a comment."""
    problems = []
    for name, places in sorted(names.items()):
        tag = names.get(name + "_t", [])
        guide = name.rpartition("::")[2] == name.rpartition("::")[0].rpartition("::")[2]
        if not guide and not any(commented for _, commented in places + tag):
            problems.append(f"{places[0][0]}: {name} has no comment that says what it is")
    return problems


def self_test(doxygen):
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(scratch)
        (root / "a.hpp").write_text(
            "namespace cairn { inline namespace v1 {\n/// Good.\nstruct good { int member; struct inner {}; };\n"
            "struct bad {};\nvoid call(int);\n/// Calls.\nvoid call(long);\nint silent();\n"
            "namespace detail { struct hidden {}; }\n/// A tag.\nstruct tag_t {};\ninline constexpr tag_t tag{};\n"
            "class shut { struct its_own {}; };\n} }\n")
        (root / "Doxyfile").write_text(
            f"INPUT = {root}/a.hpp\nOUTPUT_DIRECTORY = {root}\nEXTRACT_ALL = YES\nQUIET = YES\nWARNINGS = NO\n"
            "GENERATE_HTML = NO\nGENERATE_LATEX = NO\nGENERATE_XML = YES\nJAVADOC_AUTOBRIEF = YES\n")
        subprocess.run([doxygen, str(root / "Doxyfile")], check=True)
        problems = undocumented(public_names(root / "xml"))
        found = [p.split(": ")[1].split(" has")[0] for p in problems]
        assert found == ["cairn::bad", "cairn::good::inner", "cairn::shut", "cairn::silent"], problems
    print("reference.py: notices what it should")


def main(arguments):
    if len(arguments) == 2 and arguments[0] == "--self-test":
        doxygen = arguments[1]
    elif len(arguments) == 3:
        doxygen = arguments[0]
    else:
        print(__doc__, file=sys.stderr)
        return 2
    if not shutil.which(doxygen):
        print("doxygen is not installed")
        return 77
    if arguments[0] == "--self-test":
        self_test(doxygen)
        return 0
    shutil.rmtree(arguments[2], ignore_errors=True)
    pathlib.Path(arguments[2]).parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([doxygen, arguments[1]], check=True)
    names = public_names(arguments[2])
    if len(names) < 300:
        print(f"only {len(names)} names were found in {arguments[2]}")
        return 1
    problems = undocumented(names)
    for problem in problems:
        print(problem)
    print(f"{len(names)} public names, {len(problems)} without a comment")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sees that every public name has a comment, as Doxygen reads the headers, and that Doxygen understands all comments.

usage: reference.py DOXYGEN DOXYFILE XML_FOLDER
       reference.py --self-test DOXYGEN

Public is what stands in namespace cairn, or as a public type within a public class, outside of `detail`: classes, concepts, functions,
variables, aliases, enumerations. One comment serves all overloads of a name, and that of a tag `name_t` its constant `name`.

So has every public function and variable of a public class, but for constructors, destructors and operators, and for what a concept asks for:
its page is the contract. The status is 77 where Doxygen is not installed.
"""
import collections
import pathlib
import re
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


def trees(folder):
    for path in sorted(pathlib.Path(folder).glob("*.xml")):
        yield from xml.etree.ElementTree.parse(path).getroot().iter("compounddef")


def asked_by_concepts(folder):
    """The names of functions and constants that concepts ask a class for."""
    names = {"cairn_role"}
    for compound in trees(folder):
        if compound.get("kind") == "concept":
            names.update(re.findall(r"(?:\.\s*|\b[A-Z]\w*::)(?:template\s+)?(\w+)", text(compound.find("initializer"))))
    return names


def silent_members(folder):
    """{class: [(where, member)]} of the public members without a comment."""
    asked = asked_by_concepts(folder)
    found = collections.defaultdict(list)
    for compound in trees(folder):
        name = plain(text(compound.find("compoundname")))
        parts = name.split("::")
        if compound.get("kind") not in TYPES or compound.get("prot") not in ("public", None) or parts[0] != "cairn" or \
                len(parts) < 2 or "detail" in parts or "<" in name:
            continue
        members = collections.defaultdict(list)
        for member in compound.findall("sectiondef/memberdef"):
            called = text(member.find("name"))
            inherited = not plain(text(member.find("definition")).replace(" ", "")).endswith(f"{name}::{called}")
            if member.get("prot") == "public" and member.get("kind") in ("function", "variable") and not inherited and \
                    called not in asked and called.lstrip("~") != parts[-1] and not called.startswith("operator"):
                members[called].append(member)
        for called, same in members.items():
            if not any(has_comment(member) for member in same):
                at = same[0].find("location")
                found[name].append((f"{at.get('file')}:{at.get('line')}", called))
    return found


def unexplained(silent):
    """Sentences on members without a comment."""
    return [f"{where}: {name}::{called} has no comment that says what it is"
            for name, members in sorted(silent.items()) for where, called in members]


def undocumented(names):
    """Sentences on names without a comment."""
    problems = []
    for name, places in sorted(names.items()):
        tag = names.get(name + "_t", [])
        guide = name.rpartition("::")[2] == name.rpartition("::")[0].rpartition("::")[2]
        if not guide and not any(commented for _, commented in places + tag):
            problems.append(f"{places[0][0]}: {name} has no comment that says what it is")
    return problems


def misread(log):
    """Doxygen's warnings about comments. It also warns of C++ that it cannot parse, which is no fault of a comment."""
    not_about_comments = ("no matching file member found", "no matching class member found", "while parsing initializer list")
    lines = log.read_text().splitlines() if log.exists() else []
    return [line for line in dict.fromkeys(lines) if ": warning: " in line and not any(s in line for s in not_about_comments)]


def self_test(doxygen):
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(scratch)
        (root / "a.hpp").write_text(
            "namespace cairn { inline namespace v1 {\n/// Good.\nstruct good { int member; struct inner {}; };\n"
            "struct bad {};\nvoid call(int);\n/// Calls.\nvoid call(long);\nint silent();\n"
            "namespace detail { struct hidden {}; }\n/// A tag.\nstruct tag_t {};\ninline constexpr tag_t tag{};\n"
            "class shut { struct its_own {}; };\n/// Of @nothing that is known.\nstruct puzzling {};\n"
            "/// A concept.\ntemplate <class T> concept Asks = requires(T& t) { t.asked(1); };\n"
            "/// Base.\nstruct base { void of_base(); };\n"
            "/// Derived.\nstruct derived : base {\n  derived();\n  void asked(int);\n  void mute();\n  /// Says.\n  void says();\n"
            "  void says(int);\n  int depth = 1;  ///< how deep\n  int width = 2;\n private:\n  int hidden;\n};\n} }\n")
        (root / "Doxyfile").write_text(
            f"INPUT = {root}/a.hpp\nOUTPUT_DIRECTORY = {root}\nEXTRACT_ALL = YES\nQUIET = YES\nWARN_LOGFILE = {root}/warnings\n"
            "INLINE_INHERITED_MEMB = YES\nGENERATE_HTML = NO\nGENERATE_LATEX = NO\nGENERATE_XML = YES\nJAVADOC_AUTOBRIEF = YES\n")
        subprocess.run([doxygen, str(root / "Doxyfile")], check=True)
        problems = undocumented(public_names(root / "xml"))
        found = [p.split(": ")[1].split(" has")[0] for p in problems]
        assert found == ["cairn::bad", "cairn::good::inner", "cairn::shut", "cairn::silent"], problems
        silent = {name: [called for _, called in members] for name, members in silent_members(root / "xml").items()}
        assert silent == {"cairn::base": ["of_base"], "cairn::derived": ["width", "mute"], "cairn::good": ["member"]}, silent
        told = unexplained(silent_members(root / "xml"))
        assert len(told) == 4 and "cairn::derived::mute has no comment" in told[2], told
        warned = misread(root / "warnings")
        assert len(warned) == 1 and "unknown command '@nothing'" in warned[0], warned
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
    warnings = re.search(r"^WARN_LOGFILE *= *(.+)$", pathlib.Path(arguments[1]).read_text(), re.MULTILINE).group(1)
    problems = undocumented(names) + unexplained(silent_members(arguments[2])) + misread(pathlib.Path(warnings))
    for problem in problems:
        print(problem)
    print(f"{len(names)} public names and their members, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

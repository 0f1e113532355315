#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles every header of cairn alone, after hostile macros, and prints the CPU seconds of it.

usage: check_headers.py --compiler C --include DIR [--table FILE] [--jobs N] -- FLAG...
       check_headers.py --compiler C --self-test     that it finds each kind of fault

A header with a line `// opt-in: TARGET...` among its first lines needs optional dependencies: it is compiled with the flags that
--optional gives for it, without the hostile macros (which the other library's headers need not stand), and only listed where
there are none.
With clang, all headers are compiled as the submodules of one module, in one run: the text of each is read once, and it sees no
name and no macro but those of what it includes. So are the headers of the system, before. But a template that was instantiated
once, and a concept that was asked once, serve all submodules, also one that does not include what decided it there. Headers whose
text tells that they may have such a fault are compiled alone as well:
 - those that name, in the arguments of a template, a class which what they include only declares;
 - those that name a class for which a template that they include is specialised, and do not include the specialisation;
 - those that name what a header declares whose templates call a function that it does not include, and which do not include
   that function either;
 - a class that the standard library makes a friend of another is found by its name where it is not declared: headers that use
   one of FRIENDS and do not reach its header.
What the text does not tell: an operator that a template uses and the header does not include; a class that is used without its
name, by auto or as a function's result; a template that is reached through the name of a third header; a function that another
one of the same name hides. In --full, headers.alone.g++ finds these: it compiles each header by itself.
Headers without `#pragma once` are compiled alone, too: a module's are included once.
Where the module does not compile, each of its headers is compiled alone, and that decides.
A header `*.h` is for C, too: it is compiled as C99 and as C++17, and with --nvcc as CUDA C++ where nvcc is installed.
Bodies (impl/*.ipp) come with their pages. With clang, all is compiled twice: as contracts, without any bodies, and with them.
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

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wsign-conversion", "-Wshadow", "-Werror"]
# What says that the bodies of core, and of what is opted into, lie in libraries.
COMPILED = ["-DCAIRN_COMPILED", "-DCAIRN_COMPILED_S3", "-DCAIRN_COMPILED_ZSTD", "-DCAIRN_COMPILED_PARITY", "-DCAIRN_COMPILED_INTERPROCESS", "-DCAIRN_COMPILED_MPI", "-DCAIRN_COMPILED_LINKS"]
# Of a system's headers those that are no modules: parts of others, and those that say something else each time they are included.
TEXTUAL = re.compile(r"/(bits|asm|asm-generic|debug|ext|backward|pstl|tr1|gnu)/|/(assert|features|features-time64|stdc-predef|limits|cdefs)\.h$|/cassert$"
                     r"|/c\+\+/[\d.]+/(stdlib|math)\.h$|/lib/clang/|/clang/[\d.]+/include/")
# Macros of a system's headers are constants of their own in each module, and a pragma around an #include has nothing to act on.
MODULE_WARNINGS = ["-Wno-modules-ambiguous-internal-linkage", "-Wno-pragma-clang-attribute"]
FRIENDS = {"expected": "expected", "map": "map", "multimap": "map", "optional": "optional", "packaged_task": "future", "path": "filesystem",
           "promise": "future", "shared_ptr": "memory", "weak_ptr": "memory"}
# What is no type before a name, and no function before a parenthesis.
NO_TYPE = re.compile(r"(return|throw|else|case|and|or|not|new|delete|do|co_return|co_await|co_yield|typename|goto)$")
NO_CALL = re.compile(r"(if|for|while|switch|catch|sizeof|alignof|alignas|decltype|noexcept|requires|explicit|operator|offsetof|static_assert|asm|defined"
                     r"|__\w+|auto|void|bool|char|int|unsigned|long|float|double)$")
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


def find_specialised(text, classes):
    """[(header, primaries, classes)]: the headers that specialise a template of others, its headers, and for which of these classes."""
    found = []
    for name, part in text.items():
        for arguments, head, template in re.findall(r"\btemplate\s*<([^;{}()]*)>([^;{}()<]*?\b(\w+)\s*<[^;{}()=]*>)\s*(?:final\s*)?[:{;=]", part):
            if not arguments.strip() or re.search(rf"\b(?:struct|class|bool|auto)\s+{template}\s*<", head):
                primary = re.compile(rf"\btemplate\s*<[^;{{}}]*>[^;{{}}()]*\b(?:struct|class|bool|auto)\s+{template}\b(?!\s*<)")
                primaries = {each for each, other in text.items() if template in other and primary.search(other)}
                if name not in primaries:
                    found.append((name, primaries, classes & set(re.findall(r"\w+", head)) - {template}))
    return found


def find_late_calls(text, closures):
    """[(names, header, headers)]: what a header declares whose templates call a function that only these others declare."""
    declared, functions = {}, {}
    for name, part in text.items():
        pairs = [pair for pair in re.findall(r"(\w+>*|>|\])(?:\s*[&*]+\s*|\s+)(?=(\w+\b\(?))", part) if not NO_TYPE.match(pair[0])]
        functions[name] = {word[:-1] for _, word in pairs if word.endswith("(")}
        declared[name] = {word.rstrip("(") for _, word in pairs}.union(
            re.findall(r"[\[,&]\s*(\w+)\s*=[^=]", part), re.findall(r"# *define (\w+)", part),
            *(re.findall(r"\w+", words) for words in re.findall(r"\bauto&?&? \[([^\]]*)\]", part)))
    found = []
    for name in closures:
        if not re.search(r"\btemplate\b|\bauto\b", text[name]):
            continue
        known = set().union(*(declared[each] for each in closures[name]))
        for word in set(re.findall(r"(?<![\w.>:~#])(\w+)\(", text[name])) - known:
            if NO_TYPE.match(word) or NO_CALL.match(word):
                continue
            others = {each for each in text if word in functions[each]}
            if others:
                found.append((functions[name].union(re.findall(r"\b(?:class|struct|concept)\s+(\w+)", text[name])), name, others))
    return found


def find_hidden(include, names, closures):
    """The headers among names in which a module may hide a fault."""
    text = {each: re.sub(r"//.*", "", (include / each).read_text(encoding="utf-8")) for each in set().union(*closures.values())}
    only_named = {each: set(re.findall(CLASS + ";", part)) for each, part in text.items()}
    defined = {each: set(re.findall(CLASS + r"(?::(?!:)|\{)", part)) for each, part in text.items()}
    systems = {each: set(re.findall(r"# *include <(\w+)>", part)) for each, part in text.items()}
    defined_anywhere = set().union(*defined.values())
    specialised, late_calls = find_specialised(text, defined_anywhere), find_late_calls(text, closures)
    found = []
    for name in names:
        body = name.replace("cairn/", "cairn/impl/", 1).replace(".hpp", ".ipp")
        own = text[name] + (text[body] if body in closures[name] else "")
        own = re.sub(r"# *include.*", "", own)
        declared, known, reached = (set().union(*(each[header] for header in closures[name])) for each in (only_named, defined, systems))
        arguments = {word for part in re.findall(r"<[^<>;{}]*>+", own) for word in re.findall(r"\w+", part)}
        friends = {header for each, header in FRIENDS.items() if re.search(rf"\bstd::{each}\b", own)}
        words = set(re.findall(r"\w+", own))
        late = any(each not in closures[name] and primaries & closures[name] and classes & words for each, primaries, classes in specialised) or \
            any(each in closures[name] and used & words and not others & closures[name] for used, each, others in late_calls)
        if (declared - known) & defined_anywhere & arguments or late or "#pragma once" not in text[name] or friends - reached:
            found.append(name)
    return found


class module_builder:
    """Compiles headers as submodules, each of which sees what it includes and no more."""

    def __init__(self, compiler, folder, include, core, flags):
        self.command = [compiler, "-x", "c++", "-std=gnu++20", *flags, "-fmodules", "-fno-implicit-modules", "-fno-implicit-module-maps",
                        "-Xclang", "-fmodules-local-submodule-visibility"]
        self.folder, self.include = folder, include
        self.seconds, self.usable = 0.0, False
        used = set()
        for name in set().union(*find_closures(include, core, bodies=True).values()):
            used.update(re.findall(r"^#include <((?!cairn/)[^>]+)>", (include / name).read_text(encoding="utf-8"), re.MULTILINE))
        source = "".join(f"#if __has_include(<{each}>)\n#include <{each}>\n#endif\n" for each in sorted(used))
        good, seconds, output = compile_source([*self.command[:4], *flags, "-M", "-MT", "x", "-"], source)
        self.seconds += seconds
        if not good:
            return
        paths = {os.path.realpath(each) for each in output.replace("\\\n", " ").split()[1:] if each.startswith("/")}
        self.write_map("system", sorted(each for each in paths if not TEXTUAL.search(each)), " [system]")
        good, seconds, _ = self.compile("system", [])
        self.seconds += seconds
        self.usable = good

    def write_map(self, module, paths, attribute=""):
        lines = [f'  module h{number} {{ header "{path}" export * }}' for number, path in enumerate(paths)]
        (self.folder / f"{module}.modulemap").write_text("\n".join([f"module {module}{attribute} {{", *lines, "}", ""]), encoding="utf-8")

    def compile(self, module, more):
        return compile_source([*self.command, f"-fmodule-name={module}", "-Xclang", "-emit-module", *more, "-c",
                               str(self.folder / f"{module}.modulemap"), "-o", str(self.folder / f"{module}.pcm")], "")

    def after(self, *modules):
        """The flags of what uses these modules; macros may be defined that were not when those were made."""
        files = [flag for each in modules for flag in (f"-fmodule-map-file={self.folder}/{each}.modulemap", f"-fmodule-file={self.folder}/{each}.pcm")]
        return ["-Xclang", "-fno-validate-pch", *files, *MODULE_WARNINGS]

    def check(self, module, names, more, *modules):
        self.write_map(module, [str(self.include / name) for name in names])
        return self.compile(module, [*WARNINGS, *more, *self.after("system", *modules)])

    def check_alone(self, name, more):
        """As alone, but for the system's headers, which come from their module."""
        good, seconds, _ = compile_source([*self.command, *WARNINGS, *more, *self.after("system"), "-fsyntax-only", "-"],
                                          f"#include <{name}>\n#include <{name}>\n")
        return good, seconds


# Small trees of headers, each with the one that does not compile alone.
GOOD = {"part.hpp": "struct part { int size = 0; };\n#define PART_SIZE 4\n",
        "user.hpp": "#include <cairn/part.hpp>\n#include <optional>\nstruct user { std::optional<part> it; int size = PART_SIZE; };\n",
        "held.hpp": "template <class T>\nstruct held {\n  T* of;\n  ~held() { delete of; }\n  int size() const { return of->size; }\n};\n",
        "first.hpp": "#include <cairn/held.hpp>\n#include <cairn/part.hpp>\ninline int first_size(const held<part>& it) { return it.size(); }\n",
        "second.hpp": "#include <cairn/first.hpp>\ninline int second_size(const held<part>& it) { return it.size(); }\n",
        "measure.hpp": "#include <cairn/part.hpp>\ninline int measure(const part& it) { return it.size; }\n",
        "measured.hpp": "template <class T>\ninline int measured(const T& it) { return measure(it); }\n",
        "third.hpp": "#include <cairn/measure.hpp>\n#include <cairn/measured.hpp>\ninline int third(const part& it) { return measured(it); }\n",
        "zone.hpp": "#include <cairn/measure.hpp>\n#include <cairn/measured.hpp>\ninline int zone(const part& it) { return measured(it); }\n",
        "role.hpp": "template <class T>\nstruct role_of {};\ntemplate <class T>\nconcept has_role = requires { typename role_of<T>::type; };\n"
                    "template <has_role T>\nint play(const T&) { return 1; }\n",
        "role_of_part.hpp": "#include <cairn/part.hpp>\n#include <cairn/role.hpp>\ntemplate <>\nstruct role_of<part> {\n  using type = int;\n};\n"
                            "inline int play_part() { return play(part{}); }\n",
        "stage.hpp": "#include <cairn/role_of_part.hpp>\ninline int stage() { return play(part{}); }\n"}
FAULTS = {
    "a header of the system is forgotten": ("user.hpp", "#include <optional>\n", ""),
    "a header of cairn is forgotten": ("second.hpp", "#include <cairn/first.hpp>", "#include <cairn/part.hpp>"),
    "a macro's header is forgotten": ("user.hpp", "#include <cairn/part.hpp>", "struct part {};"),
    "a class that a template needs is only declared": ("second.hpp", "#include <cairn/first.hpp>", "#include <cairn/held.hpp>\nstruct part;"),
    "a function that a template calls is forgotten": ("zone.hpp", "#include <cairn/measure.hpp>", "#include <cairn/part.hpp>"),
    "a specialisation is forgotten": ("stage.hpp", "#include <cairn/role_of_part.hpp>", "#include <cairn/part.hpp>\n#include <cairn/role.hpp>"),
    "a template names a friend of another class": ("second.hpp", "inline", "template <class T>\nstruct maybe {\n  std::optional<T> it;\n};\ninline"),
    "a name is that of a hostile macro": ("part.hpp", "size", "near"),
    "a warning": ("first.hpp", "it.size()", "static_cast<long>(it.size())"),
    "it cannot be included twice": ("part.hpp", "#pragma once\n", ""),
}


def self_test(compiler):
    for fault, (wrong, old, new) in {"nothing is wrong": ("", "", ""), **FAULTS}.items():
        with tempfile.TemporaryDirectory() as folder:
            for name, text in GOOD.items():
                path = pathlib.Path(folder, "cairn", name)
                path.parent.mkdir(exist_ok=True)
                text = "#pragma once\n" + text
                if name == wrong:
                    if old not in text:
                        sys.exit(f"check_headers: the self-test has nothing to replace: {fault}")
                    text = text.replace(old, new)
                path.write_text(text, encoding="utf-8")
            command = [sys.executable, __file__, "--compiler", compiler, "--include", folder, "--", f"-I{folder}"]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
        found = re.findall(r"(cairn/\S+)  FAILED", result.stdout)
        if (f"cairn/{wrong}" in found) != bool(wrong) or (result.returncode != 0) != bool(wrong):
            sys.exit(f"check_headers: {fault}: it finds {found}, status {result.returncode}\n{result.stdout}{result.stderr}")
        if not wrong and "clang" in os.path.basename(compiler) and "not all compile" in result.stdout:
            sys.exit(f"check_headers: modules cannot be used:\n{result.stdout}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--include", type=pathlib.Path)
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--table", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--nvcc", action="store_true")
    parser.add_argument("--optional", action="append", default=[], metavar="TARGET=FLAGS",
                        help="the flags, separated by |, of headers that say `// opt-in: TARGET`")
    parser.add_argument("flags", nargs="*")
    arguments = parser.parse_args()
    if arguments.self_test:
        return self_test(arguments.compiler)
    if not arguments.include:
        parser.error("--include is needed")

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
    hostile_macros = [f"-D{name}={value}" for name, value in
                      re.findall(r"^#define (\w+(?:\([^)]*\))?) ?(.*)$", hostile.read_text(encoding="utf-8"), re.MULTILINE)]

    def check_alone(name, more):
        """Returns the (name, succeeded, CPU seconds, output) of a header that is compiled by itself."""
        if name not in flags:
            return name, None, reasons[name], ""
        good, seconds, output = compile_source([*base, *flags[name], *more, "-fsyntax-only", "-"], f"#include <{name}>\n#include <{name}>\n")
        return name, good, seconds, output if good or not more else "without bodies:\n" + output

    def check_modules(folder):
        """Returns the same of all headers by modules, and of those that modules do not decide."""
        builder = module_builder(arguments.compiler, folder, arguments.include,
                                 [name for name in flags if flags[name][:1] == ["-include"]], arguments.flags)
        results, notes = [], [f"  {builder.seconds:6.2f}  the system's headers, as a module"]
        optional_flags = list(dict.fromkeys(flag for name in flags if flags[name][:1] != ["-include"] for flag in flags[name]
                                            if flag.startswith("-D") and not flag.startswith("-DCAIRN_COMPILED")))
        directories = [each for each in dict.fromkeys(tuple(flags[name][at:at + 2]) for name in flags if flags[name][:1] != ["-include"]
                                                      for at, flag in enumerate(flags[name]) if flag == "-isystem")]
        optional_flags += [flag for each in directories for flag in each]
        for more, bodies in ((COMPILED, False), ([], True)):
            can = [name for name in flags if not bodies or not any(flag.startswith("-DCAIRN_COMPILED") for flag in flags[name])]
            closures = find_closures(arguments.include, can, bodies)
            # What includes all bodies would make a contract of nothing.
            with_bodies = {name for name in can if not bodies and any(each.endswith(".ipp") for each in closures[name])}
            alone = with_bodies.union(find_hidden(arguments.include, can, closures))
            made = []
            for module, macros in (("core", hostile_macros), ("opted", optional_flags)):
                checked = [name for name in can if (flags[name][:1] == ["-include"]) == (module == "core")]
                in_module = [name for name in checked if name not in with_bodies]
                if not checked:
                    continue
                good, seconds, output = False, 0.0, ""
                if builder.usable and (module == "core" or made):
                    good, seconds, output = builder.check(module, in_module, [*more, *macros], *made)
                made += [module] if good else []
                notes.append(f"  {seconds:6.2f}  {len(in_module)} headers in one run, {'with' if bodies else 'without'} bodies"
                             f"{'' if module == 'core' else ', of what is opted into'}{'' if good else ': not all compile'}")
                if not good:
                    notes.append("\n".join(output.splitlines()[:20]))
                    alone.update(checked)
                results += [(name, True, 0.0, "") for name in checked if name not in alone]
                for name in sorted(alone & set(checked)):
                    spent, decided = 0.0, False
                    if good:
                        decided, spent = builder.check_alone(name, [*flags[name], *more])
                    result = (name, True, 0.0, "") if decided else check_alone(name, more)
                    results.append((result[0], result[1], result[2] + spent, result[3]))
        return results, notes

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
    with tempfile.TemporaryDirectory(dir=arguments.table.parent if arguments.table else None) as temporary, \
            concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        results = {}
        if "clang" in os.path.basename(arguments.compiler):
            checked, notes = check_modules(pathlib.Path(temporary))
            lines += notes
            checked += [check_alone(name, []) for name in names if name not in flags]
        else:
            checked = list(pool.map(lambda name: check_alone(name, []), names))
        for name, good, seconds, output in [*checked, *pool.map(check_c, c_names)]:
            before = results.get(name, (True, 0.0, ""))
            results[name] = (None, seconds, "") if good is None else (before[0] and good, before[1] + seconds, before[2] + output)
        for name, (good, seconds, output) in sorted(results.items()):
            if good is None:
                lines.append(f"  opt-in  {name} ({seconds})")
                continue
            if seconds or not good:  # the others are in the seconds of a run
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

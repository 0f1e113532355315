#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keeps the pages true: makes one C++ program of the code in them, and checks their links.

usage: pages.py --program FILE PAGE...    writes the program
       pages.py --check ROOT              checks the pages in ROOT, docs, examples and packaging
       pages.py --self-test

Every ```cpp block of a page stands below a comment that says what becomes of it. Comments may carry lines of
code that readers do not see:

  <!-- run: NAME      the block is the body of a function, which the program runs; it has `directory`, a
       CODE -->       std::string that names an empty directory, the working directory. CODE comes before the block.
  <!-- more CODE -->  the block goes on in the function of the block before. CODE comes between the two.
  <!-- then CODE -->  no block follows: CODE ends the function, with DOCS_CHECK(condition) where it can.
  <!-- declare CODE --> the block stands at namespace scope, CODE before it.
  <!-- hidden CODE -->  no block follows: CODE stands at namespace scope.
  <!-- check: NAME CODE --> no block follows: CODE is the body of a function, which the program runs.

A ```c block stands below <!-- from: FILE -->, and a ```cpp, ```sh or ```python block may: --check sees that its lines stand in that file of the tree,
one after another, which the tests compile and run.
"""
import pathlib
import re
import sys

COMMENT = re.compile(r"^<!-- *((?:run|check): *([a-z][a-z0-9_]*)|more|then|declare|hidden)\b *(.*)$")
FROM = re.compile(r"^<!-- *from: *(\S+) *-->$")


class PageError(Exception):
    pass


class Piece:
    """Lines of one page from a line number on (1: the first)."""

    def __init__(self, page, line, lines):
        self.page, self.line, self.lines = page, line, lines


class Example:
    def __init__(self, name):
        self.name, self.pieces = name, []


def parse(page, text):
    """(declarations, examples, copies) of a page, in order; copies: [(file, piece)]."""
    declarations, examples, copies = [], [], []
    lines = text.split("\n")
    waiting = None  # (where its block goes, the line of the comment)
    at = 0
    while at < len(lines):
        line = lines[at]
        found, copied = COMMENT.match(line), FROM.match(line)
        if copied:
            if waiting:
                raise PageError(f"{page}:{at + 1}: the comment of line {waiting[1]} has no block yet")
            waiting = (copied.group(1), at + 1)
        elif found:
            if waiting:
                raise PageError(f"{page}:{at + 1}: the comment of line {waiting[1]} has no block yet")
            first, code = at, []
            rest = found.group(3)
            while "-->" not in rest:
                code.append(rest)
                at += 1
                if at == len(lines):
                    raise PageError(f"{page}:{first + 1}: the comment does not end")
                rest = lines[at]
            code.append(rest[: rest.index("-->")])
            piece = Piece(page, first + 1, code)
            kind = found.group(1)
            if kind.startswith(("run", "check")):
                if any(e.name == found.group(2) for e in examples):
                    raise PageError(f"{page}:{first + 1}: there are two examples named {found.group(2)}")
                examples.append(Example(found.group(2)))
                target = examples[-1].pieces
            elif kind in ("declare", "hidden"):
                target = declarations
            else:
                if not examples:
                    raise PageError(f"{page}:{first + 1}: '{kind}' before the first 'run'")
                target = examples[-1].pieces
            target.append(piece)
            waiting = None if kind in ("then", "hidden") or kind.startswith("check") else (target, first + 1)
        elif line.startswith("```"):
            fence, first, code = line[3:].strip(), at, []
            at += 1
            while at < len(lines) and not lines[at].startswith("```"):
                code.append(lines[at])
                at += 1
            if at == len(lines):
                raise PageError(f"{page}:{first + 1}: the block does not end")
            copy = bool(waiting) and isinstance(waiting[0], str)
            if fence in ("c", "cpp") and (not waiting or fence == "c" and not copy):
                wanted = "from" if fence == "c" else "run, more, declare, from"
                raise PageError(f"{page}:{first + 1}: a {fence} block without a comment above it ({wanted})")
            if copy and fence in ("c", "cpp", "sh", "python"):
                copies.append((waiting[0], Piece(page, first + 2, code)))
                waiting = None
            elif fence == "cpp":
                waiting[0].append(Piece(page, first + 2, code))
                waiting = None
        elif waiting and line.strip():
            raise PageError(f"{page}:{at + 1}: the comment of line {waiting[1]} stands directly above its block")
        at += 1
    if waiting:
        raise PageError(f"{page}:{waiting[1]}: the comment has no block")
    return declarations, examples, copies


def program(pages):
    """The text of the program; pages: [(name, text)]."""
    includes, declarations, functions, calls = [], [], [], []

    def emit(pieces, out):
        for piece in pieces:
            out.append(f'#line {piece.line} "{piece.page}"')
            for line in piece.lines:
                if line.startswith("#include"):
                    if line not in includes:
                        includes.append(line)
                    out.append("")
                else:
                    out.append(line)

    for page, text in pages:
        declared, examples, _ = parse(page, text)
        emit(declared, declarations)
        stem = re.sub(r"[^a-z0-9]", "_", pathlib.PurePath(page).stem.lower())
        for example in examples:
            functions.append(f"void {stem}_{example.name}([[maybe_unused]] const std::string& directory) {{")
            emit(example.pieces, functions)
            functions.append("}")
            calls.append(f'    {{"{page}: {example.name}", {stem}_{example.name}}},')
    if not calls:
        raise PageError("no page has an example")
    return "\n".join(
        ["// Made by tests/docs/pages.py from the pages that #line names.", "#include <docs/support.hpp>"]
        + includes
        + ["", "// Declarations of the pages."]
        + declarations
        + ["namespace {"]
        + functions
        + ["}  // namespace", '#line 1 "docs_examples.cpp"', "int main() {", "  return docs_support::run({"]
        + calls
        + ["  });", "}", ""]
    )


def slug(heading):
    text = re.sub(r"<[^>]*>", "", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text.replace("`", "")).replace(" ", "-")


def outside_of_blocks(text):
    inside = False
    for line in text.split("\n"):
        if line.startswith("```"):
            inside = not inside
        elif not inside:
            yield line


def anchors(text):
    found, seen = set(), {}
    for line in outside_of_blocks(text):
        heading = re.match(r"#+ +(.*)", line)
        if heading:
            name = slug(heading.group(1))
            count = seen.get(name, 0)
            seen[name] = count + 1
            found.add(f"{name}-{count}" if count else name)
        found.update(re.findall(r'<a id="([^"]+)"', line))
    return found


def check_links(root, pages):
    """Sentences on what does not stand: links of pages, and pages that headers name in their messages."""
    problems = []

    def check(where, base, target):
        path, _, anchor = target.partition("#")
        file = (base / path).resolve() if path else where[1]
        if not file.exists():
            problems.append(f"{where[0]}: links to {target}, which is not there")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text(encoding="utf-8")):
            problems.append(f"{where[0]}: links to {target}, which has no such heading")

    for page in pages:
        name = str(page.relative_to(root))
        for line in outside_of_blocks(page.read_text(encoding="utf-8")):
            for target in re.findall(r"\]\(([^)\s]+)\)|(?:src|href|srcset)=\"([^\"]+)\"", line):
                target = target[0] or target[1]
                if not re.match(r"[a-z]+:", target):
                    check((name, page), page.parent, target)
    for header in sorted(p for end in ("h", "hpp", "ipp") for p in (root / "include").rglob(f"*.{end}")):
        text = re.sub(r'"\s*\n\s*"', "", header.read_text(encoding="utf-8"))
        for target in re.findall(r"docs/[a-z0-9_-]+\.md(?:#[a-z0-9_.-]+)?", text):
            check((str(header.relative_to(root)), header), root, target)
    return problems


def check_copies(root, copies):
    """Blocks whose lines do not stand in the file that they say they are from."""
    problems = []
    for file, piece in copies:
        path = root / file
        known = path.read_text(encoding="utf-8").split("\n") if path.is_file() else []
        length = len(piece.lines)
        if not any(known[i : i + length] == piece.lines for i in range(len(known) - length + 1)):
            problems.append(f"{piece.page}:{piece.line}: these lines do not stand in {file}")
    return problems


def words(text):
    return re.findall(r"[A-Za-z0-9_']+", text)


def check_messages(root):
    """Sample messages of docs/errors.md and of the page on recovery: four words of each stand in a header."""
    problems = []
    known = ""
    for header in sorted((root / "include").rglob("*.[hi]pp")):
        text = re.sub(r'"\s*\n?\s*"', "", header.read_text(encoding="utf-8"))
        for literal in re.findall(r'"((?:[^"\\\n]|\\.)*)"', text):
            known += " ".join(words(literal)) + " | "
    page = root / "docs" / "errors.md"
    if not page.exists():
        return problems
    for number, line in enumerate(page.read_text(encoding="utf-8").split("\n"), 1):
        sample = re.match(r"\[cairn\.[a-z_.]+\] (.*)", line)
        if sample:
            said = words(sample.group(1))
            if not any(" ".join(said[i : i + 4]) in known for i in range(max(1, len(said) - 3))):
                problems.append(f"docs/errors.md:{number}: no header has a message like this sample")
    return problems


def check_beginnings(root):
    """Pages of docs that do not begin with what their readers can do after them."""
    problems = []
    for page in sorted((root / "docs").glob("*.md")):
        lines = [line for line in page.read_text(encoding="utf-8").split("\n") if line]
        if page.name != "gpu-record.md" and not (len(lines) > 1 and lines[1].startswith("After this page ")):
            problems.append(f"docs/{page.name}: does not begin with a sentence 'After this page ...': what its reader can do then")
    return problems


def check_pages(root):
    pages = [*sorted(root.glob("*.md")), *sorted((root / "docs").glob("*.md")), *sorted((root / "examples").glob("*.md")),
             *sorted((root / "packaging").glob("*.md"))]
    problems = check_beginnings(root)
    for page in pages:
        try:
            problems += check_copies(root, parse(str(page.relative_to(root)), page.read_text(encoding="utf-8"))[2])
        except PageError as e:
            problems.append(str(e))
    return problems + check_links(root, pages) + check_messages(root)


def self_test():
    import tempfile

    def problem_of(text):
        try:
            program([("p.md", text)])
        except PageError as e:
            return str(e)
        return ""

    good = "<!-- run: a\nint x = 1; -->\n\n```cpp\n#include <map>\nx = 2;\n```\n<!-- then DOCS_CHECK(x == 2); -->\n"
    made = program([("p.md", good)])
    assert made.index("#include <map>") < made.index("int x = 1;") < made.index("x = 2;") < made.index("DOCS_CHECK"), made
    assert '#line 6 "p.md"' not in made and '#line 5 "p.md"' in made, made
    assert "without a comment" in problem_of("```cpp\nint x;\n```\n")
    assert "has no block" in problem_of("<!-- run: a -->\n")
    assert "directly above" in problem_of("<!-- run: a -->\ntext\n```cpp\n```\n")
    assert "does not end" in problem_of("<!-- run: a -->\n```cpp\nint x;\n")
    assert "two examples" in problem_of(good + good)
    assert "without a comment" in problem_of("```c\nint x;\n```\n")
    assert "without a comment" in problem_of("<!-- run: a -->\n```c\nint x;\n```\n")
    assert "DOCS_CHECK(1)" in program([("p.md", "<!-- check: c\nDOCS_CHECK(1); -->\ntext\n")])
    assert "no page" in problem_of("```text\nx\n```\n")
    assert slug("Who owns `what`, when?") == "who-owns-what-when"
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(scratch).resolve()
        (root / "docs").mkdir()
        (root / "include").mkdir()
        (root / "README.md").write_text("[a](docs/errors.md#one) [b](docs/errors.md#two) [c](gone.md)\n")
        (root / "include" / "a.hpp").write_text('f("this is what went wrong"); // docs/errors.md#three\n')
        (root / "a.c").write_text("int x;\nint y;\nint z;\n")
        (root / "docs" / "c.md").write_text(
            "# C\nAfter this page all is well.\n<!-- from: a.c -->\n```c\nint y;\nint z;\n```\n<!-- from: a.c -->\n```cpp\nint x;\nint z;\n```\n"
            "<!-- from: a.c -->\n```python\nint w;\n```\n")
        (root / "docs" / "errors.md").write_text(
            "# One\n```text\n[cairn.x] this is what went wrong (rank 1)\n[cairn.y] nobody says such a thing\n```\n")
        problems = check_pages(root)
        assert len(problems) == 7, problems
        for part in ("#two, which has no such heading", "gone.md, which is not there", "a.hpp: links to docs/errors.md#three",
                     "errors.md:4: no header", "c.md:10: these lines do not stand in a.c", "c.md:15: these lines",
                     "errors.md: does not begin"):
            assert any(part in p for p in problems), (part, problems)
    print("pages.py: notices what it should")


def main(arguments):
    if arguments[:1] == ["--self-test"]:
        self_test()
    elif arguments[:1] == ["--check"] and len(arguments) == 2:
        problems = check_pages(pathlib.Path(arguments[1]).resolve())
        for problem in problems:
            print(problem)
        if problems:
            return 1
        print("the pages' code, links and messages stand")
    elif arguments[:1] == ["--program"] and len(arguments) > 2:
        pages = [pathlib.Path(p) for p in arguments[2:]]
        text = program([(p.name if p.name == "README.md" else f"docs/{p.name}", p.read_text(encoding="utf-8")) for p in pages])
        pathlib.Path(arguments[1]).write_text(text, encoding="utf-8")
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except PageError as e:
        sys.exit(str(e))

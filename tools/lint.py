# SPDX-License-Identifier: Apache-2.0
"""Checks what the house promises and the compiler does not: see CHECKS below, one function each.

Prints `file:line: what is wrong and the way out`, exits 1 where something stops, 2 on wrong usage.
Python's standard library only, so that it runs wherever the build does.
"""

from __future__ import annotations

import argparse
import ast
import bisect
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import picture

FILE_WARN, FILE_STOP = 600, 1500
FUNCTION_WARN, FUNCTION_STOP = 70, 150
SKIPPED_FOLDERS = {"build", "node_modules", "__pycache__"}
ROOMS = ("src", "include", "apps", "python", "tests", "bench", "lab", "examples")
# Folders whose entities are in namespace cistern itself: the words that all others speak, and what users call.
WHOLE_NAMESPACE = ("base", "api")
# Headers that cost seconds in every file that includes them: one .cc each.
CONFINED = {"spdlog/": "spdlog", "CLI/": "CLI11", "prometheus/": "prometheus-cpp"}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)
CONDITION = re.compile(r"^[ \t]*#[ \t]*(?:if|ifdef|ifndef|elif|else)\b", re.MULTILINE)
SLEEP = re.compile(r"\b(?:sleep_for|sleep_until|usleep|nanosleep|clock_nanosleep)\s*\(|\btime\.sleep\s*\(")
LITERAL = re.compile(
    r'R"(?P<tag>[^()\s\\]{0,16})\(.*?\)(?P=tag)"'  # raw string
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'"  # a character; 1'000 is a number
    r"|//[^\n]*|/\*.*?\*/",
    re.DOTALL,
)


@dataclass
class Source:
    """One file: where it is, its text, and (for C++) its text with comments and literals blanked."""

    path: str  # from the root, with /
    text: str
    code: str = ""
    includes: list[tuple[int, str, str]] = field(default_factory=list)  # line, < or ", what

    @property
    def room(self) -> str:
        return self.path.split("/")[0]

    @property
    def folder(self) -> str:
        """The folder of src/ that it belongs to, or nothing."""
        parts = self.path.split("/")
        return parts[1] if parts[0] == "src" and len(parts) > 2 else ""


@dataclass
class Finding:
    path: str
    line: int
    text: str
    stops: bool = True

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {'' if self.stops else 'warning: '}{self.text}"


@dataclass
class Arrows:
    """src/ARROWS: what each folder stands on, by a line of its own and transitively."""

    direct: dict[str, list[str]]
    below: dict[str, set[str]]

    def allows(self, folder: str, header: str) -> bool:
        target = header.split("/")[0]
        return target == folder or target in self.below[folder]


@dataclass
class Tree:
    root: Path
    sources: list[Source]
    arrows: Arrows
    findings: list[Finding] = field(default_factory=list)  # of reading src/ARROWS itself

    def cpp(self, *rooms: str) -> Iterator[Source]:
        for source in self.sources:
            if source.path.endswith((".h", ".cc")) and (not rooms or source.room in rooms):
                yield source


# ------------------------------------------------------------------------------------ reading the tree


def blank(text: str) -> str:
    """The code alone: comments and literals become spaces, lines stay where they are."""
    return LITERAL.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def line_of(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def closing(code: str, at: int) -> int:
    """Where the parenthesis closes that is open at `at`, or the end."""
    depth = 1
    for m in re.finditer(r"[()]", code[at:]):
        depth += 1 if m[0] == "(" else -1
        if not depth:
            return at + m.start()
    return len(code)


def is_ours(path: str) -> bool:
    name = path.rsplit("/", 1)[-1]
    return path in ("dev", ".ci/run") or name == "CMakeLists.txt" or name.endswith(
        (".h", ".cc", ".py", ".sh", ".cmake"))


def read_sources(root: Path) -> list[Source]:
    sources = []
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in SKIPPED_FOLDERS and (f == ".ci" or f[0] != "."))
        for name in sorted(files):
            path = (Path(folder) / name).relative_to(root).as_posix()
            if not is_ours(path):
                continue
            source = Source(path, (root / path).read_text(encoding="utf-8", errors="replace"))
            if path.endswith((".h", ".cc")):
                source.code = blank(source.text)
                for m in INCLUDE.finditer(source.text):
                    if "#" in source.code[m.start() : m.end()]:  # not inside a comment
                        source.includes.append((line_of(source.text, m.start(2)), m[1], m[2]))
            sources.append(source)
    return sources


def read_arrows(root: Path) -> tuple[Arrows, list[Finding]]:
    direct: dict[str, list[str]] = {}
    findings = []
    path = "src/ARROWS"
    for number, line in enumerate((root / path).read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        folder, colon, targets = line.partition(":")
        if not colon or not re.fullmatch(r"[a-z]+", folder):
            findings.append(Finding(path, number, f"'{line}' is not `folder: folders`"))
            continue
        direct[folder] = targets.split()
        for target in direct[folder]:
            if target not in direct or target == folder:
                findings.append(Finding(path, number, f"{folder} stands on '{target}', which no line above "
                                                      "has: a folder comes after what it stands on"))
    below: dict[str, set[str]] = {}
    for folder, targets in direct.items():  # the table is in order, so one pass closes it
        below[folder] = set(targets).union(*(below.get(t, set()) for t in targets))
    return Arrows(direct, below), findings


def read_tree(root: Path) -> Tree:
    arrows, findings = read_arrows(root)
    return Tree(root, read_sources(root), arrows, findings)


def drawn(tree: Tree) -> str:
    """The picture of the house: what the product includes, without its tests, benchmarks and fuzzers."""
    includes = set()
    for source in tree.cpp("src"):
        name = source.path.rsplit("/", 1)[-1]
        if name.startswith("test_") or re.search(r"_(?:test|bench|fuzz)\.cc$", name):
            continue
        for _, quote, what in source.includes:
            to = what.split("/")[0]
            if quote == '"' and to in tree.arrows.direct and to != source.folder:
                includes.add((source.folder, to))
    return picture.draw(tree.arrows.direct, includes)


# ------------------------------------------------------------------------------------ the checks


def check_arrows(tree: Tree) -> Iterator[Finding]:
    """Every include between folders of src/ has its arrow in src/ARROWS."""
    yield from tree.findings
    arrows = tree.arrows
    for source in tree.cpp("src"):
        if not source.folder:
            yield Finding(source.path, 1, "lies in no folder of src/")
            continue
        if source.folder not in arrows.direct:
            yield Finding(source.path, 1, f"src/ARROWS has no line for the folder '{source.folder}'")
            continue
        for line, quote, what in source.includes:
            if quote == "<" or what.startswith("cistern/"):
                continue
            if what.split("/")[0] not in arrows.direct:
                yield Finding(source.path, line, f'"{what}" begins with no folder of src/ARROWS '
                                                 "(own headers are included as folder/file.h)")
            elif not arrows.allows(source.folder, what):
                yield Finding(source.path, line, f"no arrow in src/ARROWS from {source.folder} to {what}")


def check_public_headers(tree: Tree) -> Iterator[Finding]:
    """include/cistern/ and examples/ know the public API and the standard library only."""
    for source in tree.cpp("include", "examples"):
        for line, _, what in source.includes:
            if not what.startswith("cistern/") and not re.fullmatch(r"[a-z_]+", what):
                yield Finding(source.path, line, f"{what}: only cistern/*.h and the standard library here")


def check_there(tree: Tree) -> Iterator[Finding]:
    """What is included in quotes is there: from src/ and include/, and for rooms that are no library from the
    rooms that lend them headers, or from beside."""
    known = {s.path for s in tree.cpp()}
    for source in tree.cpp():
        ways = ["src", "include"]
        if source.room not in ways:
            ways += ["apps", "bench", os.path.dirname(source.path)]
        for line, quote, what in source.includes:
            if quote == '"' and not any(os.path.normpath(f"{way}/{what}") in known for way in ways):
                yield Finding(source.path, line, f'there is no "{what}"')


def check_spdx(tree: Tree) -> Iterator[Finding]:
    """The licence line comes first (after #! where there is one)."""
    for source in tree.sources:
        lines = source.text.split("\n", 2)
        at = 1 if lines[0].startswith("#!") else 0
        if at >= len(lines) or "SPDX-License-Identifier: Apache-2.0" not in lines[at]:
            yield Finding(source.path, at + 1, "the first line is `SPDX-License-Identifier: Apache-2.0`")


def check_pragma_once(tree: Tree) -> Iterator[Finding]:
    for source in tree.cpp():
        if source.path.endswith(".h") and not re.search(r"^#pragma once$", source.code, re.MULTILINE):
            yield Finding(source.path, 1, "a header says #pragma once")


def check_conditions(tree: Tree) -> Iterator[Finding]:
    """An optional part is an optional file: no #if outside src/base."""
    for source in tree.cpp(*ROOMS):
        if source.folder != "base":
            for m in CONDITION.finditer(source.code):
                yield Finding(source.path, line_of(source.code, m.start()),
                              f"{m.group().strip()}: no conditional compilation outside src/base; make the "
                              "optional part a file of its own")


def check_awaited_conditions(tree: Tree) -> Iterator[Finding]:
    """No condition asks what it awaits: `if (!(co_await x).ok())` in a loop is miscompiled by g++ 12. Of a value with
    a destructor, that is; a bool may be awaited there."""
    for source in tree.cpp(*ROOMS):
        for m in re.finditer(r"\b(?:if|while)\s*\(", source.code):
            condition = source.code[m.end() : closing(source.code, m.end())]
            for awaited in re.finditer(r"\(\s*co_await\b", condition):
                end = closing(condition, awaited.start() + 1)
                if re.match(r"\)\s*(?:\.|->)", condition[end:]):
                    yield Finding(source.path, line_of(source.code, m.end() + awaited.start()),
                                  "a condition that asks what it awaits is miscompiled by g++ 12 in a loop: take the "
                                  "result into a variable first")


def check_sleeps(tree: Tree) -> Iterator[Finding]:
    """A test that sleeps is a bug: it waits for the event, or moves the simulated clock."""
    for source in tree.sources:
        tests = source.path.startswith(("tests/", "python/tests/")) or source.path.endswith(("_test.cc", "_test.py"))
        if tests and source.path.endswith((".h", ".cc", ".py")) and not source.path.startswith("tools/"):
            code = source.code or source.text
            for m in SLEEP.finditer(code):
                yield Finding(source.path, line_of(code, m.start()),
                              f"{m.group().rstrip('( ')}: a test waits for the event, it does not sleep")


def check_confined(tree: Tree) -> Iterator[Finding]:
    """Headers that cost seconds are included in one .cc each, behind our own header."""
    homes: dict[str, str] = {}
    for source in tree.cpp():
        for line, _, what in source.includes:
            for prefix, name in CONFINED.items():
                if not what.startswith(prefix):
                    continue
                if source.path.endswith(".h"):
                    yield Finding(source.path, line, f"{name} is included in one .cc, never in a header")
                elif homes.setdefault(name, source.path) != source.path:
                    yield Finding(source.path, line, f"{name} is already included in {homes[name]}: one .cc")


def check_cycles(tree: Tree) -> Iterator[Finding]:
    """No header includes itself, by whatever way round."""
    graph: dict[str, list[str]] = {}
    paths = {s.path for s in tree.cpp()}
    for source in tree.cpp():
        ways = [f"src/{w}" for _, _, w in source.includes] + [f"include/{w}" for _, _, w in source.includes]
        graph[source.path] = [w for w in ways if w in paths]
    for ring in rings(graph):
        yield Finding(ring[0], 1, "include cycle: " + " -> ".join(ring))


def check_import_cycles(tree: Tree) -> Iterator[Finding]:
    """No Python module imports itself, by whatever way round: imports at the top, in functions and under
    TYPE_CHECKING count. Not covered: the package that an import of its module runs first, stubs (.pyi), names given
    to importlib."""
    graph: dict[str, list[str]] = {}
    paths = {s.path for s in tree.sources if s.path.endswith(".py")}
    for source in tree.sources:
        if source.path in paths:
            targets = [module_path(tree, source, name) for _, name in python_imports(source)]
            graph[source.path] = sorted({path for path in targets if path in paths and path != source.path})
    for ring in rings(graph):
        yield Finding(ring[0], 1, "import cycle: " + " -> ".join(ring))


def check_engine_imports(tree: Tree) -> Iterator[Finding]:
    """python/cistern/ has three layers: its own modules; engine/, which is the same for all engines; and a package for
    each engine, of the engine's name. None imports of a later one, or of the engine itself: cistern.engine imports
    neither vllm nor cistern.vllm."""
    room = "python/cistern/"
    ours = [s for s in tree.sources if s.path.startswith(room) and s.path.endswith(".py")]
    folders = {source.path.removeprefix(room).split("/")[0] for source in ours if source.path.count("/") > 2}
    engines = folders - {"engine"}
    for source in ours:
        inside = source.path.removeprefix(room).split("/")
        layer = inside[0] if len(inside) > 1 else ""
        forbidden = engines - {layer} | ({"engine"} if layer == "" else set())
        for line, name in python_imports(source):
            words = name.split(".")
            if (words[0] in engines and words[0] != layer) or (words[0] == "cistern" and words[1:2] and
                                                               words[1] in forbidden):
                yield Finding(source.path, line, f"{room}{layer or '*.py'} must not import {name}")


def check_lengths(tree: Tree) -> Iterator[Finding]:
    """A file invites discussion at 600 lines and a function at 70; 1,500 and 150 stop."""
    for source in tree.sources:
        count = source.text.count("\n")
        if count > FILE_WARN:
            yield Finding(source.path, 1, f"{count} lines; a file is discussed at {FILE_WARN} and stops at "
                                          f"{FILE_STOP:,}: split by idea", count > FILE_STOP)
        for name, first, last in functions_of(source):
            lines = last - first + 1
            if lines > FUNCTION_WARN:
                yield Finding(source.path, first, f"{name}: {lines} lines; a function is discussed at "
                                                  f"{FUNCTION_WARN} and stops at {FUNCTION_STOP}",
                              lines > FUNCTION_STOP)


def check_namespaces(tree: Tree) -> Iterator[Finding]:
    """What src/FOLDER defines is in cistern::FOLDER, so that two folders cannot each have an entity of one name; base
    and api, as the public headers, are cistern itself. Other namespaces of ours only declare: `class Name;`."""
    for source in tree.cpp("src"):
        own = "cistern" if source.folder in WHOLE_NAMESPACE else f"cistern::{source.folder}"
        for m in re.finditer(r"^namespace (cistern[\w:]*) \{\n(.*?)^\}", source.code, re.MULTILINE | re.DOTALL):
            if m[1] == own or re.fullmatch(r"(?:\s*(?:class|struct|enum class) [^;{}]+;)*\s*", m[2]):
                continue
            yield Finding(source.path, line_of(source.code, m.start()),
                          f"namespace {m[1]}: {source.folder} defines what is in {own}")


def check_types(tree: Tree) -> Iterator[Finding]:
    """One name is one type in what is linked together: of two in one namespace the linker keeps one's functions for
    both, without a word (the one definition rule)."""
    homes: dict[str, str] = {}
    for source in tree.cpp("src", "include", "bench", "apps"):
        if source.path.endswith(("_test.cc", "_fuzz.cc", "_bench.cc")):
            continue
        for name, line in types_of(source.code):
            home = homes.setdefault(name, source.path)
            if home != source.path:
                yield Finding(source.path, line, f"{name} is also the name of another type, in {home}")


def check_rules(tree: Tree) -> Iterator[Finding]:
    """docs/rules.md lists the tests that attack each promise and rule, a bullet each, which begins with the test's name
    in backquotes, in the order of their names. Each one exists; a test that is named after a rule and not listed is a
    warning."""
    path = "docs/rules.md"
    if not (tree.root / path).is_file():
        return
    lines = (tree.root / path).read_text(encoding="utf-8").splitlines()
    tests, patterns = tests_of(tree)
    listed = set()
    before = ""
    for number, line in enumerate(lines, 1):
        if not line.startswith(("- `", "  ")):
            before = ""
        if m := re.match(r"- `([^`]+)`", line):
            if m[1] < before:
                yield Finding(path, number, f"{m[1]} stands behind {before}: sort them by name")
            before = m[1]
            listed.add(m[1])
            if m[1] not in tests and not any(re.fullmatch(p, m[1]) for p in patterns):
                yield Finding(path, number, f"there is no test {m[1]}")
    for name, (source, line) in tests.items():
        if re.search(r"\.Promise\d", name):
            yield Finding(source, line, f"{name}: tests of a promise are named P and its number")
        if re.search(r"\.(?:R\d+|P\d)[A-Z]", name) and name not in listed:
            yield Finding(source, line, f"{name} is named after a rule and {path} does not list it", False)


def check_pages(tree: Tree) -> Iterator[Finding]:
    """Links of pages lead to files, and to headings, that are there; tests that they name exist; the list of
    decisions has each; the table of layers has a row for each folder of src/; the picture is of now."""
    tests, _ = tests_of(tree)
    pages = {p: p.read_text(encoding="utf-8") for p in (*tree.root.glob("*.md"), *tree.root.glob("docs/**/*.md"))}
    anchors = {p: {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in re.findall(r"(?m)^#+ (.*)$", text)}
               for p, text in pages.items()}
    for path, text in sorted(pages.items()):
        page = path.relative_to(tree.root).as_posix()
        for m in re.finditer(r"\]\(([^)\s:#]*)(?:#([^)\s]*))?\)", text):
            to = Path(os.path.normpath(path.parent / m[1])) if m[1] else path
            if not to.exists() or m[2] and m[2] not in anchors.get(to, ()):
                yield Finding(page, line_of(text, m.start()), f"{m[0][2:-1]} is not there")
        for m in re.finditer(r"`([a-z_]+/[A-Z]\w*\.[A-Z]\w*|[\w/]+\.py::\w+)`", text):
            if m[1] not in tests and page != "docs/rules.md":
                yield Finding(page, line_of(text, m.start()), f"there is no test {m[1]}")
    decisions = tree.root / "docs/decisions/README.md"
    for path in sorted(pages) if decisions in pages else ():
        if path.parent == decisions.parent and path != decisions and f"]({path.name})" not in pages[decisions]:
            yield Finding("docs/decisions/README.md", 1, f"no line leads to {path.name}")
    layers = tree.root / "docs/architecture.md"
    for folder in tree.arrows.direct if layers in pages else ():
        if not re.search(rf"(?m)^\| [^|]*`{folder}`", pages[layers]):
            yield Finding("docs/architecture.md", 1, f"no row of a table begins with `{folder}`")
    house = tree.root / "docs/house.svg"
    if house.exists() and house.read_text(encoding="utf-8") != drawn(tree):
        yield Finding("docs/house.svg", 1, "the includes are others now: ./dev lint --picture docs/house.svg")


CHECKS = (check_arrows, check_public_headers, check_there, check_spdx, check_pragma_once, check_conditions,
          check_awaited_conditions, check_sleeps, check_confined, check_cycles, check_import_cycles,
          check_engine_imports, check_lengths, check_namespaces, check_types, check_rules, check_pages)


# ------------------------------------------------------------------------------------ includes and imports


def rings(graph: dict[str, list[str]]) -> Iterator[list[str]]:
    """Cycles of a graph, each with its first node again at the end."""
    done: set[str] = set()

    def walk(at: str, trail: list[str]) -> Iterator[list[str]]:
        if at in trail:
            yield [*trail[trail.index(at) :], at]
            return
        if at in done:
            return
        for to in graph[at]:
            yield from walk(to, [*trail, at])
        done.add(at)

    for node in sorted(graph):
        yield from walk(node, [])


def python_imports(source: Source) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of each import, wherever it stands; of `from a import b` it is a.b. Relative ones are made
    absolute from python/."""
    try:
        nodes = list(ast.walk(ast.parse(source.text)))
    except SyntaxError:
        return
    here = source.path.removeprefix("python/").split("/")[:-1]
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, one.name) for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = here[: len(here) - node.level + 1] if node.level else []
            words = [*package, *(node.module.split(".") if node.module else [])]
            yield from ((node.lineno, ".".join([*words, one.name])) for one in node.names)


def module_path(tree: Tree, source: Source, name: str) -> str | None:
    """The file of a module, or of the module that has this name: under python/, or beside a file that is no part of
    the package."""
    beside = [] if source.path.startswith("python/cistern/") else [os.path.dirname(source.path)]
    words = name.split(".")
    for count in range(len(words), 0, -1):
        for folder in ["python", *beside]:
            path = "/".join([folder, *words[:count]]).lstrip("/")
            for file in (f"{path}.py", f"{path}.pyi", f"{path}/__init__.py"):
                if (tree.root / file).is_file():
                    return file
    return None


# ------------------------------------------------------------------------------------ tests


CPP_TEST = re.compile(r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", re.MULTILINE)
PYTHON_TEST = re.compile(r"^[ \t]*(?:async )?def (test_\w+)", re.MULTILINE)


def tests_of(tree: Tree) -> tuple[dict[str, tuple[str, int]], list[str]]:
    """Tests by name, each with its file and line, and patterns of the names that CMake gives to programs. Of a C++ test
    it is ctest's name (without instance and parameter), of a Python test FILE::NAME, of a planted bug mutants/NAME, of
    a fuzzer fuzz/NAME."""
    tests: dict[str, tuple[str, int]] = {}
    patterns: list[str] = []
    prefixes: dict[str, str] = {}  # of the test programs outside src/
    for source in tree.sources:
        if source.path.endswith("CMakeLists.txt"):
            if m := re.search(r"TEST_PREFIX ([^\s)]+)", source.text):
                prefixes[os.path.dirname(source.path)] = m[1]
            for name in re.findall(r"add_test\(NAME ([^\s)]+)", source.text):
                patterns.append(re.sub(r"\\\$\\\{\w+\\\}", r"\\w+", re.escape(name)))
    for source in tree.sources:
        if source.path.endswith("_test.cc"):
            prefix = f"{source.folder}/" if source.folder else prefixes.get(os.path.dirname(source.path), "")
            for m in CPP_TEST.finditer(source.text):
                tests[f"{prefix}{m[1]}.{m[2]}"] = source.path, line_of(source.text, m.start())
        elif source.path.endswith(".py"):
            for m in PYTHON_TEST.finditer(source.text):
                tests[f"{source.path}::{m[1]}"] = source.path, line_of(source.text, m.start())
        elif source.path.endswith("_fuzz.cc"):
            tests[f"fuzz/{source.path.rsplit('/', 1)[-1].removesuffix('.cc')}"] = source.path, 1
    for patch in (tree.root / "tests/storm/mutants").glob("*.patch"):
        tests[f"mutants/{patch.stem}"] = patch.relative_to(tree.root).as_posix(), 1
    return tests, patterns


# ------------------------------------------------------------------------------------ lengths of functions


def functions_of(source: Source) -> Iterator[tuple[str, int, int]]:
    """(name, first line, last line) of each function."""
    if source.path.endswith(".py"):
        try:
            nodes = list(ast.walk(ast.parse(source.text)))
        except SyntaxError:
            return
        for node in nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node.name, node.lineno, node.end_lineno or node.lineno
    elif source.code:
        yield from cpp_functions(source.code)
    else:
        for m in re.finditer(r"^(\w+)\(\) \{$.*?^\}$", source.text, re.MULTILINE | re.DOTALL):
            yield m[1], line_of(source.text, m.start()), line_of(source.text, m.end())


def cpp_functions(code: str) -> Iterator[tuple[str, int, int]]:
    """Function bodies by their braces: a brace outside any function opens one where the declaration before
    it has a parameter list, and a scope (namespace, class, initialiser) where it has none."""
    code = re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", lambda m: re.sub(r"[^\n]", " ", m.group()), code,
                  flags=re.MULTILINE)
    breaks = [m.start() for m in re.finditer("\n", code)]
    depth_in = 0  # braces open since the function's own
    head = 0  # where the declaration before the next brace begins
    name, first = "", 0
    for m in re.finditer(r"[{};]", code):
        sign, at = m.group(), m.start()
        if depth_in:
            depth_in += {"{": 1, "}": -1, ";": 0}[sign]
            if not depth_in:
                yield name, bisect.bisect(breaks, first) + 1, bisect.bisect(breaks, at) + 1
                head = at + 1
        elif sign == "{":
            declaration = code[head:at].strip()
            if re.search(r"\)[^()]*:[^:;]*[\w>]$", declaration) and not re.search(
                    r"\b(?:const|noexcept|override|final)$", declaration):
                continue  # a{b} in a constructor's list: the body is still to come
            called = re.search(r"([~\w:]+|operator\S+)\s*\(", declaration)
            if called and not re.fullmatch(r"namespace\b.*|extern", declaration):
                name, first, depth_in = called[1], at - len(code[head:at].lstrip()), 1
            else:
                head = at + 1
        elif sign == ";" or not re.search(r"\)[^()]*:[^:]", code[head:at]):
            head = at + 1


TYPE = re.compile(r"\s*(?:template <[^;]*>\s*)?(?:struct|class|union|enum(?: class)?)\s+(?:alignas\([^)]*\)\s*)?"
                  r"(?:\[\[\w+\]\]\s*)?(\w+)(?: final)?\s*(?::[^:].*)?$", re.DOTALL)


def types_of(code: str) -> Iterator[tuple[str, int]]:
    """The types that a file defines in named namespaces, whole names, with their lines."""
    scopes: list[str | None] = []  # of each open brace the namespace, or None: a type, a function, an unnamed namespace
    head = 0
    for m in re.finditer(r"[{};]", code):
        if m[0] == "{":
            text = code[head : m.start()]
            if found := re.search(r"\bnamespace ([\w:]+)\s*$", text):
                scopes.append(found[1])
            else:
                found = TYPE.match(text)
                if found and None not in scopes:
                    yield "::".join([s for s in scopes if s] + [found[1]]), line_of(code, head + found.start(1))
                scopes.append(None)
        elif m[0] == "}" and scopes:
            scopes.pop()
        head = m.end()


# ------------------------------------------------------------------------------------ main


def check(root: Path) -> list[Finding]:
    tree = read_tree(root)
    found = [finding for one in CHECKS for finding in one(tree)]
    return sorted(found, key=lambda f: (f.stops, f.path, f.line))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./dev lint")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="draw the includes between folders")
    options = parser.parse_args(arguments)
    if options.picture:
        options.picture.write_text(drawn(read_tree(options.root)))
    findings = check(options.root)
    for finding in findings:
        print(finding, file=sys.stderr)
    stops = sum(f.stops for f in findings)
    print(f"lint: {stops} stops, {len(findings) - stops} warnings", file=sys.stderr)
    return 1 if stops else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

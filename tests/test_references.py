"""Tests of references: modules, functions and files that comments, docstrings and pages name exist."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("sfnode", "sflab", "sfprotocol", "tests", "benchmarks", "scripts")
FOLDERS = (
    "sfnode",
    "sflab",
    "protocol",
    "tests",
    "benchmarks",
    "scripts",
    "examples",
    "docs",
    "deploy",
    "constraints",
)

PAST = ("CHANGELOG.md", "docs/research-log.md")
"""Pages about earlier versions."""

PAST_LINE = "of version 0.1"
"""Words that mark lines about other versions."""

FOREIGN = {
    *("large_models/templates.py", "large_models/utils.py", "run.py", "tasks.py", "utils.py"),
    *("my_verifiers.py", "sfnode/states"),
}
"""Files that are not in this repository: MeZO's, those of readers of docs/verifiers.md, and those in the
user's cache."""

FILE_SUFFIXES = {"json", "md", "py", "safetensors", "toml"}
"""File name extensions, at the end of dotted names of files."""

FILE = re.compile(
    r"(?<![\w/.:~$}}{{-])(?:[\w-]+/)*[\w-]+\.py\b|(?<![\w/.:~$}}{{-])(?:{})/[\w/-]+(?:\.\w+)?".format(
        "|".join(FOLDERS)
    )
)
OURS = re.compile(r"(?<![\w./@-])(?:{})(?:\.\w+)+(?![\w/])".format("|".join(PACKAGES)))
QUOTED = re.compile(r"`([a-z_]\w*(?:\.\w+)+)`")
DOCUMENT = re.compile(r"\b([A-Z]{4,}) (?:section )?\d{1,2}\b(?!\.\d)")


def test_what_is_named_exists(tree: Tree) -> None:
    found = [f"{place}: {name}" for place, name in lost(tree)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("# as `peers.manager`, `sim.world.peering`", ["sim.world.peering"]),
        ('"""See `evaluation.line_search` and `organising.line_search`."""', ["organising.line_search"]),
        ('"""See `feeds.gone`, `manager.PeerManager` and `manager.gone`."""', ["feeds.gone", "manager.gone"]),
        (
            "# tests/bench/gone.py, sfnode/engine/core.py, manager.py, gone.py",
            ["gone.py", "tests/bench/gone.py"],
        ),
        ("# sfnode.engine.core.Core, sfnode.engine.gone", ["sfnode.engine.gone"]),
        ("# the rule (DESIGN 3), as SPEC 3 has it", ["DESIGN"]),
        ("def f(feed):\n    # `feed.origin`, `asyncio.run`, `run.json`\n    return feed", []),
    ],
)
def test_what_leads_nowhere_is_found(text: str, names: list[str], tree: Tree) -> None:
    assert sorted(lost_in_code(text, tree)) == names


def test_the_map_of_the_rooms_names_every_package() -> None:
    drawn = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("```")[1]
    packages = {
        file.parent.name for room in ("sfnode", "sflab") for file in (ROOT / room).rglob("__init__.py")
    }
    assert packages - set(re.findall(r"\w+", drawn)) == set()


class Tree:
    """The files of the repository, and the names that its modules define."""

    def __init__(self) -> None:
        self.modules = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
        self.pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
        self.pages += [page for folder in FOLDERS for page in sorted((ROOT / folder).rglob("*.md"))]
        self.called: dict[tuple[str, ...], list[Path]] = defaultdict(list)
        """Modules, keyed by every suffix of their dotted names."""
        for file in self.modules:
            for end in ends(dotted(file)):
                self.called[end].append(file)
        paths = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
        self.paths = {"/".join(end) for path in paths for end in ends(path.relative_to(ROOT).parts)}
        self.documents = {page.stem for page in self.pages if page.stem.isupper()}

    def has(self, name: str) -> bool:
        """Return whether a name is defined in the repository."""
        if "/" in name or name.endswith(".py"):
            return name in FOREIGN or bool({name.rstrip("/"), f"{name}.py"} & self.paths)
        if "." not in name:
            return name in self.documents
        parts = tuple(name.split("."))
        heads = (parts[:length] for length in range(len(parts), 0, -1))
        head = next((head for head in heads if head in self.called), None)
        return head is not None and (
            head == parts or any(parts[len(head)] in defined_in(file) for file in self.called[head])
        )


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree()


def ends(parts: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    return (parts[first:] for first in range(len(parts)))


def dotted(file: Path) -> tuple[str, ...]:
    parts = file.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] == "protocol" else parts
    return parts[:-1] if parts[-1] == "__init__" else parts


@cache
def defined_in(file: Path) -> set[str]:
    """Return what a module, and the classes in it, define or import."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                found.add(name)
            case ast.alias(name=name, asname=other):
                found.add(other or name.partition(".")[0])
    return found


def lost(tree: Tree) -> Iterator[tuple[str, str]]:
    """Yield the file and the name of each reference that leads nowhere."""
    for file in tree.modules:
        for name in lost_in_code(file.read_text(encoding="utf-8"), tree):
            yield str(file.relative_to(ROOT)), name
    for page in tree.pages:
        if (place := page.relative_to(ROOT).as_posix()) not in PAST:
            yield from (
                (place, name) for name in named_in(page.read_text(encoding="utf-8")) if not tree.has(name)
            )


def lost_in_code(source: str, tree: Tree) -> list[str]:
    """Return the names in comments and docstrings that lead nowhere. Only a source that has such a name
    anywhere is parsed."""
    if all(tree.has(name) for found in (named_in, DOCUMENT.findall, quoted) for name in found(source)):
        return []
    return [name for name in named_in_code(source) if not tree.has(name)]


def named_in(text: str) -> Iterator[str]:
    """Yield the files, and the modules with their packages, that a text names."""
    text = "\n".join(line for line in text.splitlines() if PAST_LINE not in line)
    yield from FILE.findall(text)
    yield from (name for name in OURS.findall(text) if name.rpartition(".")[2] not in FILE_SUFFIXES)


def named_in_code(source: str) -> Iterator[str]:
    """Yield the names in comments and docstrings, also of parts of packages. Local names, names of libraries
    and names of files are left out."""
    module = ast.parse(source)
    known = called(module)
    for text in prose(source, module):
        yield from named_in(text)
        yield from DOCUMENT.findall(text)
        yield from (name for name in quoted(text) if name.partition(".")[0] not in known)


def quoted(text: str) -> Iterator[str]:
    """Yield the names between backquotes, without those of libraries and of files."""
    for name in QUOTED.findall(text):
        first, last = name.partition(".")[0], name.rpartition(".")[2]
        if last not in FILE_SUFFIXES and (first in PACKAGES or not findable(first)):
            yield name


findable = cache(find_spec)


def called(module: ast.Module) -> set[str]:
    """Return the identifiers in code."""
    found: set[str] = set()
    for node in ast.walk(module):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                found.add(name)
            case ast.alias(name=name, asname=other):
                found.add(other or name)
    return found


def prose(source: str, module: ast.Module) -> Iterator[str]:
    """Yield the comments, and the strings that stand as statements."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(module):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text

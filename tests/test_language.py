"""Docstrings say what a thing is or does: they begin with a noun phrase or a verb."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("sfnode", "protocol/sfprotocol", "examples", "scripts")

RELATIVE = {"how", "that", "what", "when", "where", "which", "who", "whom", "whose", "why"}
PREPOSITIONS = {"about", "among", "at", "by", "for", "from", "in", "of", "on", "to", "up", "with", "without"}
JOINING = {"after", "also", "and", "as", "before", "but", "if", "not", "once", "since", "so", "then", "until"}
FRAGMENT_WORDS = frozenset(RELATIVE | PREPOSITIONS | JOINING)
"""First words of relative, genitive and adverbial fragments. Such a docstring can only be understood together
with the name above it, and editors, help and references show it alone."""


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of every string that stands as a statement: docstrings, also of attributes."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text.strip()


def fragments(source: str) -> list[tuple[int, str]]:
    """Return line and first line of text of the docstrings that begin with a fragment."""
    found = ((line, text) for line, text in docstrings(source) if text)
    return [(line, text.splitlines()[0]) for line, text in found if first_word(text) in FRAGMENT_WORDS]


def beginnings(source: str) -> list[str]:
    """Return the comments that stand alone between two definitions, as the text with which a module begins:
    two modules were put into one file. The heading of a section, `# -- name ---`, is none."""
    found = re.findall(r"(?:^|\n\n)((?:#(?!!).*\n)+)(?=\n)", source)
    return [text.splitlines()[0] for text in found if not text.startswith("# --")]


def first_word(text: str) -> str:
    return text.split()[0].strip(",;:.").lower()


def modules() -> dict[Path, str]:
    """Return the text of every module."""
    files = (file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py")))
    return {file.relative_to(ROOT): file.read_text(encoding="utf-8") for file in files}


def test_no_docstring_begins_with_a_fragment() -> None:
    found = [
        f"{file}:{line}: {text}" for file, source in modules().items() for line, text in fragments(source)
    ]
    assert not found, "\n".join(found)


def test_no_module_begins_anew_in_its_middle() -> None:
    found = [f"{file}: {text}" for file, source in modules().items() for text in beginnings(source)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("x = 1\n\n\n# Draws tables. Knows no terminal.\n\nROWS = 5\n", 1),
        ("x = 1\n\n\n# Draws tables.\n#\n# Knows no terminal.\n\n\nROWS = 5\n", 1),
        ("x = 1\n\n# -- tables ------\n\nROWS = 5\n", 0),
        ("x = 1\n\n# Rows of a table.\nROWS = 5\n", 0),
    ],
)
def test_a_second_beginning_is_found(source: str, count: int) -> None:
    assert len(beginnings(source)) == count


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('"""Of one node."""', 1),
        ('limit = 1\n"""How many there may be."""', 1),
        ('class Link:\n    peer: str\n    """\n    Whom it leads to.\n    """', 1),
        ('def size() -> int:\n    """Return how many there are."""', 0),
        ('reason = None\n"""Advice; None where all is well."""', 0),
        ('text = "Of one node."', 0),
    ],
)
def test_fragments_are_found_wherever_docstrings_stand(source: str, count: int) -> None:
    assert len(fragments(source)) == count

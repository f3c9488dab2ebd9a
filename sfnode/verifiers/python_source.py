"""Python source, read and never run: the functions that it defines and the modules that it imports.

CPython's own parser can overflow its stack, take long and print warnings. It gets programs without comments
and without what is in strings, with few tokens and little nesting: then it is quick and silent.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

MAX_TOKENS = 1024
"""Tokens of a program, line ends not counted."""

MAX_STATEMENT = 256
"""Tokens of a logical line, each of which may nest expressions one deeper."""

MAX_NESTING = 16
"""Brackets within each other; the parser's time can grow exponentially with them."""

_LITERALS = re.compile(
    r"""
    (?: (?<!\w) (?: [rRuUbBfF] | [bBfF][rR] | [rR][bBfF] ) )? (?P<string>
        \"{3} (?: [^"\\]++ | \\. | \"{1,2}(?!\") )*+ (?: \"{3} | (?P<open>) )
    |   '{3} (?: [^'\\]++ | \\. | '{1,2}(?!') )*+ (?: '{3} | (?P<open2>) )
    |   \" (?: [^"\\\n]++ | \\. )*+ (?: \" | (?P<open3>) )
    |   ' (?: [^'\\\n]++ | \\. )*+ (?: ' | (?P<open4>) ) )
    |   \#[^\n]*
    """,
    re.VERBOSE | re.DOTALL,
)
"""A string with its prefix, even one without an end, or a comment."""

_TOKENS = re.compile(r"\\\n|\n|[0-9]\w*(?:\.\w*)?|\w+|[^\w\s]", re.ASCII)
_NUMBER = re.compile(
    r"0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][0-9_]*)?[jJ]?"
)
"""A number, or the part of one before the sign of its exponent."""


class Source(NamedTuple):
    """The definitions and imports of a program."""

    functions: dict[str, tuple[str, ...] | None]
    """Parameters of the functions defined at its top level, the last of a name; None where it takes others
    than plain positional ones."""
    modules: frozenset[str]
    """Top-level packages that it imports anywhere; "" for a relative import."""


def parse(text: str) -> Source | None:
    """Read a program; None if it is not one, passes a bound, or has names that are not ASCII."""
    bare = _without_contents(text.replace("\r\n", "\n").replace("\r", "\n"))
    if bare is None or not bare.isascii() or not _bounded(bare):
        return None
    try:
        tree = ast.parse(bare, feature_version=(3, 11))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # of null bytes, of huge integers
        return None
    functions = {one.name: _parameters(one.args) for one in tree.body if isinstance(one, ast.FunctionDef)}
    return Source(functions, frozenset(_modules(tree)))


def _without_contents(text: str) -> str | None:
    """Return a program with empty strings and without comments; None if a string has no end."""
    pieces: list[str] = []
    place = 0
    for found in _LITERALS.finditer(text):
        if any(found[name] is not None for name in ("open", "open2", "open3", "open4")):
            return None
        # The space keeps the quotes of neighbours apart. None before: it would be indentation.
        pieces += text[place : found.start()], "'' " if found["string"] else ""
        place = found.end()
    return "".join((*pieces, text[place:]))


def _bounded(text: str) -> bool:
    """Return whether a program without contents keeps the bounds."""
    tokens = line = depth = 0
    for found in _TOKENS.finditer(text):
        token = found[0]
        if token == "\n":
            line = line if depth > 0 else 0
            continue
        tokens, line = tokens + 1, line + 1
        depth += (token in "([{") - (token in ")]}")
        if tokens > MAX_TOKENS or line > MAX_STATEMENT or depth > MAX_NESTING:
            return False
        # Python allows `1if x`, and prints a warning.
        if token[0].isdigit() and not _NUMBER.fullmatch(token):
            return False
    return True


def _parameters(arguments: ast.arguments) -> tuple[str, ...] | None:
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
        return None
    return tuple(one.arg for one in (*arguments.posonlyargs, *arguments.args))


def _modules(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "" if node.level else (node.module or "").partition(".")[0]

"""Tests that every printed command can be typed: it has all required arguments and only existing options."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest

import sfnode
from sfnode.cli.main import cli
from sfnode.engine.model_card import TAGS

PRODUCT = Path(sfnode.__file__).parent
GIVEN = "1"
"""Placeholder for a value that is known at run time only. It is also a valid number."""

TYPED = re.compile(r"`(sfnode [^`]*)`|^ *(sfnode [a-z][^\n·]*?)(?:  .*)?$", re.MULTILINE)
"""Pattern of a command within backticks, or at the beginning of a line, where two spaces end it."""

PAGE = re.compile(r"<code>(sfnode [^<{]*)</code>|^(?:<pre>)?(sfnode [a-z][^<{\n]*)", re.MULTILINE)


class Printed(NamedTuple):
    place: str
    words: tuple[str, ...]


def printed(file: Path) -> Iterator[Printed]:
    """Yield the commands in the texts of a module, in docstrings of commands, in calls of `command`, and in
    tuples; or those in an HTML page."""
    if file.suffix == ".html":
        for quoted, line in PAGE.findall(file.read_text()):
            yield Printed(str(file.relative_to(PRODUCT)), tuple(shlex.split(quoted or line)))
        return
    tree = ast.parse(file.read_text())
    silent = {id(node) for node in silences(tree)}
    for node in ast.walk(tree):
        place = f"{file.relative_to(PRODUCT)}:{getattr(node, 'lineno', 0)}"
        called = isinstance(node, ast.Call) and ast.unparse(node.func) == "command"
        if called or isinstance(node, ast.Tuple | ast.List):
            parts = node.args if isinstance(node, ast.Call) else node.elts
            words = tuple(word for one in parts if (word := text(one)))
            if words and words[0] == "sfnode" and words != TAGS:
                yield Printed(place, words)
        if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in silent:
            for quoted, line in TYPED.findall(text(node)):
                yield Printed(place, tuple(shlex.split(quoted or line)))


def silences(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that are not printed as they are: docstrings, except those of commands, and parts of
    longer texts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield from (part for part in ast.walk(node) if isinstance(part, ast.Constant))
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        is_command = any("command" in ast.unparse(one) for one in getattr(node, "decorator_list", []))
        if not documented or not is_command:
            body = getattr(node, "body", [])
            yield from (
                (one.value for one in body if isinstance(one, ast.Expr)) if isinstance(body, list) else ()
            )


def text(node: ast.AST) -> str:
    """Return a text in which GIVEN replaces unknown values; empty for unpacked words."""
    if isinstance(node, ast.Starred):
        return ""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(text(part) for part in node.values)
    return GIVEN


def refusal(words: tuple[str, ...]) -> str:
    """Return the reason why click refuses a command; empty if it does not. The command is not run."""
    found: click.Command = cli
    rest = list(words[1:])
    context = click.Context(found, info_name="sfnode", **found.context_settings)
    try:
        while isinstance(found, click.Group) and rest and not rest[0].startswith("-"):
            _, child, rest = found.resolve_command(context, rest)
            assert child is not None
            found, context = child, click.Context(child, parent=context, **child.context_settings)
        options, arguments, _ = found.make_parser(context).parse_args(rest)
        if isinstance(found, click.Group) and found is not cli:
            return "which of its commands?"
    except click.UsageError as error:
        return error.format_message()
    if arguments and not context.allow_extra_args and not isinstance(found, click.Group):
        return f"unexpected {arguments}"
    lacking = [one.name for one in found.params if one.required and not options.get(str(one.name))]
    return f"lacks {lacking}" if lacking else ""


FILES = sorted(file for file in PRODUCT.rglob("*.*") if file.suffix in (".py", ".html"))

ALL = sorted({one for file in FILES for one in printed(file) if one.words[1:2] != (GIVEN,)})


def test_there_are_such_commands() -> None:
    assert len(ALL) > 100


@pytest.mark.parametrize("found", ALL, ids=lambda one: f"{one.place} {' '.join(one.words)}")
def test_it_can_be_typed(found: Printed) -> None:
    assert refusal(found.words) == ""


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ("sfnode history fork", "lacks"),
        ("sfnode status --no-such", "No such option"),
        ("sfnode status too much", "unexpected"),
        ("sfnode nothing", "There is no command"),
        ("sfnode join --run", "requires an argument"),
        ("sfnode organise", "which of its commands"),
    ],
)
def test_what_cannot_be_typed_is_found(typed: str, why: str) -> None:
    assert why in refusal(tuple(typed.split()))

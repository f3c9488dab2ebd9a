"""Standard output, standard error and prompts of commands. All text is made printable."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Sequence
from io import StringIO
from types import SimpleNamespace
from typing import Any

import click

from sfnode.logging import TextFormatter
from sfnode.printable import lines, paragraph, printable

state = SimpleNamespace(as_json=False, printed=False)
"""State of this process's output. `as_json`: whether the command must print JSON, also for errors. `printed`:
whether the command has printed a result."""


def begin(as_json: bool) -> None:
    """Record whether the command prints JSON, before anything is printed, and make the output of libraries
    printable."""
    state.as_json, state.printed = as_json, False
    warnings.formatwarning = lambda said, kind, *_: f"{kind.__name__}: {paragraph(str(said))}\n"
    if logging.lastResort:
        logging.lastResort.setFormatter(TextFormatter())  # of commands that set up no logging


def echo(
    text: str, *, err: bool = False, colour: str | None = None, end: str = "\n", whole: bool = False
) -> None:
    """Print a text, in a colour if one is given.

    Strangers may have chosen names, addresses and reasons in the text. Therefore long lines are cut, unless
    the text is JSON or `whole` is set.
    """
    state.printed = state.printed or not err
    shown = printable(text) if whole or state.as_json else lines(text)
    click.echo(click.style(shown, fg=colour) + end, err=err, nl=False)


def table(rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> str:
    """Return rows as lines, in columns as wide as their widest cells.

    The first row has the headings. Columns in `right` are right-aligned. rich's table is not used, because it
    takes a millisecond a row, too long for thousands of rows, and cuts cells where there is no terminal.
    """
    from rich.cells import cell_len

    shown = [[printable(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*shown, strict=True)]

    def aligned(place: int, cell: str) -> str:
        room = " " * (widths[place] - cell_len(cell))
        return room + cell if place in right else cell + room

    said = ("  ".join(aligned(place, cell) for place, cell in enumerate(row)) for row in shown)
    return "\n".join(line.rstrip() for line in said)


def ask(question: str, **how: Any) -> str:
    """Return the user's answer to a question, asked like click.prompt."""
    return str(click.prompt(lines(question), **how))


def echo_usage(error: click.ClickException) -> None:
    """Print click's message about a command line. The message may quote names from data."""
    said = StringIO()
    error.show(said)
    echo(said.getvalue(), err=True, end="")

"""Standard output and standard error of commands, and what they ask for: whatever is said is printable."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Sequence
from io import StringIO
from types import SimpleNamespace
from typing import Any

import click

from sfnode.printable import lines, paragraph, printable

state = SimpleNamespace(as_json=False, printed=False)
"""Whether the command of this process was asked for JSON, so that an error is JSON, too; and whether it has
printed a result."""


def begin(as_json: bool) -> None:
    """Note what the command was asked for, before anything is printed, and have printable what libraries
    print."""
    state.as_json, state.printed = as_json, False
    warnings.formatwarning = lambda said, kind, *_: f"{kind.__name__}: {paragraph(str(said))}\n"
    if logging.lastResort:
        logging.lastResort.setFormatter(_Plain())


def echo(
    text: str, *, err: bool = False, colour: str | None = None, end: str = "\n", whole: bool = False
) -> None:
    """Print a text, perhaps in a colour. Names, addresses and reasons in it may be those of strangers, so
    lines are cut unless they are JSON, or wanted as a `whole`."""
    state.printed = state.printed or not err
    shown = printable(text) if whole or state.as_json else lines(text)
    click.echo(click.style(shown, fg=colour) + end, err=err, nl=False)


def table(rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> str:
    """Return rows, the first of which has the heads, in columns as wide as their widest cells; `right`: those
    that are aligned there.

    rich's table takes a millisecond a row, of which there are thousands, and cuts cells where no terminal is.
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
    """Return what the user answers to a question, as click.prompt asks it."""
    return str(click.prompt(lines(question), **how))


def echo_usage(error: click.ClickException) -> None:
    """Print click's message about a command line; it may quote what the data of a run are called."""
    said = StringIO()
    error.show(said)
    echo(said.getvalue(), err=True, end="")


class _Plain(logging.Formatter):
    """Formats the log of a command that has set up none."""

    def format(self, record: logging.LogRecord) -> str:
        return paragraph(super().format(record))

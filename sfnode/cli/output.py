"""Standard output and standard error of commands: whatever is said there is printable."""

from __future__ import annotations

from dataclasses import dataclass

import click

from sfnode.printable import printable


@dataclass(slots=True)
class Output:
    """The output of the command of this process."""

    as_json: bool = False
    """Whether it was asked for JSON, so that an error is JSON, too."""
    printed: bool = False
    """Whether it has printed a result."""


state = Output()


def begin(as_json: bool) -> None:
    """Note what the command was asked for, before anything is printed."""
    state.as_json, state.printed = as_json, False


def echo(text: str, *, err: bool = False, colour: str | None = None, end: str = "\n") -> None:
    """Print a text, perhaps in a colour. Names, addresses and reasons in it may be those of strangers."""
    state.printed = state.printed or not err
    click.echo(click.style(printable(text), fg=colour) + end, err=err, nl=False)

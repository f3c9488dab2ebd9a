"""Standard output and standard error of commands: whatever is said there is printable."""

from __future__ import annotations

import click

from sfnode.printable import printable


def echo(text: str, *, err: bool = False, colour: str | None = None, end: str = "\n") -> None:
    """Print a text, perhaps in a colour. Names, addresses and reasons in it may be those of strangers."""
    click.echo(click.style(printable(text), fg=colour) + end, err=err, nl=False)

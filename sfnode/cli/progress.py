"""What somebody who waits is shown, on standard error: a bar on a terminal, a plain line elsewhere.

Knows neither what is waited for nor how long it takes.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

if TYPE_CHECKING:
    from sfnode.runtime.status import Status

CATCHING_UP = ("starting", "asking", "catching-up")
"""States of a node in which its owner waits for it."""

FOLLOW_INTERVAL = 0.25
"""Seconds between two looks at a node that catches up."""

Advance = Callable[[int, int], None]
"""Told how much is done, and of how much."""


@contextmanager
def waiting(what: str) -> Iterator[Advance]:
    """Show that `what` is under way while the block runs; how far, once the block says so."""
    if not sys.stderr.isatty():
        click.echo(what, err=True)
        yield lambda done, total: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total or None)


_followers: set[asyncio.Task[None]] = set()
"""Keeps them from being collected; the event loop ends them with itself."""


def follow(status: Callable[[], Status]) -> None:
    """Show how a node catches up, on a terminal, while the loop runs. In a file its log says as much."""
    if sys.stderr.isatty():
        task = asyncio.create_task(_follow(status))
        _followers.add(task)
        task.add_done_callback(_followers.discard)


async def _follow(status: Callable[[], Status]) -> None:
    if status().state not in CATCHING_UP:
        return
    with waiting("catching up") as advance:
        while (now := status()).state in CATCHING_UP:
            advance(now.known, max((link.known for link in now.links), default=0))
            await asyncio.sleep(FOLLOW_INTERVAL)

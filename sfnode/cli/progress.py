"""Progress on standard error while the user waits: a bar on a terminal, a plain line elsewhere."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from sfnode.cli.output import echo
from sfnode.schema.node_state import NodeState

if TYPE_CHECKING:
    from sfnode.schema.status import Status

CATCHING_UP = (NodeState.ASKING, NodeState.CATCHING_UP)
"""States in which a node has its model and lacks others' updates."""

FOLLOW_INTERVAL = 0.25
"""Seconds between two looks at a node that is catching up."""

Advance = Callable[[int, int], None]
"""A function that is told how much is done, and of how much."""


@contextmanager
def waiting(what: str, *, of_bytes: bool = False, time_left: bool = False) -> Iterator[Advance]:
    """Show that `what` is under way while the block runs, and how far once the block reports it."""
    if not sys.stderr.isatty():
        echo(what, err=True)
        yield lambda done, total: None
        return
    amount = (DownloadColumn(), TransferSpeedColumn()) if of_bytes else (MofNCompleteColumn(),)
    times = (TimeElapsedColumn(), *((TimeRemainingColumn(),) if time_left else ()))
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), *amount, *times)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total or None)


_followers: set[asyncio.Task[None]] = set()
"""References that keep the tasks from being collected; they end with the event loop."""


def follow(status: Callable[[], Status]) -> None:
    """Show on a terminal what a starting node waits for: its base model from peers, then others' updates.

    Without a terminal, the node's log says as much.
    """
    if sys.stderr.isatty():
        task = asyncio.create_task(_follow(status))
        _followers.add(task)
        task.add_done_callback(_followers.discard)


async def _follow(status: Callable[[], Status]) -> None:
    while (now := status()).state in (NodeState.STARTING, *CATCHING_UP):
        if now.fetch is not None:
            await _show(f"{now.fetch.what} from peers", lambda: _downloaded(status()), of_bytes=True)
        elif now.state != NodeState.STARTING:
            await _show("catching up", lambda: _caught_up(status()))
        else:  # the libraries that load a model show bars of their own
            await asyncio.sleep(FOLLOW_INTERVAL)


async def _show(what: str, how_far: Callable[[], tuple[int, int] | None], *, of_bytes: bool = False) -> None:
    """Show how far it is until `how_far` returns None."""
    with waiting(what, of_bytes=of_bytes) as advance:
        while (far := how_far()) is not None:
            advance(*far)
            await asyncio.sleep(FOLLOW_INTERVAL)


def _downloaded(now: Status) -> tuple[int, int] | None:
    return (now.fetch.done, now.fetch.total) if now.fetch else None


def _caught_up(now: Status) -> tuple[int, int] | None:
    most = max((link.known for link in now.links), default=0)
    return (now.known, most) if now.state in CATCHING_UP else None

"""`sfnode leave` and `sfnode finish`: two ways to end a running node."""

from __future__ import annotations

import time
from pathlib import Path

import click

from sfnode.cli.data_folder import running_node
from sfnode.cli.options import data_dir_option
from sfnode.cli.output import echo
from sfnode.errors import Code, UserError
from sfnode.store.data_folder import holder

LEAVE_DEADLINE = 10.0
"""Seconds for a node to end; it takes less than two."""

_POLL = 0.05
"""Seconds between two looks at whether it has ended."""


@click.command
@data_dir_option
def finish(data_dir: Path) -> None:
    """Have the node complete what is running, hand it over to its neighbours, and leave; wait for that.

    It takes as long as a step, and some seconds more if there is no neighbour; half a minute at most if the
    neighbours do not take it. Interrupting this command does not call it off.
    """
    running_node(data_dir).finish()
    _wait_until_gone(data_dir, None)
    echo("finished")


@click.command
@data_dir_option
def leave(data_dir: Path) -> None:
    """End the node that runs in this folder within two seconds, as Ctrl-C does, and wait for that.

    A step that is running is given up; `sfnode finish` completes it.
    """
    running_node(data_dir).leave()
    _wait_until_gone(data_dir, LEAVE_DEADLINE)
    echo("left")


def _wait_until_gone(data_dir: Path, deadline: float | None) -> None:
    begun = time.monotonic()
    while (process := holder(data_dir)) is not None:
        if deadline is not None and time.monotonic() - begun > deadline:
            raise UserError(
                Code.NODE_NOT_ANSWERING,
                f"the node in {data_dir} was told to end and is still there after {deadline:g} s",
                f"See what it logs, or kill process {process}: its update log is on disk.",
            )
        time.sleep(_POLL)

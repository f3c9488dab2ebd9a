"""Lets a node follow its run: when the organiser announces that the run continues as another one, the node
joins the other run.

First the node reads the manifest of the other run, whose hash is in the signed link. This manifest must say
that the other run began with a state of this run. The node stays in this run until a node of the other run
answers.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

from sfnode.errors import Code, UserError
from sfnode.logging import log
from sfnode.node.run_context import RunContext
from sfnode.node.startup import check_run_id
from sfnode.organising.reporting.reports import Reports
from sfnode.peers import introductions
from sfnode.peers.invitations import read_link
from sfnode.store.data_folder import Layout
from sfnode.store.disk_errors import disk_faults
from sfnode.store.identity import Identity

LOOK_INTERVAL = 1.0
"""Seconds between two checks for an announcement."""

RETRY_INTERVAL = 60.0
"""Seconds between two attempts to reach the other run, whose organiser may not have started yet."""

DIGITS = 8
"""Number of hex digits of the run's id in the name of the next data folder."""


async def follow(node: RunContext, reports: Reports, continue_in: Callable[[str], None]) -> None:
    """Wait until the organiser announces a run that continues this one, and a node of that run answers. Then
    call `continue_in` with the link to that run. Each problem with the link is logged once."""
    said = ""
    while True:
        wait = LOOK_INTERVAL
        if link := reports.sequel():
            try:
                await _check(node, link)
            except UserError as error:
                if said != (said := str(error)):
                    log.warning("this run goes on as another one, which cannot be followed yet: %s", error)
                wait = RETRY_INTERVAL
            else:
                log.info("this run goes on as another one: this node follows")
                continue_in(link)
                return
        await asyncio.sleep(wait)


async def _check(node: RunContext, link: str) -> None:
    """Ask a node of the run to which `link` leads for the run's manifest. Raises UserError BAD_LINK,
    WRONG_RUN unless that run began with a state of this node's run, and the errors of
    `introductions.run_of`."""
    said, own = read_link(link), node.manifest.run_id.hex()
    found = await introductions.run_of(
        node.transport, said.addresses, said.run_id.hex(), known=False, random=node.outside.random
    )
    assert found  # without a known run, `run_of` returns one or raises
    check_run_id(found, said.run_id.hex())
    if found.model.parent is None or found.model.parent.run_id != own:
        raise UserError(
            Code.WRONG_RUN,
            f"run {found.run_id.hex()[:16]} ({found.name}) did not begin with a state of {own[:16]} "
            f"({node.manifest.name})",
            "The organiser announces a link to a run that was forked from this one.",
        )


def next_folder(folder: Path, run_id: bytes) -> Path:
    """Make and return the data folder for another run: beside `folder`, named after that run, with a copy of
    this node's key. Raises UserError DATA_DIR_UNUSABLE, DISK_FULL."""
    name = re.sub(f"-[0-9a-f]{{{DIGITS}}}$", "", folder.resolve().name)
    after = folder.resolve().with_name(f"{name}-{run_id.hex()[:DIGITS]}")
    own, its = Layout(folder).identity, Layout(after).identity
    with disk_faults(after):
        after.mkdir(mode=0o700, exist_ok=True)
        if own.exists() and not its.exists():  # a relay has none
            Identity.read(own).write(its)
    return after

"""Lets a node follow its run: when the organiser announces that the run continues as another one, the node
joins the other run.

The node first checks that the other run began with a state of this one, in the manifest whose hash is in the
signed link. It stays in its run until a node of the other run answers.
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
"""Seconds between two attempts to reach the other run: its organiser may be about to start."""

DIGITS = 8
"""Hex digits of the run's id in the name of the next data folder."""


async def follow(node: RunContext, reports: Reports, continue_in: Callable[[str], None]) -> None:
    """Wait until a run continues this one and a node of it answers; then call `continue_in` with the link to
    that run. Log each problem with the link once."""
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
    """Ask a node of the run to which `link` leads for the run's manifest. Raises UserError WRONG_RUN unless
    that run began with this node's run, BAD_LINK, and as `introductions.run_of`."""
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
    """Make and return the data folder for another run: beside `folder`, named after the run, with the same
    key. Raises UserError DATA_DIR_UNUSABLE, DISK_FULL."""
    name = re.sub(f"-[0-9a-f]{{{DIGITS}}}$", "", folder.resolve().name)
    after = folder.resolve().with_name(f"{name}-{run_id.hex()[:DIGITS]}")
    own, its = Layout(folder).identity, Layout(after).identity
    with disk_faults(after):
        after.mkdir(mode=0o700, exist_ok=True)
        if own.exists() and not its.exists():  # a relay has none
            Identity.read(own).write(its)
    return after

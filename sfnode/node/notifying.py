"""Runs the owner's command when the run completes, the model gets worse, another node organises the run, or
this node is offline."""

from __future__ import annotations

import asyncio
import os
import shlex
from asyncio.subprocess import DEVNULL
from collections.abc import Callable, Iterator

from sfnode.errors import Code
from sfnode.logging import log
from sfnode.organising.organiser import OrganiserState
from sfnode.printable import paragraph
from sfnode.schema.node_state import NodeState
from sfnode.schema.status import Status

LOOK = 5.0
"""Seconds between two checks of the node."""

OFFLINE_AFTER = 120.0
"""Time, in seconds, without a link after which a node that once had a link counts as offline. The node itself
redials its peers much sooner."""

PATIENCE = 60.0
"""Time, in seconds, after which a command that is still running is killed."""

WORSE = f"SF{Code.RUN_GETS_WORSE:03d}"


async def notify(status: Callable[[], Status], clock: Callable[[], float], command: str) -> None:
    """Run `command` at each event, with the event's name and a sentence about it as last arguments, until
    cancelled.

    The command runs without a shell, and with the variables SFNODE_EVENT, SFNODE_TEXT and SFNODE_RUN_NAME.
    """
    before: frozenset[str] = frozenset()
    term: int | None = None
    linked: float | None = None
    while True:
        now, at = status(), clock()
        linked = at if now.links else linked
        events = dict(_events(now, linked is not None and at - linked > OFFLINE_AFTER))
        if now.organised and term is not None and now.organised.term > term:
            who = "this" if now.organised.organiser == OrganiserState.ORGANISING.value else "another"
            text = f"{who} node organises the run {now.run_name} now"
            await _run(command, "organiser", text, now.run_name)
        term = now.organised.term if now.organised else None
        for event in [one for one in events if one not in before]:
            await _run(command, event, paragraph(events[event]), now.run_name)
        before = frozenset(events)
        await asyncio.sleep(LOOK)


def _events(now: Status, offline: bool) -> Iterator[tuple[str, str]]:
    """Yield the present events, each with a sentence."""
    if now.state is NodeState.COMPLETE:
        yield "complete", f"the run {now.run_name} is complete"
    worse = next((one for one in now.alarms if one.code == WORSE), None)
    if worse:
        yield "worse", worse.what
    if offline:
        yield "offline", f"no other node of the run {now.run_name} can be reached"


async def _run(command: str, event: str, text: str, run: str) -> None:
    said = {"SFNODE_EVENT": event, "SFNODE_TEXT": text, "SFNODE_RUN_NAME": run}
    try:
        program = await asyncio.create_subprocess_exec(
            *shlex.split(command), event, text, stdin=DEVNULL, stdout=DEVNULL, env={**os.environ, **said}
        )
    except (OSError, ValueError) as error:
        log.warning("--notify: %s did not start: %s", command, error)
        return
    try:
        async with asyncio.timeout(PATIENCE):
            if status := await program.wait():
                log.warning("--notify: %s ended with status %d", command, status)
    except TimeoutError:
        log.warning("--notify: %s was killed after %.0f s", command, PATIENCE)
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()

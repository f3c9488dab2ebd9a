"""One course of a swarm with everything that happens to swarms, and what was seen of it.

A relay and four trainers; one trainer leaves after forty updates, one is killed and comes back beside a copy of
itself, one joins late, one is stopped for good; the others complete the run. When all trainers have gone, a
newcomer gets everything from the relay. It takes its time from events, never from a clock: what a restart costs
and what a step costs are both computing, so the run is as long as it has to be on any machine.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM

from process_helpers import LOOPBACK, Node, sfnode, until

from sfnode.cli.draft import build
from sfnode.client import Client
from sfnode.config import Manifest
from sfnode.runtime.status import CoreStatus, FeedStatus, Status
from sfnode.store.datadir import Layout

UPDATES = 800
"""The wave of restarts takes about 250 of them."""

BATCH = 64
"""Rows of an update: makes one cost 0.03 s, a hundredth of the start of a node."""

STEPS = 40

SURVIVORS = ("revenant", "copy", "late")


@dataclass(frozen=True)
class Ending:
    """How a node ended, and how long that took."""

    status: int
    seconds: float


@dataclass(frozen=True)
class Course:
    """What was seen."""

    manifest: Manifest
    folders: dict[str, Path]
    killed: Status
    """The last that the victim said before it was killed."""
    back: Status
    """The first that it said of its training after it came back."""
    final: dict[str, Status]
    """What the survivors and the relay said when the run was complete."""
    cores: dict[str, CoreStatus]
    endings: dict[str, Ending]
    counted: FeedStatus
    """The feed of the node that was to make STEPS updates, as the relay has it."""


def run(home: Path, make: Callable[..., Node]) -> Course:
    """Let it all happen in the folder `home`."""
    manifest = build({"batch_size": BATCH, "update_budget": UPDATES})
    (home / "run.toml").write_text(manifest.to_toml())
    relay = make("relay", "--run", "run.toml", "--role", "relay", *LOOPBACK).start()
    join = ("--peers", relay.address())
    steady = make("steady", *join, *LOOPBACK, "--until-complete").start()
    victim = make("revenant", *join, *LOOPBACK).start()
    leaver = make("leaver", *join, *LOOPBACK).start()
    counted = make("counted", *join, *LOOPBACK, "--steps", STEPS).start()
    endings: dict[str, Ending] = {}

    origin = counted.until("it has an origin", lambda status: status.origin).origin
    killed = victim.until("it trains", lambda status: status.own_updates > 5)
    victim.send(SIGKILL)
    victim.wait()
    copy = make("copy", *join, *LOOPBACK)
    shutil.copytree(victim.folder, copy.folder, ignore=shutil.ignore_patterns("*.sock"))
    late = make("late", *join)
    for node in (victim, copy, late):
        node.start()
    back = victim.until("it trains again", lambda status: status.own_updates > 0)
    for node in (copy, late):
        node.until("it trains", lambda status: status.own_updates > 0)
    leaver.until("the run is still going on", lambda status: status.state == "training")
    endings["leaver"] = Ending(*leaver.end(SIGTERM))
    endings["counted"] = Ending(counted.wait(), 0.0)
    endings["steady"] = Ending(steady.wait(), 0.0)

    living = {node.folder.name: node for node in (victim, copy, late, relay)}
    final = until("all agree", lambda: _agreement(living))
    cores = {name: _core(living[name]) for name in SURVIVORS}
    feeds = {feed.origin: feed for feed in final["relay"].feeds}
    endings["revenant"] = Ending(*victim.end(SIGINT))
    endings["copy"] = Ending(*copy.end(SIGTERM))
    assert sfnode(home, "stop", "--data-dir", late.folder).returncode == 0
    endings["late"] = Ending(late.wait(), 0.0)

    newcomer = make("newcomer", *join, "--until-complete").start()
    endings["newcomer"] = Ending(newcomer.wait(), 0.0)
    endings["relay"] = Ending(*relay.end(SIGTERM))
    everybody = (relay, steady, victim, copy, leaver, late, newcomer, counted)
    folders = {node.folder.name: node.folder for node in everybody}
    return Course(manifest, folders, killed, back, final, cores, endings, feeds[origin])


def _agreement(living: dict[str, Node]) -> dict[str, Status] | None:
    """What all say, once they say that the run is complete and have the same digest."""
    statuses = {name: node.status() for name, node in living.items()}
    said = {name: status for name, status in statuses.items() if status}
    complete = len(said) == len(living) and all(status.state == "complete" for status in said.values())
    return said if complete and len({status.digest for status in said.values()}) == 1 else None


def _core(node: Node) -> CoreStatus:
    return asyncio.run(Client(Layout(node.folder).control_socket).digest())

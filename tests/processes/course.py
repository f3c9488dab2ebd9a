"""One course of a swarm with everything that happens to swarms, and what was seen of it.

A relay and four trainers; one trainer leaves after forty updates, one is killed and comes back beside a copy
of itself, one joins late, one is stopped for good; the others complete the run. When all trainers have gone,
a newcomer gets everything from the relay. What happens when follows from events, never from a clock: a start
and a step both cost computing, so the run is long enough on any machine.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM, Signals

from process_helpers import LOOPBACK, Node, sfnode, until

from sfnode.cli.draft import build
from sfnode.client import Client
from sfnode.config import Manifest
from sfnode.runtime.status import CoreStatus, FeedStatus, Status
from sfnode.store.datadir import Layout
from sfnode.store.log import UpdateLog
from sfprotocol.messages import Feed

UPDATES = 640
"""What happens takes about 330 of them."""

BATCH = 64
"""Rows of an update: makes one cost 0.03 s, a hundredth of the start of a node."""

STEPS = 40

SURVIVORS = ("revenant", "copy", "late")


@dataclass(frozen=True)
class Ending:
    """How a node ended, and how long that took."""

    status: int
    seconds: float = 0.0


@dataclass(frozen=True)
class Course:
    """What was seen."""

    manifest: Manifest
    folders: dict[str, Path]
    killed: Status
    """The last that the victim said before it was killed."""
    logged: int
    """How many updates of its feed its log held then."""
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
    logged = _own_length(copy.folder, killed)
    late = make("late", *join)
    for node in (victim, copy, late):
        node.start()
    back = victim.until("it trains again", lambda status: status.own_updates > 0)
    for node in (copy, late):
        node.until("it trains", lambda status: status.own_updates > 0)
    leaver.until("the run is still going on", lambda status: status.state == "training")
    endings["leaver"] = _end(leaver, SIGTERM)
    endings["counted"] = Ending(counted.wait())
    endings["steady"] = Ending(steady.wait())

    living = {node.folder.name: node for node in (victim, copy, late, relay)}
    final = until("all agree", lambda: _agreement(living))
    cores = {name: _core(living[name]) for name in SURVIVORS}
    feeds = {feed.origin: feed for feed in final["relay"].feeds}
    endings["revenant"] = _end(victim, SIGINT)
    endings["copy"] = _end(copy, SIGTERM)
    assert sfnode(home, "stop", "--data-dir", late.folder).returncode == 0
    endings["late"] = Ending(late.wait())

    newcomer = make("newcomer", *join, "--until-complete").start()
    endings["newcomer"] = Ending(newcomer.wait())
    endings["relay"] = _end(relay, SIGTERM)
    everybody = (relay, steady, victim, copy, leaver, late, newcomer, counted)
    folders = {node.folder.name: node.folder for node in everybody}
    return Course(manifest, folders, killed, logged, back, final, cores, endings, feeds[origin])


def _agreement(living: dict[str, Node]) -> dict[str, Status] | None:
    """What all say, once they say that the run is complete and have the same digest."""
    statuses = {name: node.status() for name, node in living.items()}
    said = {name: status for name, status in statuses.items() if status}
    complete = len(said) == len(living) and all(status.state == "complete" for status in said.values())
    return said if complete and len({status.digest for status in said.values()}) == 1 else None


def _own_length(folder: Path, status: Status) -> int:
    """How many updates of a node's feed are in the log that it left."""
    with UpdateLog.open(Layout(folder).log, bytes.fromhex(status.run_id), read_only=True) as log:
        feed = Feed(bytes.fromhex(status.origin), status.incarnation)
        return next(tail.next for tail in log.tails() if tail.feed == feed)


def _end(node: Node, number: Signals) -> Ending:
    asked = time.monotonic()
    return Ending(node.end(number), time.monotonic() - asked)


def _core(node: Node) -> CoreStatus:
    return asyncio.run(Client(Layout(node.folder).control_socket).digest())

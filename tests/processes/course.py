"""One course of a swarm with all events that can happen to it, and what was measured.

An organised run has a relay and four trainers; one of these organises the run. One trainer leaves after forty
updates, and one loses its network daemon. The organiser is killed and restarts beside a copy of itself. One
trainer joins late, and one is stopped for good. Then the recovery key names another organiser, which ends the
run. When all trainers have left, a newcomer gets everything from the relay. Each event follows from earlier
events, never from a clock, and the run is long enough, so the course is the same on any machine.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM, Signals
from typing import NamedTuple

from sfnode.control.client import Client
from sfnode.preparing.manifest import build
from sfnode.schema.status import Status
from sfnode.schema.views import FeedStatus
from sfnode.store.data_folder import Layout
from sfnode.store.log import UpdateLog
from sfnode.store.run_keys import RunKeys
from sfprotocol.fields import Names
from sfprotocol.messages import ELECTED_TERMS, Feed
from tests.processes.helpers import LOOPBACK, Node, fresh, here, p2pd_of, sfnode, until

BUDGET = 1_000_000
"""Update budget, which is never reached, because a decision ends the run."""

EPOCH = 50
"""Number of updates of an epoch, so small that several epochs are closed before the organiser is killed."""

QUOTA = 2000
"""Maximum number of a member's updates per label. A trainer makes as many while the organiser is away."""

BATCH = 64
"""Rows per update. An update then takes 0.03 s, a hundredth of the start of a node."""

SHARE = 10
"""CPU limit of each node except the organiser, in percent of all cores. It leaves room for nodes that
start."""

STEPS = 40
"""Number of updates after which the trainer `counted` leaves."""

NAMES = Names("Ann", "The Owls")
"""Name and team of the trainer `counted`."""

UNFORKED = ("relay", "steady")
"""Nodes that run in their own interpreter, as when a user starts them. There, strings have other hashes. If
any order depended on these hashes, digests would differ."""

SURVIVORS = ("revenant", "copy", "late")
"""Trainers that run until the end."""


class Ending(NamedTuple):
    """Exit status of a node, and the seconds that it took to end."""

    status: int
    seconds: float = 0.0


class Course:
    """The course in the folder `home`. Its methods are called in their order, and keep what they measure."""

    def __init__(self, home: Path, make: Callable[..., Node]) -> None:
        self.home = home
        keys = RunKeys.generate()
        numbers = {"batch_size": BATCH, "update_budget": BUDGET, "epoch_updates": EPOCH, "quota": QUOTA}
        self.manifest = build(numbers | {"validation_limit": 0} | keys.options())
        keys.write(self.manifest.run_id, home / "keys")
        self.nodes: dict[str, Node] = {}
        self.endings: dict[str, Ending] = {}
        self._make = make
        self._join: tuple[str, ...] = ()

    def start(self) -> None:
        """Start a relay, an organiser and a trainer that join through the relay, and two trainers that join
        by the organiser's link."""
        (self.home / "run.toml").write_text(self.manifest.to_toml())
        relay = self._start("relay", "--run", "run.toml", "--role", "relay", *LOOPBACK)
        self._join = ("--peers", relay.address())
        self._start("steady", *self._join, *LOOPBACK, "--until-complete")
        organises = "--organise", "--keys-dir", self.home / "keys"
        organiser = self._start("revenant", *self._join, *LOOPBACK, *organises)
        organiser.until_organised("it signs", lambda said: said.members)
        link = self._organise("revenant", "invite", "--uses", 2).split()[-1]
        self._start("leaver", link, *LOOPBACK)
        called = "--display-name", NAMES.name, "--team", NAMES.team
        counted = self._start("counted", link, *LOOPBACK, "--steps", STEPS, *called)
        self.counted_origin = counted.until("it has a key", lambda status: status.origin).origin

    def strike(self) -> None:
        """Kill the organiser and copy its folder. Start both folders, and a latecomer that is given only an
        address."""
        victim = self.nodes["revenant"]
        self.killed = victim.until("it trains", lambda status: status.own_updates > 5)
        self.sealed = victim.until_organised("epochs are sealed", lambda said: said.sealed).sealed
        leaver = self.nodes["leaver"]
        leaver.until("it trains", lambda status: status.own_updates > 0)
        victim.end(SIGKILL)
        known = leaver.until("it answers", bool).known
        leaver.until("training goes on without an organiser", lambda status: status.known > known)
        shutil.copytree(victim.folder, self.home / "copy", ignore=shutil.ignore_patterns("*.sock"))
        self.logged = own_length(self.home / "copy", self.killed)
        until("a network daemon", lambda: p2pd_of(self.nodes["steady"])).kill()
        victim.start()
        self._start("copy", *self._join, *LOOPBACK)
        self._start("late", *self._join)

    def recover(self) -> None:
        """Wait until these three nodes train, epochs are sealed again, and `counted` has made its steps.
        Meanwhile stop `leaver` for good."""
        steady, organiser = self.nodes["steady"], self.nodes["revenant"]
        organiser.until_organised("it asks before it signs", lambda said: said.organiser == "restarted")
        survivors = [self.nodes[name] for name in SURVIVORS]
        self.back, *_ = (node.until("it trains", lambda status: status.own_updates > 0) for node in survivors)
        # before the succession drops the last decisions, and updates with their labels
        until("the latecomer has all that the killed one made", self._has_all_of_the_killed)
        leaver = self.nodes["leaver"]
        leaver.until("the run is still going on", lambda status: status.state in ("training", "asking"))
        self._end("leaver", SIGTERM)
        steady.until_organised("it seals again", lambda said: said.sealed > self.sealed + 1)
        # on a fast machine the run could end before a trainer with 10 % of the cores has made its steps
        self.endings["counted"] = Ending(self.nodes["counted"].wait())

    def hand_over(self) -> None:
        """Name another organiser with the recovery key, and start that organiser."""
        file, steady, late = self.home / "succession.json", self.nodes["steady"], self.nodes["late"]
        next_key = "--keys-dir", self.home / "next-keys"

        def written() -> bool:
            """Return whether the succession is written. It is refused while a neighbour has one decision more
            than the node (SF067)."""
            with suppress(AssertionError):
                self._organise("late", "hand-over", "--out", file, *next_key)
            return file.exists()

        until("the node has all decisions", written)
        here("organise", "sign", file, "--keys-dir", self.home / "keys")
        self._organise("steady", "hand-over", "--submit", file)
        self.nodes["revenant"].until_organised("it stops", lambda said: said.organiser == "stopped")
        late.until_organised("it has heard of it", lambda said: said.term == ELECTED_TERMS)
        self._end("late", SIGTERM)
        late.arguments += ("--organise", "--set", "organise.alone=yes", *next_key)
        late.start()
        sealed = steady.until_organised(
            "it has heard of it, too", lambda said: said.term == ELECTED_TERMS
        ).sealed
        steady.until_organised("the next one seals", lambda said: said.sealed > sealed)
        self._organise("late", "end", "--yes")

    def complete(self) -> None:
        """Wait until all nodes know that the run is complete. Ask the remaining nodes for their state."""
        self.endings["steady"] = Ending(self.nodes["steady"].wait())
        self.final = until("all agree", self._agreement)
        self.organised = {name: self.nodes[name].until_organised("it ends", bool) for name in self.final}
        self.feeds = {name: self.nodes[name].feeds() for name in self.final}
        clients = {name: Client(Layout(self.nodes[name].folder).control_socket) for name in SURVIVORS}
        self.cores = {name: asyncio.run(client.digest()) for name, client in clients.items()}
        relay = self.nodes["relay"].folder
        self.relay_says = fresh(self.home, "status", "--data-dir", relay, python=("-X", "importtime"))

    def leave(self) -> None:
        """Stop all trainers, in three ways: by SIGINT, by SIGTERM and by a command."""
        self._end("revenant", SIGINT)
        self._end("copy", SIGTERM)
        self.stopped = sfnode(self.home, "leave", "--data-dir", self.nodes["late"].folder)
        self.endings["late"] = Ending(self.nodes["late"].wait())

    def outlive(self) -> None:
        """Start a newcomer that finds only the relay, and then stop the relay."""
        newcomer = self._start("newcomer", *self._join, "--until-complete")
        self.endings["newcomer"] = Ending(newcomer.wait())
        self._end("relay", SIGTERM)

    def _organise(self, name: str, command: str, *arguments: object) -> str:
        """Run a command of `sfnode organise` for a node. Return its output."""
        return here("organise", command, *arguments, "--data-dir", self.nodes[name].folder)

    def _start(self, name: str, *arguments: object) -> Node:
        calm = () if name == "revenant" else ("--limit", f"cpu={SHARE}")
        self.nodes[name] = self._make(name, *arguments, *calm, inside=() if name in UNFORKED else None)
        return self.nodes[name].start()

    def _end(self, name: str, number: Signals) -> None:
        asked = time.monotonic()
        self.endings[name] = Ending(self.nodes[name].end(number), time.monotonic() - asked)

    def _has_all_of_the_killed(self) -> bool:
        """Return whether the latecomer has all updates that the killed node made before its death and since
        its restart."""
        return length(self.nodes["late"].feeds(), self.killed) >= self.logged + self.back.own_updates

    def _agreement(self) -> dict[str, Status] | None:
        """Return the statuses of the remaining nodes; None unless all are complete and have equal digests."""
        statuses = {name: self.nodes[name].status() for name in (*SURVIVORS, "relay")}
        said = {name: status for name, status in statuses.items() if status and status.state == "complete"}
        agree = len({status.digest for status in said.values()}) == 1
        return said if agree and len(said) == len(statuses) else None


def run(home: Path, make: Callable[..., Node]) -> Course:
    """Run the whole course."""
    course = Course(home, make)
    course.start()
    course.strike()
    course.recover()
    course.hand_over()
    course.complete()
    course.leave()
    course.outlive()
    return course


def length(feeds: Sequence[FeedStatus], of: Status) -> int:
    """Return the number of updates in the feed of the node with status `of`."""
    known = {(feed.origin, feed.incarnation): feed.updates for feed in feeds}
    return known.get((of.origin, of.incarnation), 0)


def own_length(folder: Path, status: Status) -> int:
    """Return the number of updates of a node's own feed in the log of `folder`."""
    with UpdateLog.open(Layout(folder).log, bytes.fromhex(status.run_id), read_only=True) as log:
        feed = Feed(bytes.fromhex(status.origin), status.incarnation)
        return next(tail.next for tail in log.tails() if tail.feed == feed)

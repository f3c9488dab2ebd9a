"""One course of a swarm through everything that can happen to it, and what was measured.

A relay and four trainers of an organised run, one of whom organises it. One trainer leaves after forty
updates, one loses its network daemon, the organiser is killed and comes back beside a copy of itself, one
joins late, one is stopped for good. Then the recovery key names another organiser, who ends the run. When all
trainers have gone, a newcomer gets everything from the relay. What happens when follows from events, never
from a clock: a start and a step both cost computing, so the run is long enough on any machine.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Sequence
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
"""Update budget, which the course does not reach: a decision ends the run."""

EPOCH = 50
"""Updates after which an epoch is closed: there are several before the organiser is killed."""

QUOTA = 2000
"""Updates of one label: as many as a trainer makes while the organiser is away."""

BATCH = 64
"""Rows per update: one takes 0.03 s, a hundredth of the start of a node."""

SHARE = 10
"""Limit in percent of all cores of each but the organiser: who trains leaves room for those that start."""

STEPS = 40
"""Updates after which one trainer leaves."""

NAMES = Names("Ann", "The Owls")
"""Name of that trainer."""

UNFORKED = ("relay", "steady")
"""Nodes that are started as a user does it, in an interpreter of their own: strings have other hashes there,
and whatever depended on an order that follows from them would show in the digests."""

SURVIVORS = ("revenant", "copy", "late")
"""Trainers that are running at the end."""


class Ending(NamedTuple):
    """Exit status of a node, and the seconds that it took to end."""

    status: int
    seconds: float = 0.0


class Course:
    """Runs the course in the folder `home`, in the order of its methods, and keeps what was measured."""

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
        """Start a relay, the organiser through it, and three trainers, two of them by its link."""
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
        """Kill one and copy its folder; start both, and a latecomer that is given only an address."""
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
        """Wait until those three train, epochs are sealed again and one has made its steps; stop another one
        for good."""
        steady, organiser = self.nodes["steady"], self.nodes["revenant"]
        organiser.until_organised("it asks before it signs", lambda said: said.organiser == "restarted")
        survivors = [self.nodes[name] for name in SURVIVORS]
        self.back, *_ = (node.until("it trains", lambda status: status.own_updates > 0) for node in survivors)
        # before a succession drops what was decided last, and what was made with its labels
        until("the latecomer has all that the killed one made", self._has_all_of_the_killed)
        leaver = self.nodes["leaver"]
        leaver.until("the run is still going on", lambda status: status.state in ("training", "asking"))
        self._end("leaver", SIGTERM)
        steady.until_organised("it seals again", lambda said: said.sealed > self.sealed + 1)
        # a fast machine could end the run before a trainer with a tenth of it has made its steps
        self.endings["counted"] = Ending(self.nodes["counted"].wait())

    def hand_over(self) -> None:
        """Have the recovery key name another organiser, and start that one."""
        file, steady, late = self.home / "succession.json", self.nodes["steady"], self.nodes["late"]
        next_key = "--keys-dir", self.home / "next-keys"
        self._organise("late", "hand-over", "--out", file, *next_key)
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
        """Wait until all know that the run is complete, and ask the remaining nodes for their state."""
        self.endings["steady"] = Ending(self.nodes["steady"].wait())
        self.final = until("all agree", self._agreement)
        self.organised = {name: self.nodes[name].until_organised("it ends", bool) for name in self.final}
        self.feeds = {name: self.nodes[name].feeds() for name in self.final}
        clients = {name: Client(Layout(self.nodes[name].folder).control_socket) for name in SURVIVORS}
        self.cores = {name: asyncio.run(client.digest()) for name, client in clients.items()}
        relay = self.nodes["relay"].folder
        self.relay_says = fresh(self.home, "status", "--data-dir", relay, python=("-X", "importtime"))

    def leave(self) -> None:
        """Stop all trainers, in the three ways that there are."""
        self._end("revenant", SIGINT)
        self._end("copy", SIGTERM)
        self.stopped = sfnode(self.home, "leave", "--data-dir", self.nodes["late"].folder)
        self.endings["late"] = Ending(self.nodes["late"].wait())

    def outlive(self) -> None:
        """Start a newcomer that finds only the relay; then stop the relay as well."""
        newcomer = self._start("newcomer", *self._join, "--until-complete")
        self.endings["newcomer"] = Ending(newcomer.wait())
        self._end("relay", SIGTERM)

    def _organise(self, name: str, command: str, *arguments: object) -> str:
        """Run a command of `sfnode organise` at a node; return what it prints."""
        return here("organise", command, *arguments, "--data-dir", self.nodes[name].folder)

    def _start(self, name: str, *arguments: object) -> Node:
        calm = () if name == "revenant" else ("--limit", f"cpu={SHARE}")
        self.nodes[name] = self._make(name, *arguments, *calm, inside=() if name in UNFORKED else None)
        return self.nodes[name].start()

    def _end(self, name: str, number: Signals) -> None:
        asked = time.monotonic()
        self.endings[name] = Ending(self.nodes[name].end(number), time.monotonic() - asked)

    def _has_all_of_the_killed(self) -> bool:
        """Return whether the latecomer has what the killed node made before and since."""
        return length(self.nodes["late"].feeds(), self.killed) >= self.logged + self.back.own_updates

    def _agreement(self) -> dict[str, Status] | None:
        """Return the statuses of the remaining nodes once the run is complete and their digests are equal."""
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
    """Return the number of updates in that node's feed."""
    known = {(feed.origin, feed.incarnation): feed.updates for feed in feeds}
    return known.get((of.origin, of.incarnation), 0)


def own_length(folder: Path, status: Status) -> int:
    """Return the number of updates of a node's own feed in the log in this folder."""
    with UpdateLog.open(Layout(folder).log, bytes.fromhex(status.run_id), read_only=True) as log:
        feed = Feed(bytes.fromhex(status.origin), status.incarnation)
        return next(tail.next for tail in log.tails() if tail.feed == feed)

"""Fault injection: puts what every kind of fault does on the agenda, and repairs everything in the end.

All chance comes from the world's generator for faults. `heal` works from whatever state the faults have left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sflab.simulator.faults import kinds
from sflab.simulator.world import disk
from sflab.simulator.world.computer import Computer
from sflab.simulator.world.hardware import Hardware
from sflab.simulator.world.keys import origin_of, signing_key
from sflab.simulator.world.oracle import Violation
from sflab.simulator.world.runs import DEPUTIES, ORGANISER, SUCCESSOR, VOTES
from sflab.simulator.world.world import World
from sfnode.transport.memory import CALM, MemoryLink
from sfprotocol.control_feed import succession_message
from sfprotocol.decisions import INCARNATIONS, Amend, Announce, Revoke, Void, encode
from sfprotocol.events import OwnDecision, OwnSuccession
from sfprotocol.messages import Succession, Vote

RESTORING = 1.0
"""Seconds to restore a backup."""

NEWCOMERS_LINKS = 3
"""Links of a node that joins a fixed set of links later."""

BUSY_LOOK = 0.02
"""Seconds between two looks whether it is the moment: what is decided takes two hops, of 50 ms each."""

TWIN = "-twin"
"""Suffix of the name of a node that is a copy of another."""

TWINS_PACE = 0.7
"""Seconds between updates of twins, so that both go on with the feed before they hear of each other."""


class FaultInjection:
    """Faults of one run, until `stop`."""

    def __init__(self, world: World, stop: float, scale: float = 1.0) -> None:
        """`scale` is the factor by which the times of the scenario are stretched."""
        self.world = world
        self._stop = stop
        self._scale = scale
        self._newcomers = sum(name.startswith("new") for name in world.nodes)
        """Those of earlier faults in the same world included."""
        self._began = world.now
        self._updates_then = 0
        """Updates that had been made when two nodes decided at one position."""

    def install(self, faults: Iterable[kinds.Fault]) -> None:
        """Put them on the agenda, their times counted from now."""
        for fault in faults:
            self._install(fault)

    def _install(self, fault: kinds.Fault) -> None:
        match fault:
            case kinds.Partition():
                self._at(fault.start, self._part, fault)
                self._at(fault.stop, self._rejoin)
            case kinds.Flaps(every=every):
                self._again(every, self._flap)
            case kinds.Crashes(every=every):
                self._again(every, lambda: self._crash(fault))
            case kinds.OldBackup(taken=taken):
                self._at(taken, self._back_up, fault)
            case kinds.Twins(start=start):
                self._at(start, self._twin, fault)
            case kinds.ClockJumps(every=every):
                self._again(every, lambda: self._leap(fault))
            case kinds.Churn(per_minute=share):
                self._again(60 / (share * len(self.world.nodes)), self._churn)
            case kinds.SlowPeers():
                self._slow_down(fault)
            case kinds.LateJoin(at=at, count=count, checkpoint=checkpoint):
                for _ in range(count):
                    self._at(at, partial(self._join, begins_with_checkpoint=checkpoint))
            case kinds.Pruning() | kinds.ArchiveLeaves():
                self._install_history(fault)
            case _:
                self._install_organised(fault)

    def _install_history(self, fault: kinds.Pruning | kinds.ArchiveLeaves) -> None:
        match fault:
            case kinds.Pruning(share=share):
                nodes = [node for node in self.world.staying() if not node.organises]
                for node in self.world.random.sample(nodes, round(share * len(nodes))):
                    node.prunes = True
                    node.crash()  # a setting of the node, which holds from its next start on
                    node.start()
            case kinds.ArchiveLeaves(at=at):
                self._at(at, self._archive_leaves)

    def _install_organised(self, fault: kinds.Fault) -> None:
        match fault:
            case kinds.OrganiserAway(start=start, stop=stop, taken=taken):
                if taken is not None:
                    self._at(taken, self._back_up_organiser, stop)
                self._at(start, lambda: self._organiser().crash())
                self._at(stop, lambda: restart(self.world, self._organiser()))
            case kinds.OrganiserLost(at=at, succeeded=succeeded):
                self._at(at, self._lose_organiser)
                self._at(succeeded, self._succeed)
            case kinds.OrganiserTwice(start=start, succeeded=succeeded):
                self._at(start, self._decide_twice)
                self._at(succeeded, self._succeed_fork)
            case (
                kinds.LeaderFalls() | kinds.HandOver() | kinds.Split() | kinds.Stopped() | kinds.ClockAhead()
            ):
                self._at(fault.start if isinstance(fault, kinds.Split) else fault.at, self._strike, fault)
            case kinds.Undo(at=at, what=what):
                self._at(at, self._undo, what)
            case kinds.Loss(at=at):
                self._at(at, self._lose)

    def _at(self, when: float, do: Callable[..., None], *arguments: Any) -> None:
        """Do it once, at this time of the scenario, unless the faults are over by then."""
        after = when * self._scale
        if self.world.now + after < self._stop:
            self.world.agenda.later(after, do, *arguments)

    def _again(self, every: float, do: Callable[[], None]) -> None:
        """Do it at random moments, `every` seconds apart on average, as long as faults last."""

        def once() -> None:
            if self.world.now < self._stop:
                do()
                plan()

        def plan() -> None:
            self.world.agenda.later(self.world.random.expovariate(1 / every), once)

        plan()

    # -- the network -------------------------------------------------------------------------------

    def _part(self, partition: kinds.Partition) -> None:
        nodes = list(self.world.staying())
        for node in self.world.random.sample(nodes, max(1, round(partition.share * len(nodes)))):
            node.island = 1
        if partition.hang_up:
            self._hang_up_between()
        self.world.network.deaf = {(1, 0)} if partition.one_way else {(0, 1), (1, 0)}

    def _hang_up_between(self) -> None:
        for node in self.world.living():
            between = [one for one in node.links if self.world[one.peer].island != node.island]
            for link in between:
                link.cut()

    def _rejoin(self) -> None:
        self.world.network.deaf = set()
        for node in self.world.nodes.values():
            node.island = 0

    def _flap(self) -> None:
        if link := self._any_link(self.world.living()):
            link.cut()

    def _any_link(self, nodes: Iterable[Computer]) -> MemoryLink | None:
        links = [link for node in nodes for link in node.links]
        return self.world.random.choice(links) if links else None

    # -- nodes -------------------------------------------------------------------------------------

    def _crash(self, crashes: kinds.Crashes) -> None:
        if node := self.world.pick():
            node.crash(power_cut=crashes.power_cut)
            self.world.agenda.later(self.world.random.uniform(*crashes.down), restart, self.world, node)

    def _leap(self, jumps: kinds.ClockJumps) -> None:
        if node := self.world.pick():
            node.leap(self.world.random.uniform(-jumps.most, jumps.most))

    def _churn(self) -> None:
        self._leave(self.world.pick())
        self._join()

    def _archive_leaves(self) -> None:
        archives = [node for node in self.world.living() if not (node.prunes or node.organises)]
        self._leave(self.world.random.choice(archives))

    def _leave(self, node: Computer | None) -> None:
        if node is None or node.organises or sum(1 for _ in self.world.living()) <= 2:
            return
        orphans = [n for n in self.world.neighbours(node) if n.up]
        node.crash()
        self.world.left.add(node.name)
        for orphan in orphans:
            other = self.world.pick()
            if other and other is not orphan:
                self.world.want(orphan, other)

    def _join(self, *, begins_with_checkpoint: bool = False) -> None:
        self._newcomers += 1
        node = self.world.add(f"new{self._newcomers}")
        node.begins_with_checkpoint = begins_with_checkpoint
        self._attach(node)

    def _attach(self, node: Computer) -> None:
        """Start it and link it with some that are there."""
        others = [
            other
            for other in self.world.living()
            if other.name.removesuffix(TWIN) != node.name.removesuffix(TWIN)
        ]
        for other in self.world.random.sample(others, min(NEWCOMERS_LINKS, len(others))):
            self.world.want(node, other)
        node.start()

    # -- copies of a disk --------------------------------------------------------------------------

    def _author(self) -> Computer | None:
        """Return a random node that has made updates, and is no twin."""
        living = (n for n in self.world.living() if not n.name.endswith(TWIN))
        authors = [n for n in living if n.said]
        return self.world.random.choice(authors) if authors else None

    def _back_up(self, backup: kinds.OldBackup) -> None:
        if node := self._author():
            self._at(backup.restored - backup.taken, self._put_back, node, disk.copy(node.layout))

    def _put_back(self, node: Computer, files: disk.Files) -> None:
        if node.name in self.world.left:
            return
        node.crash()
        disk.put_back(node.layout, files)
        node.forgets()
        self.world.agenda.later(RESTORING, restart, self.world, node)

    def _twin(self, twins: kinds.Twins) -> None:
        node = self._author()
        if node is None:
            return
        name = f"{node.name}{TWIN}"
        if name in self.world.nodes:
            return
        twin = self.world.add(name, files=disk.copy(node.layout))
        if not twins.told:
            disk.take_for_original(twin.layout, self.world.run.run_id)
            twin.forgets()
        if twins.apart:
            self._part(kinds.Partition(0, 0))
            twin.island = 1 - node.island
            self.world.agenda.later(twins.apart, self._rejoin)
        self._attach(twin)
        self._again(TWINS_PACE, lambda: node.compute(1))
        self._again(TWINS_PACE, lambda: twin.compute(1))

    # -- the organiser -----------------------------------------------------------------------------

    def _organiser(self) -> Computer:
        """Return the node with the organiser's key, or the last one that has got it."""
        return [node for node in self.world.staying() if node.organises][-1]

    def _others(self) -> list[Computer]:
        return [node for node in self.world.living() if not node.organises]

    def _back_up_organiser(self, restored: float) -> None:
        node, after = self._organiser(), restored * self._scale - RESTORING
        files = disk.copy(node.layout)
        self.world.agenda.at(self._began + after, self._replace_disk, node, files)

    def _replace_disk(self, node: Computer, files: disk.Files) -> None:
        node.crash()
        disk.put_back(node.layout, files)
        node.forgets()

    def _decide_twice(self) -> None:
        """Let two nodes sign at one position; who organises hears of it like everybody."""
        one, other = self._organiser(), self.world.random.choice(self._others())
        self.world.may_fork.add(0)
        other.crash()
        other.give_key(signing_key(self.world.seed, ORGANISER))
        other.start()
        self.world.agenda.later(RESTORING, self._decide_each, one, other)

    def _decide_each(self, *nodes: Computer) -> None:
        for node in nodes:
            if node.up and not node.organised.control.feed.frozen:
                node.post(OwnDecision(encode(Announce(node.name))))
        self._updates_then = self.world.oracle.updates
        self.world.agenda.later(RESTORING / 2, self._ask_all)

    def _ask_all(self) -> None:
        """Ask everybody for an update: newcomers have room for few, and may have made those."""
        for node in self.world.living():
            node.compute(1)

    def _lose_organiser(self) -> None:
        node = self._organiser()
        node.organises = False
        self._leave(node)

    def _succeed_fork(self) -> None:
        """Let the deputies end a fork. Raises Violation unless everybody has stopped the control feed."""
        feeds = {node.name: node.organised.control.feed for node in self.world.living()}
        running = tuple(name for name, feed in feeds.items() if not feed.frozen)
        if running:
            raise Violation("organiser", f"{running[0]} goes on with a forked control feed", running[:3])
        if self.world.oracle.updates == self._updates_then:
            raise Violation("organiser", "nobody trains while the control feed is frozen")
        self._succeed()

    def _succeed(self) -> None:
        """Let the deputies pass the control feed on, to a node that has as much of it as any."""
        run, others = self.world.run, self._others()
        longest = max(node.organised.control.feed.stop for node in others)
        node = self.world.random.choice(
            [node for node in others if node.organised.control.feed.stop == longest]
        )
        feed = node.organised.control.feed
        key = signing_key(self.world.seed, SUCCESSOR)
        succession = Succession(feed.term + 1, feed.stop, feed.chain, origin_of(key), ())
        message = succession_message(run.run_id, succession)
        deputies = [signing_key(self.world.seed, name) for name in DEPUTIES[:VOTES]]
        votes = tuple(Vote(number, deputy.sign(message)) for number, deputy in enumerate(deputies))
        node.post(OwnSuccession(replace(succession, votes=votes)))
        self.world.agenda.later(RESTORING, self._take_over, node, key)

    def _take_over(self, node: Computer, key: Ed25519PrivateKey) -> None:
        for other in self.world.nodes.values():
            other.organises = False
        node.crash()
        node.give_key(key)
        restart(self.world, node)

    # -- stand-ins ---------------------------------------------------------------------------------

    def _strike(self, fault: kinds.Fault) -> None:
        """Do what befalls whoever organises, once somebody does."""
        leader = next((node for node in self.world.living() if node.leads), None)
        if leader is None or (isinstance(fault, kinds.LeaderFalls) and fault.during and not _is_busy(leader)):
            if self.world.now < self._stop:
                self.world.agenda.later(BUSY_LOOK, self._strike, fault)
            return
        match fault:
            case kinds.LeaderFalls(at=at, back=back):
                self._fall(leader, None if back is None else (back - at) * self._scale)
            case kinds.HandOver():
                self._hand_over(leader)
            case kinds.Split(start=start, stop=stop, groups=groups):
                self._split(leader, groups)
                self.world.agenda.later((stop - start) * self._scale, self._rejoin)
            case kinds.Stopped(seconds=seconds, shown=shown):
                leader.freeze(seconds * self._scale, shown)
            case kinds.ClockAhead(seconds=seconds):
                leader.leap(seconds)

    def _fall(self, leader: Computer, away: float | None) -> None:
        self.world.leaderless_since = self.world.now
        if away is not None:
            leader.crash()
            self.world.agenda.later(away, restart, self.world, leader)
            return
        leader.organises = False  # as only such leave
        self._leave(leader)

    def _hand_over(self, leader: Computer) -> None:
        organising = leader.running.organising
        others = [node.organised.control.key for node in self._standing() if node is not leader]
        if organising and others:
            leader._context.run(organising.hand_over, self.world.random.choice(others))

    def _standing(self) -> list[Computer]:
        """Return the honest nodes that stand in and are up."""
        return [node for node in self.world.living() if node.organised.control.elections.takes_part]

    def _split(self, leader: Computer, groups: tuple[int, ...]) -> None:
        others = [node for node in self._standing() if node is not leader]
        self.world.random.shuffle(others)
        places = [number for number, size in enumerate(groups) for _ in range(size)]
        for node in self.world.staying():
            node.island = self.world.random.randrange(len(groups))
        for node, place in zip([leader, *others], places, strict=False):
            node.island = place
        islands = range(len(groups))
        self.world.network.deaf = {(a, b) for a in islands for b in islands if a != b}

    def _victim(self, node: Computer) -> int | None:
        """Return the number of a random feed that is named, of whose origin nothing was taken back yet."""
        counting = node.organised.counting
        own = {node.origin}
        named = [
            number
            for number, stop in counting.positions(counting.sealed - 1).items()
            if stop and counting.feed(number).origin not in own | self.world.undone
        ]
        if not named:
            return None
        number = self.world.random.choice(named)
        self.world.undone.add(counting.feed(number).origin)
        return number

    def _lose(self) -> None:
        node = self._organiser()
        number = self._victim(node)
        if number is None:
            return
        counting = node.organised.counting
        feed, named = counting.feed(number), counting.named(number)
        ends = [0, *(stop for stop in disk.signatures(node.layout, feed) if stop < named)]
        kept = self.world.random.choice(ends)
        for other in list(self.world.staying()):
            other.crash(power_cut=True)
            disk.lose(other.layout, feed, kept)
            if other.origin == feed.origin:
                other.forgets()
            self.world.agenda.later(RESTORING, restart, self.world, other)

    def _undo(self, what: str) -> None:
        node = self._organiser()
        number = self._victim(node) if node.up and node.running.organising else None
        if number is None:
            return
        counting, member = node.organised.counting, number // INCARNATIONS
        match what:
            case "revoke":
                node.decide(Revoke(member, counting.open_epoch - 1))
            case "void":
                node.decide(Void(0, counting.sealed - 1, (member,)))
            case _:
                stops = [0, *(stop for stop, _, _ in counting.named_stops(number))]
                node.decide(Amend(number, self.world.random.choice(stops[:-1])))

    # -- slowness ----------------------------------------------------------------------------------

    def _slow_down(self, slow: kinds.SlowPeers) -> None:
        nodes = list(self.world.staying())
        chosen = self.world.random.sample(nodes, max(1, round(slow.share * len(nodes))))
        for node in chosen:
            node.hardware = slow.hardware
        self._again(slow.stall_every, lambda: self._stall(chosen, slow))

    def _stall(self, nodes: list[Computer], slow: kinds.SlowPeers) -> None:
        if link := self._any_link(node for node in nodes if node.up):
            link.out.stall(True)
            self.world.agenda.later(self.world.random.uniform(*slow.stall), link.out.stall, False)


def _is_busy(leader: Computer) -> bool:
    """Whether others are to hold a decision of its, or an evaluation is under way."""
    elections, organising = leader.organised.control.elections, leader.running.organising
    return elections._ahead().stop > leader.organised.control.feed.stop or bool(
        organising and organising._running
    )


def restart(world: World, node: Computer) -> None:
    """Start a node that is down, but has not left for good."""
    if node.off and node.name not in world.left:
        node.start()


def heal(world: World, hardware: Hardware) -> None:
    """End all faults: every node is up, everything works, and there is a path between any two nodes."""
    world.network.conditions = CALM
    world.network.deaf = set()
    for node in list(world.staying()):
        node.island = 0
        node.hardware = hardware
        for link in node.links:
            link.out.stall(False)
        restart(world, node)
    if world.left and not world.managed:
        _close_ring(world)


def _close_ring(world: World) -> None:
    """Link all nodes in a ring: a node that left may have been the only path between others."""
    for one, other in pairwise(list(world.staying())):
        if not world.linked(one, other):
            world.want(one, other)

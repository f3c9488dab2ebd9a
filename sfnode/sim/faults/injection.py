"""Fault injection: puts what every kind of fault does on the agenda, and repairs everything in the end.

All chance comes from the world's generator for faults. `heal` works from whatever state the faults have left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from sfnode.sim.faults.kinds import (
    Churn,
    ClockJumps,
    Crashes,
    Fault,
    Flaps,
    LateJoin,
    OldBackup,
    Partition,
    SlowPeers,
    Twins,
)
from sfnode.sim.world.conditions import CALM, Hardware
from sfnode.sim.world.disk import Disk
from sfnode.sim.world.fixed_links import linked
from sfnode.sim.world.network import End
from sfnode.sim.world.node import Node
from sfnode.sim.world.world import World

RESTORING = 1.0
"""Seconds to restore a backup."""

NEWCOMERS_LINKS = 3
"""Links of a node that joins a fixed set of links later."""

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
        self._newcomers = 0

    def install(self, faults: Iterable[Fault]) -> None:
        """Put them on the agenda, their times counted from now."""
        for fault in faults:
            self._install(fault)

    def _install(self, fault: Fault) -> None:
        match fault:
            case Partition():
                self._at(fault.start, self._part, fault)
                self._at(fault.stop, self._rejoin)
            case Flaps(every=every):
                self._again(every, self._flap)
            case Crashes(every=every):
                self._again(every, lambda: self._crash(fault))
            case OldBackup(taken=taken):
                self._at(taken, self._back_up, fault)
            case Twins(start=start):
                self._at(start, self._twin, fault)
            case ClockJumps(every=every):
                self._again(every, lambda: self._leap(fault))
            case Churn(per_minute=share):
                self._again(60 / (share * len(self.world.nodes)), self._churn)
            case SlowPeers():
                self._slow_down(fault)
            case LateJoin(at=at, count=count):
                for _ in range(count):
                    self._at(at, self._join)

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

    def _part(self, partition: Partition) -> None:
        nodes = list(self.world.staying())
        for node in self.world.random.sample(nodes, max(1, round(partition.share * len(nodes)))):
            node.island = 1
        if partition.hang_up:
            self._hang_up_between()
        self.world.network.deaf = {(1, 0)} if partition.one_way else {(0, 1), (1, 0)}

    def _hang_up_between(self) -> None:
        for node in self.world.living():
            for end in [e for e in node.ends.values() if e.far.owner.island != node.island]:
                break_link(self.world, end)

    def _rejoin(self) -> None:
        self.world.network.deaf = set()
        for node in self.world.nodes.values():
            node.island = 0

    def _flap(self) -> None:
        if end := self._any_end(self.world.living()):
            break_link(self.world, end)

    def _any_end(self, nodes: Iterable[Node]) -> End | None:
        ends = [end for node in nodes for end in node.ends.values()]
        return self.world.random.choice(ends) if ends else None

    # -- nodes -------------------------------------------------------------------------------------

    def _crash(self, crashes: Crashes) -> None:
        if node := self.world.pick():
            node.crash(power_cut=crashes.power_cut)
            self.world.agenda.later(self.world.random.uniform(*crashes.down), restart, self.world, node)

    def _leap(self, jumps: ClockJumps) -> None:
        if node := self.world.pick():
            node.leap(self.world.random.uniform(-jumps.most, jumps.most))

    def _churn(self) -> None:
        self._leave()
        self._join()

    def _leave(self) -> None:
        node = self.world.pick()
        if node is None or sum(1 for _ in self.world.living()) <= 2:
            return
        orphans = [n for n in self.world.keeper.neighbours(node) if n.up]
        node.crash()
        self.world.left.add(node.name)
        self.world.keeper.forget(node)
        for orphan in orphans:
            other = self.world.pick()
            if other and other is not orphan:
                self.world.keeper.want(orphan, other)

    def _join(self) -> None:
        self._newcomers += 1
        node = self.world.add(f"new{self._newcomers}")
        self._attach(node)

    def _attach(self, node: Node) -> None:
        """Start it and link it with some that are there."""
        others = [
            other
            for other in self.world.living()
            if other.name.removesuffix(TWIN) != node.name.removesuffix(TWIN)
        ]
        for other in self.world.random.sample(others, min(NEWCOMERS_LINKS, len(others))):
            self.world.keeper.want(node, other)
        node.start()
        self.world.keeper.came(node)

    # -- copies of a disk --------------------------------------------------------------------------

    def _author(self) -> Node | None:
        """Return a random node that has made updates."""
        authors = [n for n in self.world.living() if n.disk.own and n.disk.stop(n.disk.own)]
        return self.world.random.choice(authors) if authors else None

    def _back_up(self, backup: OldBackup) -> None:
        if node := self._author():
            self._at(backup.restored - backup.taken, self._put_back, node, node.disk.copy())

    def _put_back(self, node: Node, disk: Disk) -> None:
        if node.name in self.world.left:
            return
        node.crash()
        node.disk = disk
        node.forgets()
        self.world.agenda.later(RESTORING, restart, self.world, node)

    def _twin(self, twins: Twins) -> None:
        node = self._author()
        if node is None:
            return
        twin = self.world.add(f"{node.name}{TWIN}", disk=node.disk.copy(), key_of=node.name, told=twins.told)
        if not twins.told:
            twin.forgets()
        if twins.apart:
            self._part(Partition(0, 0))
            twin.island = 1 - node.island
            self.world.agenda.later(twins.apart, self._rejoin)
        self._attach(twin)
        self._again(TWINS_PACE, lambda: node.compute(1))
        self._again(TWINS_PACE, lambda: twin.compute(1))

    # -- slowness ----------------------------------------------------------------------------------

    def _slow_down(self, slow: SlowPeers) -> None:
        nodes = list(self.world.staying())
        chosen = self.world.random.sample(nodes, max(1, round(slow.share * len(nodes))))
        for node in chosen:
            node.hardware = slow.hardware
        self._again(slow.stall_every, lambda: self._stall(chosen, slow))

    def _stall(self, nodes: list[Node], slow: SlowPeers) -> None:
        if end := self._any_end(node for node in nodes if node.up):
            self.world.network.stall(end)
            self.world.agenda.later(self.world.random.uniform(*slow.stall), self.world.network.resume, end)


def break_link(world: World, end: End) -> None:
    """Break the link; both sides hear of it, the far one a little later."""
    owner = end.owner
    world.network.close(end)
    owner.unlinked(end)


def restart(world: World, node: Node) -> None:
    """Start a node that is down, but has not left for good."""
    if not node.up and node.name not in world.left:
        node.start()
        world.keeper.came(node)


def heal(world: World, hardware: Hardware) -> None:
    """End all faults: every node is up, everything works, and there is a path between any two nodes."""
    world.network.conditions = CALM
    world.network.deaf = set()
    for node in list(world.staying()):
        node.island = 0
        node.hardware = hardware
        for end in list(node.ends.values()):
            end.conditions = None
            world.network.resume(end)
        restart(world, node)
    if world.left and world.keeper.fixed:
        _close_ring(world)


def _close_ring(world: World) -> None:
    """Link all nodes in a ring: a node that left may have been the only path between others."""
    for one, other in pairwise(list(world.staying())):
        if not linked(one, other):
            world.keeper.want(one, other)

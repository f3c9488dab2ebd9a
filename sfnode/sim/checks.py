"""What must hold at every moment, and what must hold in the end.

That nothing is admitted or applied twice or with a gap is checked where it would happen (`disk`, `applied`);
that nobody admits what was not made, at the oracle. Here are the checks that look at many nodes at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any

from sfnode.sim.failures import Violation
from sfnode.sim.node import Node
from sfnode.sim.world import World
from sfprotocol.machine import Machine
from sfprotocol.messages import Feed

TABLES = 14
"""Tables of a link with an entry for a feed: a link may not remember more than this many things per feed."""

SPARE = 64
"""Entries of a link that have nothing to do with feeds."""

NAMES = 2 * 65_536
"""Entries that one hostile link may cost: names of feeds that do not exist, up to the limit (SPEC 15),
twice."""

MAX_LINKS = 12
"""Hostile links that a node may have."""

SAMPLE = 6
"""Nodes of which the memory is looked at in one check."""


class Checks:
    """Of one run; remembers what digest went with what set."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._total_of: dict[bytes, int] = {}
        self._digest_of: dict[int, bytes] = {}
        self._turn = 0
        self.peak_entries = 0
        """The most that one machine has remembered about its links."""

    def look(self) -> None:
        """All checks that can be made at any moment. Raises Violation."""
        living = [node for node in self._world.living() if node.quiet]
        for node in living:
            self._exact(node)
            self._named(node)
        self._turn += SAMPLE
        for node in (living[self._turn % len(living) :] + living)[:SAMPLE] if living else ():
            self._bounded(node)

    def _exact(self, node: Node) -> None:
        """Equal digests exactly for equal sets, over all nodes and all times."""
        digest, total = node.machine.frontier.digest(), node.applied.total
        if self._total_of.setdefault(digest, total) != total:
            raise Violation(
                "digest", f"{node.name} has another set than somebody of its digest", (node.name,)
            )
        cut = any(shelf.proof for shelf in node.disk.shelves.values())
        if not cut and self._digest_of.setdefault(total, digest) != digest:
            raise Violation(
                "digest", f"{node.name} has another digest than somebody of its set", (node.name,)
            )

    def _named(self, node: Node) -> None:
        """Nobody goes by a name that he has not given himself."""
        for card in node.machine.cards:
            if card.name not in self._world.names.get(card.feed.origin, {card.name}):
                raise Violation("names", f"{node.name} calls somebody {card.name}", (node.name,))

    def _bounded(self, node: Node) -> None:
        size = entries(node.machine)
        self.peak_entries = max(self.peak_entries, size)
        links = node.machine.links
        bound = (len(links) + 1) * (TABLES * (len(self._world.oracle.stories) + 1) + SPARE)
        if self._world.others:  # also what links that have just ended have left behind
            bound += MAX_LINKS * NAMES
        if size > bound:
            raise Violation(
                "memory",
                f"{node.name} remembers {size} things about {len(links)} links; {bound} at most",
                (node.name,),
            )


def entries(machine: Machine) -> int:
    """How many things the machine remembers besides the frontier: entries of all tables of links and
    pulls."""
    return sum(_size(link) for link in machine.links.values()) + sum(
        _size(value) for name, value in vars(machine).items() if name not in ("run", "frontier", "links")
    )


def _size(holder: Any) -> int:
    """Entries of a table, or of the tables that an object has."""
    if isinstance(holder, Sized):
        return 0 if isinstance(holder, (str, bytes)) else len(holder)
    slots: Iterable[str] = getattr(holder, "__slots__", ()) or getattr(holder, "__dict__", ())
    values = (getattr(holder, name, None) for name in slots)
    return sum(len(v) for v in values if isinstance(v, (dict, list, set)))


# -- the end ---------------------------------------------------------------------------------------------


def equal(world: World) -> bool:
    """Whether all that stay are up and of one digest, and have it on disk; cheap."""
    nodes = list(world.staying())
    return (
        all(node.up and node.disk.synced for node in nodes)
        and len({node.machine.frontier.known for node in nodes}) == 1
        and len({node.machine.frontier.digest() for node in nodes}) == 1
    )


def delivered(world: World) -> float:
    """The share of all updates that somebody still has on disk, over all nodes that are up and stay."""
    nodes = list(world.staying())
    ends = [max(node.disk.counted(feed) for node in nodes) for feed in world.oracle.stories]
    there = [node.machine.frontier.known for node in nodes if node.up]
    return min(1.0, sum(there) / (sum(ends) * len(there))) if there and sum(ends) else 1.0


def complete(world: World) -> str:
    """What equal nodes lack of the union of what they should have; nothing if nothing."""
    nodes = list(world.staying())
    frontier = nodes[0].machine.frontier
    ends: dict[Feed, int] = {}
    for feed, story in world.oracle.stories.items():
        stop = max(node.disk.stop(feed) for node in nodes)
        if story.forked:
            if (fault := _cut_right(world, nodes, feed)) or frontier.is_cut(feed):
                if fault:
                    return fault
            elif frontier.next(feed) != stop:
                return (
                    f"{stop} updates of a feed of which one branch survived, {frontier.next(feed)} admitted"
                )
        elif stop and frontier.next(feed) != stop:
            return f"a feed of {stop} updates is admitted up to {frontier.next(feed)}"
        if stop:
            ends[feed] = stop
    forked = any(story.forked for story in world.oracle.stories.values())
    if not forked and world.oracle.digest(ends) != frontier.digest():
        return "the digest is not that of the union"
    return ""


def _cut_right(world: World, nodes: list[Node], feed: Feed) -> str:
    """A feed of which two branches survived must be cut where they part."""
    common = world.oracle.stories[feed].common
    branches = {node.disk.head(feed, common + 1) for node in nodes if node.disk.stop(feed) > common}
    ours = nodes[0].machine.frontier.next(feed)
    if len(branches) > 1 and ours not in (0, common):  # 0: of a proof that cannot say where they part
        return f"two histories part at step {common} and the feed counts up to {ours}"
    return ""


def differences(world: World) -> tuple[str, tuple[str, ...]]:
    """Who has how much, in words, and the nodes that stand out."""
    counts: dict[tuple[int, bytes], list[str]] = {}
    for node in world.staying():
        if node.up:
            frontier = node.machine.frontier
            counts.setdefault((frontier.known, frontier.digest()), []).append(node.name)
    groups = sorted(counts.items(), key=lambda group: -len(group[1]))
    said = "; ".join(
        f"{_names(names)} know {known} (digest {digest.hex()[:8]})" for (known, digest), names in groups[:6]
    )
    away = [node.name for node in world.staying() if not node.up or not node.disk.synced]
    odd = tuple(name for _, names in groups[1:] for name in names)[:3] or tuple(away[:3])
    return f"of {world.oracle.updates} updates made: {said}" + (
        f"; busy or away: {_names(away)}" if away else ""
    ), odd


def _names(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")

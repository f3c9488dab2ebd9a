"""Invariants of all nodes together, at every moment and at the end.

Whenever a node counts updates, the module `computer` checks that none is counted twice or after a gap. The
oracle checks that all admitted updates were made by their origin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from dataclasses import is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, get_args, get_origin, get_type_hints

from sflab.simulator.organised_runs import OrganisedRuns, StandIns
from sflab.simulator.world.computer import Computer
from sflab.simulator.world.oracle import Violation
from sflab.simulator.world.world import World
from sfnode.node.startup import last_feed
from sfnode.peers.link_slots import MIN_OUTBOUND
from sfprotocol.link import Link
from sfprotocol.machine import Machine
from sfprotocol.messages import Feed

GRACE = 5.0
"""Seconds within which a node must dial a known peer that would accept the link. The node needs the time of
two checks of its links and a dial."""

TABLES = 15
"""Maximum number of tables of one link that have an entry for the same feed."""

SPARE = 64
"""Maximum number of a link's entries that are not about feeds."""

NAMES = 2 * 65_536
"""Maximum number of entries of one hostile link. Such a link may invent feeds up to the limit of SPEC 15, and
each feed is in two tables."""

MAX_LINKS = 12
"""Maximum number of hostile links of one node."""

TABLE_TYPES = (dict, list, set)

SAMPLE = 6
"""Number of nodes whose memory is checked each time."""


class Checks:
    """Checks of one run, which remember the digest of every set of updates."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._few_since: dict[str, float] = {}
        """Time since which a node has too few outbound links although it could have more, keyed by the node's
        name."""
        self._organised = OrganisedRuns(world) if world.run.organised else None
        self.stand_ins = StandIns(world) if world.elects else None
        self._total_of: dict[bytes, int | bytes] = {}
        self._digest_of: dict[int | bytes, bytes] = {}
        self._turn = 0
        self.peak_entries = 0
        """Maximum number of entries in the tables of one machine so far."""

    def look(self) -> None:
        """Make all checks of the present state. Raises Violation."""
        living = [node for node in self._world.living() if node.quiet]
        for node in living:
            self._exact(node)
            self._own_feed(node)
            self._named(node)
        if self._world.managed:
            self._outbound()
        if self.stand_ins:
            self.stand_ins.look(living)
        self._turn += SAMPLE
        for node in (living[self._turn % len(living) :] + living)[:SAMPLE] if living else ():
            self._bounded(node)
            if self._organised:
                self._organised.look(node)

    def _exact(self, node: Computer) -> None:
        """Check that nodes have equal digests exactly if they have equal sets of updates, over all nodes and
        moments."""
        assert node.engine
        assert node.log
        digest, total = node.machine.frontier.digest(), node.engine.total
        if self._total_of.setdefault(digest, total) != total:
            raise Violation(
                "digest", f"{node.name} has another set than a node of the same digest", (node.name,)
            )
        if (
            not (node.log.cuts() or node.machine.organised)
            and self._digest_of.setdefault(total, digest) != digest
        ):
            raise Violation(
                "digest", f"{node.name} has another digest than a node of the same set", (node.name,)
            )

    def _own_feed(self, node: Computer) -> None:
        """Check that a restart of the node would continue its present feed (SPEC I3)."""
        if node.log and last_feed(node.log, node.origin) != node.machine.own:
            raise Violation("own", f"{node.name} does not remember its own feed", (node.name,))

    def _named(self, node: Computer) -> None:
        """Check that every card has its origin's name."""
        for card in node.machine.cards:
            if card.name not in self._world.names.get(card.feed.origin, {card.name}):
                raise Violation(
                    "names",
                    f"{node.name} has a card with the name {card.name}, which is not its origin's",
                    (node.name,),
                )

    def _outbound(self) -> None:
        """Check that nodes have MIN_OUTBOUND outbound links within GRACE, if they can.

        Otherwise all neighbours of a node could be peers that dialled it.
        """
        now = self._world.now
        few = [node.name for node in self._world.living() if _could_have_more(self._world, node)]
        self._few_since = {name: self._few_since.get(name, now) for name in few}
        for name, since in self._few_since.items():
            if now - since > GRACE:
                said = f"{name} has too few links of its own choice since {since:.1f} s"
                raise Violation("outbound", said, (name,))

    def _bounded(self, node: Computer) -> None:
        size = entries(node.machine)
        self.peak_entries = max(self.peak_entries, size)
        links = node.machine.links
        bound = (len(links) + 1) * (TABLES * (len(self._world.oracle.stories) + 1) + SPARE)
        if self._world.others:  # hostile links, those that have just ended included
            bound += MAX_LINKS * NAMES
        if size > bound:
            raise Violation(
                "memory",
                f"{node.name} remembers {size} things about {len(links)} links; {bound} at most",
                (node.name,),
            )


def _could_have_more(world: World, node: Computer) -> bool:
    manager = node.running.peering.manager
    lacking = MIN_OUTBOUND - sum(standing.outbound for standing in manager.standings())
    return lacking > 0 and len(_prospects(world, node)) >= lacking


def _prospects(world: World, one: Computer) -> list[str]:
    """Return the peers that `one` may dial now and that would accept the link."""
    manager = one.running.peering.manager
    ready = (peer for peer in manager.book.dialable(world.now) if peer not in manager.linked)
    return [peer for peer in ready if world.network.reaches(one.name, peer) and _would_take(world, peer, one)]


def _would_take(world: World, peer: str, one: Computer) -> bool:
    node = world.nodes.get(peer)
    if node is None or not node.up:
        return node is None
    manager = node.running.peering.manager
    return manager.has_room_for(one.name, f"{one.address}/p2p/{one.name}", world.now)


def entries(machine: Machine) -> int:
    """Return the number of entries in all tables of the machine, except the frontier."""
    of_links = sum(sum(map(len, tables_of(link))) for link in machine.links.values())
    others = (value for name, value in vars(machine).items() if name not in ("run", "frontier", "links"))
    return of_links + sum(map(_size, others))


def tables(link: Link) -> Iterator[tuple[str, Sized]]:
    """Yield the tables of a link and of its parts, with their names."""
    return zip(_paths(Link), tables_of(link), strict=True)


@cache
def _paths(kind: Any) -> tuple[str, ...]:
    """Return the dotted names of all attributes of a dataclass, and of its parts, whose types are tables; ()
    for another class."""
    hints = get_type_hints(kind) if is_dataclass(kind) else {}
    found: list[str] = []
    for name, hint in hints.items():
        found += [name] if _is_table(hint) else [f"{name}.{inner}" for inner in _paths(hint)]
        unsure = () if _is_table(hint) else get_args(hint)
        assert not any(_is_table(one) or _paths(one) for one in unsure), f"{name} is a table only at times"
    return tuple(found)


def _is_table(hint: Any) -> bool:
    return (get_origin(hint) or hint) in TABLE_TYPES


tables_of: Callable[[Link], tuple[Sized, ...]] = attrgetter(*_paths(Link))
"""Function that returns the tables of a link and of its parts. The names of the tables are found once,
because a search each time took a third of the time of a fuzzed run."""


def _size(holder: Any) -> int:
    """Return the number of entries of a table, or of all tables of an object."""
    if hasattr(holder, "__len__"):
        return 0 if isinstance(holder, (str, bytes)) else len(holder)
    values = getattr(holder, "__dict__", {}).values()
    return sum(len(value) for value in values if isinstance(value, TABLE_TYPES))


# -- the end ---------------------------------------------------------------------------------------------


def equal(world: World) -> bool:
    """Return whether all staying nodes are up, have equal digests, and have everything on disk. This check is
    cheap."""
    nodes = list(world.staying())
    return (
        all(node.up and node.synced for node in nodes)
        and len({node.machine.frontier.known for node in nodes}) == 1
        and len({node.machine.frontier.digest() for node in nodes}) == 1
    )


def stored(node: Computer, feed: Feed) -> int:
    """Return the first step of a feed that is not on a node's disk; 0 while the node is off."""
    return node.log.stop(feed) if node.log else 0


def delivered(world: World) -> float:
    """Return the share of all stored updates that a node has now: the mean over the staying nodes that are
    up."""
    nodes = list(world.staying())
    ends = [max(node.counted(feed) for node in nodes) for feed in world.oracle.stories]
    there = [node.machine.frontier.known for node in nodes if node.up]
    return min(1.0, sum(there) / (sum(ends) * len(there))) if there and sum(ends) else 1.0


def complete(world: World) -> str:
    """Describe updates that are on some disk but that the nodes (which are equal) have not admitted; empty
    without such updates."""
    nodes = list(world.staying())
    frontier = nodes[0].machine.frontier
    ends: dict[Feed, int] = {}
    for feed, story in world.oracle.stories.items():
        stop = max(stored(node, feed) for node in nodes)
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


def _cut_right(world: World, nodes: list[Computer], feed: Feed) -> str:
    """Describe the fault of a forked feed: if two branches survived, the feed must be cut at the fork. Empty
    without a fault."""
    common = world.oracle.stories[feed].common
    branches = {
        node.log.past(feed, common + 1)[0] for node in nodes if node.log and stored(node, feed) > common
    }
    ours = nodes[0].machine.frontier.next(feed)
    if len(branches) > 1 and ours not in (0, common):  # 0: a proof that does not show where they part
        return f"two histories part at step {common} and the feed counts up to {ours}"
    return ""


def differences(world: World) -> tuple[str, tuple[str, ...]]:
    """Describe how many updates the nodes know, and return the names of up to three nodes that differ from
    the majority."""
    counts: dict[tuple[int, bytes], list[str]] = {}
    for node in world.staying():
        if node.up:
            frontier = node.machine.frontier
            counts.setdefault((frontier.known, frontier.digest()), []).append(node.name)
    groups = sorted(counts.items(), key=lambda group: -len(group[1]))
    said = "; ".join(
        f"{_names(names)} know {known} (digest {digest.hex()[:8]})" for (known, digest), names in groups[:6]
    )
    away = [node.name for node in world.staying() if not node.up or not node.synced]
    odd = tuple(name for _, names in groups[1:] for name in names)[:3] or tuple(away[:3])
    return f"of {world.oracle.updates} updates made: {said}" + (
        f"; busy or away: {_names(away)}" if away else ""
    ), odd


def _names(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")

"""Checks of organised runs, at every moment and at the end.

They check the promises of an organiser's decisions. `invariants` has the checks of all runs, such as equal
digests.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sflab.simulator import fold
from sflab.simulator.world import oracle
from sflab.simulator.world.computer import Computer
from sflab.simulator.world.oracle import Violation
from sflab.simulator.world.world import World
from sfprotocol import decisions, validation
from sfprotocol.decisions import Amend, Close, Seal, Void, read
from sfprotocol.frontier import FeedState
from sfprotocol.messages import Feed
from sfprotocol.run_state import RunState, Span
from sfprotocol.segments import MAX_SEGMENT_UPDATES

WORKED_OUT = ("_credits", "_judged")
"""Names of attributes that a RunState computes on demand. Equal nodes may have computed different attributes,
so these are not compared."""


class OrganisedRuns:
    """Checks of one node at a time. They remember which updates the node's seals counted."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: dict[str, tuple[int, bytes, dict[int, tuple[Span, ...]]]] = {}
        """Each node's state at its last check, keyed by name: the number of decisions, the chain hash after
        them, and the spans that seals counted, keyed by feed number."""
        self._looked: dict[tuple[str, Feed], tuple[object, ...]] = {}
        """Next step and chain of a feed, the chain of decisions, and the applied spans at the last successful
        check; keyed by node and feed."""

    def look(self, node: Computer) -> None:
        """Check a node. Raises Violation."""
        for state in node.machine.frontier:
            now = state.next, state.chain, node.organised.control.feed.chain, applied(node, state.feed)
            if self._looked.get((node.name, state.feed)) != now:  # otherwise nothing changed
                self._applied(node, state.feed)
                self._within(node, state.feed)
                self._meant(node, state.feed)
                self._looked[node.name, state.feed] = now
        self._sealed(node)

    def _applied(self, node: Computer, feed: Feed) -> None:
        if applied(node, feed) != node.machine.spans(feed):
            raise Violation("applied", f"{node.name} has not applied what counts of a feed", (node.name,))

    def _within(self, node: Computer, feed: Feed) -> None:
        """Check quotas, labels and incarnations of a stored feed. Where the control feed has forked, updates
        with labels of the lost branch may remain."""
        run_state, forks = run_state_of(node), self._world.may_fork
        member = run_state.member_number(feed.origin)
        labels = labels_of(node, feed, node.machine.frontier.next(feed))
        if labels and member is None:
            raise Violation("quota", f"{node.name} holds updates of somebody not admitted", (node.name,))
        if labels and labels[-1][0] > run_state.open_epoch and not forks:
            raise Violation("quota", f"{node.name} holds a label beyond the open epoch", (node.name,))
        if member is None or (forks and run_state.quotas.is_stranger(member)):
            return
        known = [(label, count) for label, count in labels if label <= run_state.open_epoch]
        if any(count > run_state.quotas.quota(member, label) for label, count in known):
            raise Violation("quota", f"{node.name} holds more of a label than the quota", (node.name,))
        others = (n for label, n in known if run_state.quotas.incarnation(member, label) != feed.incarnation)
        if sum(others) > 1 and not forks:
            raise Violation("feed", f"{node.name} holds a feed that its member has left", (node.name,))

    def _meant(self, node: Computer, feed: Feed) -> None:
        """Check that a stored feed has the history listed by the last close whose steps are all stored."""
        run_state, state = run_state_of(node), node.machine.frontier.state(feed)
        number = run_state.number(feed)
        passed = (
            [m for m in run_state.named_stops(number) if m[0] <= state.next] if number is not None else []
        )
        for stop, salt, tag in passed[-1:]:
            if validation.tag(salt, node.disk.past(feed, stop)[0]) != tag:
                raise Violation(
                    "named", f"{node.name} holds another history than the named one", (node.name,)
                )

    def _sealed(self, node: Computer) -> None:
        """Check that counted work stays counted while decisions are only added."""
        feed, run_state = node.organised.control.feed, run_state_of(node)
        decided, chain, counted = self._seen.get(node.name, (0, b"", {}))
        if (decided, chain) == (feed.stop, feed.chain):
            return
        if decided <= feed.stop and feed.chains[decided] == chain:
            news = [decisions.read(entry.record).decision for entry in feed.entries[decided:]]
            undone = any(isinstance(d, Void | Amend) or (isinstance(d, Seal) and d.recounted) for d in news)
            for number, runs in counted.items():
                if not undone and run_state.spans(number, runs[-1].stop) != runs:
                    raise Violation("sealed", f"what was counted of feed {number} has changed", (node.name,))
        counted = {
            number: run_state.spans(number, stop)
            for number, stop in run_state.positions(run_state.sealed - 1).items()
            if stop and run_state.sealed
        }
        self._seen[node.name] = feed.stop, feed.chain, counted


def applied(node: Computer, feed: Feed) -> tuple[Span, ...]:
    """Return the spans of a feed that a node's engine applied, each with its factor."""
    thread = node.running.model.thread
    found = thread._applied.get(feed) if thread else None
    return found.spans if found else ()


def total(node: Computer) -> int | bytes | None:
    """Return the engine's total of all applied updates."""
    return node.engine.total if node.engine else None


def labels_of(node: Computer, feed: Feed, stop: int) -> list[tuple[int, int]]:
    """Return the labels of the first `stop` steps in order, each with its number of updates.

    Labels whose updates the node has all pruned are left out.
    """
    found: list[tuple[int, int]] = []
    while stop > node.disk.base(feed).step:
        found.append(node.disk.label(feed, stop))
        stop -= found[-1][1]
    return found[::-1]


def run_state_of(node: Computer) -> RunState:
    """Return the run state that follows from a node's decisions."""
    return node.organised.run_state


# -- the end ---------------------------------------------------------------------------------------------


def lacking(world: World) -> str:
    """Describe the organiser's remaining work; empty if all stored updates are sealed."""
    for node in world.staying():
        if not node.up:
            return f"; {node.name} is away"
        run_state = run_state_of(node)
        if node.organised.control.feed.frozen:
            return f"; {node.name} has a frozen control feed"
        if run_state.sealed < run_state.open_epoch:
            return f"; {run_state.open_epoch - run_state.sealed} closed epochs have no seal at {node.name}"
        for state in node.machine.frontier:
            number = run_state.number(state.feed)
            named = run_state.named(number) if number is not None else 0
            if _waits(node, state, named):
                return f"; {node.name} holds {state.next} of a feed of which {named} are named"
        members = {member.origin for member in run_state.members}
        strangers = [other.name for other in world.staying() if other.origin not in members]
        if strangers:
            return f"; {strangers[0]} is not admitted"
    return ""


def _waits(node: Computer, state: FeedState, named: int) -> bool:
    """Return whether a feed has unlisted steps for which an epoch must be closed.

    This is so if one of these steps changes the weights, or is not on disk yet. Steps without effect need no
    close of their own.
    """
    if named >= state.next:
        return named > state.next
    told = node.disk.read(state.feed, named, MAX_SEGMENT_UPDATES)
    return not told or any(
        run_state_of(node).rate_from(e).moves(values) for e, values in oracle.updates_of(told.parts)
    )


def complete(world: World) -> str:
    """Describe what is wrong with the counted updates: nodes differ, or updates that should count do not.
    Empty if all is right."""
    nodes = list(world.staying())
    first, run_state = nodes[0], run_state_of(nodes[0])
    for node in nodes[1:]:
        if _state(run_state_of(node)) != _state(run_state):
            return f"{node.name} and {first.name} count differently"
        for state in first.machine.frontier:
            if applied(node, state.feed) != applied(first, state.feed):
                return f"{node.name} and {first.name} have applied a feed with other factors"
        if total(node) != total(first):
            return f"{node.name} and {first.name} have applied other sums"
    judged, counted = fold.judged(first)
    if total(first) != judged:
        return "what is applied is not what follows from the decisions, folded one by one"
    if run_state.counted != counted:
        return f"{counted} updates count that move anything, and {run_state.counted} are said to"
    for feed, story in world.oracle.stories.items():
        number, member = run_state.number(feed), run_state.member(feed.origin)
        if number is None or member is None:
            return "updates were made for a feed that nobody may hold"
        stop = max(node.disk.stop(feed) for node in nodes)
        undone = feed.origin in world.undone or story.forked
        runs = run_state.spans(number, first.machine.frontier.next(feed))
        counted = world.judged or all(run.factor for run in runs)
        last = runs[-1].stop if runs else 0
        if not undone and not (counted and last == stop) and not _taken_back(world, feed, last):
            return f"{stop} updates of a feed are on some disk, and not all of them count"
    return ""


def _taken_back(world: World, feed: Feed, step: int) -> bool:
    """Return whether a succession dropped the decision that opened the epoch of this step."""
    nodes = list(world.staying())
    control = nodes[0].organised.control.feed
    opened = [
        sum(isinstance(read(entry.record).decision, Close) for entry in control.entries[: succession.kept])
        for succession in control.successions.values()
    ]
    labels = [node.disk.label(feed, step + 1)[0] for node in nodes if node.disk.stop(feed) > step]
    return any(label > epoch for label in labels for epoch in opened)


def _state(run_state: RunState) -> dict[str, str]:
    told = {name: repr(value) for name, value in vars(run_state).items() if name not in WORKED_OUT}
    return told | {"quotas": repr(vars(run_state.quotas))}


@dataclass
class StandIns:
    """Checks of all nodes in a run with stand-ins, which measure the time of elections."""

    world: World
    elections: list[float] = field(default_factory=list)
    """Seconds from each death of the organising node until another one organised."""
    counting: list[float] = field(default_factory=list)
    """Seconds from each death of the organising node until more updates were counted."""
    _seen: dict[str, tuple[object, int]] = field(default_factory=dict)
    """Node object and number of decisions at the last check, keyed by the computer's name."""
    _fallen: float | None = None
    _counted: int = 0

    def look(self, living: list[Computer]) -> None:
        """Check that no node lost decisions. Raises Violation."""
        for node in living:
            feed = node.organised.control.feed
            life, stop = self._seen.get(node.name, (None, 0))
            if life is node.node and stop > feed.stop:
                raise Violation("elections", f"{node.name} has taken decisions back", (node.name,))
            self._seen[node.name] = node.node, feed.stop
        self._measure()

    def _measure(self) -> None:
        world = self.world
        leader = next((node for node in world.living() if node.leads), None)
        if world.leaderless_since is not None and leader:
            self.elections.append(world.now - world.leaderless_since)
            self._fallen, world.leaderless_since = world.leaderless_since, None
            self._counted = leader.organised.run_state.counted
        if self._fallen is not None and leader and leader.organised.run_state.counted > self._counted:
            self.counting.append(world.now - self._fallen)
            self._fallen = None

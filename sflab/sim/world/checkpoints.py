"""Checkpoints in a simulated node: worked out, compared, kept, given to others, and begun with.

What the daemon does with files and requests (`sfnode.node.checkpoints`), on values: every node that has what
a checkpoint speaks of compares it, and a difference is a Violation. Sums of marks stand for cores.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from sflab.sim.world.oracle import MARK_BITS
from sflab.sim.world.violation import Violation
from sfprotocol import holding
from sfprotocol.checkpoints import Base, feeds_digest
from sfprotocol.counting import Run
from sfprotocol.decisions import Checkpoint
from sfprotocol.events import CheckpointKept

if TYPE_CHECKING:
    from sflab.sim.world.node import Node

FETCHING = 0.3
"""Seconds until a neighbour has given the state of a checkpoint."""

PATIENCE = 15.0
"""Seconds after the first link for which a node waits for a checkpoint."""


STUCK = 5.0
"""Seconds after which a node that lacks what nobody near it keeps begins with a checkpoint, as its owner is
told to."""


class Sum(NamedTuple):
    """The sums of one feed up to its base, in marks."""

    base: Base
    runs: tuple[Run, ...]
    total: int
    """Sum of the marks of these updates, each times its weight."""
    mark: int
    """Sum of their marks."""


class State(NamedTuple):
    """The state of a checkpoint."""

    checkpoint: Checkpoint
    sums: tuple[Sum, ...]

    @property
    def event(self) -> CheckpointKept:
        return CheckpointKept(self.checkpoint, tuple(one.base for one in self.sums))


def summarise(node: Node, epoch: int) -> State | None:
    """Return what counts up to an epoch; None if the node does not hold all of it."""
    disk, counting = node.disk, node.organised.counting
    sums: list[tuple[int, Sum]] = []
    for number, stop in counting.positions(epoch).items():
        feed, named_stop = counting.feed(number), counting.named_stop(number, stop)
        if node.machine.frontier.next(feed) < stop or disk.begins(feed) > stop or named_stop is None:
            return None
        chain, counted = disk.head(feed, stop), node.machine.counted(feed, stop)
        if holding.tag(named_stop.salt, chain) != named_stop.tag:
            return None  # of another history, which it is about to let go
        total, mark = node.applied.sum(feed, counted)
        sums.append(
            (number, Sum(Base(feed, stop, chain, *disk.label(feed, stop)), counted.runs, total, mark))
        )
    feeds = feeds_digest(node.world.run.run_id, [(number, one.base) for number, one in sums])
    total = sum(one.total for _, one in sums) % (1 << MARK_BITS)
    cores = hashlib.blake2b(total.to_bytes(MARK_BITS // 8, "big"), digest_size=32).digest()
    return State(Checkpoint(epoch, feeds, cores), tuple(one for _, one in sums))


class Checkpoints:
    """The checkpoints of one node, from one start to the next."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._met_at = float("inf")
        self._fetching = False
        self._compared: Checkpoint | None = None
        self._stuck_since: float | None = None

    def look(self) -> None:
        """Compare the newest checkpoint once all that it speaks of is here; or begin with it."""
        node = self._node
        usable = node.organised.counting.checkpoints
        self._see_to_history()
        if node.machine.frontier.waiting:
            self._wait(usable[-1] if usable else None)
        elif usable and usable[-1] != self._compared and usable[-1].epoch >= node.machine.frontier.floor:
            state = summarise(node, usable[-1].epoch)
            if state is None:
                return
            self._compared = usable[-1]
            if state.checkpoint != usable[-1]:
                said = f"{node.name} finds another checkpoint of epoch {usable[-1].epoch}"
                raise Violation("checkpoint", said, (node.name,))
            node.disk.states[state.checkpoint] = state
            if node.prunes:
                node.keep_checkpoint(state.event)

    def _see_to_history(self) -> None:
        node, now = self._node, self._node.clock()
        if not node.organised.out_of_reach:
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now
        elif now - self._stuck_since >= STUCK:
            self._stuck_since = None
            node.world.agenda.later(0.0, node.begin_with_checkpoint)

    def _wait(self, newest: Checkpoint | None) -> None:
        node, now = self._node, self._node.clock()
        heads = [link.control.theirs for link in node.machine.links.values() if link.control.theirs]
        if heads:
            self._met_at = min(self._met_at, now)
        in_time = now - self._met_at < PATIENCE
        if not heads or (in_time and node.organised.control.feed.stop < max(head.stop for head in heads)):
            return
        if newest is None or summarise(node, newest.epoch):
            node.begins_with_checkpoint = False
            node.keep_checkpoint(CheckpointKept(None, ()))
        elif not self._fetching:
            self._fetching = True
            node.world.agenda.later(FETCHING, self._fetch, newest)

    def _fetch(self, wanted: Checkpoint) -> None:
        """Take the state from a neighbour that has it."""
        node, self._fetching = self._node, False
        if node.checkpoints is not self or wanted not in node.organised.counting.checkpoints:
            return
        for end in node.ends.values():
            giver = node.world.nodes.get(end.far.owner.name)
            if giver is not None and giver.up and (state := giver.disk.states.get(wanted)):
                node.disk.states[wanted] = state
                node.begins_with_checkpoint = False
                node.keep_checkpoint(state.event)
                return

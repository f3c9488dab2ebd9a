"""What a node's engine has applied: checked for order, and summed up in a way of its own.

Stands for the cores. Every update has a mark (see the oracle); the sum of the marks of all applied updates
stands for the set, by other means than the machine's chain hashes, so the two can be held against each other.
"""

from __future__ import annotations

from sfnode.sim.disk import Disk, cut_chain
from sfnode.sim.failures import Violation
from sfnode.sim.oracle import MARK_BITS, Oracle
from sfprotocol.events import Admit, Cut
from sfprotocol.frontier import first_updates
from sfprotocol.messages import Feed
from sfprotocol.signing import extend


class Applied:
    """Of one node, from one start to the next."""

    def __init__(self, disk: Disk, oracle: Oracle) -> None:
        self._oracle = oracle
        self._disk = disk
        self._next: dict[Feed, int] = {}
        self._marks: dict[Feed, int] = {}
        self.total = 0
        """Of the marks of everything applied."""
        for feed in disk.shelves:
            self._move(feed, disk.counted(feed), disk.head(feed, disk.counted(feed)))

    def admit(self, admit: Admit) -> None:
        """Apply what counts of it. Raises Violation."""
        segment = admit.segment
        if not admit.counted:
            return
        expected = self._next.get(admit.feed, 0)
        if segment.first != expected:
            raise Violation("once", f"step {segment.first} is applied where {expected} comes next")
        if admit.counted == segment.count:
            self._move(admit.feed, segment.stop, admit.chain)
            return
        before = self._disk.head(admit.feed, segment.first)
        chain = extend(before, first_updates(segment.parts, admit.counted))
        self._move(admit.feed, segment.first + admit.counted, chain)

    def cut(self, cut: Cut) -> None:
        """Take out again what no longer counts. Raises Violation."""
        feed, at = cut.proof.feed, cut.proof.cut
        ours = self._next.get(feed, 0)
        if cut.stop > at and cut.stop != ours:
            raise Violation("once", f"steps up to {cut.stop} are taken back where {ours} are applied")
        if ours > at:
            self._move(feed, at, cut_chain(self._disk.run, cut.proof))

    def _move(self, feed: Feed, following: int, chain: bytes) -> None:
        mark = self._oracle.mark(feed, following, chain)
        self.total = (self.total + mark - self._marks.get(feed, 0)) % (1 << MARK_BITS)
        self._next[feed], self._marks[feed] = following, mark

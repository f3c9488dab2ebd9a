"""Updates that a node's engine has applied: checked for order, and summed up in a way of their own.

Stands for the cores. Every update has a mark (see the oracle); the sum of the marks of all applied updates
stands for the set, by other means than the machine's chain hashes, so the two can be held against each other.
"""

from __future__ import annotations

from sfnode.sim.world.disk import Disk
from sfnode.sim.world.oracle import MARK_BITS, Oracle
from sfnode.sim.world.violation import Violation
from sfprotocol.host import Advanced, cut_chain
from sfprotocol.messages import Feed


class Applied:
    """The updates that one node has applied, from one start to the next."""

    def __init__(self, disk: Disk, oracle: Oracle) -> None:
        self._oracle = oracle
        self._disk = disk
        self._next: dict[Feed, int] = {}
        self._marks: dict[Feed, int] = {}
        self.total = 0
        """Sum of the marks of everything applied."""
        for feed in disk.shelves:
            self._move(feed, disk.counted(feed))

    def advance(self, advanced: Advanced) -> None:
        """Add what counts now, or subtract what does not count any more. Raises Violation."""
        feed, before, stop = advanced.feed, advanced.before, advanced.stop
        applied = self._next.get(feed, 0)
        if before != applied:
            raise Violation("once", f"updates from step {before} are applied where {applied} comes next")
        if stop > self._disk.stop(feed):
            raise Violation("durable", f"updates up to step {stop} are applied and not on disk")
        if stop < before:
            self._check_cut(feed, stop)
        self._move(feed, stop)

    def _check_cut(self, feed: Feed, stop: int) -> None:
        """Check that a proof on disk demands this cut, and that our history up to it is the common one."""
        proof = self._disk.proof(feed)
        if proof is None or proof.cut > stop:
            raise Violation("cut", f"a feed goes back to step {stop} and no proof on disk says so")
        if proof.cut == stop and self._disk.head(feed, stop) != cut_chain(self._disk.run, proof):
            raise Violation(
                "cut", f"a feed goes back to step {stop} of a history that the proof does not have"
            )

    def _move(self, feed: Feed, following: int) -> None:
        mark = self._oracle.mark(feed, following, self._disk.head(feed, following))
        self.total = (self.total + mark - self._marks.get(feed, 0)) % (1 << MARK_BITS)
        self._next[feed], self._marks[feed] = following, mark

"""Updates that a node's engine has applied: checked for order, and summed up in a way of their own.

Stands for the cores. Every update has a mark (see the oracle); the sum of the marks of all applied updates,
each times the factor with which it counts, stands for the set, by other means than the machine's chain
hashes, so the two can be held against each other.
"""

from __future__ import annotations

from sfnode.sim.world.disk import Disk
from sfnode.sim.world.oracle import MARK_BITS, Oracle
from sfnode.sim.world.violation import Violation
from sfprotocol.counting import Run
from sfprotocol.host import Advanced, cut_chain
from sfprotocol.machine import Machine
from sfprotocol.messages import Feed
from sfprotocol.weighing import once


class Applied:
    """The updates that one node has applied, from one start to the next."""

    def __init__(self, disk: Disk, oracle: Oracle, machine: Machine) -> None:
        self._oracle = oracle
        self._disk = disk
        self._machine = machine
        self._runs: dict[Feed, tuple[Run, ...]] = {}
        self._marks: dict[Feed, int] = {}
        self.total = 0
        """Sum of the marks of everything applied, weighted."""
        for feed in disk.shelves:
            self._apply(feed, machine.runs(feed))

    def runs(self, feed: Feed) -> tuple[Run, ...]:
        """Return the factors with which the updates of a feed are applied."""
        return self._runs.get(feed, ())

    def advance(self, advanced: Advanced) -> None:
        """Add what counts now, or subtract what does not count any more. Raises Violation."""
        feed, before, stop = advanced.feed, advanced.before, advanced.stop
        if stop > self._disk.stop(feed):
            raise Violation("durable", f"updates up to step {stop} are applied and not on disk")
        if self._machine.organised:
            self._apply(feed, self._machine.runs(feed))
            return
        applied = _end(self.runs(feed))
        if before != applied:
            raise Violation("once", f"updates from step {before} are applied where {applied} comes next")
        if stop < before:
            self._check_cut(feed, stop)
        self._apply(feed, once(stop).runs)

    def _check_cut(self, feed: Feed, stop: int) -> None:
        """Check that a proof on disk demands this cut, and that our history up to it is the common one."""
        proof = self._disk.proof(feed)
        if proof is None or proof.cut > stop:
            raise Violation("cut", f"a feed goes back to step {stop} and no proof on disk says so")
        if proof.cut == stop and self._disk.head(feed, stop) != cut_chain(self._disk.run, proof):
            raise Violation(
                "cut", f"a feed goes back to step {stop} of a history that the proof does not have"
            )

    def sum(self, feed: Feed, runs: tuple[Run, ...]) -> tuple[int, int]:
        """Return the sum of the marks of these updates, each times its factor, and the sum of their marks.

        What comes before the disk's base of the feed counts as its checkpoint says. Raises Violation if it
        would have to count otherwise.
        """
        total = mark = at = 0
        if before := self._disk.before(feed):
            total, mark, at = before.total, before.mark, before.base.step
            if _up_to(at, runs) != before.runs:
                raise Violation("checkpoint", "decisions change what a checkpoint counts and it stays usable")
        for run in runs:
            if run.stop > at:
                following = self._oracle.mark(feed, run.stop, self._disk.head(feed, run.stop))
                total, mark = total + run.factor * (following - mark), following
        return total, mark

    def _apply(self, feed: Feed, runs: tuple[Run, ...]) -> None:
        """Let this of a feed be applied, of the history that the disk has."""
        total, _ = self.sum(feed, runs)
        self.total = (self.total + total - self._marks.get(feed, 0)) % (1 << MARK_BITS)
        self._runs[feed], self._marks[feed] = runs, total


def _up_to(step: int, runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """Return the runs of the first `step` steps."""
    whole = tuple(run for run in runs if run.stop < step)
    return whole + tuple(run._replace(stop=step) for run in runs[len(whole) : len(whole) + 1])


def _end(runs: tuple[Run, ...]) -> int:
    return runs[-1].stop if runs else 0

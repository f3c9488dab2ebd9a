"""Updates that a node's engine has applied: checked for order, and summed up in a way of their own.

Stands for the cores. Every update has a mark (see the oracle); the sum of the marks of all applied updates,
each times the weight with which it counts, stands for the set, by other means than the machine's chain
hashes, so the two can be held against each other.
"""

from __future__ import annotations

from collections.abc import Iterator

from sflab.sim.world.disk import Disk
from sflab.sim.world.oracle import MARK_BITS, Oracle
from sflab.sim.world.violation import Violation
from sfprotocol.counting import Run
from sfprotocol.host import Advanced, cut_chain
from sfprotocol.machine import Machine
from sfprotocol.messages import Feed
from sfprotocol.weighing import Counted, once


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
            self._apply(feed, machine.counted(feed))

    def runs(self, feed: Feed) -> tuple[Run, ...]:
        """Return the factors with which the updates of a feed are applied."""
        return self._runs.get(feed, ())

    def advance(self, advanced: Advanced) -> None:
        """Add what counts now, or subtract what does not count any more. Raises Violation."""
        feed, before, stop = advanced.feed, advanced.before, advanced.stop
        if stop > self._disk.stop(feed):
            raise Violation("durable", f"updates up to step {stop} are applied and not on disk")
        if self._machine.organised:
            self._apply(feed, self._machine.counted(feed))
            return
        applied = _end(self.runs(feed))
        if before != applied:
            raise Violation("once", f"updates from step {before} are applied where {applied} comes next")
        if stop < before:
            self._check_cut(feed, stop)
        self._apply(feed, once(stop))

    def _check_cut(self, feed: Feed, stop: int) -> None:
        """Check that a proof on disk demands this cut, and that our history up to it is the common one."""
        proof = self._disk.proof(feed)
        if proof is None or proof.cut > stop:
            raise Violation("cut", f"a feed goes back to step {stop} and no proof on disk says so")
        if proof.cut == stop and self._disk.head(feed, stop) != cut_chain(self._disk.run, proof):
            raise Violation(
                "cut", f"a feed goes back to step {stop} of a history that the proof does not have"
            )

    def sum(self, feed: Feed, counted: Counted) -> tuple[int, int]:
        """Return the sum of the marks of these updates, each times its weight, and the sum of their marks.

        What comes before the disk's base of the feed counts as its checkpoint says. Raises Violation if it
        would have to count otherwise.
        """
        total = mark = first = 0
        if before := self._disk.before(feed):
            total, mark, first = before.total, before.mark, before.base.step
            if _up_to(first, counted.runs) != before.runs:
                raise Violation("checkpoint", "decisions change what a checkpoint counts and it stays usable")
        for run in counted.runs:
            if run.stop <= first:
                continue
            for label, stop in self._labels(feed, first, run.stop, counted):
                following = self._oracle.mark(feed, stop, self._disk.head(feed, stop))
                total, mark = total + counted.weight(label, run.factor) * (following - mark), following
            first = run.stop
        return total, mark

    def _apply(self, feed: Feed, counted: Counted) -> None:
        """Let this of a feed be applied, of the history that the disk has."""
        total, _ = self.sum(feed, counted)
        self.total = (self.total + total - self._marks.get(feed, 0)) % (1 << MARK_BITS)
        self._runs[feed], self._marks[feed] = counted.runs, total

    def _labels(self, feed: Feed, first: int, stop: int, counted: Counted) -> Iterator[tuple[int, int]]:
        """Yield labels and where each ends within these steps; a single one where labels weigh alike."""
        if counted.rates is None:
            yield 0, stop
            return
        before = self._disk.before(feed)
        end = before.base.step - before.base.labelled if before else 0
        for label, count in self._disk.labels(feed, stop):
            end += count
            if end > first:
                yield label, end


def _up_to(step: int, runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """Return the runs of the first `step` steps."""
    whole = tuple(run for run in runs if run.stop < step)
    return whole + tuple(run._replace(stop=step) for run in runs[len(whole) : len(whole) + 1])


def _end(runs: tuple[Run, ...]) -> int:
    return runs[-1].stop if runs else 0

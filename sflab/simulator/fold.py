"""Reference implementation of counting in an organised run, decision by decision and update by update (SPEC
O5 to O8).

It is independent of the machine and as plain as possible. Its result is compared with the cores of nodes. It
assumes that every decision is valid, as an organiser's decisions are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sflab.simulator.world.computer import Computer
from sflab.simulator.world.oracle import updates_of
from sfnode.engine.core import Core, UpdateBatch
from sfprotocol import decisions
from sfprotocol.decisions import UNIT_ONE, Admit, Amend, Close, Decision, RateFrom, Seal, Void
from sfprotocol.fields import Values
from sfprotocol.messages import Feed
from sfprotocol.seeds import update_seeds
from sfprotocol.segments import MAX_SEGMENT_UPDATES

ONE = 4096
"""Factor 1 (SPEC O8). Defined here again, because the machine may be wrong."""

OPEN, SKIPPED, COUNTED, VOID = "open", "skipped", "counted", "void"


@dataclass
class Step:
    """A step that a close lists."""

    epoch: int
    verdict: str = OPEN
    factor: int = ONE


@dataclass
class Fold:
    """The state after some decisions."""

    rates: list[RateFrom]
    members: list[bytes] = field(default_factory=list)
    steps: dict[int, list[Step]] = field(default_factory=dict)
    """Listed steps of each feed, keyed by the feed's number."""
    ended: set[int] = field(default_factory=set)

    def take(self, decision: Decision) -> None:
        """Apply the next decision."""
        match decision:
            case Admit(origin=origin) if origin not in self.members:
                self.members.append(origin)
            case Close(epoch=epoch, moves=moves):
                for number, count, *_ in moves:
                    self.steps.setdefault(number, []).extend(Step(epoch) for _ in range(count))
            case Seal():
                self._seal(decision)
            case Amend(feed=number, epoch=epoch):
                self.steps[number] = [step for step in self.steps[number] if step.epoch < epoch]
                self.ended.add(number)
            case Void(first=first, last=last, members=members):
                for number, step in self._named():
                    if first <= step.epoch <= last and (not members or number // 64 in members):
                        step.verdict, step.factor = VOID, 0

    def _seal(self, seal: Seal) -> None:
        for number, step in self._named():
            if step.epoch == seal.epoch and number in seal.skipped:
                step.verdict, step.factor = SKIPPED, 0
            elif step.epoch == seal.epoch or (number, step.epoch) in seal.recounted:
                step.verdict, step.factor = COUNTED, seal.factor
        if seal.rates:
            self.rates = [rate for rate in self.rates if rate.epoch < seal.rates[0].epoch] + list(seal.rates)

    def _named(self) -> list[tuple[int, Step]]:
        return [(number, step) for number, steps in self.steps.items() for step in steps]

    def rate(self, label: int) -> RateFrom:
        """Return the rate of updates with this label, with its unit and limit."""
        return [rate for rate in self.rates if rate.epoch <= label][-1]

    def moves(self, label: int, values: Values) -> bool:
        """Return whether an update with this label changes the weights (SPEC U11)."""
        if isinstance(values, int):
            return values != 0
        squares, limit = sum(value**2 for value in values), self.rate(label).limit
        return limit**2 / 64 <= squares <= limit**2

    def weight(self, feed: Feed, step: int, label: int) -> int:
        """Return the weight of a stored update, in units of 2^-32."""
        number = self.members.index(feed.origin) * 64 + feed.incarnation
        named = self.steps.get(number, [])
        factor = named[step].factor if step < len(named) else 0 if number in self.ended else ONE
        rate = self.rate(label)
        return rate.rate * rate.unit * factor // (ONE * UNIT_ONE)

    def counts(self, feed: Feed, step: int) -> bool:
        """Return whether a stored update that changes the weights is counted."""
        named = self.steps.get(self.members.index(feed.origin) * 64 + feed.incarnation, [])
        return step < len(named) and named[step].verdict == COUNTED and named[step].factor > 0


def judged(node: Computer) -> tuple[bytes, int]:
    """Return the digest of the cores of all updates that a node stores, and the number of counted ones.

    Each update has the weight that the decisions on disk give it. All updates must be sealed, because nodes
    give other weights to unsealed updates.
    """
    log, run, counted = node.log, node.world.run, 0
    assert log
    fold = Fold([RateFrom(0, run.rate, UNIT_ONE, run.norm_limit)])
    for entry in log.control():
        fold.take(decisions.read(entry.record).decision)
    core = Core(*node.world.manifest.core_shape)
    for state in node.machine.frontier:
        updates = _updates(node, state.feed, state.next)
        for step, (label, values) in enumerate(updates):
            moves = fold.moves(label, values)
            amount = np.array([values], np.int64) * (fold.weight(state.feed, step, label) if moves else 0)
            seed = update_seeds(state.key, step, 1)
            core.add(UpdateBatch(np.array([run.subspace_of(label)]), seed, amount))
            counted += moves and fold.counts(state.feed, step)
    return core.digest(), counted


def _updates(node: Computer, feed: Feed, stop: int) -> list[tuple[int, Values]]:
    """Return the labels and values of the first `stop` steps of a feed."""
    found: list[tuple[int, Values]] = []
    assert node.log
    while len(found) < stop and (segment := node.log.read(feed, len(found), MAX_SEGMENT_UPDATES)):
        found += updates_of(segment.parts)
    return found[:stop]

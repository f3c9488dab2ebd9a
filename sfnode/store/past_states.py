"""States of a run at about the moment at which an update of its log was made, for whoever recomputes it.

What its author had seen of the others is written down nowhere. Feeds say with every update in which epoch it
was made, though, and nodes of one run go through an epoch at about the same time: so the state for an update
that is the k-th of n of its feed with one label has, of every feed, the first k/n of its updates with that
label. It is wrong by what feeds differ in pace, and so there are two of them, one for a little earlier and
one for a little later. Epochs are divided into PARTS, so that many updates share a state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from functools import lru_cache
from itertools import takewhile
from operator import attrgetter
from typing import NamedTuple

from sfnode.store.log import UpdateLog
from sfnode.store.replay import counting_of
from sfprotocol import decisions
from sfprotocol.counting import Counting
from sfprotocol.decisions import Close
from sfprotocol.messages import Feed, RunParameters
from sfprotocol.weighing import Counted, live, once

PARTS = 8
"""States for one epoch. In three real nodes of different speed an eighth of an epoch to either side takes in
what they differ by, and what is invented hardly falls in between (docs/benchmarks.md)."""


class Labelled(NamedTuple):
    """Consecutive steps of a feed with one label."""

    label: int
    first: int
    stop: int


class PastMoment(NamedTuple):
    """A part of an epoch; later ones are greater."""

    label: int
    part: int
    """Number of the part, from 0 to PARTS - 1."""


class PastStates:
    """The states that a log remembers."""

    def __init__(self, run: RunParameters, update_log: UpdateLog, held: Mapping[Feed, int]) -> None:
        """`held` says how many steps of each feed are to be taken from the log. Raises UserError
        LOG_CORRUPT."""
        self._run = run
        self.held = held
        self._entries = update_log.control()
        self._labelled = {feed: _labelled(update_log, feed, stop) for feed, stop in held.items()}
        self._first = {feed: update_log.base(feed).step for feed in self._labelled}
        """First steps of feeds: a checkpoint may stand for what comes before."""
        self._before = lru_cache(maxsize=2)(self._decided_before)

    def moments(self, feed: Feed, step: int) -> tuple[PastMoment, PastMoment]:
        """Return a moment before and one after an update was made."""
        labelled = self._labelled[feed]
        label, first, stop = labelled[bisect_right(labelled, step, key=attrgetter("first")) - 1]
        part = PARTS * label + PARTS * (step - first) // (stop - first)
        return PastMoment(*divmod(max(0, part - 1), PARTS)), PastMoment(*divmod(part + 1, PARTS))

    def after(self, feed: Feed, epoch: int) -> int:
        """Return the first step of a feed with a label above `epoch`; its end if there is none."""
        labelled = self._labelled[feed]
        place = bisect_right(labelled, epoch, key=attrgetter("label"))
        return labelled[place].first if place < len(labelled) else labelled[-1].stop if labelled else 0

    def state(self, moment: PastMoment) -> dict[Feed, Counted]:
        """Return what counts of every feed in the middle of a moment."""
        held = {feed: _held(labelled, moment, self._first[feed]) for feed, labelled in self._labelled.items()}
        if not self._run.organised:
            return {feed: once(stop) for feed, stop in held.items()}
        counting = self._before(moment.label)
        return live(counting, held)

    def _decided_before(self, epoch: int) -> Counting:
        """Return what counts by the decisions before the close of an epoch: those of its members."""
        kept = takewhile(lambda entry: not _closes(entry.record, epoch), self._entries)
        return counting_of(self._run, kept)


def _closes(record: bytes, epoch: int) -> bool:
    said = decisions.read(record).decision
    return isinstance(said, Close) and said.epoch == epoch


def _labelled(update_log: UpdateLog, feed: Feed, stop: int) -> list[Labelled]:
    """Return the labels of a feed's steps up to `stop`, in order."""
    found: list[Labelled] = []
    step = update_log.base(feed).step
    for _, segment in update_log.segments([_Span(feed, step, stop)]):
        at = segment.first
        for label, scalars in segment.parts:
            following = min(at + len(scalars), stop)
            if found and found[-1].label == label:
                found[-1] = found[-1]._replace(stop=following)
            elif following > at:
                found.append(Labelled(label, max(at, step), following))
            at += len(scalars)
    return found


class _Span(NamedTuple):
    feed: Feed
    first: int
    stop: int


def _held(labelled: list[Labelled], moment: PastMoment, held: int) -> int:
    """Return how many steps of a feed were there in the middle of a moment; `held` before all of them."""
    for label, first, stop in labelled:
        if label < moment.label:
            held = stop
        elif label == moment.label:
            held = first + (stop - first) * (2 * moment.part + 1) // (2 * PARTS)
    return held

"""The updates of a log as numpy columns, for plots, statistics and the study of earlier states of a run.

A log has an order of updates only within each feed. The nodes of a run admit the run's updates in different
orders and end with the same model. A state of the run is therefore not a moment in time but a frontier: a
number of steps for each feed. In the columns, updates are sorted by epoch, then by the number of the feed's
earlier updates in that epoch, then by feed. So the first n updates are a state for every n, and all nodes
with the same updates have the same order. `Columns.at` returns the state after the first n updates.
`Columns.prefix` returns the state at any frontier.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sfnode.engine.core import UpdateBatch
from sfnode.store.known_feeds import Tail
from sfnode.store.segment_encoding import Record
from sfprotocol.checkpoints import Base
from sfprotocol.messages import Feed, Segment
from sfprotocol.seeds import I64, U64, update_seeds

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Updates(NamedTuple):
    """n updates as columns. Each array has the shape (n,) unless its description says otherwise."""

    feed: I64
    """Index into `Columns.feeds`."""
    step: I64
    """Step of the update in its feed, from 0."""
    epoch: I64
    """Epoch in which the update was made (its label), from 0."""
    seed: U64
    """Seed of the direction and of the mini-batch (SPEC R5)."""
    scalar: I64
    """Quantised directional derivative, in units of the manifest's scalar_delta. In a first-order run an
    update has one scalar for every cell, and the shape is (n, cells)."""


@dataclass(frozen=True, slots=True)
class Columns:
    """All updates of a log, or the updates in one state of the run, with their feeds. An update takes about
    40 bytes of memory."""

    run_id: bytes
    """The id of the run, 32 bytes."""
    feeds: tuple[Feed, ...]
    """All feeds of the log, sorted. Feeds without updates in this state are included."""
    before: tuple[int, ...]
    """Number of each feed's first updates that are not in `updates`, because a checkpoint stands for them."""
    updates: Updates

    def __len__(self) -> int:
        """Number of updates."""
        return len(self.updates.seed)

    def at(self, known: int) -> Columns:
        """Return the state after the first `known` updates. Raises ValueError if there are fewer updates."""
        if not 0 <= known <= len(self):
            raise ValueError(f"there are {len(self)} updates and not {known}")
        return self._rows(slice(known))

    def before_epoch(self, epoch: int) -> Columns:
        """Return the state with the updates of all epochs before `epoch`, and no others."""
        return self._rows(self.updates.epoch < epoch)

    def prefix(self, frontier: Mapping[Feed, int]) -> Columns:
        """Return the state with the first `frontier[feed]` updates of each feed, and no updates of feeds that
        are not in `frontier`.

        Raises ValueError if the log lacks some of these steps.
        """
        have, begins = self.frontier(), dict(zip(self.feeds, self.before, strict=True))
        for feed, steps in frontier.items():
            if not begins.get(feed, 0) <= steps <= have.get(feed, 0):
                raise ValueError(f"there are {have.get(feed, 0)} updates of {feed} and not {steps}")
        stops = np.array([frontier.get(feed, 0) for feed in self.feeds], np.int64)
        return self._rows(self.updates.step < stops[self.updates.feed])

    def frontier(self) -> dict[Feed, int]:
        """Return the number of updates of each feed, including those that a checkpoint stands for."""
        counts = np.bincount(self.updates.feed, minlength=len(self.feeds)) + np.array(self.before, np.int64)
        return dict(zip(self.feeds, counts.tolist(), strict=True))

    def epochs(self) -> I64:
        """Return the number of updates in each epoch, of shape (last epoch + 1,)."""
        return np.bincount(self.updates.epoch).astype(np.int64)

    def batch(self) -> UpdateBatch:
        """Return the updates in the form that `Trainer.apply` takes."""
        _, _, epochs, seeds, scalars = self.updates
        return UpdateBatch(epochs, seeds, scalars)

    def _rows(self, chosen: slice | NDArray[np.bool_]) -> Columns:
        return replace(self, updates=Updates._make(column[chosen] for column in self.updates))


def columns_of(
    run_id: bytes, tails: Sequence[Tail], bases: Mapping[Feed, Base], records: Iterable[Record]
) -> Columns:
    """Return as columns those updates of `records` that count. `tails` and `bases` are those of the log with
    the records."""
    stops = {tail.feed: (number, tail.next) for number, tail in enumerate(tails)}
    pieces = []
    for record in records:
        number, stop = stops.get(record.feed, (0, 0))
        if record.segment.first < stop:  # otherwise the record is after a cut, or newer than `tails`
            pieces.append(_updates_of(number, record.segment, stop))
    none = Updates(*(np.empty(0, np.int64),) * 3, np.empty(0, np.uint64), np.empty(0, np.int64))
    updates = Updates._make(np.concatenate(columns) for columns in zip(*(pieces or [none]), strict=True))
    begins = [bases.get(tail.feed) for tail in tails]
    order = _order(updates, np.array([(base.epoch, base.labelled) if base else (-1, 0) for base in begins]))
    return Columns(
        run_id,
        tuple(tail.feed for tail in tails),
        tuple(base.step if base else 0 for base in begins),
        Updates._make(column[order] for column in updates),
    )


def _updates_of(number: int, segment: Segment, stop: int) -> Updates:
    """Return the updates of a segment before step `stop`; `number` is the index of the segment's feed."""
    parts, first = segment.parts, segment.first
    epochs = np.repeat([part.epoch for part in parts], [len(part.scalars) for part in parts])
    scalars = np.concatenate([np.array(part.scalars, np.int64) for part in parts])
    count = min(len(scalars), stop - first)
    return Updates(
        np.full(count, number, np.int64),
        np.arange(first, first + count, dtype=np.int64),
        epochs[:count].astype(np.int64),
        update_seeds(segment.feed_key, first, count),
        scalars[:count],
    )


def _order(updates: Updates, begins: I64) -> NDArray[np.intp]:
    """Return the indexes that sort updates into the order of `Columns`. The given updates must be sorted by
    feed, then by step.

    `begins` has two numbers for each feed: the epoch of the last update before the first given one, and the
    number of the feed's updates in that epoch before the first given one.
    """
    places = np.arange(len(updates.step))
    changes = np.r_[True, (np.diff(updates.feed) != 0) | (np.diff(updates.epoch) != 0)][: len(places)]
    since = places - np.maximum.accumulate(np.where(changes, places, 0))  # of the same feed and epoch
    if len(places):
        epoch, labelled = begins[updates.feed].T
        since = since + np.where(updates.epoch == epoch, labelled, 0)
    return np.lexsort((updates.feed, since, updates.epoch))

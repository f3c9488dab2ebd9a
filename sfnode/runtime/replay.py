"""From the update log to what the engine takes in: every update since genesis, in large batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from sfnode.engine.core import UpdateBatch
from sfnode.store.log import Tail, UpdateLog
from sfprotocol import seeds
from sfprotocol.frontier import Frontier
from sfprotocol.messages import EpochScalars, Feed, RunParameters


def batch_of(feed_key: int, first: int, parts: Iterable[EpochScalars]) -> UpdateBatch:
    """Consecutive updates of one feed as columns."""
    pieces = list(parts)
    scalars = np.concatenate([np.array(values, np.int64) for _, values in pieces])
    epochs = np.repeat([epoch for epoch, _ in pieces], [len(values) for _, values in pieces])
    return UpdateBatch(epochs.astype(np.int64), seeds.update_seeds(feed_key, first, len(scalars)), scalars)


def join(pieces: list[UpdateBatch]) -> UpdateBatch:
    """Several batches as one."""
    return UpdateBatch(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))


def frontier_of(run: RunParameters, update_log: UpdateLog) -> Frontier:
    """Where the log stands."""
    frontier = Frontier(run)
    for tail in update_log.tails():
        frontier.advance(tail.feed, tail.next, tail.chain, tail.epoch)
    for cut in update_log.cuts():
        frontier.cut(cut.feed, cut.at, cut.chain)
    return frontier


def taken_back(update_log: UpdateLog, feed_key: int, feed: Feed, start: int, stop: int) -> UpdateBatch:
    """What takes steps `start .. stop - 1` of a feed out of the cores again, now that it is cut."""
    pieces = []
    while start < stop:
        _, segment = update_log.past(feed, start)
        end = min(stop, segment.stop)
        epochs, update_seeds, scalars = batch_of(feed_key, start, segment.parts)
        count = end - start
        pieces.append(UpdateBatch(epochs[:count], update_seeds[:count], -scalars[:count]))
        start = end
    return join(pieces)


def batches(update_log: UpdateLog, run_id: bytes, tails: Iterable[Tail]) -> Iterator[UpdateBatch]:
    """Everything in the log of run `run_id` up to `tails`, feed by feed.

    Of a log that is being appended to, this is what it held when `tails` were read.
    """
    stops = {tail.feed: tail.next for tail in tails}
    for feed, first, parts in update_log.replay():
        wanted = stops.get(feed, 0) - first
        if wanted > 0:
            key = seeds.feed_key(run_id, feed.origin, feed.incarnation)
            epochs, update_seeds, scalars = batch_of(key, first, parts)
            yield UpdateBatch(epochs[:wanted], update_seeds[:wanted], scalars[:wanted])

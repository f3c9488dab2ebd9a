"""Updates of the log as an engine applies them: as columns, in large batches.

An engine stands at a position in every feed: so many of its steps are in the cores. What takes it from there
to where a feed counts now is read from the log, so that whoever tells an engine of news only has to tell it
positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sfnode.engine.core import UpdateBatch
from sfnode.store.log import Span, UpdateLog
from sfprotocol.frontier import Frontier
from sfprotocol.messages import EpochScalars, Feed, RunParameters
from sfprotocol.seeds import GOLDEN, U64, mix64
from sfprotocol.segments import drop_updates, first_updates
from sfprotocol.wire_codec import MAX_SEGMENT_UPDATES

BATCH_UPDATES = 65_536
"""Updates of a batch, which may end with one segment more: 1.5 MB, and enough for vectorised sums."""

MAX_BATCH_UPDATES = BATCH_UPDATES + MAX_SEGMENT_UPDATES
"""Bound of a batch (SPEC S4 bounds a segment)."""


class Piece(NamedTuple):
    """Consecutive updates of one feed, to be added or subtracted."""

    feed_key: int
    first: int
    """Step of the first one."""
    parts: tuple[EpochScalars, ...]
    """The scalars, epoch by epoch; not empty."""
    sign: int = 1
    """-1 to subtract them."""


def batch_of(pieces: Sequence[Piece]) -> UpdateBatch:
    """Return all these updates as columns, in the same order; `pieces` must not be empty."""
    parts = [part for piece in pieces for part in piece.parts]
    scalars = np.array([scalar for _, scalars in parts for scalar in scalars], np.int64)
    epochs = np.repeat(
        np.array([epoch for epoch, _ in parts], np.int64), [len(scalars) for _, scalars in parts]
    )
    counts = [sum(len(scalars) for _, scalars in piece.parts) for piece in pieces]
    if any(piece.sign < 0 for piece in pieces):
        scalars *= np.repeat([piece.sign for piece in pieces], counts)
    return UpdateBatch(epochs, _seeds(pieces, counts), scalars)


def _seeds(pieces: Sequence[Piece], counts: list[int]) -> U64:
    """Return the seeds of all updates (SPEC R5); as `seeds.update_seeds`, for many feeds at once."""
    starts = np.cumsum([0, *counts])  # where each piece begins in the columns
    begin = np.array([piece.first + 1 for piece in pieces], np.uint64) - starts[:-1].astype(np.uint64)
    counters = np.repeat(begin, counts) + np.arange(starts[-1], dtype=np.uint64)  # step + 1, modulo 2**64
    keys = np.repeat(np.array([piece.feed_key for piece in pieces], np.uint64), counts)
    return mix64(keys + counters * np.uint64(GOLDEN))


def frontier_of(run: RunParameters, update_log: UpdateLog) -> Frontier:
    """Return the frontier of what is in the log."""
    frontier = Frontier(run)
    for tail in update_log.tails():
        frontier.advance(tail.feed, tail.next, tail.chain, tail.epoch)
    for cut in update_log.cuts():
        frontier.cut(cut.feed, cut.at, cut.chain)
    return frontier


def stops(update_log: UpdateLog) -> dict[Feed, int]:
    """Return, for every feed of which something counts, the step before which all of it counts."""
    return {tail.feed: tail.next for tail in update_log.tails()}


def changes(
    update_log: UpdateLog, applied: Mapping[Feed, int], wanted: Mapping[Feed, int]
) -> Iterator[UpdateBatch]:
    """Yield what takes cores from the steps `applied` of each feed to the steps `wanted`.

    Steps that a cut took out of a feed come with their scalars negated, which subtracts them. Feeds that
    `wanted` lacks stay as they are; feeds that `applied` lacks start at step 0. Batches have at most
    MAX_BATCH_UPDATES updates. Raises UserError LOG_CORRUPT, also when the log ends before `wanted`.
    """
    pieces: list[Piece] = []
    size = 0
    moves = ((feed, applied.get(feed, 0), stop) for feed, stop in wanted.items())
    spans = (Span(feed, min(old, new), max(old, new)) for feed, old, new in moves if old != new)
    for span, segment in update_log.segments(spans):
        first, stop = max(span.first, segment.first), min(span.stop, segment.stop)
        parts = drop_updates(first_updates(segment.parts, stop - segment.first), first - segment.first)
        pieces.append(Piece(segment.feed_key, first, parts, -1 if wanted[span.feed] == span.first else 1))
        size += stop - first
        if size >= BATCH_UPDATES:
            yield batch_of(pieces)
            pieces, size = [], 0
    if pieces:
        yield batch_of(pieces)

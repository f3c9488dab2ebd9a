"""Reads updates from the log in the form that an engine takes: as columns, in large batches.

An engine is told which updates count, and with which weights. It knows which steps of every feed are already
in its cores, and with which weights. So it reads from the log only the updates whose weight has changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, cast

import numpy as np

from sfnode.engine.core import UpdateBatch
from sfnode.manifest import Manifest
from sfnode.store.database import STATEMENT
from sfnode.store.disk_errors import BrokenRowError, disk_faults
from sfnode.store.log import UpdateLog
from sfprotocol import decisions, wire_codec
from sfprotocol.control_sync import Kept
from sfprotocol.decisions import Checkpoint
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.fields import Values
from sfprotocol.frontier import Frontier
from sfprotocol.messages import Entry, EpochScalars, Feed, HigherWord, RunParameters, Segment, Statement
from sfprotocol.run_state import RunState
from sfprotocol.seeds import GOLDEN, I64, U64, mix64, update_seeds
from sfprotocol.segments import drop_updates, first_updates, size_of
from sfprotocol.weighing import NOTHING, Counted, Difference, differences

BATCH_UPDATES = 65_536
"""Number of scalars after which a batch ends, at the end of the current segment. A batch of this size takes
1.5 MB, and is large enough for efficient vectorised sums."""


class WeightedScalars(NamedTuple):
    """Scalars of consecutive updates that are added to one core with one weight."""

    subspace: int
    weight: int
    """Factor of the scalars; negative to subtract them."""
    scalars: tuple[Values, ...]


class UpdatePiece(NamedTuple):
    """Consecutive updates of one feed."""

    feed_key: int
    first: int
    """Step of the first update."""
    parts: tuple[WeightedScalars, ...]
    """Parts of the updates, in the order of steps; at least one part."""


def batch_of(pieces: Sequence[UpdatePiece]) -> UpdateBatch:
    """Return all updates of the pieces as columns, in the same order. There must be at least one piece."""
    parts = [part for piece in pieces for part in piece.parts]
    lengths = [len(part.scalars) for part in parts]
    scalars = np.array([values for part in parts for values in part.scalars], np.int64)  # (n,) or (n, cells)
    subspaces = np.repeat(np.array([part.subspace for part in parts], np.int64), lengths)
    if any(part.weight != 1 for part in parts):
        weights = np.repeat(np.array([part.weight for part in parts], np.int64), lengths)
        scalars *= weights if scalars.ndim == 1 else weights[:, None]
    counts = [sum(len(part.scalars) for part in piece.parts) for piece in pieces]
    return UpdateBatch(subspaces, _seeds(pieces, counts), scalars)


def _seeds(pieces: Sequence[UpdatePiece], counts: list[int]) -> U64:
    """Return the seeds of all updates (SPEC R5), as `seeds.update_seeds` does, but for many feeds at once."""
    starts = np.cumsum([0, *counts])  # begin of each piece in the columns
    begin = np.array([piece.first + 1 for piece in pieces], np.uint64) - starts[:-1].astype(np.uint64)
    counters = np.repeat(begin, counts) + np.arange(starts[-1], dtype=np.uint64)  # step + 1, modulo 2**64
    keys = np.repeat(np.array([piece.feed_key for piece in pieces], np.uint64), counts)
    return mix64(keys + counters * np.uint64(GOLDEN))


def frontier_of(run: RunParameters, update_log: UpdateLog) -> Frontier:
    """Return the frontier of the log, with the run state after the log's decisions.

    The log may have another history of a feed than the one that the organiser chose. The result does not show
    this. The machine finds such feeds when it starts (SPEC O7).
    """
    frontier = Frontier(run)
    if run.organised:
        frontier.run_state = run_state_of(run, update_log.control())
    checkpoint = remembered_checkpoint(update_log)
    if checkpoint is not None:
        frontier.rebase(checkpoint, update_log.bases().values())
    cuts = {cut.feed: cut for cut in update_log.cuts()}
    for tail in update_log.ends():
        labelled = update_log.label(tail.feed, tail.next)[1] if run.organised else 0
        frontier.advance(tail.feed, tail.next, tail.chain, tail.epoch, labelled)
    for cut in cuts.values():
        frontier.cut(cut.feed, cut.at, cut.chain)
        if run.organised and frontier.next(cut.feed) == cut.at:
            frontier.go_back(cut.feed, cut.at, cut.chain, *update_log.label(cut.feed, cut.at))
    return frontier


_CHECKPOINT = "checkpoint"


def remember_checkpoint(update_log: UpdateLog, checkpoint: Checkpoint) -> None:
    """Record durably the checkpoint that will stand for the beginning of the log."""
    update_log.set_meta(_CHECKPOINT, decisions.encode(checkpoint))


def remembered_checkpoint(update_log: UpdateLog) -> Checkpoint | None:
    """Return the checkpoint that stands for the beginning of the log; None if the log has every feed from
    step 0 on."""
    kept = update_log.get_meta(_CHECKPOINT)
    found = decisions.read(kept).decision if kept is not None and update_log.bases() else None
    return found if isinstance(found, Checkpoint) else None


def state_digest(manifest: Manifest, frontier: Frontier) -> bytes:
    """Return the state digest of a run. In protocol version 1 the digest is a hash of the records of all
    feeds in order (SPEC M6)."""
    if manifest.protocol > 1:
        return frontier.digest()
    records = b"".join(state.record() for state in frontier)
    hasher = hashlib.blake2b(frontier.run.run_id + records, digest_size=32, person=b"sfnode-state")
    return hasher.digest()


def kept_control(update_log: UpdateLog) -> Kept:
    """Return the log's control feed; empty in an open run."""
    messages = map(wire_codec.decode, update_log.authority())
    authority = (message for message in messages if isinstance(message, HigherWord))
    said = update_log.get_meta(STATEMENT)
    statement = wire_codec.decode(said) if said else None
    return Kept(tuple(update_log.control()), tuple(authority), cast(Statement | None, statement))


@contextmanager
def sound_control(update_log: UpdateLog) -> Iterator[None]:
    """Raise UserError LOG_CORRUPT if the block raises an error because of an invalid record in the control
    feed."""
    with disk_faults(update_log.path):
        try:
            yield
        except RemoteProtocolError as error:
            raise BrokenRowError(f"the control feed: {error}") from error


def run_state_of(run: RunParameters, entries: Iterable[Entry]) -> RunState:
    """Return the run state after the decisions `entries`, which the machine has verified."""
    run_state = RunState.of(run)
    for entry in entries:
        run_state.apply(decisions.read(entry.record))
    return run_state


class _Change(NamedTuple):
    """Consecutive steps of a feed. The weights of the updates of all these steps change."""

    feed: Feed
    first: int
    stop: int
    difference: Difference
    before: Counted
    now: Counted

    def weight(self, label: int, values: Values) -> int:
        """Return the change of the weight of an update with the epoch label `label`. In a first-order run the
        weight also depends on `values`, the update's scalars."""
        new = self.now.weight(label, self.difference.now, values)
        return new - self.before.weight(label, self.difference.before, values)

    def weighted(self, told: Iterable[EpochScalars]) -> Iterator[tuple[int, int, tuple[Values, ...]]]:
        """Yield (label, change of weight, scalars) for consecutive updates with one label and one change of
        weight. In a first-order run each update is yielded alone, because updates whose scalars are all 0
        have the weight 0 (SPEC U11)."""
        for label, scalars in told:
            each = [scalars] if isinstance(scalars[0], int) else [(values,) for values in scalars]
            yield from ((label, self.weight(label, some[0]), some) for some in each)


def changes(
    update_log: UpdateLog,
    applied: Mapping[Feed, Counted],
    wanted: Mapping[Feed, Counted],
    subspace_of: Callable[[int], int] = int,
) -> Iterator[UpdateBatch]:
    """Yield the batches that must be added to cores that are the sums of the `applied` updates, so that the
    cores become the sums of the `wanted` updates.

    In a batch the scalar of an update is multiplied by the change of the update's weight, and the epoch is
    replaced by the subspace whose core the update belongs to. Updates whose weight does not change are not
    read. Updates of feeds that are not in `wanted` remain in the cores. A batch has at most BATCH_UPDATES
    scalars plus those of one segment. Raises UserError LOG_CORRUPT, also if `wanted` updates are not in the
    log.
    """
    pieces: list[UpdatePiece] = []
    size = 0
    for change, segment in update_log.segments(_changed(applied, wanted)):
        first, told = _within(change, segment)
        parts = (
            WeightedScalars(subspace_of(label), weight, values)
            for label, weight, values in change.weighted(told)
        )
        pieces.append(UpdatePiece(segment.feed_key, first, tuple(parts)))
        size += size_of(told)
        if size >= BATCH_UPDATES:
            yield batch_of(pieces)
            pieces, size = [], 0
    if pieces:
        yield batch_of(pieces)


def counted_anew(
    update_log: UpdateLog,
    before: Mapping[Feed, Counted],
    wanted: Mapping[Feed, Counted],
    subspace_of: Callable[[int], int] = int,
) -> dict[Feed, tuple[UpdateBatch, I64]]:
    """Return the updates whose weight differs between `before` and `wanted`, keyed by feed. Each value is a
    batch with the scalars as they were sent, and the changes of the updates' weights, (n,). Raises UserError
    as `changes`."""
    pieces: dict[Feed, list[UpdatePiece]] = {}
    weights: dict[Feed, list[int]] = {}
    for change, segment in update_log.segments(_changed(before, wanted)):
        first, told = _within(change, segment)
        parts = tuple(WeightedScalars(subspace_of(label), 1, scalars) for label, scalars in told)
        pieces.setdefault(change.feed, []).append(UpdatePiece(segment.feed_key, first, parts))
        weights.setdefault(change.feed, []).extend(
            weight for _, weight, values in change.weighted(told) for _ in values
        )
    return {feed: (batch_of(pieces[feed]), np.array(weights[feed], np.int64)) for feed in pieces}


class Weighed(NamedTuple):
    """An update and its weight."""

    feed: Feed
    step: int
    epoch: int
    seed: int
    scalar: Values
    weight: int
    """Factor of the scalar (SPEC O8); 1 in an open run."""


def weighed(update_log: UpdateLog, wanted: Mapping[Feed, Counted]) -> Iterator[Weighed]:
    """Yield the updates that count according to `wanted`, sorted by feed (SPEC S1), then by step.

    Updates for which a checkpoint stands at the beginning of the log are left out. Raises UserError
    LOG_CORRUPT.
    """
    begins = {feed: base.step for feed, base in update_log.bases().items()}
    every = (
        one._replace(first=max(one.first, begins.get(one.feed, 0)))
        for one in _changed({}, dict(sorted(wanted.items())))
    )
    for change, segment in update_log.segments(one for one in every if one.first < one.stop):
        step, told = _within(change, segment)
        for epoch, scalars in told:
            seeds = update_seeds(segment.feed_key, step, len(scalars)).tolist()
            for number, (seed, scalar) in enumerate(zip(seeds, scalars, strict=True)):
                yield Weighed(change.feed, step + number, epoch, seed, scalar, change.weight(epoch, scalar))
            step += len(scalars)


def _within(change: _Change, segment: Segment) -> tuple[int, tuple[EpochScalars, ...]]:
    """Return the first step of `segment` that belongs to `change`, and the scalars of all steps of `segment`
    that do."""
    first, stop = max(change.first, segment.first), min(change.stop, segment.stop)
    told = first_updates(segment.parts, stop - segment.first)
    return first, tuple(drop_updates(told, first - segment.first))


def _changed(applied: Mapping[Feed, Counted], wanted: Mapping[Feed, Counted]) -> Iterator[_Change]:
    for feed, now in wanted.items():
        before = applied.get(feed, NOTHING)
        for difference in differences(before, now):
            yield _Change(feed, difference.first, difference.stop, difference, before, now)

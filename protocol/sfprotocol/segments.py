"""Operations on segments as plain values: splitting, merging and joining them (SPEC S4, S6).

Pure functions, shared by the store, the simulated disk and the protocol machine. They verify no signature
(`validation` does that) and read no log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain, groupby
from operator import attrgetter

from sfprotocol.fields import cells_of
from sfprotocol.messages import MAX_SEGMENT_UPDATES as MAX_SEGMENT_UPDATES
from sfprotocol.messages import EpochScalars, Form, Segment


class MissingStepsError(ValueError):
    """Error of `join`: the segments are not consecutive, or do not contain the first step of the result."""


def size_of(parts: Iterable[EpochScalars]) -> int:
    """Return the total number of scalars of these updates. Each update has one scalar, or in a first-order
    run one for every cell."""
    told = [part.scalars for part in parts if part.scalars]
    return sum(map(len, told)) * (cells_of(told[0][0]) or 1) if told else 0


def most_updates(parts: Sequence[EpochScalars]) -> int:
    """Return how many updates of the form of these `parts` fit one Segment. Scalars are assumed to have 2
    bytes; 1-byte scalars fit all the more."""
    return Form(2, cells_of(parts[0].scalars[0])).segment_updates


def drop_updates(parts: Iterable[EpochScalars], count: int) -> tuple[EpochScalars, ...]:
    """Return `parts` without their first `count` updates."""
    kept = []
    for epoch, scalars in parts:
        if count >= len(scalars):
            count -= len(scalars)
            continue
        kept.append(EpochScalars(epoch, scalars[count:]))
        count = 0
    return tuple(kept)


def first_updates(parts: Iterable[EpochScalars], count: int) -> tuple[EpochScalars, ...]:
    """Return the first `count` updates of `parts`."""
    kept = []
    for epoch, scalars in parts:
        if count <= 0:
            break
        kept.append(EpochScalars(epoch, scalars[:count]))
        count -= len(scalars)
    return tuple(kept)


def without_front(segment: Segment, step: int) -> Segment:
    """Return `segment` without the updates before `step`. Its signature still vouches for the remaining
    updates (SPEC S6)."""
    return replace(segment, first=step, parts=drop_updates(segment.parts, step - segment.first))


def merge(parts: Iterable[EpochScalars]) -> tuple[EpochScalars, ...]:
    """Return the same updates in the same order, but with adjacent parts of the same epoch merged into one
    part (SPEC S4)."""
    return tuple(
        EpochScalars(epoch, tuple(chain.from_iterable(part.scalars for part in group)))
        for epoch, group in groupby(parts, key=attrgetter("epoch"))
    )


def join(segments: Iterable[Segment], first: int, max_updates: int) -> Segment:
    """Return one segment of at most `max_updates` updates from step `first` on (SPEC S6).

    `segments` are consecutive, and the first of them contains step `first`. They are read only as far as
    needed. The result ends where one of the segments ends, because signatures exist only there. So if the
    first segment alone exceeds `max_updates`, the result does, too. The hop count of the result is 0. Raises
    MissingStepsError if a step is missing.
    """
    taken: list[Segment] = []
    for segment in segments:
        if taken and segment.stop - first > max_updates:
            break
        if taken and segment.first != taken[-1].stop:
            raise MissingStepsError(f"steps {taken[-1].stop} to {segment.first} of a feed are missing")
        taken.append(segment)
        if segment.stop - first >= max_updates:
            break
    if not taken or not taken[0].first <= first < taken[0].stop:
        raise MissingStepsError(f"step {first} of a feed is missing")
    parts = taken[0].parts if len(taken) == 1 else merge(part for segment in taken for part in segment.parts)
    fresh = drop_updates(parts, first - taken[0].first)
    return Segment(taken[0].feed_key, first, fresh, taken[-1].signature)

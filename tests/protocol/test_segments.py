"""Segments are split, merged and joined without a change of their updates (SPEC S4, S6)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfprotocol.messages import EpochScalars, Segment
from sfprotocol.segments import MissingStepsError, drop_updates, first_updates, join, merge, without_front

Updates = list[tuple[int, int]]

HISTORIES = st.lists(st.tuples(st.integers(0, 3), st.integers(-9, 9)), min_size=1, max_size=40).map(
    lambda updates: sorted(updates, key=lambda update: update[0])
)
"""Pairs (epoch, scalar) of all updates of a feed, by ascending epoch."""


def parts_of(updates: Updates) -> tuple[EpochScalars, ...]:
    """Return one part for each update, unlike any origin."""
    return tuple(EpochScalars(epoch, (scalar,)) for epoch, scalar in updates)


def updates_of(parts: tuple[EpochScalars, ...]) -> Updates:
    return [(epoch, scalar) for epoch, scalars in parts for scalar in scalars]


def segment(updates: Updates, first: int, stop: int) -> Segment:
    """Return steps `first .. stop - 1` with a signature that tells where they end."""
    return Segment(7, first, merge(parts_of(updates[first:stop])), stop.to_bytes(64, "big"), hops=3)


def cut_up(updates: Updates, cuts: set[int]) -> list[Segment]:
    stops = sorted({0, len(updates)} | {cut % len(updates) for cut in cuts})
    return [segment(updates, first, stop) for first, stop in pairwise(stops)]


@given(updates=HISTORIES, count=st.integers(0, 45))
def test_the_first_updates_and_the_rest_make_the_whole(updates: Updates, count: int) -> None:
    parts = merge(parts_of(updates))
    first, rest = first_updates(parts, count), drop_updates(parts, count)
    assert updates_of(first) == updates[:count]
    assert updates_of(rest) == updates[count:]
    assert all(part.scalars for part in first + rest)


@given(updates=HISTORIES)
def test_merged_parts_ascend_and_have_the_same_updates(updates: Updates) -> None:
    parts = merge(parts_of(updates))
    assert updates_of(parts) == updates
    assert all(one.epoch < other.epoch for one, other in pairwise(parts))


@given(updates=HISTORIES, data=st.data())
def test_a_segment_without_its_front_keeps_its_end_and_its_signature(
    updates: Updates, data: st.DataObject
) -> None:
    whole = segment(updates, 0, len(updates))
    step = data.draw(st.integers(0, len(updates)))
    rest = without_front(whole, step)
    assert (rest.first, rest.stop, rest.signature) == (step, whole.stop, whole.signature)
    assert updates_of(rest.parts) == updates[step:]


@given(updates=HISTORIES, cuts=st.sets(st.integers(0, 99)), most=st.integers(1, 50), data=st.data())
def test_joined_segments_have_the_same_updates_and_end_where_one_of_them_ends(
    updates: Updates, cuts: set[int], most: int, data: st.DataObject
) -> None:
    segments = cut_up(updates, cuts)
    first = data.draw(st.integers(0, len(updates) - 1))
    rows = [row for row in segments if row.stop > first]
    joined = join(iter(rows), first, most)
    assert updates_of(joined.parts) == updates[first : joined.stop]
    assert joined.parts == merge(joined.parts)
    assert (joined.first, joined.feed_key, joined.hops) == (first, 7, 0)
    assert joined.signature == joined.stop.to_bytes(64, "big"), "it is signed where it ends"
    fitting = [row.stop for row in rows if row.stop - first <= most]
    assert joined.stop == max([rows[0].stop, *fitting]), "as much as fits, and the first one in any case"


def test_segments_are_read_only_as_far_as_needed() -> None:
    updates = [(0, step) for step in range(40)]
    rows = iter(cut_up(updates, {10, 20, 30}))
    assert join(rows, 5, 15).stop == 20
    assert next(rows).first == 20


@pytest.mark.parametrize("first", [4, 12, 40])
def test_a_step_that_no_segment_has_is_missing(first: int) -> None:
    updates = [(0, step) for step in range(40)]
    rows = [segment(updates, 5, 10)] if first != 40 else []
    with pytest.raises(MissingStepsError, match=f"step {first} of a feed is missing"):
        join(rows, first, 100)


def test_segments_that_are_not_consecutive_are_refused() -> None:
    updates = [(0, step) for step in range(40)]
    with pytest.raises(MissingStepsError, match="steps 10 to 12"):
        join([segment(updates, 5, 10), segment(updates, 12, 20)], 6, 100)

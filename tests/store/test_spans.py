"""Tests of spans: the segments that hold them, and the label before a step."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from sfnode.store.disk_errors import BrokenRowError
from sfnode.store.segment_encoding import covering, label_before
from sfprotocol.checkpoints import Base
from sfprotocol.messages import EpochScalars, Feed, Segment

FEED = Feed(b"\x01" * 32, 0)


class Steps(NamedTuple):
    first: int
    stop: int
    feed: Feed = FEED


def segment(first: int, *epochs: int) -> Segment:
    """Return a segment from step `first` on with one update of each of these epochs."""
    return Segment(0, first, tuple(EpochScalars(epoch, (1,)) for epoch in epochs), bytes(64))


ROWS = [segment(0, 0, 0), segment(2, 0), segment(3, 1, 1, 2)]


@pytest.mark.parametrize(
    ("first", "stop", "held"), [(0, 6, ROWS), (1, 3, ROWS[:2]), (2, 3, ROWS[1:2]), (4, 4, [])]
)
def test_a_span_is_held_by_the_segments_that_have_some_of_it(
    first: int, stop: int, held: list[Segment]
) -> None:
    reached = [one for one in ROWS if one.stop > first]
    assert list(covering(Steps(first, stop), reached)) == held


@pytest.mark.parametrize("rows", [[], ROWS[1:], [ROWS[0], ROWS[2]], ROWS[:2]])
def test_steps_that_are_missing_are_a_broken_log(rows: list[Segment]) -> None:
    with pytest.raises(BrokenRowError):
        list(covering(Steps(0, 6), rows))


@pytest.mark.parametrize(("step", "label"), [(1, (0, 1)), (3, (0, 3)), (4, (1, 1)), (5, (1, 2)), (6, (2, 1))])
def test_the_label_before_a_step_is_read_as_far_back_as_it_goes(step: int, label: tuple[int, int]) -> None:
    backwards = [one for one in reversed(ROWS) if one.first < step]
    assert label_before(backwards, step, Base(FEED, 0, bytes(32), 0, 0)) == label


def test_a_checkpoint_says_how_many_updates_before_it_have_the_same_label() -> None:
    base = Base(FEED, 3, bytes(32), 1, 40)
    assert label_before(reversed(ROWS), 5, base) == (1, 42)
    assert label_before(reversed(ROWS), 6, base) == (2, 1)

"""Which updates of a feed may be held, in particular of a forked one (SPEC O6, O7)."""

from __future__ import annotations

import pytest

from sfprotocol import validation
from sfprotocol.decisions import Admit, Close, Move, Recorded
from sfprotocol.frontier import FeedState, Frontier
from sfprotocol.messages import EpochScalars, Feed
from sfprotocol.run_state import RunState
from sfprotocol.segments import MAX_SEGMENT_UPDATES, first_updates
from sfprotocol.signing import extend, genesis
from tests.protocol.feeds import RUN, origin_of, signed

FEED = Feed(origin_of("b"), 0)
SALT = b"saltsalt"


def named(*stops: int) -> tuple[RunState, FeedState]:
    """Return an empty forked feed whose closes list a history of sevens up to these steps."""
    run_state, before = RunState(budget=10**6, rate=1), 0
    run_state.apply(Recorded(Admit(FEED.origin, 10**5, 0)))
    for epoch, stop in enumerate(stops):
        chain = extend(genesis(RUN.run_id, FEED), [EpochScalars(0, (7,) * stop)])
        move = Move(0, stop - before, validation.tag(SALT, chain))
        run_state.apply(Recorded(Close(epoch, SALT, (move,))))
        before = stop
    frontier = Frontier(RUN)
    frontier.run_state = run_state
    state = frontier.state(FEED)
    state.forked = stops[0]
    return run_state, state


@pytest.mark.parametrize(
    ("stop", "taken"),
    [(4, False), (5, True), (20, False), (24, True), (31, True)],
    ids=["below the first", "to the first", "between two", "to the last", "beyond"],
)
def test_of_a_forked_feed_nothing_is_taken_that_nobody_can_tell_apart(stop: int, taken: bool) -> None:
    run_state, state = named(5, 24)
    segment = signed("b", 0, 0, [EpochScalars(0, (7,) * stop)])
    assert validation.follows(run_state, state, segment, MAX_SEGMENT_UPDATES) is taken


def test_of_a_forked_feed_a_segment_as_long_as_may_be_is_taken_up_to_where_it_ends() -> None:
    run_state, state = named(5, 3 * MAX_SEGMENT_UPDATES)
    segment = signed("b", 0, 0, [EpochScalars(0, (7,) * MAX_SEGMENT_UPDATES)])
    assert validation.follows(run_state, state, segment, MAX_SEGMENT_UPDATES)


def test_another_history_than_the_named_one_is_not_taken() -> None:
    run_state, state = named(5, 24)
    parts = [EpochScalars(0, (7,) * 5 + (8,) * 19)]
    assert validation.follows(
        run_state, state, signed("b", 0, 0, first_updates(parts, 5)), MAX_SEGMENT_UPDATES
    )
    assert not validation.follows(run_state, state, signed("b", 0, 0, parts), MAX_SEGMENT_UPDATES)


def test_of_a_feed_that_is_not_forked_anything_is_taken() -> None:
    run_state, state = named(5, 24)
    state.forked = FeedState(FEED, 0, 0, b"", 0).forked
    assert validation.follows(
        run_state, state, signed("b", 0, 0, [EpochScalars(0, (7,) * 20)]), MAX_SEGMENT_UPDATES
    )

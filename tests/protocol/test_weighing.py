"""Weights of updates: the differences between two states."""

from __future__ import annotations

from itertools import zip_longest

from hypothesis import given
from hypothesis import strategies as st

from sfprotocol.decisions import FACTOR_ONE, Close, Decision, Part, RateFrom, Recorded, Seal, Void, Worth
from sfprotocol.messages import Feed
from sfprotocol.run_state import RunState, Span, multiplier
from sfprotocol.weighing import NOTHING, Counted, Rates, Sum, counts_alike, differences, once, worths
from tests.protocol.organised import admit, close, fold, seal

STEPS = 12
FEED = Feed(bytes(32), 0)


@st.composite
def counted(draw: st.DrawFn, tables: tuple[Rates | None, ...]) -> Counted:
    factors = draw(st.lists(st.sampled_from([0, 1, 2048, FACTOR_ONE]), max_size=STEPS))
    runs = [Span(step, factor) for step, factor in enumerate(factors, 1)]
    joined = [a for a, b in zip_longest(runs, runs[1:]) if b is None or a.factor != b.factor]
    return Counted(tuple(joined), draw(st.sampled_from(tables)))


def factor(of: Counted, step: int) -> int:
    return next((run.factor for run in of.spans if step < run.stop), 0)


def label(step: int) -> int:
    return step // 3


FIRST = Rates(3, (RateFrom(0, 1 << 30), RateFrom(2, 1 << 20)))
LATER = Rates(5, (*FIRST.table, RateFrom(4, 1 << 10)))
DROPPED = Rates(5, (RateFrom(0, 1 << 30), RateFrom(3, 1 << 10)))


@given(before=counted((FIRST, LATER, DROPPED)), now=counted((FIRST, LATER, DROPPED)))
def test_all_steps_whose_weight_differs_are_named_and_their_factors_are_right(
    before: Counted, now: Counted
) -> None:
    named = dict.fromkeys(range(STEPS), False)
    for first, stop, old, new in differences(before, now):
        for step in range(first, stop):
            named[step] = True
            assert (old, new) == (factor(before, step), factor(now, step))
    for step in range(STEPS):
        old, new = (of.weight(label(step), factor(of, step)) for of in (before, now))
        assert named[step] or old == new


def test_rates_of_epochs_to_come_change_nothing_that_is_there() -> None:
    assert FIRST.hold_in(LATER)
    assert not LATER.hold_in(DROPPED)
    assert not DROPPED.hold_in(LATER)
    runs = (Span(9, FACTOR_ONE),)
    assert list(differences(Counted(runs, FIRST), Counted(runs, LATER))) == []
    assert list(differences(Counted(runs, FIRST), Counted(runs, DROPPED))) == [(0, 9, FACTOR_ONE, FACTOR_ONE)]
    assert counts_alike({FEED: Counted(runs, FIRST)}, {FEED: Counted(runs, LATER)})
    assert not counts_alike({FEED: Counted(runs, FIRST)}, {FEED: Counted(runs, DROPPED)})


def test_feeds_count_alike_if_all_that_counts_of_them_does() -> None:
    assert counts_alike({}, {FEED: NOTHING})
    assert counts_alike({FEED: once(4)}, {FEED: once(4)})
    assert not counts_alike({FEED: once(4)}, {FEED: once(5)})
    assert not counts_alike({FEED: once(4)}, {})
    assert not counts_alike({}, {FEED: once(4)})


def test_what_counts_once_differs_only_where_it_ends() -> None:
    assert list(differences(NOTHING, once(4))) == [(0, 4, 0, FACTOR_ONE)]
    assert list(differences(once(4), once(9))) == [(4, 9, 0, FACTOR_ONE)]
    assert list(differences(once(9), once(4))) == [(4, 9, FACTOR_ONE, 0)]
    assert once(0) == NOTHING
    assert [once(4).weight(7, one) for one in (0, FACTOR_ONE)] == [0, 1]


def test_rates_are_those_of_the_decisions() -> None:
    run_state = RunState(budget=100, rate=7)
    for number in range(3):
        run_state.apply(Recorded(Close(number, bytes(8), ())))
    run_state.apply(Recorded(Seal(0, (), (), bytes(32), FACTOR_ONE, (RateFrom(4, 9), RateFrom(6, 11)))))
    rates = Rates.of(run_state)
    assert rates.open_epoch == 3
    assert [rates.of_label(epoch) for epoch in range(8)] == [run_state.rate_from(e) for e in range(8)]
    assert Counted((), rates).weight(6, 2048) == multiplier(11, 2048)


# -- worths ----------------------------------------------------------------------------------------


A, B = 0, 64
MADE: list[Decision] = [admit(0), admit(1), close(0, {A: 10, B: 5}), close(1, {A: 3, B: 4})]
SAID = [
    Worth(0, 64, (Part(A, 10, 1001, 2000), Part(B, 5, -301, -900))),
    Worth(1, 64, (Part(A, 3, 70, 10), Part(B, 4, 40, 10))),
]


def sums(*decisions: Decision) -> dict[int, Sum]:
    return worths(fold(*MADE, *decisions), SAID)


def test_what_counts_is_worth_what_was_told_times_its_factor_rounded_down() -> None:
    assert sums(seal(0)) == {0: Sum(1001, 10), 1: Sum(-301, 5)}
    assert sums(seal(0, factor=2048)) == {0: Sum(500, 10), 1: Sum(-151, 5)}
    assert sums(seal(0), seal(1)) == {0: Sum(1071, 13), 1: Sum(-261, 9)}


def test_what_does_not_count_is_worth_nothing() -> None:
    assert sums() == {}
    assert sums(seal(0, factor=0)) == {}
    assert sums(seal(0, skip=(A,))) == {1: Sum(-301, 5)}
    assert sums(seal(0), Void(0, 0, (1,))) == {0: Sum(1001, 10)}


def test_what_a_later_seal_recounts_is_worth_that_seals_factor() -> None:
    assert sums(seal(0, skip=(A,)), seal(1, recount=((A, 0),), factor=1024))[0] == Sum(250 + 17, 13)


def test_the_first_figure_of_a_feed_and_epoch_holds() -> None:
    again = [*SAID, Worth(0, 64, (Part(A, 10, 9999, 1),))]
    assert worths(fold(*MADE, seal(0)), again) == sums(seal(0))

"""Tests of first-order runs: seals sign rate and unit of the coming labels, by the budget and by members'
updates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from sfnode.organising.guard import LOWER, Guard
from sfnode.organising.policy import HEAD_EPOCH, HEAD_PATIENCE
from sfnode.organising.steps import FALL, IDLE_ROUNDS, LEAST_RATE, Steps, idle_rounds
from sfprotocol.decisions import (
    FACTOR_ONE,
    INCARNATIONS,
    RATE_ONE,
    UNIT_ONE,
    Admit,
    Announce,
    Close,
    Finish,
    RateFrom,
    Seal,
    Void,
)
from sfprotocol.quotas import UNPROVEN_PART
from sfprotocol.run_state import multiplier
from tests.organising.bench import UNEVALUATED, Bench, feed_of, skipping
from tests.organising.test_guard import RATE as BASE_RATE
from tests.organising.test_guard import Run

LIMIT, UPDATES, ROUNDS = 320, 8, 16
RATE = RATE_ONE // 20
USUAL = (LIMIT // 2) ** 2
"""Square of the norm at which the unit does not change."""

ANNE, BOB, EVE = map(feed_of, ("anne", "bob", "eve"))


def bench(*names: str, whole: bool = False, drawn: bool = False, budget: int = UPDATES * ROUNDS) -> Bench:
    policy = replace(UNEVALUATED, target_updates=UPDATES, steps=Steps(RATE, UPDATES, whole, drawn))
    return Bench(policy=policy, budget=budget, rate=RATE, norm_limit=LIMIT).begin(*names, quota=1000)


def make(run: Bench, squares: dict[str, int], count: int = UPDATES // 2) -> Seal:
    """Let members make `count` updates each, with these squared norms; return the seal."""
    sealed = len(run.of(Seal))
    for name, square in squares.items():
        for _ in range(count):
            run.vector(feed_of(name), square, moves=64 * square >= LIMIT**2)
    run.advance(15.0)
    assert len(run.of(Seal)) == sealed + 1
    return run.of(Seal)[-1]


def rounds(run: Bench) -> Iterator[RateFrom]:
    """Yield the rates of labels, until the run is over."""
    yield run.run_state.rate_from(0)
    while not run.run_state.complete:
        make(run, {"anne": USUAL, "bob": USUAL})
        yield run.run_state.rate_from(run.run_state.open_epoch)


# -- rates -------------------------------------------------------------------------------------------------


def test_the_rate_of_a_body_falls_linearly_to_0_with_the_budget_and_no_further_than_a_part() -> None:
    rates = [one.rate / RATE for one in rounds(bench("anne", "bob"))]
    assert rates[:2] == [1.0, 1.0], "the label that is open as the first seal is made is under way"
    falling = [1 - epoch / ROUNDS for epoch in range(2, ROUNDS)]
    assert rates[2:ROUNDS] == pytest.approx(falling, abs=1e-6)
    assert rates[-1] == pytest.approx(LEAST_RATE)


def test_the_rate_of_a_head_is_one_of_a_round_and_does_not_fall() -> None:
    assert {one.rate for one in rounds(bench("anne", "bob", whole=True))} == {RATE}


def test_a_heads_rate_is_shared_by_as_many_updates_as_its_rounds_have() -> None:
    run = bench("anne", "bob", "carl", "dora", whole=True, budget=1000)
    names = ("anne", "bob", "carl", "dora")
    seal = make(run, dict.fromkeys(names, USUAL), count=UPDATES)
    assert seal.factor == FACTOR_ONE // 4, "four times as many as the rate was meant for are no larger step"
    assert seal.rates[0].rate == RATE // 4
    make(run, dict.fromkeys(names, USUAL), count=UPDATES)
    seal = make(run, dict.fromkeys(names, USUAL), count=UPDATES)
    assert seal.factor == FACTOR_ONE, "by now their rate is made for so many"
    for _ in range(4):
        make(run, {"anne": USUAL, "bob": USUAL})
    assert run.run_state.rate(run.run_state.open_epoch + 1) == RATE, "it rises as others leave"


def test_one_large_round_makes_those_that_follow_no_smaller_steps() -> None:
    run = bench("anne", "bob", whole=True, budget=1000)
    counts = (UPDATES // 2, UPDATES // 2, 4 * UPDATES, UPDATES // 2)
    for count in counts:
        make(run, {"anne": USUAL, "bob": USUAL}, count=count)
    assert run.run_state.rate(run.run_state.open_epoch + 1) == RATE


@pytest.mark.parametrize("whole", [True, False])
def test_a_round_goes_no_further_than_the_first_one_may(whole: bool) -> None:
    run = bench("anne", "bob", whole=whole, budget=1000)
    made = [make(run, {"anne": USUAL, "bob": USUAL}, count=2 * UPDATES) for _ in range(4)]
    steps = [
        seal.factor / FACTOR_ONE * run.run_state.rate(epoch) * 4 * UPDATES / (RATE * UPDATES)
        for epoch, seal in enumerate(made)
    ]
    assert made[0].factor == FACTOR_ONE // 4
    assert steps[0] == 1
    assert made[-1].factor == FACTOR_ONE, "by now its rate is made for so many"
    assert all(0.5 < step <= 1.001 for step in steps)


def test_work_that_seals_skip_makes_the_steps_of_the_others_no_smaller() -> None:
    run = bench("anne", "bob", "eve", whole=True, budget=1000)
    run.judge = skipping({2})
    run.start()
    run.advance(31.0)
    seals = [make(run, dict.fromkeys(("anne", "bob", "eve"), USUAL)) for _ in range(4)]
    assert all(seal.skipped for seal in seals)
    assert {seal.factor for seal in seals} == {FACTOR_ONE}
    assert run.run_state.rate(run.run_state.open_epoch + 1) == RATE


# -- units -------------------------------------------------------------------------------------------------


def unit_after(run: Bench, squares: dict[str, int]) -> float:
    make(run, squares)
    return run.run_state.rate_from(run.run_state.open_epoch + 1).unit / UNIT_ONE


def test_half_of_the_limit_is_the_usual_norm() -> None:
    assert unit_after(bench("anne", "bob"), {"anne": USUAL, "bob": USUAL}) == 1.0
    assert unit_after(bench("anne", "bob"), {"anne": USUAL // 4, "bob": USUAL // 4}) == 0.5
    assert unit_after(bench("anne", "bob"), {"anne": LIMIT**2, "bob": LIMIT**2}) == 2.0
    assert bench("anne").run_state.rate_from(0).limit == LIMIT


def test_norms_are_compared_in_the_units_of_their_labels() -> None:
    run = bench("anne", "bob", budget=1000)
    for square in (USUAL // 4, USUAL // 4, USUAL):  # the first two have labels from before
        make(run, {"anne": square, "bob": square})
    assert run.run_state.rate_from(run.run_state.open_epoch + 1).unit == UNIT_ONE // 2


def test_the_median_is_by_what_has_counted_so_that_few_do_not_move_a_unit() -> None:
    run = bench("anne", "bob", "eve", budget=1000)
    make(run, {"anne": USUAL, "bob": USUAL, "eve": USUAL})
    for _ in range(3):
        for _ in range(50):
            run.vector(EVE, 1, moves=False)
        assert unit_after(run, {"anne": USUAL, "bob": USUAL, "eve": LIMIT**2}) == 1.0


def test_where_all_work_is_too_short_to_move_anything_the_unit_comes_down_to_it() -> None:
    run = bench("anne", "bob", budget=1000)
    make(run, {"anne": USUAL, "bob": USUAL})
    counted = run.run_state.counted
    short = LIMIT**2 // 100
    assert unit_after(run, {"anne": short, "bob": short}) == pytest.approx(0.2, abs=0.001)
    assert run.run_state.counted == counted, "that takes no budget"
    nothing = {"anne": 0, "bob": 0}
    assert unit_after(bench("anne", "bob"), nothing) == 1 / FALL, "by no more than that"


def test_who_alone_makes_short_updates_neither_closes_rounds_nor_moves_the_unit() -> None:
    run = bench("anne", "bob", "eve", budget=1000)
    make(run, {"anne": USUAL, "bob": USUAL, "eve": USUAL}, count=4)
    closed = len(run.of(Close))
    for _ in range(200):
        run.vector(EVE, 1, moves=False)
        run.advance(10.0)
    assert len(run.of(Close)) == closed


def test_rounds_in_which_nothing_moves_come_to_an_end() -> None:
    run = bench("anne", "bob", budget=1000)
    make(run, {"anne": USUAL, "bob": USUAL})
    for _ in range(3 * IDLE_ROUNDS):
        for feed in (ANNE, BOB):
            for _ in range(UPDATES):
                run.vector(feed, 0, moves=False)
        run.advance(15.0)
    assert len(run.of(Seal)) == 1 + IDLE_ROUNDS
    assert run.run_state.rates()[-1].unit == UNIT_ONE // FALL**2
    guard = Guard()
    for decision in run.signed:
        guard.take(decision)
    assert isinstance(guard.due(run.run_state), Announce)
    assert guard.due(run.run_state) == Finish(), "nothing is left to learn"


def test_no_unit_is_so_large_that_sums_of_the_whole_budget_overflow() -> None:
    run = bench("anne", "bob", budget=1 << 20)
    for _ in range(40):
        make(run, {"anne": LIMIT**2, "bob": LIMIT**2})
    last = run.run_state.rates()[-1]
    assert last.unit >= UNIT_ONE << 6, "it has grown as far as it may"
    assert multiplier(RATE, FACTOR_ONE, last.unit) * LIMIT * run.run_state.budget < 1 << 63


# -- the end of a head -------------------------------------------------------------------------------------


class Head(Run):
    """A head's run, whose guard has a patience."""

    def __init__(self) -> None:
        super().__init__()
        self.guard.__init__(3)  # type: ignore[misc]
        for decision in self.decided:
            self.guard.take(decision)


def test_a_head_ends_at_the_seal_with_the_least_loss_once_none_has_been_better_for_long() -> None:
    run = Head()
    for loss in (0.6, 0.5, 0.45, 0.46, 0.47):
        assert run.epoch(loss) == []
    void, announced, finish = run.epoch(0.46)
    assert void == Void(3, 5, ()), "however little worse: it would go on to lose its confidence"
    assert isinstance(announced, Announce)
    assert finish == Finish()


def test_a_head_ends_once_gains_are_less_than_rows_can_tell_at_the_best_model_all_the_same() -> None:
    run = Head()
    run.noise = 0.0
    for loss in (0.6, 0.5, 0.45, 0.4495, 0.449):
        assert run.epoch(loss) == []
    decided = run.epoch(0.4485)
    assert decided[-1] == Finish(), "the last three together have gained less than BETTER of all"
    assert not any(isinstance(one, Void) for one in decided), "little better is better"


def test_a_head_waits_as_many_rounds_however_often_it_is_evaluated() -> None:
    run = Head()
    for loss in (0.5, 0.49):
        assert run.epoch(loss) == []
    for _ in range(2):
        run.seal()
    *_, announced, finish = run.epoch(0.5)
    assert isinstance(announced, Announce)
    assert finish == Finish()


def test_a_head_whose_first_rounds_make_it_worse_goes_on_at_a_lower_rate() -> None:
    run = Head()
    for loss in (1.2, 2.0):
        assert run.epoch(loss) == []
    decided = run.epoch(3.0)
    assert decided[0] == Void(0, 2, ()), "back to the base model"
    assert Finish() not in decided
    assert run.seal().factor == 0
    assert run.run_state.rate(run.run_state.open_epoch + 1) == BASE_RATE // LOWER


# -- who begins a head alone -------------------------------------------------------------------------------


def test_rounds_of_a_head_take_their_time_and_twice_as_long_while_nobody_has_joined() -> None:
    run = bench("anne", whole=True, budget=10_000)
    run.organiser.known.policy = replace(run.policy, least_epoch=HEAD_EPOCH, patience=HEAD_PATIENCE)

    def closes(names: tuple[str, ...]) -> int:
        before = len(run.of(Close))
        for _ in range(60):
            for name in names:
                for _ in range(UPDATES):
                    run.vector(feed_of(name), USUAL)
            run.advance(1.0)
        return len(run.of(Close)) - before

    assert closes(("anne",)) <= 60 / HEAD_EPOCH / 2 + 1
    run.decide(Admit(BOB.origin, 1000, 0))
    assert 60 / HEAD_EPOCH / 2 + 1 < closes(("anne", "bob")) <= 60 / HEAD_EPOCH + 1


# -- strangers ---------------------------------------------------------------------------------------------


def test_a_thousand_strangers_take_no_more_than_their_share_of_small_rounds() -> None:
    run = bench("anne", "bob", budget=1000)
    make(run, {"anne": USUAL, "bob": USUAL})
    strangers = [f"stranger {n}" for n in range(1000)]
    for name in strangers:
        run.node.decide(Admit(feed_of(name).origin, 0, 0))
    for _ in range(10):
        label = run.run_state.open_epoch
        for name in strangers:
            member = run.run_state.member_number(feed_of(name).origin)
            if run.run_state.quotas.quota(member, label) and not run.run_state.credit(member):
                run.vector(feed_of(name), LIMIT**2)
        make(run, {"anne": USUAL, "bob": USUAL})
    closes = run.of(Close)[1:]
    for close in closes:
        strange = sum(move.steps for move in close.moves if move.feed // INCARNATIONS >= 2)
        assert strange <= max(1, run.run_state.room // UNPROVEN_PART)
    assert run.run_state.rates()[-1].unit == UNIT_ONE, "and say nothing of the unit"


def test_a_round_of_answers_all_as_good_says_nothing_of_how_long_other_gradients_are() -> None:
    run = bench("anne", "bob", drawn=True, budget=1000)
    make(run, {"anne": USUAL, "bob": USUAL})
    for _ in range(2 * IDLE_ROUNDS):
        make(run, {"anne": 0, "bob": 0})
    assert {one.unit for one in run.run_state.rates()} == {UNIT_ONE}
    for _ in range(UPDATES):
        for name in ("anne", "bob"):
            run.vector(feed_of(name), USUAL, moves=True)
    run.advance(100.0)
    assert idle_rounds(run.run_state) == 0

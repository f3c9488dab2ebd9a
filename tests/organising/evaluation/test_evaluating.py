"""Tests of evaluations: they come before seals, take a bounded share of time, and are published."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sfnode.organising.evaluation.evaluating import Evaluations
from sfnode.organising.evaluation.searching import Search
from sfnode.organising.events import Evaluate, EvaluationEnded
from sfprotocol.decisions import Close, Evaluated, Recorded, Revoke, Seal
from sfprotocol.run_state import RunState
from tests.organising.bench import BUDGET, EVALUATED, RATE, Bench, feed_of, scores

ANNE, BOB = feed_of("anne"), feed_of("bob")


def test_an_epoch_is_sealed_when_its_evaluation_has_come_and_the_result_follows() -> None:
    bench = Bench(policy=EVALUATED).begin("anne")
    bench.update(ANNE, 100)
    bench.advance(20)
    assert bench.asked == [0]
    assert not bench.of(Seal)
    bench.evaluated(0.61, base=0.5)  # at once: the time to the next look would pass for that of measuring
    told = [decision for decision in bench.signed if isinstance(decision, Seal | Evaluated)]
    assert [type(decision) for decision in told] == [Evaluated, Seal, Evaluated]
    assert told[0] == Evaluated(0, "base accuracy", 500_000, 480_000, 520_000, 500_000, 1000)
    assert told[2] == Evaluated(0, "accuracy", 610_000, 590_000, 630_000, 500_000, 1000)


def test_an_epoch_is_sealed_unchecked_when_the_wait_is_over_and_a_late_result_is_told_all_the_same() -> None:
    bench = Bench(policy=EVALUATED).begin("anne")
    bench.update(ANNE, 100)
    bench.advance(35)
    assert bench.run_state.sealed == 1
    bench.evaluated(0.6)
    bench.advance(1)
    assert [type(decision) for decision in bench.signed[-2:]] == [Seal, Evaluated]


@pytest.mark.parametrize(("last", "asked"), [(False, None), (True, Evaluate(0, rows=0, scored=True))])
def test_an_epoch_that_has_named_nothing_is_not_measured_and_evaluated_only_as_the_last_one(
    last: bool, asked: Evaluate | None
) -> None:
    policy, run_state = replace(EVALUATED, search_rows=64, origins=True), RunState(budget=BUDGET, rate=RATE)
    run_state.apply(Recorded(Close(0, bytes(8), ())))
    evaluations = Evaluations(policy, Search(policy, run_state), 0.0)
    evaluations.plan(run_state, 1.0, last=last, waiting=False)
    assert (evaluations.ask((), ()) if evaluations.is_due(0) else None) == asked


def test_evaluations_take_their_share_of_the_time_and_others_epochs_do_not_wait() -> None:
    bench = Bench(policy=EVALUATED).begin("anne")
    bench.update(ANNE, 100)
    bench.advance(2)
    bench.advance(8)
    bench.evaluated(0.5)
    began = bench.now
    for count in range(2, 7):
        while len(bench.asked) < count:
            bench.update(ANNE, 100)
            bench.advance(2)
            assert bench.run_state.open_epoch - bench.run_state.sealed < 2
        bench.advance(8)
        bench.evaluated(0.5)
    assert 4 * 5 * 9 <= bench.now - began <= 5 * 5 * 10 + 5, "one of the time before may be made up for"


@pytest.mark.parametrize("result", [0.5, None], ids=["", "that fail"])
@pytest.mark.parametrize(("budget", "share"), [(10_000_000, 1 / 5), (90_000, 1 / 20)], ids=["young", "later"])
def test_evaluations_cost_a_fifth_of_the_time_while_a_run_is_young_and_a_twentieth_later(
    budget: int, share: float, result: float | None
) -> None:
    """The bound holds for evaluations that last many epochs, and for evaluations that fail."""
    bench = Bench(policy=replace(EVALUATED, seal_wait=5.0), budget=budget).begin("anne")
    for _ in range(10):  # 10,000 updates are a tenth of the smaller budget
        bench.update(ANNE, 1000)
        bench.advance(10)

    def wait_for_the_next() -> float:
        asked = len(bench.asked)
        while len(bench.asked) == asked:
            bench.update(ANNE, 100)
            bench.advance(20)
        return bench.now

    def end() -> None:
        bench.do(EvaluationEnded(bench.asked[-1], scores(result) if result else None))

    end()
    began = wait_for_the_next()
    durations = (10.0, 90.0, 30.0)
    for duration in durations:
        bench.advance(duration)
        end()
        wait_for_the_next()
    assert share / 2 <= sum(durations) / (bench.now - began) <= share


def test_a_seal_skips_what_was_revoked_since_its_close_and_tells_no_result_of_another_model() -> None:
    bench = Bench(policy=EVALUATED).begin("anne", "bob")
    bench.update(ANNE, 50)
    bench.update(BOB, 50)
    bench.advance(2)
    bench.decide(Revoke(1, 0))
    bench.evaluated(0.5)
    bench.advance(5)
    (seal,) = bench.of(Seal)
    assert seal.skipped == (64,)
    assert bench.run_state.counted == 50
    assert not bench.of(Evaluated)


def test_an_answer_that_was_not_asked_for_or_comes_twice_is_not_told() -> None:
    bench = Bench(policy=EVALUATED).begin("anne")
    bench.do(EvaluationEnded(0, scores(0.4)))
    bench.update(ANNE, 100)
    bench.advance(2)
    bench.evaluated(0.5)
    bench.do(EvaluationEnded(0, scores(0.6)))
    bench.advance(5)
    assert [said.value for said in bench.of(Evaluated)] == [500_000]

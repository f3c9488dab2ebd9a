"""Tests of a run's health by its results on the validation rows."""

from __future__ import annotations

import math

import pytest

from sfnode.organising.evaluation.health import HealthVerdict, evaluation, published
from sfnode.organising.guard import Guard
from sfnode.schema.node_state import RunHealth
from sfnode.schema.organising import EpochEvaluation
from sfprotocol.decisions import FACTOR_ONE, Announce, Close, Decision, Evaluated, Seal, Void, encode
from tests.organising.bench import scores

UNKNOWN, BETTER, NO_BETTER, WORSE = RunHealth


def told(epoch: int, value: float, *, metric: str = "accuracy", base: bool = False) -> Evaluated:
    return published(epoch, scores(value, metric=metric), base=base)


def verdict(decisions: list[Decision]) -> HealthVerdict:
    guard = Guard()
    for decision in decisions:
        guard.take(decision)
    return guard.verdict()


BASE = told(0, 0.5, base=True)


@pytest.mark.parametrize(
    ("decisions", "health", "worse_than"),
    [
        ([], UNKNOWN, []),
        ([BASE], UNKNOWN, []),
        ([told(0, 0.3)], UNKNOWN, []),
        ([told(0, 0.6), told(1, 0.3)], WORSE, [0.6]),
        ([BASE, told(0, 0.52)], NO_BETTER, []),
        ([BASE, told(0, 0.48)], NO_BETTER, []),
        ([BASE, told(0, 0.6)], BETTER, []),
        ([BASE, told(0, 0.6), told(1, 0.57)], BETTER, []),
        ([BASE, told(0, 0.6), told(1, 0.55)], WORSE, [0.6]),
        ([BASE, told(0, 0.45)], WORSE, [0.5]),
        ([BASE, told(0, 0.6), told(1, 0.3)], WORSE, [0.5, 0.6]),
        ([BASE, told(0, 0.6), told(1, 0.3), told(2, 0.6)], BETTER, []),
        ([BASE, Announce("hello"), told(1, 0.3), told(0, 0.6)], WORSE, [0.5, 0.6]),
    ],
)
def test_worse_or_better_is_what_lies_outside_the_interval_of_the_base_model_or_the_best(
    decisions: list[Decision], health: RunHealth, worse_than: list[float]
) -> None:
    result = verdict(decisions)
    assert result.health is health
    assert [other.value for other in result.worse_than] == worse_than


def test_of_a_perplexity_less_is_better() -> None:
    def health(*values: float) -> RunHealth:
        base, *others = (
            published(max(0, epoch), scores(value, metric="perplexity"), base=epoch < 0)
            for epoch, value in enumerate(values, -1)
        )
        return verdict([base, *others]).health

    assert health(20, 10) is BETTER
    assert health(20, 10, 19) is WORSE
    assert health(20, 21) is WORSE


def test_what_was_voided_was_neither_the_best_nor_is_it_the_latest() -> None:
    found = verdict([BASE, told(0, 0.6), told(1, 0.9), told(2, 0.3), Void(1, 2, ())])
    assert found.health is BETTER
    assert found.latest == found.best == evaluation(told(0, 0.6))
    assert verdict([BASE, told(1, 0.3), Void(1, 1, ())]).latest is None


def test_a_result_that_comes_when_its_epoch_is_void_is_of_a_model_that_is_gone() -> None:
    found = verdict([BASE, told(0, 0.6), Void(1, 3, ()), told(3, 0.3)])
    assert (found.health, found.latest) == (BETTER, evaluation(told(0, 0.6)))
    assert verdict([BASE, told(0, 0.6), Void(1, 3, ()), told(4, 0.3)]).health is WORSE


def test_where_no_guard_lowers_the_rate_after_a_void_results_speak_from_the_next_seal_on() -> None:
    def epoch(number: int, value: float) -> list[Decision]:
        seal = Seal(number, (), (), bytes(32), FACTOR_ONE, ())
        return [Close(number, bytes(8), ()), seal, told(number, value)]

    found = verdict([BASE, *epoch(0, 0.6), *epoch(1, 0.3), Void(1, 1, ()), *epoch(2, 0.7)])
    assert (found.health, found.latest) == (BETTER, evaluation(told(2, 0.7)))


@pytest.mark.parametrize(
    ("decisions", "first"),
    [
        ([BASE, told(0, 0.6), told(2, 0.9), told(5, 0.3)], 3),
        ([BASE, told(3, 0.3), told(5, 0.2)], 0),
        ([told(0, 0.6), told(5, 0.3)], 1),
    ],
    ids=["after the best", "even the best is worse than the base model", "no base model"],
)
def test_what_is_to_be_taken_back_begins_after_the_best(decisions: list[Decision], first: int) -> None:
    assert verdict(decisions).first_suspect == first


def test_results_of_different_metrics_are_not_compared() -> None:
    assert verdict([BASE, told(0, 0.9), told(1, 0.1, metric="f1")]).health is UNKNOWN


def test_a_model_that_has_diverged_so_far_that_nothing_can_be_measured_is_worse_than_any() -> None:
    """A run that ends in NaN must not look as if nobody had evaluated it."""
    nan = dict.fromkeys(("value", "low", "high", "loss"), math.nan)
    for metric in ("perplexity", "accuracy"):
        gone = published(3, scores(9.0, metric=metric).model_copy(update=nan))
        encode(gone)
        assert math.isinf(evaluation(gone).loss)
        assert verdict([told(0, 0.5, metric=metric, base=True), gone]).health is WORSE


def test_a_calibrated_model_is_compared_with_the_calibrated_base_model() -> None:
    """A run must not seem better than its base model by calibration alone."""

    def calibrated(epoch: int, value: float, *, base: bool = False) -> Evaluated:
        found = scores(value).model_copy(update={"calibrated": True})
        return published(epoch, found, base=base)

    said = calibrated(0, 0.7, base=True)
    base, control = evaluation(BASE), evaluation(said)
    found = verdict([BASE, said, calibrated(0, 0.71)])
    assert (found.health, found.base, found.calibrated) == (NO_BETTER, control, control)
    plain = verdict([said, BASE, told(0, 0.71)])
    assert (plain.health, plain.base, plain.calibrated) == (BETTER, base, control)
    assert found.bases == plain.bases == (base, control)


@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("base", [False, True])
def test_a_published_result_says_of_which_model_it_is_and_whether_it_is_calibrated(
    base: bool, calibrated: bool
) -> None:
    found = scores(0.5).model_copy(update={"calibrated": calibrated})
    said = published(3, found, base=base)
    assert said.metric == "calibrated " * calibrated + "base " * base + "accuracy"
    assert evaluation(said) == EpochEvaluation(**dict(found), epoch=3, base=base)


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e300, 1e-9])
def test_every_number_has_an_encoding(value: float) -> None:
    encode(published(0, scores(0.5).model_copy(update={"high": value})))

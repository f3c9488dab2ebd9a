"""When the validation rows say that a run has become worse."""

from __future__ import annotations

import math

import pytest

from sfnode.organising.health import Health, published, verdict
from sfprotocol.decisions import Announce, Decision, Evaluated, Void, encode
from tests.organising.bench import scores


def told(epoch: int, value: float, *, metric: str = "accuracy", base: bool = False) -> Evaluated:
    decision = published(epoch, scores(value, metric=metric), base=base)
    assert decision is not None
    return decision


BASE = told(0, 0.5, base=True)


@pytest.mark.parametrize(
    ("decisions", "health", "worse_than"),
    [
        ([], Health.OK, []),
        ([BASE], Health.OK, []),
        ([told(0, 0.3)], Health.OK, []),
        ([BASE, told(0, 0.6), told(1, 0.57)], Health.OK, []),
        ([BASE, told(0, 0.6), told(1, 0.55)], Health.WORSE, [0.6]),
        ([BASE, told(0, 0.45)], Health.WORSE, [0.5]),
        ([BASE, told(0, 0.6), told(1, 0.3)], Health.WORSE, [0.5, 0.6]),
        ([BASE, told(0, 0.6), told(1, 0.3), told(2, 0.6)], Health.OK, []),
        ([BASE, Announce("hello"), told(1, 0.3), told(0, 0.6)], Health.WORSE, [0.5, 0.6]),
    ],
)
def test_worse_is_what_is_significantly_below_the_base_model_or_the_best(
    decisions: list[Decision], health: Health, worse_than: list[float]
) -> None:
    result = verdict(decisions)
    assert result.health is health
    assert [other.value / 1e6 for other in result.worse_than] == worse_than


def test_of_a_perplexity_less_is_better() -> None:
    def result(epoch: int, value: float) -> Evaluated:
        return told(epoch, value, metric="perplexity")

    assert verdict([result(0, 20), result(1, 10)]).health is Health.OK
    assert verdict([result(0, 10), result(1, 20)]).health is Health.WORSE


def test_what_was_voided_was_neither_the_best_nor_is_it_the_latest() -> None:
    found = verdict([BASE, told(0, 0.6), told(1, 0.9), told(2, 0.3), Void(1, 2, ())])
    assert found.health is Health.OK
    assert found.latest == found.best == told(0, 0.6)
    assert verdict([BASE, told(1, 0.3), Void(1, 1, ())]).latest is None


def test_results_of_different_metrics_are_not_compared() -> None:
    assert verdict([BASE, told(0, 0.9), told(1, 0.1, metric="f1")]).health is Health.OK


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e300, 1e-9])
def test_every_number_has_an_encoding(value: float) -> None:
    decision = published(0, scores(0.5).model_copy(update={"high": value}))
    assert decision is not None
    encode(decision)


def test_what_is_no_number_is_not_told() -> None:
    assert published(0, scores(math.nan)) is None

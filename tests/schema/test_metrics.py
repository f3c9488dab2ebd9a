"""Tests of the words for metrics and for the trained quantity."""

from __future__ import annotations

import math

import pytest

from sfnode.schema import metrics
from sfnode.schema.measurements import ClassScore, Drift, Evaluation


def test_what_a_reward_run_trains_is_told_as_a_reward_and_of_all_others_as_a_loss() -> None:
    assert (metrics.REWARD.name, metrics.REWARD.of(0.25), metrics.LOSS.name, metrics.LOSS.of(0.25)) == (
        "mean reward",
        0.75,
        "loss",
        0.25,
    )
    assert [name for name, metric in metrics.METRICS.items() if metric.trained is metrics.REWARD] == [
        metrics.PASS_AT_1
    ]
    assert metrics.trained_by("reward") is metrics.REWARD
    assert metrics.trained_by("classification") is metrics.trained_by("of a later version") is metrics.LOSS


def test_a_metric_that_nobody_knows_has_its_own_name() -> None:
    assert metrics.metric_of(metrics.PASS_AT_1).name == "right answers (pass@1)"
    assert metrics.metric_of("mean_width").name == "mean width"
    assert not metrics.metric_of("mean_width").is_share


def test_a_kind_of_task_reads_as_words() -> None:
    assert metrics.kind_in_words("sequence-classification") == "sequence classification"
    assert metrics.kind_in_words("reward") == "answers that the model writes and a program scores"


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [("accuracy", 0.8745, "87.5 %"), ("perplexity", 12.345, "12.3"), ("perplexity", math.inf, "infinite")],
)
def test_figures_are_for_people(metric: str, value: float, text: str) -> None:
    assert metrics.value_in_words(metric, value) == text


@pytest.mark.parametrize(
    ("metric", "before", "after", "text"),
    [
        ("accuracy", 0.61, 0.896, "better by 28.6 points"),
        ("accuracy", 0.5, 0.469, "worse by 3.1 points"),
        ("perplexity", 20.0, 17.0, "better by 15.0 %"),
        ("perplexity", 20.0, 22.0, "worse by 10.0 %"),
        ("accuracy", 0.5, 0.5002, ""),
        ("perplexity", 10.0, 40.2, ""),
        ("perplexity", math.inf, 40.2, ""),
        ("perplexity", 10.0, math.inf, ""),
    ],
)
def test_how_much_better_a_result_is_never_exceeds_100_percent(
    metric: str, before: float, after: float, text: str
) -> None:
    assert metrics.better_by(metric, before, after) == text


def test_how_far_weights_have_moved_is_told_in_percent_up_to_100() -> None:
    assert metrics.moved_in_words(0.1234) == "the weights have moved by 12 %"
    assert metrics.moved_in_words(1.7) == "the weights have moved by more than they were"
    assert metrics.moved_in_words(math.inf) == "what is trained was zero at first"


@pytest.mark.parametrize(
    ("kl", "end"), [(None, "norm"), (0.0021, ", KL on neutral text 0.0021 nats a token (a nat is 1.44 bits)")]
)
def test_drift_is_told_without_a_kl_where_there_is_none(kl: float | None, end: str) -> None:
    drift = Drift(norm=1.0, distance=0.1234, kl=kl, tokens=9)
    assert "inf" not in metrics.drift_in_words(drift.model_copy(update={"distance": math.inf}))
    assert metrics.drift_in_words(drift).startswith("weights moved by 0.123 of the base's norm")
    assert metrics.drift_in_words(drift).endswith(end)


def told(*classes: tuple[int, int]) -> str:
    """Return the text about classes with these numbers of right answers."""
    scores = tuple(ClassScore(name=f"c{n}", right=right, count=of) for n, (right, of) in enumerate(classes))
    return metrics.by_class(
        Evaluation(metric="accuracy", value=0.5, low=0.4, high=0.6, loss=0.5, count=100, by_class=scores)
    )


def test_classes_that_differ_by_more_than_chance_are_told_the_worst_first() -> None:
    assert told((300, 380), (1, 8)) == "by class: c1 12.5 % of 8 rows, c0 78.9 % of 380 rows"
    assert told((0, 50), *[(50, 50)] * 6).endswith("c4 100.0 % of 50 rows, ...")


def test_what_may_be_chance_is_not() -> None:
    assert told() == told((5, 9)) == told((80, 100), (78, 100)) == told((1, 2), (3, 4), (9, 10)) == ""
    assert told((100, 100), (8, 8)) == told((0, 100), (0, 8)) == ""

"""The words for metrics and for what is trained: one table, which every view reads."""

from __future__ import annotations

import math

import pytest

from sfnode.schema.metrics import (
    LOSS,
    METRICS,
    PASS_AT_1,
    REWARD,
    drift_in_words,
    metric_of,
    task_of,
    trained_by,
)


def test_what_a_reward_run_trains_is_told_as_a_reward_and_of_all_others_as_a_loss() -> None:
    assert (REWARD.name, REWARD.of(0.25), LOSS.name, LOSS.of(0.25)) == ("mean reward", 0.75, "loss", 0.25)
    assert [name for name, metric in METRICS.items() if metric.trained is REWARD] == [PASS_AT_1]
    assert trained_by("reward") is REWARD
    assert trained_by("classification") is trained_by("of a later version") is LOSS


def test_a_metric_that_nobody_knows_has_its_own_name() -> None:
    assert metric_of(PASS_AT_1).name == "right answers (pass@1)"
    assert metric_of("mean_width").name == "mean width"
    assert not metric_of("mean_width").is_share


def test_a_kind_of_task_reads_as_words() -> None:
    assert task_of("sequence-classification").name == "sequence classification"
    assert task_of("reward").name == "answers that the model writes and a program scores"


@pytest.mark.parametrize(
    ("kl", "end"), [(None, "norm"), (0.0021, ", KL on neutral text 0.0021 nats a token")]
)
def test_drift_is_told_without_a_kl_where_there_is_none(kl: float | None, end: str) -> None:
    assert "inf" not in drift_in_words(math.inf, kl)
    assert drift_in_words(0.1234, kl).startswith("weights moved by 0.123 of the base's norm")
    assert drift_in_words(0.1234, kl).endswith(end)

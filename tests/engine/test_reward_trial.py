"""A trial of a reward run: numbers follow from how rewards vary, and a run that cannot learn is refused."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfnode.engine import reward_trial
from sfnode.engine.reward_trial import LEAST, RewardTrial, alike, measure, run
from sfnode.engine.scalar_limit import SlopeSample
from sfnode.engine.trainer import Trainer
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.models import manifest_builder
from sfnode.tasks.reward_numbers import rate

LONGER = {
    "kind": "sum",
    "terms": [{"weight": 0.125, "verifier": {"kind": "length", "least": 3 * n}} for n in range(1, 9)],
}
"""Likes longer answers better."""


UPDATES = 8


@pytest.fixture(autouse=True)
def few_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure little."""
    monkeypatch.setattr(reward_trial, "UPDATES", UPDATES)


@pytest.fixture
def reward_run(tmp_path: Path) -> Any:
    """Make a reward run on the built-in model and its reviews."""

    def make(verifier: dict[str, Any] = LONGER, **given: Any) -> Manifest:
        file = tmp_path / "verifier.json"
        file.write_text(json.dumps(verifier))
        options = {"template": "{text} it was", "verifier": str(file), "answer_tokens": 6, "batch_size": 4}
        data = {"train": "builtin:reviews:train", "train_limit": 40}
        return manifest_builder.build(options | data | given)

    return make


def test_unit_and_rate_follow_from_how_rewards_vary(reward_run: Any) -> None:
    found = run(reward_run(epsilon=0.02), keep_epsilon=True)
    assert isinstance(found, RewardTrial)
    assert (found.epsilon, found.updates, found.answers) == (0.02, UPDATES, UPDATES * 2 * 4)
    assert found.answers <= found.tokens <= 6 * found.answers
    assert 0 < found.reward < 1
    assert found.rate == rate(0.02, found.sample.spread, 2)
    assert 8 <= found.sample.spread / found.delta <= 128
    assert found.apart == np.count_nonzero(found.sample.slopes) / UPDATES


def test_where_small_steps_change_no_answer_larger_ones_are_tried(
    reward_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[float] = []

    def watched(trainer: Trainer, updates: int, epsilon: float, *rest: Any) -> RewardTrial:
        tried.append(epsilon)
        return measure(trainer, updates, epsilon, *rest)

    monkeypatch.setattr(reward_trial, "measure", watched)
    found = run(reward_run(epsilon=2e-4))
    assert isinstance(found, RewardTrial)
    assert (tried[0], found.epsilon) == (2e-4, tried[-1])
    assert found.epsilon > 2e-4
    assert found.apart >= reward_trial.ENOUGH


def test_groups_are_measured_whole(reward_run: Any) -> None:
    with Trainer.load(reward_run(group=3)) as trainer:
        found = measure(trainer, 4, 0.02)
    assert (found.updates, found.answers) == (6, 6 * 4)


def test_a_slow_machine_measures_fewer(reward_run: Any) -> None:
    ticks = itertools.count(0.0, reward_trial.PATIENCE + 1)
    with Trainer.load(reward_run()) as trainer:
        found = measure(trainer, 16, 0.02, clock=lambda: next(ticks))
    assert found.updates == LEAST


def test_without_rows_there_is_nothing_to_measure(reward_run: Any) -> None:
    found = run(reward_run(train="", train_limit=0))
    assert isinstance(found, SlopeSample)
    assert (len(found.slopes), found.reason) == (0, "the run names no data")


@pytest.mark.parametrize(
    ("verifier", "epsilon", "what", "fix"),
    [
        ({"kind": "format", "begins": "####"}, 0.02, "have the reward 0, and", "easier prompts"),
        ({"kind": "length"}, 0.02, "have the reward 1", "harder prompts"),
        (LONGER, 1e-6, "at epsilon 1e-06 the same", "larger epsilon (4e-06)"),
    ],
    ids=["nothing is right", "all is right", "too small a step"],
)
def test_a_run_in_which_no_update_tells_anything_is_refused_with_advice(
    reward_run: Any, verifier: dict[str, Any], epsilon: float, what: str, fix: str
) -> None:
    with pytest.raises(UserError, match=what) as caught:
        run(reward_run(verifier, epsilon=epsilon), keep_epsilon=True)
    assert caught.value.code is Code.REWARDS_ALIKE
    assert fix in caught.value.fix


def test_answers_that_were_cut_off_may_be_why_none_is_right() -> None:
    nothing = RewardTrial(1e-3, SlopeSample(np.zeros(4), 0.1), 1.0, 1e-6, 4, 32, 320, 0, 0.0, 1.0)
    assert "cut off" not in alike(nothing).what
    assert "30 of them were cut off: raise answer_tokens" in alike(nothing._replace(cut=30)).what

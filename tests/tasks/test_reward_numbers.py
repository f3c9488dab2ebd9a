"""The numbers of reward runs are those of the recipe, whose update ours then is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pydantic import ValidationError

from sfnode.manifest.task import Task
from sfnode.tasks import reward_numbers
from sfnode.tasks.reward_numbers import EPSILON, POPULATION, SHARE, fitted, rate, training


@pytest.mark.parametrize("points", [1, 2])
def test_an_update_moves_as_far_as_the_recipes_members(points: int) -> None:
    """The recipe: rho * sigma / N * (R - mean) / deviation for each member; rewards here are any numbers."""
    deviation, count = 0.07, 4_000
    rewards = np.random.default_rng(5).normal(0.4, deviation, (count, points))
    recipe = (
        SHARE * EPSILON / POPULATION / deviation * (rewards[:, 0] - (rewards[:, 1] if points == 2 else 0.4))
    )
    alphas = -(rewards[:, 0] - (rewards[:, 1] if points == 2 else 0.4)) / (points * EPSILON)
    ours = -rate(EPSILON, float(np.sqrt(np.mean(alphas**2))), points) * alphas
    assert np.allclose(ours, recipe, rtol=0.1)  # a rate has two digits


def test_without_a_measurement_rewards_are_taken_to_vary_as_they_usually_do() -> None:
    numbers = training()
    spread = reward_numbers.DEVIATION / (math.sqrt(2) * EPSILON)
    assert numbers.learning_rate == rate(EPSILON, spread, 2)
    assert 8 < spread / numbers.scalar_delta < 128


def reward(**given: int) -> Task:
    return Task(kind="reward", template="{q}", verifier={"kind": "length", "least": 1}, **given)  # type: ignore[arg-type]


def test_prompt_and_answer_share_the_positions_that_a_model_has() -> None:
    task = reward(answer_tokens=256, max_tokens=1024)
    assert fitted(task, 0, chosen=False) == fitted(task, 2048, chosen=False) == task
    assert fitted(task, 300, chosen=False) == reward(answer_tokens=150, max_tokens=300)
    assert fitted(task, 300, chosen=True) == reward(answer_tokens=256, max_tokens=300)
    with pytest.raises(ValidationError, match="fewer than the max_tokens"):
        fitted(task, 200, chosen=True)

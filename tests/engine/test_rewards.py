"""Slopes of rewards: those of answers by weights moved by hand, in the units and with the sign of losses."""

from __future__ import annotations

import numpy as np
import pytest

from sfnode.engine import reward_objective
from sfnode.engine.core import UpdateBatch
from sfnode.engine.estimator import quantise, representable
from sfnode.engine.generation import AnswerPlan, AnswerRequest, generate
from sfnode.engine.reward_objective import Question
from sfnode.engine.trainer import Trainer
from sfnode.models.loader import matrix
from sfprotocol.seeds import token_keys
from tests.engine.helpers import manifest, trainer
from tests.engine.test_estimator import SEEDS, hand_moved, written_directions

EPSILON = 0.05
SAMPLED = AnswerPlan(6, temperature=1.0)
FIRST = [Question([1, 2, 4, 6], "good"), Question([1, 3], "story"), Question([5, 7, 9], "film")]
BATCHES = [FIRST, [Question([1, 2, 5, 7, 9, 10], "bad")] * 2, FIRST[1:]]


@pytest.fixture
def run() -> Trainer:
    return trainer(manifest("llama"))


def score(answer: str, word: str) -> float:
    """The share of an answer's words that come before this one in the dictionary."""
    words = answer.split()
    return sum(other < word for other in words) / max(1, len(words))


def mean_reward(run: Trainer, query: int, side: int, batch: list[Question], seed: int) -> float:
    """By weights that are moved by hand, one answer after the other."""
    with hand_moved(run, written_directions(run, SEEDS[query], 2), side * EPSILON):
        found = []
        for key, question in zip(token_keys(seed, len(batch)).tolist(), batch, strict=True):
            (answer,) = generate(run.loaded, [AnswerRequest(question.prompt, key=key)], SAMPLED) or []
            found.append(score(answer.text, question.row))
    return float(np.mean(found))


def estimates(run: Trainer, batches: list[list[Question]], group: int = 0) -> list[reward_objective.Estimate]:
    directions = run.space.directions(SEEDS, 2)
    answers = reward_objective.written(run.loaded, directions, SEEDS, batches, SAMPLED, EPSILON, group)
    return reward_objective.scored(answers, batches, score, representable(EPSILON, directions), group)


def test_a_pair_measures_the_slope_of_the_mean_of_1_less_the_reward(run: Trainer) -> None:
    slopes = []
    for number, found in enumerate(estimates(run, BATCHES)):
        plus, minus = (mean_reward(run, number, side, BATCHES[number], SEEDS[number]) for side in (1, -1))
        assert found.alpha == pytest.approx((minus - plus) / (2 * EPSILON))
        assert found.loss == pytest.approx(1 - (plus + minus) / 2)
        slopes.append(abs(found.alpha))
    assert max(slopes) > 0.1


def test_a_group_measures_by_how_much_a_reward_is_below_the_mean_of_the_others(run: Trainer) -> None:
    found = estimates(run, [FIRST] * 3, group=3)
    each = [mean_reward(run, query, 1, FIRST, SEEDS[0]) for query in range(3)]
    for number, estimate in enumerate(found):
        others = (sum(each) - each[number]) / 2
        assert estimate.alpha == pytest.approx((others - each[number]) / EPSILON)
        assert estimate.loss == pytest.approx(1 - np.mean(each))
    assert len(set(each)) > 1


def test_an_update_moves_the_weights_towards_the_higher_reward(run: Trainer) -> None:
    found = estimates(run, BATCHES)
    number = max(range(3), key=lambda each: abs(found[each].alpha))
    better = 1 if found[number].alpha < 0 else -1
    plus, minus = (
        mean_reward(run, number, side, BATCHES[number], SEEDS[number]) for side in (better, -better)
    )
    assert plus > minus
    numbers = run.manifest.training
    scalar = quantise(found[number].alpha, numbers.scalar_delta, numbers.scalar_limit)
    before = [matrix(site).clone() for site in run.loaded.sites]
    run.apply(UpdateBatch(np.array([2]), np.array(SEEDS[number : number + 1], np.uint64), np.array([scalar])))
    run.weights.rebuild()
    for site, old, move in zip(
        run.loaded.sites, before, written_directions(run, SEEDS[number], 2), strict=True
    ):
        assert float(((matrix(site) - old) * move).sum()) * better > 0


def test_a_measurement_can_be_repeated(run: Trainer) -> None:
    assert estimates(run, BATCHES) == estimates(run, BATCHES)

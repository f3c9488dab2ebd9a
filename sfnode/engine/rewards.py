"""Slopes of mean rewards along directions: what an update measures where answers are written and scored.

The loss of an answer is 1 less its reward, so that the rule by which updates lower a loss (DESIGN 3) raises
rewards. Both points of a query write their answers to the same prompts, and from the same draws. Knows
neither how answers are scored nor where prompts come from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from sfnode.engine.estimator import BOTH_SIDES, ONE_SIDE, Estimate, held, of_groups, of_pairs
from sfnode.engine.generation import Answer, Plan, Row, generate
from sfnode.models.loader import LoadedModel
from sfnode.models.perturbation import Directions
from sfprotocol.seeds import token_keys


class Question(NamedTuple):
    """A prompt, and the row of data that its answers are scored by."""

    prompt: Sequence[int]
    """Token ids."""
    row: Any


Score = Callable[[str, Any], float]
"""Returns the reward of an answer, 0 to 1, by its question's row."""


def estimates(
    loaded: LoadedModel,
    directions: Directions,
    seeds: Sequence[int],
    batches: Sequence[Sequence[Question]],
    score: Score,
    plan: Plan,
    epsilon: float,
    group: int = 0,
    go_on: Callable[[], bool] = lambda: True,
) -> list[Estimate] | None:
    """Estimate the derivative of each mini-batch's mean loss along the direction of the same number.

    By pairs or in groups, as `estimator.estimates`; in a group mini-batches are the same, and answers are
    drawn from the first one's seed. None once `go_on`, asked before each token, says no. Raises UserError as
    `generation.generate`.
    """
    answers = written(loaded, directions, seeds, batches, plan, epsilon, group, go_on)
    return None if answers is None else told(answers, batches, score, held(epsilon, directions), group)


def written(
    loaded: LoadedModel,
    directions: Directions,
    seeds: Sequence[int],
    batches: Sequence[Sequence[Question]],
    plan: Plan,
    epsilon: float,
    group: int = 0,
    go_on: Callable[[], bool] = lambda: True,
) -> list[Answer] | None:
    """Return the answers that `estimates` scores: by mini-batch, point and question."""
    epsilon = held(epsilon, directions)
    rows = []
    for number, batch in enumerate(batches):
        first = number - number % group if group else number
        keys = token_keys(seeds[first], len(batch)).tolist()
        # those of one direction together: rows that are written at once are then of few directions
        for side in _sides(group):
            rows += [
                Row(question.prompt, number, side * epsilon, key)
                for question, key in zip(batch, keys, strict=True)
            ]
    return generate(loaded, rows, plan, directions, go_on)


def told(
    answers: Sequence[Answer],
    batches: Sequence[Sequence[Question]],
    score: Score,
    epsilon: float,
    group: int = 0,
) -> list[Estimate]:
    """Return what `written` answers tell of the slopes, at points that were held so far apart."""
    scored = iter(answers)
    losses = [
        [
            torch.tensor(
                [1 - score(next(scored).text, question.row) for question in batch], dtype=torch.float64
            )
            for _ in _sides(group)
        ]
        for batch in batches
    ]  # by query and side
    measured = [by_side[side] for side in range(len(_sides(group))) for by_side in losses]
    return of_groups(measured, group, epsilon) if group else of_pairs(measured, epsilon)


def _sides(group: int) -> Sequence[int]:
    return ONE_SIDE if group else BOTH_SIDES

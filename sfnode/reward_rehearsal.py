"""Tries a reward run out on the base model: answers, rewards, and what this machine would do in it.

This module measures and prints nothing; `engine.reward_trial` says what is measured along directions.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from sfnode.engine import reward_trial, scalar_limit
from sfnode.engine.losses import line_rows
from sfnode.engine.reward_objective import RIGHT, Rewards
from sfnode.engine.trainer import Trainer
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.preparing import Means, Waiting
from sfnode.resources import memory
from sfnode.schema.results import TriedAnswer, TryRewardResult
from sfnode.tasks import metrics

SHOWN = 3
"""Prompts that are shown with their answers."""


class Tried(NamedTuple):
    """A result, and the error that it is if nothing can be learnt."""

    result: TryRewardResult
    problem: UserError | None


def try_out(manifest: Manifest, means: Means, prompts: int, updates: int, waiting: Waiting) -> Tried:
    """Answer `prompts` of a run's prompts with its base model, then measure `updates`.

    Raises UserError BAD_OPTION for a run without rewards, DATA_NEEDED without rows, and as `Trainer.load`.
    """
    if manifest.task.has_slopes:
        raise UserError(
            Code.BAD_OPTION,
            f"the task kind {manifest.task.kind} has no rewards",
            "Name a run of the kind reward; `sfnode lab bench --run` measures others.",
        )
    begun = time.monotonic()
    with waiting("loading the model"):
        trainer, reason = scalar_limit.any_trainer(manifest, **means._asdict())
    loaded = time.monotonic() - begun
    with trainer:
        if reason:
            raise UserError(
                Code.DATA_NEEDED,
                f"there are no prompts: {reason}",
                "Name some: --train with --task, or a manifest with data.",
            )
        return _tried(trainer, prompts, updates, loaded, waiting)


def _tried(trainer: Trainer, prompts: int, updates: int, loaded: float, waiting: Waiting) -> Tried:
    manifest, objective = trainer.manifest, trainer.objective
    assert isinstance(objective, Rewards)
    rows = line_rows(manifest.task, trainer.run_rows.some())[:prompts]
    with waiting(f"answering {len(rows)} prompts"):
        judged = objective.answer(rows)
    with waiting("writing answers along some directions") as advance:
        found = reward_trial.measure(trainer, updates, manifest.training.epsilon, advance)
    mean = metrics.share(sum(one.score for one in judged), len(judged))
    right = metrics.share(sum(one.score >= RIGHT for one in judged), len(judged))
    seconds = max(found.seconds, 1e-9)
    result = TryRewardResult(
        model=manifest.model.source,
        device=str(trainer.loaded.device),
        dtype=trainer.dtype,
        epsilon=manifest.training.epsilon,
        temperature=manifest.task.temperature,
        prompts=len(judged),
        reward=mean.value,
        reward_low=mean.low,
        reward_high=mean.high,
        right=right.value,
        right_low=right.low,
        right_high=right.high,
        examples=[
            TriedAnswer(prompt=one.text, right=one.right, answer=one.said, reward=one.score)
            for one in judged[:SHOWN]
        ],
        updates=found.updates,
        apart=found.apart,
        spread=found.sample.spread,
        answers=found.answers,
        cut=found.cut,
        tokens=found.tokens,
        seconds=found.seconds,
        answers_per_second=found.answers / seconds,
        tokens_per_second=found.tokens / seconds,
        updates_per_minute=60 * found.updates / seconds,
        load_seconds=loaded,
        peak_bytes=memory.most(trainer.loaded.device),
    )
    return Tried(result, None if found.apart else reward_trial.alike(found))

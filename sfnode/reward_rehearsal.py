"""Tries a reward run out on the base model: answers, rewards, and how many answers this machine writes.

This module measures and prints nothing.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from sfnode.engine import scalar_limit
from sfnode.engine.losses import line_rows
from sfnode.engine.reward_objective import RIGHT, Rewards, alike
from sfnode.engine.trainer import Trainer
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.task import ANSWERS
from sfnode.preparing import Means, Waiting
from sfnode.resources import memory
from sfnode.schema.results import TriedAnswer, TryRewardResult
from sfnode.tasks import metrics
from sfprotocol.seeds import derive_key

SHOWN = 3
"""Prompts that are shown with their answers."""


class Tried(NamedTuple):
    """A result, and the error that it is if nothing can be learnt."""

    result: TryRewardResult
    problem: UserError | None


def try_out(manifest: Manifest, means: Means, prompts: int, waiting: Waiting) -> Tried:
    """Answer `prompts` of a run's prompts with its base model: with the likeliest tokens, and as in training.

    Raises UserError BAD_OPTION for a run without rewards, DATA_NEEDED without rows, and as `Trainer.load`.
    """
    if not manifest.task.is_rewarded:
        raise UserError(
            Code.BAD_OPTION,
            f"the task kind {manifest.task.kind} has no rewards",
            "Name a run of the kind reward; `sfnode lab bench --run run.toml` measures others.",
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
        return _tried(trainer, prompts, loaded, waiting)


def _tried(trainer: Trainer, prompts: int, loaded: float, waiting: Waiting) -> Tried:
    manifest, objective = trainer.manifest, trainer.objective
    assert isinstance(objective, Rewards)
    rows = line_rows(manifest.task, trainer.run_rows.some())[:prompts]
    with waiting(f"answering {len(rows)} prompts"):
        judged = objective.answer(rows)
    begun = time.monotonic()
    with waiting(f"drawing {ANSWERS} answers to each"):
        drawn = objective.draw(objective.questions(rows), derive_key(b"sfnode try reward"))
    seconds = max(time.monotonic() - begun, 1e-9)
    mean = metrics.share(sum(one.score for one in judged), len(judged))
    right = metrics.share(sum(one.score >= RIGHT for one in judged), len(judged))
    tokens, cut = sum(len(one.tokens) for one in drawn.answers), sum(not one.ended for one in drawn.answers)
    result = TryRewardResult(
        model=manifest.model.source,
        device=str(trainer.loaded.device),
        dtype=trainer.dtype,
        temperature=objective.temperature,
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
        drawn_reward=1 - drawn.loss,
        apart=float(np.mean(drawn.telling)),
        answers=len(drawn.answers),
        cut=cut,
        tokens=tokens,
        seconds=seconds,
        answers_per_second=len(drawn.answers) / seconds,
        tokens_per_second=tokens / seconds,
        load_seconds=loaded,
        peak_bytes=memory.most(trainer.loaded.device),
    )
    return Tried(result, None if result.apart else alike([drawn]))

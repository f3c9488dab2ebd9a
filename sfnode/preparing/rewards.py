"""A trial before the start of a zeroth-order reward run: the model answers prompts, which gives slopes.

The trial finds two hyperparameters:

    scalar_delta   A power of two, with which the scalars' root mean square is about UNITS, as in other runs.
    rate           Rewards have no second derivative that shows how far a slope holds. The change of the
                   model's answers shows it instead (Kakade 2001; Schulman et al. 2015, arXiv 1502.05477). Let
                   z be the slopes of answers' log-probabilities along a group's step, from the first token in
                   which answers to a prompt differ. Then the step changes the answers by the Kullback-Leibler
                   divergence rate^2 E[z^2] / 2. A step without noise may change the answers by MOVE. With n
                   directions in a subspace of D dimensions, the square of the step's slope is (n + D) / n
                   times as large as without noise. The rate must be smaller by that factor (McCandlish et al.
                   2018, arXiv 1812.06162), and a step then changes the answers by n / (n + D) of MOVE.

If all answers to a prompt get the same reward, the prompt teaches nothing. If all prompts are like that, the
trial raises an error with advice. `try_out` shows whether prompts teach anything, before zeroth-order and
first-order reward runs (`sfnode organise try-reward`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np

from sfnode.engine.core import Core, UpdateBatch
from sfnode.engine.gradients import gradient
from sfnode.engine.line import Line
from sfnode.engine.losses import line_rows
from sfnode.engine.reward_objective import RIGHT, Drawn, Rewards, alike
from sfnode.engine.trainer import Trainer
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.task import ANSWERS
from sfnode.preparing import scalars, trial
from sfnode.preparing.scalars import F64, Advance, Means, SlopeSample, Suited, Waiting
from sfnode.resources import memory
from sfnode.schema.results import TriedAnswer, TryRewardResult
from sfnode.tasks import metrics
from sfprotocol.seeds import derive_key

UPDATES = 32
"""Number of updates that are measured. The root mean square of 32 slopes is accurate to an eighth."""

MOVE = 1.0
"""Target change of answers by a group's step without noise: the Kullback-Leibler divergence in nats for each
answer. It suits bases from gradients on SmolLM2, which learnt more in four groups with 1.6 than in 24 groups
with 0.1. Random bases on the built-in model for sums need 0.0024; with random bases, line searches have to
find the rate (docs/research-log.md)."""

NEAR = 0.01
"""Length of the trial step from which the effect of a group's step is estimated, as a multiple of the
weights' root mean square."""


def run(trainer: Trainer, advance: Advance = lambda done, total: None) -> Suited:
    """Return the scalar_delta and the learning_rate that suit a reward run, and the slopes from which they
    follow. UPDATES updates are measured, or a few more that complete a group.

    Raises UserError REWARDS_ALIKE, and LOSS_FLAT if no direction has a slope.
    """
    objective, numbers = trainer.objective, trainer.manifest.training
    assert isinstance(objective, Rewards)
    seeds, size = scalars.seeds_of(trainer, UPDATES), numbers.batch_updates
    groups = [seeds[first : first + size] for first in range(0, len(seeds), size)]
    drawn: list[Drawn] = []
    for group in groups:
        drawn.append(objective.draw(trainer.mini_batch(group[0]), group[0]))
        advance(len(drawn), 2 * len(groups))
    if not any(one.telling.any() for one in drawn):
        raise alike(drawn)
    told: list[F64] = []
    for group, one in zip(groups, drawn, strict=True):
        found = gradient(trainer.loaded, trainer.space, 0, one.encoded)
        told.append(objective.alphas(trainer.space, found, group))
        advance(len(groups) + len(told), 2 * len(groups))
    sample = SlopeSample(scalars.as_numbers(np.concatenate(told)), scalars.typical_weight(trainer.loaded))
    scalars.require_slopes(sample.slopes)
    delta = trial.suitable_delta(numbers, sample.spread)
    squares = [_squares(trainer, delta, *each) for each in zip(groups, told, drawn, strict=True)]
    rate = _rate(trainer.manifest, float(np.nan_to_num(np.concatenate(squares)).mean()))
    return {"scalar_delta": delta, "learning_rate": rate}, sample


def _squares(trainer: Trainer, delta: float, seeds: Sequence[int], told: F64, drawn: Drawn) -> F64:
    """Return z^2 of each answer along the step of a group with these scalars, (answers,)."""
    core, batch = Core(*trainer.core.shape), drawn.encoded
    steps = np.rint(np.nan_to_num(told) / delta).astype(np.int64)
    core.add(UpdateBatch(np.zeros(len(seeds), np.int64), np.array(seeds, np.uint64), steps))
    line = Line(trainer.loaded, trainer.space, lambda _: delta, core.cores())
    far = NEAR * scalars.typical_weight(trainer.loaded) / max(float(np.linalg.norm(told)), 1e-30)
    there, back = line.losses([batch], [far, -far]).T
    assert batch.weights is not None
    by = (batch.weights / batch.tokens[:, 0]).double().numpy()
    z = (there - back) / (2 * far)
    z = np.divide(z, by, out=np.zeros_like(z), where=by != 0)
    squares: F64 = z * z
    return squares


def _rate(manifest: Manifest, squares: float) -> float:
    """Return the rate that follows from `squares`, the mean of z^2; the run's own rate if the mean is 0."""
    numbers = manifest.training
    signal = numbers.batch_updates / (numbers.batch_updates + manifest.dimensions)
    return trial.as_rate(math.sqrt(2 * MOVE * signal / squares)) if squares else numbers.learning_rate


SHOWN = 3
"""Maximum number of prompts that are shown with their answers."""


def try_out(
    manifest: Manifest, means: Means, prompts: int, waiting: Waiting
) -> tuple[TryRewardResult, UserError | None]:
    """Answer some of a run's prompts, `prompts` of them, with its base model: once with the likeliest tokens,
    and then as in training. Return the result, and the error if nothing can be learnt, else None.

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
        trainer, reason = scalars.any_trainer(manifest, means)
    loaded = time.monotonic() - begun
    with trainer:
        if reason:
            raise UserError(
                Code.DATA_NEEDED,
                f"there are no prompts: {reason}",
                "Name some: --train with --task, or a manifest with data.",
            )
        return _tried(trainer, prompts, loaded, waiting)


def _tried(
    trainer: Trainer, prompts: int, loaded: float, waiting: Waiting
) -> tuple[TryRewardResult, UserError | None]:
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
    return result, None if result.apart else alike([drawn])

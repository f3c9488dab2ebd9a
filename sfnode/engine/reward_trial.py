"""A trial of a reward run before it starts: the model answers some prompts, from which slopes follow.

What it is for:

    scalar_delta   a power of two of which the scalars' root mean square is UNITS, as in other runs.
    rate           rewards have no bend that would say how far a slope reaches; by how much the model would
                   write something else does (Kakade 2001; Schulman et al. 2015, arXiv 1502.05477). With z
                   the slopes of answers' log-probabilities along the step of a group, from where answers
                   to a prompt part, their Kullback-Leibler divergence is rate^2 E[z^2] / 2. A step without
                   noise may move the model by MOVE. That of n directions in a subspace of D dimensions has
                   (n + D) / n times the square of the slope; with a rate that much smaller, which is what
                   such noise asks for (McCandlish et al. 2018, arXiv 1812.06162), it moves the model by
                   n / (n + D) of that.
    speed          of writing answers.

Where all answers to a prompt get the same reward nothing can be learnt of it; where that is so of all prompts
it is an error with advice. This module prints nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfnode.engine import trial
from sfnode.engine.core import Core, UpdateBatch
from sfnode.engine.gradients import gradient
from sfnode.engine.line import Line
from sfnode.engine.reward_objective import Drawn, Rewards, alike
from sfnode.engine.scalar_limit import Advance, SlopeSample, require_slopes, seeds_of, typical_weight
from sfnode.engine.trainer import Trainer
from sfnode.manifest import Manifest

F64 = NDArray[np.float64]

UPDATES = 32
"""Updates that are measured: the root mean square of as many slopes is right to an eighth."""

MOVE = 1.0
"""Kullback-Leibler divergence, in nats an answer, by which the step of a group may move the model if there is
no noise in it: what suits gradients on SmolLM2, which learnt more in four groups with 1.6 than in 24 with
0.1. Random bases on the embedded sums want 0.0024; there searches have to find the rate
(docs/research-log.md)."""

NEAR = 0.01
"""Length of the move by which it is seen what a step does, in root mean squares of the weights."""


class RewardTrial(NamedTuple):
    """Findings of some updates of a reward run on the base model."""

    sample: SlopeSample
    delta: float
    rate: float
    answers: int
    reward: float
    """Mean of all answers."""
    apart: float
    """Share of prompts whose answers differ in reward."""
    seconds: float
    """Time of writing and scoring the answers."""


def run(trainer: Trainer, advance: Advance = lambda done, total: None) -> RewardTrial:
    """Measure some updates of a reward run, or a few more that complete a group.

    Raises UserError REWARDS_ALIKE, and LOSS_FLAT if no direction has a slope.
    """
    objective, numbers, seeds = trainer.objective, trainer.manifest.training, seeds_of(trainer, UPDATES)
    assert isinstance(objective, Rewards)
    groups = [
        seeds[first : first + numbers.batch_updates] for first in range(0, len(seeds), numbers.batch_updates)
    ]
    begun, drawn = time.monotonic(), list[Drawn]()
    for group in groups:
        drawn.append(objective.draw(trainer.mini_batch(group[0]), group[0]))
        advance(len(drawn), 2 * len(groups))
    seconds = time.monotonic() - begun
    apart = float(np.mean(np.concatenate([one.telling for one in drawn])))
    if not apart:
        raise alike(drawn)
    told: list[F64] = []
    for group, one in zip(groups, drawn, strict=True):
        found = gradient(trainer.loaded, trainer.space, 0, one.encoded)
        told.append(objective.alphas(trainer.space, found, group))
        advance(len(groups) + len(told), 2 * len(groups))
    sample = SlopeSample(
        np.nan_to_num(np.concatenate(told), posinf=0.0, neginf=0.0), typical_weight(trainer.loaded)
    )
    require_slopes(sample.slopes)
    delta = trial.suitable_delta(numbers, sample.spread)
    squares = [_squares(trainer, delta, *each) for each in zip(groups, told, drawn, strict=True)]
    return RewardTrial(
        sample,
        delta,
        _rate(trainer.manifest, float(np.nan_to_num(np.concatenate(squares)).mean())),
        sum(len(one.answers) for one in drawn),
        1 - float(np.mean([one.loss for one in drawn])),
        apart,
        seconds,
    )


def _squares(trainer: Trainer, delta: float, seeds: Sequence[int], told: F64, drawn: Drawn) -> F64:
    """Return z^2 of each answer along the step of a group that tells so, (answers,)."""
    core, batch = Core(*trainer.core.shape), drawn.encoded
    scalars = np.rint(np.nan_to_num(told) / delta).astype(np.int64)
    core.add(UpdateBatch(np.zeros(len(seeds), np.int64), np.array(seeds, np.uint64), scalars))
    line = Line(trainer.loaded, trainer.space, lambda _: delta, core.cores())
    far = NEAR * typical_weight(trainer.loaded) / max(float(np.linalg.norm(told)), 1e-30)
    there, back = line.losses([batch], [far, -far]).T
    assert batch.weights is not None
    by = (batch.weights / batch.tokens[:, 0]).double().numpy()
    z = (there - back) / (2 * far)
    z = np.divide(z, by, out=np.zeros_like(z), where=by != 0)
    squares: F64 = z * z
    return squares


def _rate(manifest: Manifest, squares: float) -> float:
    """Return the rate where z has this mean square; the run's own if it is 0."""
    numbers = manifest.training
    signal = numbers.batch_updates / (numbers.batch_updates + manifest.dimensions)
    return trial.as_rate(math.sqrt(2 * MOVE * signal / squares)) if squares else numbers.learning_rate

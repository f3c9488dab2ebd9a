"""A trial of a reward run before it starts: the model answers some prompts, from which slopes follow.

What it is for:

    epsilon        as for given answers (`trial`), on some of these.
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
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfnode.engine import trial
from sfnode.engine.estimator import BOTH_SIDES, ONE_SIDE, losses_along, of_groups, of_pairs, representable
from sfnode.engine.reward_objective import Drawn, Rewards, alike
from sfnode.engine.scalar_limit import Advance, SlopeSample, require_slopes, seeds_of, typical_weight
from sfnode.engine.trainer import Trainer
from sfnode.manifest import Manifest
from sfnode.tasks.encoding import Encoded

F64 = NDArray[np.float64]

UPDATES = 32
"""Updates that are measured: the root mean square of as many slopes is right to an eighth."""

MOVE = 1.0
"""Kullback-Leibler divergence, in nats an answer, by which the step of a group may move the model if there is
no noise in it: what suits gradients on SmolLM2, which learnt more in four groups with 1.6 than in 24 with
0.1. Random bases on the embedded sums want 0.0024; there searches have to find the rate
(docs/research-log.md)."""

SLOPES_TAKE = 5
"""Time that the slopes of a group take, in that of writing its answers (docs/benchmarks.md)."""

ROWS = 8
"""Prompts by whose answers epsilon is found, each along a direction of its own mini-batch."""


class RewardTrial(NamedTuple):
    """Findings of some updates of a reward run on the base model."""

    epsilon: float
    epsilons: dict[str, float]
    """Those for half precision, by number format."""
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


def run(
    trainer: Trainer, *, keep_epsilon: bool = False, advance: Advance = lambda done, total: None
) -> RewardTrial:
    """Measure some updates of a reward run, or a few more that complete a group.

    With `keep_epsilon` by the run's own. Raises UserError REWARDS_ALIKE, and LOSS_FLAT if no
    direction has a slope.
    """
    numbers, seeds = trainer.manifest.training, seeds_of(trainer, UPDATES)
    groups = len(seeds) // numbers.batch_updates
    begun = time.monotonic()
    drawn = _drawn(trainer, seeds, lambda done: advance(done, groups * (1 + SLOPES_TAKE)))
    seconds = time.monotonic() - begun
    answers = [one for each in drawn for one in each.answers]
    rewards = np.concatenate([one.rewards for one in drawn])  # (prompts, ANSWERS)
    apart = float(np.mean(np.concatenate([one.telling for one in drawn])))
    if not apart:
        raise alike(drawn)
    found = _epsilons(trainer, seeds[:: numbers.batch_updates], drawn)
    epsilon = numbers.epsilon if keep_epsilon else found[trainer.dtype]
    alphas, squares = _slopes(
        trainer,
        seeds,
        [one.encoded for one in drawn],
        epsilon,
        lambda done: advance(groups + SLOPES_TAKE * done, groups * (1 + SLOPES_TAKE)),
    )
    require_slopes(alphas)
    sample = SlopeSample(alphas, typical_weight(trainer.loaded))
    return RewardTrial(
        found["float32"],
        {name: one for name, one in found.items() if name != "float32"},
        sample,
        trial.suitable_delta(numbers, sample.spread),
        _rate(trainer.manifest, squares),
        len(answers),
        float(rewards.mean()),
        apart,
        seconds,
    )


def _drawn(trainer: Trainer, seeds: Sequence[int], advance: Callable[[int], None]) -> list[Drawn]:
    """Return the answers of each group of these seeds, or of each."""
    objective, found = trainer.objective, []
    assert isinstance(objective, Rewards)
    for done, seed in enumerate(seeds[:: trainer.manifest.training.batch_updates], 1):
        found.append(objective.draw(trainer.mini_batch(seed), seed))
        advance(done)
    return found


def _epsilons(trainer: Trainer, seeds: Sequence[int], drawn: Sequence[Drawn]) -> dict[str, float]:
    """Return the epsilon that suits each number format, by some of the answers drawn for each seed."""
    distances = trial.distances_of(typical_weight(trainer.loaded))
    few = [one.few(-(-ROWS // len(drawn))).encoded for one in drawn]
    slopes, loss = trial.slopes_at(trainer, seeds, few, distances, lambda done: None)
    found = trial.suitable_epsilons(distances, slopes, loss)
    return {name: epsilon for name, (epsilon, _) in found.items()}


def _slopes(
    trainer: Trainer,
    seeds: Sequence[int],
    batches: Sequence[Encoded],
    epsilon: float,
    advance: Callable[[int], None],
) -> tuple[F64, float]:
    """Return the slopes that members would tell along the directions of these seeds (n,), and the mean square
    of z."""
    numbers = trainer.manifest.training
    group, size, sides = numbers.group, numbers.batch_updates, ONE_SIDE if numbers.group else BOTH_SIDES
    slopes: list[float] = []
    squares: list[F64] = []
    for done, batch in enumerate(batches, 1):
        directions = trainer.space.directions(seeds[len(slopes) :][:size], 0)
        exact = representable(epsilon, directions)
        losses = losses_along(trainer.loaded, directions, [batch] * size, epsilon, sides)
        found = of_groups(losses, group, exact) if group else of_pairs(losses, exact)
        alphas = [one.alpha for one in found]
        plus = np.stack([one.numpy() for one in losses[:size]])  # (updates, answers)
        other = plus.mean(0) if group else np.stack([one.numpy() for one in losses[size:]])
        assert batch.weights is not None
        by = (batch.weights / batch.tokens[:, 0]).double().numpy()
        z = np.array(alphas) @ (plus - other) / (len(sides) * exact)  # (answers,)
        squares.append(np.divide(z, by, out=np.zeros_like(z), where=by != 0) ** 2)
        slopes += alphas
        advance(done)
    told = np.nan_to_num(np.array(slopes), nan=0.0, posinf=0.0, neginf=0.0)
    return told, float(np.nan_to_num(np.concatenate(squares)).mean())


def _rate(manifest: Manifest, squares: float) -> float:
    """Return the rate where z has this mean square; the run's own if it is 0."""
    numbers = manifest.training
    signal = numbers.batch_updates / (numbers.batch_updates + manifest.dimensions)
    return trial.as_rate(math.sqrt(2 * MOVE * signal / squares)) if squares else numbers.learning_rate

"""A trial of a reward run before it starts: the model answers some prompts at the points of some updates.

What it is for:

    scalar_delta   a power of two of which the alphas' root mean square is UNITS, as in other runs.
    rate           that of the recipe (`tasks.reward_numbers`) for alphas of that size.
    epsilon        the recipe's, or 4 or 16 times it where too few updates' points differ in reward: a reward
                   has no slope that a smaller distance would measure better, and small models answer alike
                   where large ones do not.
    speed          of writing answers along directions, which is all that a node does in such a run.

Where no update's points differ in reward nothing can be learnt, which is an error with advice. This module
prints nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sfnode.engine import trial
from sfnode.engine.estimator import Estimate
from sfnode.engine.generation import Continuation
from sfnode.engine.reward_objective import Rewards
from sfnode.engine.scalar_limit import Advance, SlopeSample, any_trainer, seeds_of, typical_weight
from sfnode.engine.trainer import Trainer
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.tasks import reward_numbers

UPDATES = 16
"""Updates that are measured: with 16 prompts each, 512 answers. The root mean square of as many alphas is
right to a fifth, and a rate need not be."""

TOGETHER = 4
"""Updates whose answers are written at once: 128 answers of 16 prompts fill a small card, and a CPU."""

FACTORS = (1, 4, 16)
"""Distances that are tried, in units of the run's epsilon."""

ENOUGH = 1 / 4
"""Share of updates whose points differ with which a distance is taken: where fewer do, most answers are
written in vain."""

LEAST, PATIENCE = 4, 120.0
"""Updates that are measured however long it takes, and seconds after which no more are begun."""


class RewardTrial(NamedTuple):
    """Findings of some updates of a reward run on the base model."""

    epsilon: float
    sample: SlopeSample
    """Its slopes are the alphas."""
    delta: float
    rate: float
    updates: int
    answers: int
    tokens: int
    """Tokens written, all answers together."""
    cut: int
    """Answers that had not ended when they had all tokens that they may have."""
    reward: float
    """Mean of all answers."""
    seconds: float

    @property
    def apart(self) -> float:
        """Share of updates whose points differ in reward: of scalars that are not 0."""
        return float(np.count_nonzero(self.sample.slopes)) / self.updates


def run(
    manifest: Manifest,
    *,
    keep_epsilon: bool = False,
    device: str = "cpu",
    dtype: str = "float32",
    bases: Path | None = None,
    advance: Advance = lambda done, total: None,
) -> RewardTrial | SlopeSample:
    """Load the run's base model and try it out; return a sample without slopes if there are no rows.

    With `keep_epsilon` no other one is tried. Raises UserError as `scalar_limit.measure`, and REWARDS_ALIKE.
    """
    trainer, reason = any_trainer(manifest, device, dtype, bases)
    with trainer:
        if reason:
            return SlopeSample(np.zeros(0), typical_weight(trainer.loaded), reason)
        tried = []
        for factor in FACTORS[: 1 if keep_epsilon else None]:
            tried.append(measure(trainer, UPDATES, factor * manifest.training.epsilon, advance))
            if tried[-1].apart >= ENOUGH:
                break
    found = max(tried, key=lambda one: one.apart)
    if not found.apart:
        raise alike(tried[-1])
    return found


def measure(
    trainer: Trainer,
    updates: int,
    epsilon: float,
    advance: Advance = lambda done, total: None,
    clock: Callable[[], float] = time.monotonic,
) -> RewardTrial:
    """Measure `updates` of a reward run, or a few more that complete a group, at this distance from the base
    model; fewer if it takes longer than PATIENCE."""
    objective, numbers = trainer.objective, trainer.manifest.training
    assert isinstance(objective, Rewards)
    seeds, group = seeds_of(trainer, updates), numbers.batch_updates
    together = -(-TOGETHER // group) * group
    begun = clock()
    answers: list[Continuation] = []
    estimates: list[Estimate] = []
    for start in range(0, len(seeds), together):
        if len(estimates) >= LEAST and clock() - begun > PATIENCE:
            break
        part = seeds[start : start + together]
        batches = trainer.mini_batches.take(part)
        directions = trainer.space.directions(part, 0)
        written, estimated = objective.measured(directions, part, batches, epsilon)
        answers += written
        estimates += estimated
        advance(len(estimates), len(seeds))
    alphas = np.nan_to_num([one.alpha for one in estimates], nan=0.0, posinf=0.0, neginf=0.0)
    sample = SlopeSample(alphas, typical_weight(trainer.loaded))
    spread = sample.spread
    return RewardTrial(
        epsilon,
        sample,
        trial.suitable_delta(numbers, spread) if spread else numbers.scalar_delta,
        reward_numbers.rate(epsilon, spread, numbers.points) if spread else numbers.learning_rate,
        len(estimates),
        len(answers),
        sum(len(one.tokens) for one in answers),
        sum(not one.ended for one in answers),
        1 - float(np.mean([one.loss for one in estimates])),
        clock() - begun,
    )


def alike(found: RewardTrial) -> UserError:
    """Return the error of a run in which no update would tell anything, with advice."""
    said = f"none of {found.updates} updates found a difference between its points"
    easier = (
        "Take easier prompts, reward parts of an answer (a `sum` of verifiers, docs/rewards.md), show the "
        "form of an answer in the prompt, or take a better base model."
    )
    if found.reward <= 0:
        cut = f", and {found.cut} of them were cut off: raise answer_tokens" if found.cut else ""
        return UserError(
            Code.REWARDS_ALIKE, f"{said}: all {found.answers} answers have the reward 0{cut}", easier
        )
    if found.reward >= 1 - 1e-9:
        return UserError(
            Code.REWARDS_ALIKE,
            f"{said}: all {found.answers} answers have the reward 1, and there is nothing to learn",
            "Take harder prompts, or a stricter verifier.",
        )
    return UserError(
        Code.REWARDS_ALIKE,
        f"{said}: at epsilon {found.epsilon:g} the same rewards come of both (mean {found.reward:.3f})",
        f"Give a larger epsilon ({4 * found.epsilon:g}), a temperature of 0.7, or a larger batch_size; or "
        "reward parts of an answer (a `sum` of verifiers, docs/rewards.md).",
    )

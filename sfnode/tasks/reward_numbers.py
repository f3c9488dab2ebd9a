"""Numbers of reward runs: recipes of evolution strategies for language models, said in our rule.

Evolution strategies at scale (arXiv 2509.24372) move weights by N members, each with noise n of entries of
variance 1, at a distance sigma = 1e-3, by

    W += rho * sigma / N * sum of z_i * n_i        rho = 1/2, N = 30, z_i = (R_i - mean R) / deviation of R

so that two opposite members, +n and -n, move W by rho * sigma / N * (R+ - R-) / deviation * n. An update of
ours along s * u v^T, whose entries are +1 and -1, moves it by

    W -= rate * alpha * s * u v^T                  alpha = (L+ - L-) / (2 eps) = -(R+ - R-) / (2 eps)

so that with eps = sigma both are the same where rate = 2 * rho * eps^2 / (N * deviation). The deviation
is not in our rule, which has one rate for all: it is measured before a run starts, as the root mean square of
alphas, which for two independent rewards is deviation / (sqrt(2) * eps). Hence `rate`. In a group a member is
compared with the mean of the others at one point: there alpha's root mean square is deviation / eps.

Directions of rank one are enough (EGGROLL, arXiv 2511.16652). This module computes, and knows no model.
"""

from __future__ import annotations

import math

from sfnode.manifest.task import Task
from sfnode.manifest.training import Training

EPSILON = 1e-3
"""Distance of the points: the recipe's sigma, and MeZO's epsilon."""

POPULATION = 30
"""Members of the recipe's population: the fewest that it works with on models of 0.5 to 8 B parameters."""

SHARE = 1 / 2
"""The recipe's learning rate in units of sigma."""

DEVIATION = 0.05
"""Deviation of the mean reward of a mini-batch among members, unless it is measured: one answer of twenty is
another one."""

BATCH = 16
"""Prompts of a mini-batch. The recipe has 200: with fewer an update is noisier and there are more of them,
which for the same number of answers is no worse as long as most pairs differ. A sixteenth is seen."""

EPOCH_UPDATES = 256
"""Updates of an epoch: four times more than of other runs end with a seal, as each costs 32 answers."""

UPDATE_BUDGET = 8192
"""Updates of a run: 16,384 answers' means, 550 generations of the recipe's population; it has some 500."""

SCALAR_DELTA = 1.0
"""Unit of scalars: at that deviation alphas have a root mean square of 35."""

SCALAR_LIMIT = 280
"""Largest scalar unless it is measured: 8 times that, as in other runs (`engine.scalar_limit`). No alpha at
EPSILON is larger than 500, as rewards are 0 to 1."""

ANSWER_TOKENS = 256
"""Longest answer of a task of one's own."""

PROMPT_TOKENS = 768
"""Room for its prompt, unless the model has fewer positions."""


def rate(epsilon: float, spread: float, points: int) -> float:
    """Return the learning rate, in two digits, of updates whose alphas have the root mean square `spread` and
    which are measured at so many points, 2 or, in a group, 1."""
    return float(f"{SHARE * epsilon * math.sqrt(points) / (POPULATION * spread):.1e}")


def training() -> Training:
    """Return the numbers of a run whose rewards have not been measured yet."""
    spread = DEVIATION / (math.sqrt(2) * EPSILON)
    return Training(
        epsilon=EPSILON,
        learning_rate=rate(EPSILON, spread, 2),
        batch_size=BATCH,
        epoch_updates=EPOCH_UPDATES,
        update_budget=UPDATE_BUDGET,
        scalar_delta=SCALAR_DELTA,
        scalar_limit=SCALAR_LIMIT,
    )


def fitted(task: Task, positions: int, *, chosen: bool) -> Task:
    """Return the task for a model of so many positions (0: as many as it takes): where there are fewer than
    its `max_tokens`, answers that nobody has `chosen` the length of have half of them at most."""
    most = min(task.max_tokens, positions or task.max_tokens)
    answer = task.answer_tokens if chosen else min(task.answer_tokens, most // 2)
    return Task(**task.model_dump() | {"max_tokens": most, "answer_tokens": answer})

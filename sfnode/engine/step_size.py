"""The rate that suits a subspace at the weights as they are, from slopes and bends of the loss there.

Along the direction d of a seed a mini-batch's loss is L0 + m alpha + m^2 h / 2, and an update goes to
m = -rate alpha. With g the gradient of all data that gains rate E[(g d)^2] - rate^2 E[alpha^2] E[h] / 2, so
that the best rate for one update is the signal, E[(g d)^2] / E[alpha^2], by the bend, E[h]: how much of an
update is no noise, by how much the loss bends. All of it follows from the losses at three points of some
updates: no held-out row is looked at, and nothing is written. It is found where the subspace has few
dimensions, as with bases of gradients; in the thousands of random ones nothing bends measurably: None.

This module knows a model, mini-batches and directions; it decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfnode.engine import forward
from sfnode.engine.estimator import estimates
from sfnode.engine.losses import Losses
from sfnode.engine.subspace import Subspace
from sfnode.engine.trainable_model import TrainableModel
from sfnode.models.loader import LoadedModel
from sfnode.tasks import verifying
from sfnode.tasks.encoding import Encoded
from sfprotocol.seeds import coordinates, derive_key, stream

SHARE = 1 / 6
"""Share of the best rate for one update that is taken: what it gains is taken back by noise once there is
less to gain, and later places are steeper (docs/research-log.md)."""

LEAST_SIGNAL, MOST_SIGNAL = 0.02, 0.025
"""Bounds on the signal, less its standard error, the upper one for each row of a mini-batch: of 64 updates it
is known to 0.1, and where it is large it does not stay so (on the built-in reviews it is 0.95 at first)."""

USUAL_SIGNAL, UNTOLD = 0.02, 0.5
"""Signal for each row of a mini-batch that is taken where its standard error is as large as UNTOLD: with 64
updates, rank 1 and 24 layers it is 0.1, with rank 8 it is 0.9. Of a real model's answers in words along bases
from errors it is 0.12 to 0.21 with 8 rows (docs/research-log.md)."""

MANY_ROWS = 8
"""Rows beyond which no larger signal is believed in."""

CAUTIOUS_SIGNAL = 0.045
"""Signal that is taken where not even a bend is evident."""

EVIDENCE = 1.0
"""Standard errors by which E[h] has to differ from 0."""

CAUTION = 2.0
"""Standard errors that are added to a bend that is not evident. The rate is then 0.3 to 1.8 times that of a
sweep or a line search, with random bases and activations on three tasks (docs/research-log.md)."""

ROWS, LEAST_UPDATES, MOST_UPDATES = 128, 8, 32
"""Rows of the mini-batches of all updates that are measured at first, and bounds on how many these are; twice
as many where that does not tell. One costs as much as one and a half that count."""

TOGETHER = 16
"""Updates that are measured in one go."""


class StepSize(NamedTuple):
    """A rate, and what it follows from."""

    rate: float
    """Rate of one update that suits the subspace."""
    signal: float
    """E[(g d)^2] / E[alpha^2] as measured: 1 were no mini-batch and no direction to differ from another."""


def measure(
    loaded: LoadedModel,
    space: Subspace,
    subspace: int,
    draw: Callable[[int], Encoded],
    rows: int,
    epsilon: float,
    key: bytes,
) -> tuple[StepSize | None, int]:
    """Return the step size of a subspace at the weights as they are, which nothing live moves, and the
    example-forwards that it took; None where the loss does not evidently bend.

    `draw` returns the mini-batch of a seed, of so many `rows`; seeds follow from `key`.
    """
    shape = len(space.targets), space.rank
    first = min(max(ROWS // rows, LEAST_UPDATES), MOST_UPDATES)
    seeds = stream(derive_key(b"sfnode step size", key), 0, 2 * first)
    slopes, bends, taken = np.zeros(0), np.zeros(0), 0
    found = None
    while found is None and len(slopes) < len(seeds):
        coming = seeds[len(slopes) :][:first].tolist()
        batches = [draw(seed) for seed in coming]
        more = three_points(loaded, space, subspace, coming, batches, epsilon)
        slopes, bends = (np.concatenate(parts) for parts in zip((slopes, bends), more, strict=True))
        taken += 3 * sum(batch.examples for batch in batches)
        found = suitable(seeds[: len(slopes)], slopes, bends, shape, rows)
    return found, taken


def suitable_rate(model: TrainableModel, epoch: int) -> float | None:
    """Return the rate that suits the subspace of an epoch at the weights as of now, by `measure`; None
    where that cannot be told, and without training rows. Raises as `estimate` does, and as
    `verifying.require_slopes`."""
    verifying.require_slopes(model.manifest.task)
    if not model.rows:
        return None
    model.rebuild()
    assert isinstance(model.objective, Losses)
    subspace, draw = model.run.subspace_of(epoch), model.objective.shard.mini_batch
    rows = model.manifest.training.batch_size
    found, _ = measure(model.loaded, model.space, subspace, draw, rows, model.epsilon, model.run.run_id)
    return found.rate if found else None


def three_points(
    loaded: LoadedModel,
    space: Subspace,
    subspace: int,
    seeds: Sequence[int],
    batches: Sequence[Encoded],
    epsilon: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return slopes and bends (n,) of mini-batches' losses along the directions of these seeds."""
    slopes, bends = [], []
    for start in range(0, len(seeds), TOGETHER):
        part, rows = seeds[start : start + TOGETHER], batches[start : start + TOGETHER]
        found = estimates(loaded, space.directions(part, subspace), rows, epsilon)
        for estimate, batch in zip(found, rows, strict=True):
            here = forward.score_in_passes(loaded, batch).log_probs
            slopes.append(estimate.alpha)
            bends.append(2 * (estimate.loss - float(batch.losses(here).double().mean())) / epsilon**2)
    return np.array(slopes), np.array(bends)


def suitable(
    seeds: NDArray[np.uint64],
    slopes: NDArray[np.float64],
    bends: NDArray[np.float64],
    shape: tuple[int, int],
    rows: int,
) -> StepSize | None:
    """Return what slopes and bends (n,) of mini-batches of so many rows along the directions of these seeds
    say of a subspace of this many layers and this rank."""
    count = len(slopes)
    if count < 2 or not (np.isfinite(slopes).all() and np.isfinite(bends).all() and slopes.any()):
        return None
    bend, error = _bend(bends)
    if not bend > EVIDENCE * error:
        return None
    signal = _noiseless_square(seeds, slopes, shape) / float((slopes**2).mean())
    error = math.sqrt(2 * shape[0]) * shape[1] / count
    told = min(max(signal - error, LEAST_SIGNAL), MOST_SIGNAL * min(rows, MANY_ROWS))
    usual = USUAL_SIGNAL * min(rows, MANY_ROWS)
    return StepSize(SHARE * (told if error < UNTOLD else usual) / bend, signal)


def cautious(bends: NDArray[np.float64]) -> float:
    """Return a rate where neither bend nor signal is evident: with the most that these bends (n,), which are
    finite, leave possible, CAUTION standard errors more, and a signal amid its bounds."""
    bend, error = _bend(bends)
    return SHARE * CAUTIOUS_SIGNAL / (abs(bend) + CAUTION * error or math.ulp(1.0))


def _bend(bends: NDArray[np.float64]) -> tuple[float, float]:
    """Return E[h] and its standard error."""
    return float(bends.mean()), float(bends.std(ddof=1)) / math.sqrt(len(bends))


def _noiseless_square(
    seeds: NDArray[np.uint64], slopes: NDArray[np.float64], shape: tuple[int, int]
) -> float:
    """Return an unbiased estimate of E[(g d)^2], by products of different updates, which share no noise."""
    (layers, rank), count = shape, len(slopes)
    row, column, sign = coordinates(seeds, layers, rank)
    total = np.zeros((layers, rank, rank))
    np.add.at(total, (np.arange(layers), row, column), sign * slopes[:, None])
    own = layers * float((slopes**2).sum())
    return (float((total**2).sum()) - own) * rank**2 / (count * (count - 1))

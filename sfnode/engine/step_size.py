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
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sfnode.engine import forward
from sfnode.engine.estimator import estimates
from sfnode.engine.subspace import Subspace
from sfnode.models.loader import LoadedModel
from sfnode.tasks.encoding import Encoded
from sfprotocol.seeds import coordinates

SHARE = 1 / 6
"""Share of the best rate for one update that is taken: what it gains is taken back by noise once there is
less to gain, and later places are steeper (docs/research-log.md)."""

LEAST_SIGNAL, MOST_SIGNAL = 0.02, 0.025
"""Bounds on the signal, less its standard error, the upper one for each row of a mini-batch: of 64 updates it
is known to 0.1, and where it is large it does not stay so (on the built-in reviews it is 0.95 at first).
With 8 rows of answers in words along bases from errors it is 0.12 to 0.21 (docs/research-log.md)."""

UNTOLD = 0.5
"""Standard error of a signal from which on the upper bound is taken: with 64 updates, rank 1 and 24 layers it
is 0.1, with rank 8 it is 0.9."""

MANY_ROWS = 8
"""Rows beyond which no larger signal is believed in."""

CAUTIOUS_SIGNAL = 0.045
"""Signal that is taken where not even a bend is evident."""

EVIDENCE = 1.0
"""Standard errors by which E[h] has to differ from 0."""

CAUTION = 2.0
"""Standard errors that are added to a bend that is not evident. The rate is then 0.3 to 1.8 times that of a
sweep or a line search, with random bases and activations on three tasks (docs/research-log.md)."""


def three_points(
    loaded: LoadedModel, space: Subspace, seeds: Sequence[int], batches: Sequence[Encoded], epsilon: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return slopes and bends (n,) of mini-batches' losses along the first subspace's directions of these
    seeds."""
    slopes, bends = [], []
    found = estimates(loaded, space.directions(seeds, 0), batches, epsilon)
    for estimate, batch in zip(found, batches, strict=True):
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
) -> float | None:
    """Return the rate of one update that slopes and bends (n,) of mini-batches of so many rows along the
    directions of these seeds say of a subspace of this many layers and this rank; None if they say none."""
    count = len(slopes)
    if count < 2 or not (np.isfinite(slopes).all() and np.isfinite(bends).all() and slopes.any()):
        return None
    bend, error = _bend(bends)
    if not bend > EVIDENCE * error:
        return None
    signal = _noiseless_square(seeds, slopes, shape) / float((slopes**2).mean())
    error = math.sqrt(2 * shape[0]) * shape[1] / count
    most = MOST_SIGNAL * min(rows, MANY_ROWS)
    taken = min(max(signal - error, LEAST_SIGNAL), most) if error < UNTOLD else most
    return SHARE * taken / bend


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

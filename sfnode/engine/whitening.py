"""Coordinates in which gradients teach in few steps, and a head's gradient in them.

Outputs move by U A V^T x for a state x, U the identity. With V V^T = (S + strength)^-1, S the second
moments of scaled states, those of V^T x are at most 1, and a softmax's curvature is at most a half. So one
rate serves all models and data, and no direction waits for another. Directions in which states vary less than
`strength` learn less, as in a ridge regression; validation rows choose it, as they choose when to stop. S is
not centred: the mean state is a direction like others then, and what is learnt along it is a bias.

The body's bases span what its gradients say; within them its columns are mixed so that gradients of
mini-batches vary alike along all (`turned`).

This module knows states, classes, outputs and gradients; it knows neither models, updates nor files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

MOST_RATE = 2.0
"""Rate of a round's mean gradient at most. The largest curvature is a half, so steps above 4 may diverge, and
above 2 where a gradient is one round late."""

STRENGTHS = (10.0, 3.0, 1.0)
"""Strengths that are tried, where features have a variance of 1. Runs at 30 were longer and learnt no more.
What less than 1 gains on validation rows is lost many times over on rows unlike them
(docs/research-log.md)."""

ROUNDS = 64
"""Rounds within which the least loss is looked for."""

LEAST_SPREAD = 1e-3
"""Least spread of a feature that it is scaled by, relative to the median: what hardly varies says nothing."""

DAMPING = 1e-2
"""Share of a feature's second moment that is taken for noise when errors of rounding are fed forward, so that
it can be done where there are fewer rows than features."""

DULL = 0.03
"""Share of the mean square of all cells' gradients that is added to it in every direction of the body: where
gradients say nothing a step would otherwise go furthest. 0.3 learns less, and 0.1 a little."""

LARGEST_ENTRY = 127

BLOCK = 1 << 22
"""Numbers of projected states at a time, 32 MiB."""

F64 = NDArray[np.float64]
I8 = NDArray[np.int8]


class Known(NamedTuple):
    """Rows of which a frozen model's states are known."""

    states: Tensor
    """(rows, features)."""
    labels: Tensor
    """(rows,) int64."""
    outputs: Tensor
    """The head's outputs before it is trained, (rows, classes)."""


def whitening(public: Known, validating: Known, columns: int) -> tuple[I8, float]:
    """Return the coordinates V (features, columns), at most so many columns, in which the public rows teach
    the validating rows most within ROUNDS rounds, and the value of an entry of 1, a power of two. Less
    strength has to gain more than one standard error: on AG News a gain of less than that cost as much on the
    test rows. Takes some features^3 operations."""
    x = public.states.double().cpu()
    spread = x.std(0, correction=0)
    spread = spread.clamp_min(max(LEAST_SPREAD * float(spread.median()), torch.finfo(torch.float32).tiny))
    sizes, directions = torch.linalg.eigh((x / spread).T @ (x / spread) / len(x))
    sizes, directions = sizes.flip(0)[:columns].clamp_min(0), directions.flip(1)[:, :columns]
    v = directions / spread[:, None]  # (features, columns)
    best: Tensor | None = None
    chosen: Tensor | None = None
    for strength in STRENGTHS:
        whitened = v / (sizes + strength).sqrt()
        losses = min(_losses(public, validating, whitened), key=lambda one: float(one.mean()))
        gain = None if best is None else best - losses
        if gain is None or gain.mean() > gain.std(correction=0) / math.sqrt(len(gain)):
            best, chosen = losses, whitened
    assert chosen is not None
    return _rounded(chosen.numpy(), (x.T @ x / len(x)).numpy())


def turned(gradients: F64) -> tuple[F64, F64]:
    """Return by which matrices the columns of U and of V of each target are multiplied from the right so that
    gradients vary alike along all of them: (targets, rows, rows) and (targets, columns, columns), of root
    mean square size 1. `gradients`: those of some mini-batches, (n, targets, rows, columns).

    A step along a gradient is then one that has been divided by the root of its second moments, within
    a target by those of its rows and of its columns (Gupta, Koren, Singer 2018, "Shampoo").
    """
    mean_square = float((gradients**2).mean())
    sides: list[F64] = []
    for side in (gradients, gradients.swapaxes(2, 3)):
        moments = np.einsum("nlij,nlkj->lik", side, side) / (len(side) * side.shape[3])
        sizes, directions = np.linalg.eigh(moments)
        powers = (sizes.clip(0) + DULL * mean_square) ** -0.25
        found = (directions * powers[:, None, :]) @ directions.swapaxes(1, 2)
        sides.append(found * math.sqrt(found.shape[1] * len(found) / float((found**2).sum())))
    return sides[0], sides[1]


def rate_of(classes: int) -> float:
    """Return the rate of a round's mean gradient: half of what is stable with gradients a round late, where
    all classes are as likely and the curvature is 1 / classes."""
    return min(classes / 2, MOST_RATE)


def head_gradient(rows: Known, u: Tensor, v: Tensor, longest: float = math.inf) -> tuple[F64, float]:
    """Return the mean of the rows' gradients by all cells of A, (columns of u, columns of v), and their mean
    loss, at `rows.outputs`; a row's gradient longer than `longest` is cut to this length.

    A row's gradient is an outer product, so its length is known without it.
    """
    lacking = rows.outputs.double().softmax(1) - one_hot(rows.labels, rows.outputs.shape[1])
    along = lacking @ u.double()  # (rows, columns of u)
    total = torch.zeros(u.shape[1], v.shape[1], dtype=torch.float64, device=v.device)
    size = max(1, BLOCK // v.shape[1])
    for first in range(0, len(along), size):
        some = along[first : first + size]
        projected = rows.states[first : first + size].double() @ v.double()  # (some, columns of v)
        lengths = some.norm(dim=1) * projected.norm(dim=1)
        total += (some * (longest / lengths).clamp_max(1.0)[:, None]).T @ projected
    loss = cross_entropy(rows.outputs.double(), rows.labels)
    return (total / len(along)).numpy(force=True), float(loss)


def _losses(public: Known, validating: Known, v: Tensor) -> Iterator[Tensor]:
    """Yield the losses of the validating rows after 0 to ROUNDS steps along the public rows' gradients."""
    (x, outputs), (held, held_outputs) = (
        (rows.states.double().cpu() @ v, rows.outputs.double().cpu()) for rows in (public, validating)
    )
    classes = outputs.shape[1]
    rate = rate_of(classes)
    right = one_hot(public.labels.cpu(), classes)
    core = torch.zeros(classes, v.shape[1], dtype=torch.float64)
    for _ in range(ROUNDS + 1):
        yield cross_entropy(held_outputs + held @ core.T, validating.labels.cpu(), reduction="none")
        core -= rate * ((outputs + x @ core.T).softmax(1) - right).T @ x / len(x)


def _rounded(v: F64, moments: F64) -> tuple[I8, float]:
    """Return V (features, columns) as int8, and the value of an entry of 1.

    Features are rounded one by one, and what products with states of these second moments (features,
    features) have lost is made good by those that follow (Frantar et al. 2022, "GPTQ", whose rule it is).
    Without that errors add up along the mean state, and training diverges.
    """
    unit = 2.0 ** math.ceil(math.log2(max(np.abs(v).max(), 1e-30) / LARGEST_ENTRY))
    order = np.argsort(np.diag(moments), kind="stable")  # the largest are rounded first
    damped = moments + DAMPING * np.diag(np.diag(moments))
    triangle = np.linalg.cholesky(damped[np.ix_(order, order)]).T
    entries, lost = np.empty(v.shape, np.int8), v[order] / unit
    for row in reversed(range(len(v))):
        wanted = lost[row] + triangle[row, row + 1 :] @ lost[row + 1 :] / triangle[row, row]
        entries[order[row]] = rounded = np.rint(wanted).clip(-LARGEST_ENTRY, LARGEST_ENTRY)
        lost[row] -= rounded
    return entries, unit

"""Slopes of mini-batches' losses along directions, computed from losses at a few points. A quantised slope is
the scalar of an update.

Losses become slopes in one of two ways (SPEC U2):

    pairs    each mini-batch is measured at both sides of the weights along its own direction, so an update
             takes two points (Malladi et al. 2023, definition 1)
    groups   m directions share a mini-batch, which is measured at one side of each direction; a slope follows
             from the difference between a loss and the mean of the other losses (a leave-one-out baseline,
             as in AIM-ZO), so an update takes one point

All points of a step are measured as rows of one batch. Slopes are quantised to the integers that peers
exchange. This module writes no matrix, and knows neither cores nor the origin of batches.

A node may add local noise to its slopes before anybody sees them (Gaussian mechanism). A slope is clipped to
[-clip, clip], so no row of a mini-batch can change it by more than 2 clip, whatever the row contains and
however often it was drawn. The noise is normal, with a standard deviation of `multiplier` times 2 clip. In a
first-order run each row's gradient is scaled down to the norm `clip` if it is longer, and no row is drawn
twice. `sfnode.node.accounting` computes the differential privacy as (epsilon, delta). Rounding, and the
manifest's limit on scalars, are applied afterwards and do not reduce the protection. The noise comes from the
operating system's generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import SystemRandom
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfnode.engine import forward
from sfnode.engine.forward import Batch
from sfnode.models.loader import LoadedModel
from sfnode.models.perturbation import Directions, Perturbation
from sfnode.models.targets import Form
from sfnode.tasks.encoding import Encoded


class Estimate(NamedTuple):
    """Measurement along one direction (a query), in units of the task's loss."""

    alpha: float
    """Slope along the direction: (L+ - L-) / (2 eps), or in a group (L - mean of the group's other losses) /
    eps."""
    loss: float
    """Mean of L+ and L-, which differs from the unperturbed loss by a term of order eps squared. In a group:
    the mean of all the group's losses."""

    @property
    def failed(self) -> bool:
        """Whether the slope or the loss is not finite."""
        return not (math.isfinite(self.alpha) and math.isfinite(self.loss))


class Points(NamedTuple):
    """The mini-batches of q queries as one batch. The batch contains their S sequences once for each side of
    the weights: first all sequences at the first side, then, for pairs, all sequences at the second."""

    batch: Batch
    queries: NDArray[np.int64]
    """(sides * S,), the number of each sequence's query."""
    signs: NDArray[np.int64]
    """(sides * S,), +1 or -1: the side at which each sequence is measured."""

    @property
    def points(self) -> NDArray[np.int64]:
        """(sides * S,), the number of each sequence's point. A point is one side of one query."""
        return self.queries + (self.signs < 0) * (int(self.queries.max()) + 1)


BOTH_SIDES, ONE_SIDE = (1, -1), (1,)
"""Signs of the perturbations at which losses are measured: both for pairs, one for groups."""


Perturb = Callable[[NDArray[np.int64], NDArray[np.floating], forward.Pass], Perturbation]
"""Function that returns the perturbation of a pass, given the query of each row (R,), the amount along that
query's direction (R,) and the pass."""


def estimates(
    loaded: LoadedModel, directions: Directions, batches: Sequence[Encoded], epsilon: float, group: int = 0
) -> list[Estimate]:
    """Estimate the derivative of each mini-batch's mean loss along the direction with the same index. If
    `group` is 0, pairs are used; otherwise groups of `group` updates that share a mini-batch."""
    exact = representable(epsilon, directions)
    losses = losses_along(loaded, directions, batches, epsilon, ONE_SIDE if group else BOTH_SIDES)
    return of_groups(losses, group, exact) if group else of_pairs(losses, exact)


def losses_along(
    loaded: LoadedModel,
    directions: Directions,
    batches: Sequence[Encoded],
    epsilon: float,
    sides: Sequence[int] = BOTH_SIDES,
) -> list[Tensor]:
    """Return the losses of each mini-batch's rows, (B,) float64, with the weights moved by epsilon along the
    mini-batch's direction. The list has all mini-batches at the first side, then all at the second."""
    with torch.inference_mode():
        measured, along = points(batches, sides), along_queries(directions)
        log_probs = _log_probs(loaded, directions, measured, representable(epsilon, directions), along)
    everywhere = [*batches] * len(sides)
    parts = torch.split(log_probs.cpu(), [len(batch.targets) for batch in everywhere])  # the one sync
    return [batch.losses(part).double() for batch, part in zip(everywhere, parts, strict=True)]


def representable(epsilon: float, directions: Directions) -> float:
    """Return epsilon rounded to the directions' number format. Perturbations have this rounded size, so
    slopes must be divided by it."""
    return float(torch.tensor(epsilon, dtype=directions.u[0].dtype))


def of_pairs(losses: Sequence[Tensor], epsilon: float) -> list[Estimate]:
    """Return the estimate of each query. `losses` are tensors (B,) float64: one for each query at +epsilon,
    then one for each query at -epsilon.

    Losses are subtracted row by row, before the mean is taken, because their differences are much smaller
    than the losses themselves.
    """
    half = len(losses) // 2
    return [
        Estimate(float((plus - minus).mean()) / (2 * epsilon), float((plus + minus).mean()) / 2)
        for plus, minus in zip(losses[:half], losses[half:], strict=True)
    ]


def of_groups(losses: Sequence[Tensor], group: int, epsilon: float) -> list[Estimate]:
    """Return the estimate of each query. `losses` are tensors (B,) float64, one for each query. Every `group`
    consecutive queries share a mini-batch.

    Losses are subtracted row by row, as in pairs. If a loss is not finite, no estimate of its group is
    finite.
    """
    found = []
    for start in range(0, len(losses), group):
        rows = torch.stack(list(losses[start : start + group]))  # (group, B)
        others = (rows.sum(0) - rows) / (group - 1)
        slopes = ((rows - others).mean(1) / epsilon).tolist()
        found += [Estimate(slope, float(rows.mean())) for slope in slopes]
    return found


def quantise(alpha: float, delta: float, limit: int) -> int:
    """Return `clip(round(alpha / delta), -limit, limit)`, halves to even.

    An alpha that is not finite becomes 0. A second measurement would fail too, because the seed determines
    both direction and mini-batch. An update of 0 changes nothing, and leaves no gap in the feed.
    """
    if not math.isfinite(alpha):
        return 0
    return round(min(max(alpha / delta, -limit), limit))


def points(batches: Sequence[Encoded], sides: Sequence[int] = BOTH_SIDES) -> Points:
    """Return the sequences of all mini-batches in order, once for each side, padded on the right to the
    longest sequence."""
    count = len(sides)
    sizes = [len(batch.input_ids) for batch in batches]
    firsts = np.cumsum([0, *sizes])
    parts = [forward.batch_of(batch) for batch in batches]
    width = max(batch.input_ids.shape[1] for batch in batches)
    sequences = np.concatenate([part.sequences + first for part, first in zip(parts, firsts, strict=False)])
    padded = ([np.pad(one, ((0, 0), (0, width - one.shape[1]))) for one in part[:3]] for part in parts)
    ids, masks, types = (np.tile(np.concatenate(of_all), (count, 1)) for of_all in zip(*padded, strict=True))
    repeated = Batch(
        ids,
        masks,
        types,
        np.concatenate([sequences + side * firsts[-1] for side in range(count)]),
        np.tile(np.concatenate([part.columns for part in parts]), count),
        np.tile(np.concatenate([part.targets for part in parts]), count),
    )
    signs = np.repeat(np.array(sides), firsts[-1])
    return Points(repeated, np.tile(np.repeat(np.arange(len(sizes)), sizes), count), signs)


def _log_probs(
    loaded: LoadedModel, directions: Directions, measured: Points, epsilon: float, perturb: Perturb
) -> Tensor:
    """Return the log-probability of every target at all points, (sides * P,) float32, on the model's
    device."""
    found, numbers = [], []
    with moving_vectors(loaded, directions) as move_vectors:
        for members, begun in _families(
            loaded, measured, epsilon, perturb, in_turns=move_vectors is not None
        ):
            first = begun.tokens if begun else 0
            for sequences in forward.passes(loaded, measured.batch, members, first):
                targets = np.flatnonzero(np.isin(measured.batch.sequences, sequences))
                this = forward.take(loaded, measured.batch, sequences, targets)
                signs = measured.signs[sequences] * epsilon
                if move_vectors is not None:
                    move_vectors(int(measured.queries[sequences[0]]), float(signs[0]))
                perturbation = perturb(measured.queries[sequences], signs, this.behind(first))
                cache = begun.cache(measured.points[sequences]) if begun else None
                found.append(forward.log_probs(loaded, this, perturbation, first, cache))
                numbers.append(targets)
    together = torch.cat(found)
    order = torch.from_numpy(np.argsort(np.concatenate(numbers)))
    return together[order.to(together.device, non_blocking=True)]


def _families(
    loaded: LoadedModel, measured: Points, epsilon: float, perturb: Perturb, *, in_turns: bool
) -> Iterator[tuple[NDArray[np.int64], forward.Begun | None]]:
    """Yield all sequences in families, whose members have the same first tokens, such as the prompt of
    several answers. With each family yield the keys and values of these tokens, computed once at every point,
    or None if computing them separately does not pay. With `in_turns` yield the sequences of one point after
    those of another, each time with None."""
    every = np.arange(len(measured.points))
    if in_turns:
        for one in np.unique(measured.points):
            yield np.flatnonzero(measured.points == one), None
        return
    begun = _begun(loaded, measured, every, epsilon, perturb)
    for members in forward.families(loaded, measured.batch, begun.tokens if begun else 0):
        yield members, _begun(loaded, measured, members, epsilon, perturb, begun) or begun


def _begun(
    loaded: LoadedModel,
    measured: Points,
    members: NDArray[np.int64],
    epsilon: float,
    perturb: Perturb,
    before: forward.Begun | None = None,
) -> forward.Begun | None:
    """Return the keys and values of the first tokens that these sequences have in common, at each of their
    points; None if computing them separately does not pay. Tokens in `before` are not computed again."""
    tokens = forward.shared(loaded, measured.batch, members)
    points, firsts = np.unique(measured.points[members], return_index=True)
    if not forward.may_begin(loaded, tokens, len(points), len(members), before.tokens if before else 0):
        return None
    firsts = members[firsts]  # one sequence at each point
    queries, amounts = measured.queries[firsts], measured.signs[firsts] * epsilon
    beginning = measured.batch.input_ids[firsts[0], :tokens]
    return forward.begin(loaded, beginning, points, lambda this: perturb(queries, amounts, this), before)


def along_queries(directions: Directions) -> Perturb:
    """Return a function that perturbs each row of a pass along its query's direction by the row's amount.

    The function uses only the directions of queries that have rows in the pass. A product with the directions
    of all q queries would cost every row q times as much as a product with its own direction.
    """

    def perturb(
        queries: NDArray[np.int64], amounts: NDArray[np.floating], this: forward.Pass
    ) -> Perturbation:
        present, columns = np.unique(queries, return_inverse=True)
        chosen = _of_queries(directions, present)
        by = np.zeros((len(queries), chosen.live + chosen.queries))
        by[:, : chosen.live] = 1.0
        by[np.arange(len(queries)), chosen.live + columns] = amounts
        like = chosen.u[0]
        # From pageable memory the copy is taken at once, and without `non_blocking` every pass would wait.
        sequences = torch.from_numpy(by).to(like.device, like.dtype, non_blocking=True)  # (R, k)
        tokens = sequences.repeat_interleave(this.input_ids.shape[1], 0)  # (R * W, k)
        return Perturbation(chosen, tokens, sequences, sequences[this.rows])

    return perturb


def standing(directions: Directions) -> forward.Perturb:
    """Return a function that perturbs all rows of a pass alike, by the live core alone: the part of the core
    that is not in the weights yet."""
    live = _of_queries(directions, np.zeros(0, np.int64))
    return lambda this: forward.everywhere(live, this)


def _of_queries(every: Directions, queries: NDArray[np.int64]) -> Directions:
    """Return the directions of the live core and of these queries."""
    if len(queries) == every.queries:
        return every
    kept = torch.from_numpy(np.concatenate([np.arange(every.live), every.live + queries]))
    kept = kept.to(every.u[0].device, non_blocking=True)
    return Directions(tuple(u[kept] for u in every.u), tuple(v[:, kept] for v in every.v), every.live)


@contextmanager
def moving_vectors(
    loaded: LoadedModel, directions: Directions
) -> Iterator[Callable[[int, float], None] | None]:
    """Yield a function that takes a query and an amount. It sets each target that is a vector to its weights
    plus that amount along the query's direction. Yields None if no target is a vector. Restores the vectors
    at the end.

    Vectors have no input to project, so they are changed in place, and each point takes a pass of its own.
    They are restored from exact copies, which are small.
    """
    sites = [(k, site) for k, site in enumerate(loaded.sites) if site.form is Form.VECTOR]
    own = slice(directions.live, None)  # vectors have no live core
    # in their own precision: half precision holds entries of published bases exactly, but not products
    parts = [
        (p, p.clone(), directions.u[k][own].to(p.dtype), directions.v[k][:, own].to(p.dtype))
        for k, site in sites
        for p in [getattr(site.module, site.parameter).data]
    ]

    def move(query: int, by: float) -> None:
        for parameter, kept, u, v in parts:
            torch.add(kept, u[query] * v[0, query], alpha=by, out=parameter)  # (n,)

    try:
        yield move if parts else None
    finally:
        for parameter, kept, _, _ in parts:
            parameter.copy_(kept)


@dataclass(slots=True)
class LocalNoise:
    """Function that clips a node's slopes and adds noise to them."""

    multiplier: float
    """Standard deviation of the noise, in units of the largest change that one row can cause."""
    clip: float
    draw: Callable[[float, float], float] = field(default=SystemRandom().normalvariate, repr=False)
    """Function that draws a normal number, given mean and standard deviation. It must be thread-safe, because
    replicas call it from several threads; `random.gauss` may give two threads the same number."""

    def __call__(self, alpha: float) -> float:
        """Return a slope as it may be sent: clipped, with noise. A failed measurement counts as 0, because a
        visible failure could reveal the row that caused it."""
        clipped = min(max(alpha, -self.clip), self.clip) if math.isfinite(alpha) else 0.0
        return clipped + self.draw(0.0, 2 * self.clip * self.multiplier)

    def of_gradient(self, cells: NDArray[np.float64], rows: int) -> NDArray[np.float64]:
        """Return the mean gradient of `rows` rows as it may be sent: with noise. Each row was drawn once, and
        the norm of its gradient is `clip` at most, so replacing one row changes the mean by 2 clip / rows at
        most."""
        deviation = 2 * self.clip * self.multiplier / rows
        told: NDArray[np.float64] = cells + [self.draw(0.0, deviation) for _ in cells]
        return told

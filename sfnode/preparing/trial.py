"""A trial before a run starts. It finds the epsilons, the unit of scalars and the first rate that suit its
model.

Everything is measured on the base model, on any public rows of the run, within a limit of example-forwards.
No measured update enters the run:

    epsilon        Slopes of some rows are measured along a few directions at several distances, each an
                   eighth of the one before. Slopes at two neighbouring distances differ by two errors: the
                   truncation error at the larger distance, which falls with the distance's square, and the
                   rounding error at the smaller distance, which grows as the distance falls. So slopes are
                   exact at the distances between which they differ least. The cost of truncation at a
                   distance is measured. The cost of rounding follows from the spacing of a format's numbers
                   at the losses. For each format the largest distance is taken at which the two costs
                   together are hardly more than at the best distance.
    scalar_delta   A power of two, in units of which the slopes' root mean square is about UNITS.
    rate           The rate for one update, which follows from the slopes and bends (second derivatives) of
                   updates (`suitable_rate`). In an open run, where nobody corrects it later, OPEN_SHARE of
                   that rate is taken. In an organised run searches correct it, so a few updates are enough. A
                   line search along the sum of 128 updates is no alternative: it measures only the beginning
                   of training, and found rates up to ten times too large.

The rate: along the direction d of a seed a mini-batch's loss is L0 + m alpha + m^2 h / 2, and an update goes
to m = -rate alpha. With g the gradient of the loss on all data, an update lowers that loss by rate E[(g d)^2]
- rate^2 E[alpha^2] E[h] / 2. So the best rate for one update is the signal E[(g d)^2] / E[alpha^2], the share
of an update that is not noise, divided by the bend E[h]. The bend can be measured in a subspace of few
dimensions, as with bases of gradients, but not in a subspace of thousands of dimensions, as with random
bases.

A run that trains a linear head needs no trial: its hyperparameters follow from the states of some rows, which
show the size of its features. In units in which each feature has a spread of 1, the same hyperparameters suit
every model and task (docs/research-log.md, on a linear head).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sfnode.engine.estimator import losses_along, representable
from sfnode.engine.trainer import Trainer
from sfnode.errors import Code, UserError
from sfnode.manifest.training import LEAST_EPSILON, PUBLISHED_UNIT, Training, features_text
from sfnode.models.loader import FLOATS
from sfnode.preparing import scalars
from sfnode.preparing.scalars import F64, Advance, SlopeSample, Suited
from sfnode.tasks import dataset
from sfnode.tasks.encoding import Encoded
from sfprotocol.decisions import RATE_ONE
from sfprotocol.seeds import BIAS, MOST_ENTRY, coordinates

LARGEST, DISTANCES, FINER = 1 / 32, 4, 8.0
"""Distances that are tried: the largest in units of a typical weight, their number, and the factor between
them. They go from 1/32 of a weight, about 1e-3, down to 1/16,384, where float32 shows mostly rounding."""

ROWS = 16
"""Number of rows whose slopes are compared at every distance. The slope of a row is along the direction of
its mini-batch."""

ROUNDINGS = 2.0
"""Rounding error of the difference of a row's losses at two points, as a multiple of the loss times the
format's epsilon; at most 2.5 in half precision (tests/engine/test_precision.py). It is not estimated from the
slopes at the smallest distances: on a real model these still differ by truncation, so the estimate would be
far too large for other formats."""

STEPS = 4
"""Number of distances from which is chosen, for each distance that is tried. Costs between tried distances
are interpolated."""

ENOUGH = 0.02
"""Maximum excess of a distance's cost over the least cost. The cost is the number of additional updates that
errors of slopes make necessary, as a share of all updates. The largest distance within this limit is taken:
the second derivative is measured best there, and other formats may have the same distance."""

MOST_LOST, LEAST_COSINE = 0.5, 0.1
"""Maximum share of slopes that are 0 at a usable distance; and minimum cosine of usable slopes with exact
ones."""

OPEN_SHARE = 1 / 4
"""Share of the right first rate with which an open run starts, because the beginning of training is often
easy. On the built-in reviews the first search asks for 2e-3, and the best constant rate is 5e-4."""

SHARE = 1 / 6
"""Share of the best rate for one update that is taken as the first rate. Later in training there is less to
gain, so noise would undo gains, and the loss is steeper (docs/research-log.md)."""

LEAST_SIGNAL, MOST_SIGNAL = 0.02, 0.025
"""Minimum and maximum of the signal (the share of an update that is not noise) minus its standard error. The
maximum is multiplied by the number of rows of a mini-batch. With 64 updates the signal is known to within
0.1. A large signal does not stay large: on the built-in reviews it is 0.95 at first. With 8 rows of answers
in words along bases from errors it is 0.12 to 0.21 (docs/research-log.md)."""

UNTOLD = 0.5
"""Minimum standard error of a signal (the share of an update that is not noise) at which MOST_SIGNAL is used
instead of the signal. With 64 updates and 24 layers the error is 0.1 at rank 1, and 0.9 at rank 8."""

MANY_ROWS = 8
"""Number of rows of a mini-batch up to which the maximum of the signal grows with that number."""

CAUTIOUS_SIGNAL = 0.045
"""Signal (share of an update that is not noise) that is assumed if not even the second derivative is
evident."""

EVIDENCE = 1.0
"""Minimum of the mean second derivative E[h], in standard errors, at which this derivative is taken to be
evident."""

CAUTION = 2.0
"""Number of standard errors that are added to a mean second derivative that is not evident. The rate is then
0.3 to 1.8 times the rate that a sweep or a line search finds, with random bases and activations on three
tasks (docs/research-log.md)."""


def run(
    trainer: Trainer,
    *,
    keep_epsilon: bool = False,
    forwards: int = scalars.FORWARDS,
    advance: Advance = lambda done, total: None,
) -> Suited:
    """Return the epsilons, scalar_delta and first rate that suit a run's base model, and the slopes from
    which they follow. `trainer` is one of `scalars.any_trainer`.

    With `keep_epsilon` no epsilon is chosen, and slopes are measured with the run's own epsilon. Raises
    UserError as `scalars.measure`.
    """
    manifest, weight = trainer.manifest, scalars.typical_weight(trainer.loaded)
    numbers, distances = manifest.training, distances_of(weight)
    told, loss, taken = _slopes_of_rows(trainer, distances, lambda done: advance(done, forwards))
    found = {
        name: suitable_epsilon(distances, told, ROUNDINGS * torch.finfo(dtype).eps * loss)
        for name, dtype in FLOATS.items()
    }
    used, left = trainer.epsilon if keep_epsilon else found[trainer.dtype], forwards - taken
    seeds, alphas, bends, more = scalars.three_points(
        trainer, used, left, lambda done, total: advance(taken + left * done // total, forwards)
    )
    slopes = scalars.as_scalars(numbers, alphas, bends, used)
    sample = SlopeSample(slopes, weight, example_forwards=taken + more)
    shape = len(manifest.model.targets), numbers.rank
    rate = suitable_rate(np.array(seeds, np.uint64), alphas, bends, shape, numbers.batch_size)
    rate = (rate or cautious_rate(bends)) * (1.0 if manifest.organised.organiser else OPEN_SHARE)
    chosen = {"epsilon": found.pop("float32")} | ({} if keep_epsilon else {"epsilons": found})
    delta = suitable_delta(numbers, sample.spread)
    return chosen | {"scalar_delta": delta, "learning_rate": as_rate(rate)}, sample


def suitable_delta(training: Training, spread: float) -> float:
    """Return the run's own scalar_delta if slopes of this root mean square, divided by it, are between a
    quarter of UNITS and four times UNITS; otherwise the result of `unit_for`."""
    units = min(scalars.UNITS, training.largest_scalar / scalars.HEADROOM)
    near = units / 4 <= spread / training.scalar_delta <= 4 * units
    return training.scalar_delta if near else scalars.unit_for(training, spread)


def _slopes_of_rows(
    trainer: Trainer, distances: Sequence[float], advance: Callable[[int], None]
) -> tuple[list[F64], float, int]:
    """Return the slopes of ROWS rows at each distance (or of all rows of two mini-batches, if these have
    more), the size of their losses, and the example-forwards taken."""
    count = max(2, ROWS // trainer.manifest.training.batch_size)
    seeds = scalars.seeds_of(trainer, count)[:count]
    batches = [trainer.mini_batch(seed) for seed in seeds]
    each = 2 * sum(batch.examples for batch in batches)
    found, loss = slopes_at(trainer, seeds, batches, distances, lambda done: advance(done * each))
    return found, loss, len(distances) * each


def slopes_at(
    trainer: Trainer,
    seeds: Sequence[int],
    batches: Sequence[Encoded],
    distances: Sequence[float],
    advance: Callable[[int], None],
) -> tuple[list[F64], float]:
    """Return the slopes of all rows of these batches at each distance, and the size of their losses. A batch
    is evaluated along the direction of the seed with the same index. A slope that is not a number becomes
    0."""
    directions, slopes, middles = trainer.space.directions(seeds, 0), [], []
    exact = [representable(distance, directions) for distance in distances]
    for done, distance in enumerate(exact, 1):
        losses = torch.cat(losses_along(trainer.loaded, directions, batches, distance)).numpy()
        plus, minus = np.split(losses, 2)
        slopes.append((plus - minus) / (2 * distance))
        middles.append((plus + minus) / 2)
        advance(done)
    if trainer.manifest.training.group:  # compared at one side, where half of the bend is left
        rises = [(one - middles[-1]) / distance for one, distance in zip(middles, exact, strict=True)]
        slopes = [slope + rise - rise.mean() for slope, rise in zip(slopes, rises, strict=True)]
    return list(map(scalars.as_numbers, slopes)), float(np.abs(np.nan_to_num(middles[-1])).mean())


def distances_of(weight: float) -> list[float]:
    """Return the distances to try on a model with this typical weight, rounded to two digits, in descending
    order. None is below the smallest epsilon of a run."""
    tried = [float(f"{weight * LARGEST / FINER**n:.1e}") for n in range(DISTANCES)]
    return [min(max(distance, LEAST_EPSILON), 1.0) for distance in tried]


def suitable_epsilon(distances: Sequence[float], slopes: Sequence[F64], rounding: float) -> float:
    """Return the epsilon to take, in two digits.

    `slopes` (n,) are of the same rows along the same directions at descending distances. `rounding` is the
    error of the difference of a row's losses at two points in the format.
    """
    truncation, size = errors(slopes)
    ladder = np.geomspace(distances[0], distances[-1], STEPS * (len(distances) - 1) + 1)
    there = np.log(distances[::-1])
    cost = np.exp(np.interp(np.log(ladder), there, np.log(truncation[::-1])))
    cost += (rounding / (2 * ladder * size)) ** 2
    best = int(np.flatnonzero(cost <= cost.min() + ENOUGH)[0])
    return float(f"{ladder[best]:.1e}")


def errors(slopes: Sequence[F64]) -> tuple[F64, float]:
    """Return the variance that truncation adds to slopes at each descending distance, as a share of the
    slopes' own variance, (distances,); and the root mean square of exact slopes.

    An error that multiplies all slopes by the same factor does not count.
    """
    last = max([number for number, one in enumerate(slopes) if np.mean(one != 0) > MOST_LOST], default=0)
    seen = slopes[: max(last, 1) + 1]  # nearer points are the same in this format
    apart = [float(np.mean((a - b) ** 2) / (np.mean(b**2) or math.inf)) for a, b in pairwise(seen)]
    exact = int(np.argmin(apart)) + 1
    found = np.array([1 / max(_cosine(one, seen[exact]), LEAST_COSINE) ** 2 - 1 for one in slopes])
    for number in range(exact, len(slopes)):  # what is left is rounding: truncation falls with the square
        found[number] = found[number - 1] / FINER**4
    size = math.sqrt(float(np.mean(seen[exact] ** 2))) or math.inf
    return np.maximum(found, np.finfo(np.float64).tiny), size


def _cosine(one: F64, other: F64) -> float:
    sizes = math.sqrt(float(one @ one) * float(other @ other))
    return float(one @ other) / sizes if sizes else float(one is other)


def suitable_rate(
    seeds: NDArray[np.uint64], slopes: F64, bends: F64, shape: tuple[int, int], rows: int
) -> float | None:
    """Return the rate of one update, given slopes and bends (n,) of mini-batches of this many `rows`, along
    the directions of these seeds. `shape`: layers and rank of the subspace. None if no bend is evident."""
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


def cautious_rate(bends: F64) -> float:
    """Return a rate for finite bends (n,) where neither bend nor signal is evident. The bend is assumed to be
    CAUTION standard errors above its mean, and the signal to be CAUTIOUS_SIGNAL."""
    bend, error = _bend(bends)
    return SHARE * CAUTIOUS_SIGNAL / (abs(bend) + CAUTION * error or math.ulp(1.0))


def _bend(bends: F64) -> tuple[float, float]:
    """Return E[h] and its standard error."""
    return float(bends.mean()), float(bends.std(ddof=1)) / math.sqrt(len(bends))


def _noiseless_square(seeds: NDArray[np.uint64], slopes: F64, shape: tuple[int, int]) -> float:
    """Return an unbiased estimate of E[(g d)^2], from products of different updates, which share no noise."""
    (layers, rank), count = shape, len(slopes)
    row, column, sign = coordinates(seeds, layers, rank)
    total = np.zeros((layers, rank, rank))
    np.add.at(total, (np.arange(layers), row, column), sign * slopes[:, None])
    own = layers * float((slopes**2).sum())
    return (float((total**2).sum()) - own) * rank**2 / (count * (count - 1))


def as_rate(rate: float) -> float:
    """Return a rate in two digits, within the bounds of a manifest."""
    return min(max(float(f"{rate:.1e}"), 1 / RATE_ONE), 0.5)


HEAD_ROWS = 512
"""Number of rows whose states are measured. Means and spreads are then known to within a twentieth."""

HEAD_SLOPES = 256
"""Number of directions along which slopes are measured to set the limit of scalars. They need no further
forward pass."""

LEAST_SPREAD = 1e-6
"""Spread of a typical feature below which all rows are the same to the model."""

HEAD_SCALE = 24
"""Scale of a feature with a typical spread. A feature with five times that spread gets a scale of 5, and a
feature with a fifth of that spread a scale of 120."""

BIAS_FEATURES = 3
"""Size of the bias: the output along a direction for the mean row, as a multiple of the change of that output
if one feature changes by its spread. The bias raises the accuracy on reviews by 0.03."""

HEAD_RATE = 1e-4
"""Rate of a head's update, for features with a spread of 1. A larger rate that suits one node alone would be
unstable with the updates of hundreds of others under way."""

HEAD_DISTANCE = 5e-3
"""Epsilon of a head's run, for features with a spread of 1. Over this distance outputs change by an eighth of
a nat."""

HEAD_DELTA = 2.0**-9
"""Unit of a head's scalars, for features with a spread of 1. The largest slopes, of about 15, then take 13
bits."""

CHOSEN = ("basis", "features", "learning_rate", "epsilon", "scalar_delta")
"""Names of the hyperparameters that `of_head` chooses, unless they are given."""


def of_head(trainer: Trainer, given: Container[str], advance: Advance) -> Suited:
    """Return the hyperparameters of a run that trains a head, except the given ones, and slopes with them on
    HEAD_ROWS rows.

    Raises UserError as `forward.states`, and LOSS_FLAT if the model reads all these rows alike, or no
    direction has a slope.
    """
    loaded, manifest = trainer.loaded, trainer.manifest
    rows = dataset.select(list(trainer.run_rows.some()), HEAD_ROWS)
    states = scalars.head_rows(trainer, rows, lambda done: advance(done, len(rows))).states
    chosen = {name for name in CHOSEN if name not in given}
    found = _numbers(states.double().numpy(force=True)) if chosen else {}
    found = {name: value for name, value in found.items() if name in chosen}
    training = Training(**manifest.training.model_dump() | found)
    fit = Trainer(
        manifest.model_copy(update={"training": training}), loaded, rows, places=trainer.run_rows.places
    )
    measured = fit.estimate(scalars.seeds_of(fit, HEAD_SLOPES), 0, fit.epsilon)
    slopes = np.nan_to_num([one.alpha for one in measured])
    scalars.require_slopes(slopes)
    taken = loaded.kept.forwards if loaded.kept else 0
    return found, SlopeSample(slopes, scalars.typical_weight(loaded), example_forwards=taken)


def _numbers(states: F64) -> dict[str, Any]:
    """Return the hyperparameters of a head's run, keyed by name, from states (rows, features). Raises
    UserError LOSS_FLAT if the states of all rows are alike."""
    means, spreads = states.mean(0), states.std(0)
    typical = float(np.median(spreads))
    if typical < LEAST_SPREAD:
        raise UserError(
            Code.LOSS_FLAT,
            f"the base model reads {len(states)} rows as if all were the same: nothing could be learnt",
            "Take another base model (--model), or texts with words that it knows, and rows that differ.",
        )
    scales = np.clip(np.rint(HEAD_SCALE * typical / np.maximum(spreads, 1e-9)), 1, MOST_ENTRY)
    size = HEAD_SCALE * typical * PUBLISHED_UNIT  # of what a feature of spread 1 gives along a direction
    limit = np.iinfo(np.int16).max
    levels = np.clip(np.rint(means * BIAS / (BIAS_FEATURES * HEAD_SCALE * typical)), -limit, limit)
    return {
        "basis": "features",
        "features": features_text(np.stack([scales, levels], 1).astype(int).tolist()),
        "learning_rate": math.ceil(HEAD_RATE / size**2 * RATE_ONE) / RATE_ONE,
        "epsilon": HEAD_DISTANCE / size,
        "scalar_delta": HEAD_DELTA * 2.0 ** round(math.log2(size)),
    }

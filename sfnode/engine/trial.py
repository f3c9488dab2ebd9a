"""A trial before a run starts: the epsilon, the unit of scalars and the first rate that suit its model.

Everything is measured on the base model, on whatever public rows the run has, and nothing is kept:

    epsilon        slopes of the same directions on the same mini-batches, at distances each a quarter of the
                   one before. Two neighbours differ by the truncation at the larger one (it falls with the
                   square) and the rounding at the smaller one (it grows as the distance falls), so that where
                   they differ least slopes are exact. Taken is the largest distance at which they have
                   anything to do with those: it averages over what is rough, and suits half precision.
    scalar_delta   a power of two of which the slopes' root mean square is UNITS.
    rate           what slopes and bends of the updates say that one update can bear (`step_size`); in an open
                   run, where nobody corrects it later, OPEN_SHARE of it. A line search along the sum of 128
                   updates sizes what is learnt first instead: it found rates up to ten times too large.

This module prints nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfnode.engine import step_size
from sfnode.engine.pilot import (
    HEADROOM,
    SLOPES,
    Advance,
    Pilot,
    any_trainer,
    seeds_of,
    slopes_of,
    typical_weight,
)
from sfnode.engine.trainer import Trainer
from sfnode.manifest import Manifest
from sfnode.manifest.training import LEAST_EPSILON, Training
from sfprotocol.decisions import RATE_ONE

LARGEST, DISTANCES, FINER = 1 / 32, 5, 4.0
"""Distances that are tried, in units of a typical weight: from a thirty-second of it, about 1e-3, down to
1/8,192, where half precision is far beyond its rounding and float32 begins to be."""

ALIKE = 0.05
"""Cosine between slopes and exact ones below which they measure something else. It is small on purpose: a
slope over a larger distance averages over what is rough, and teaches more than an exact one. With gradient
bases slopes at 1e-3 are a quarter as large as exact ones, and like them to 0.38 (AG News) and 0.14 (SST-2);
runs there end 0.1 nats lower than at 1e-4 (docs/research-log.md)."""

DIRECTIONS = 12
"""Directions of each distance."""

UNITS = 32
"""Root mean square of the scalars in units of scalar_delta: rounding then adds less than a thousandth of
their variance. In 8 bits half as many. Between a quarter and four times that a unit stays as it is."""

OPEN_SHARE = 1 / 4
"""Share of the rate that is right at first with which an open run starts. What is learnt first is often easy:
on the built-in reviews the first search asks for 2e-3, and the best constant rate is 5e-4."""

FAR_OFF = 10.0
"""A number that was given by hand and is as many times too large or too small draws a warning."""


class Trial(NamedTuple):
    """The numbers that suit a run."""

    epsilon: float
    alike: float
    """Cosine between slopes at that epsilon and exact ones."""
    pilot: Pilot
    """Slopes at that epsilon, or at the run's own if it was given."""
    delta: float
    rate: float
    updates: int
    """Updates by which the rate was found."""
    seconds: float


def run(
    manifest: Manifest,
    *,
    keep_epsilon: bool = False,
    device: str = "cpu",
    dtype: str = "float32",
    bases: Path | None = None,
    advance: Advance = lambda done, total: None,
) -> Trial | str:
    """Load the run's base model and try it out; return why not if there are no rows, or no slopes.

    With `keep_epsilon` slopes and rate are measured with the run's own. Raises UserError as `pilot.measure`.
    """
    begun, total = time.monotonic(), DIRECTIONS * DISTANCES + SLOPES
    trainer, reason = any_trainer(manifest, device, dtype, bases)
    with trainer:
        if reason:
            return reason
        weight, numbers = typical_weight(trainer.loaded), manifest.training
        epsilon, alike = _epsilon(trainer, weight, lambda done: advance(done, total))
        used = numbers.epsilon if keep_epsilon else epsilon
        slopes, bends = _three_points(
            trainer, used, lambda done: advance(DIRECTIONS * DISTANCES + done, total)
        )
        if not slopes.any():
            return "the loss does not change along any direction"
        pilot = Pilot(_told(trainer, used, slopes), weight)
        delta = suitable_delta(numbers, pilot.spread)
        seeds = np.array(_seeds(trainer), np.uint64)
        size = step_size.suitable(seeds, slopes, bends, (len(manifest.model.targets), numbers.rank))
        rate = _first_rate(manifest, size.rate if size else step_size.cautious(bends))
        return Trial(epsilon, alike, pilot, delta, rate, SLOPES, time.monotonic() - begun)


def suitable_delta(training: Training, spread: float) -> float:
    """Return the run's own scalar_delta if it gives a quarter of UNITS to four times as many, or else the
    power of two that is nearest to them."""
    units = min(UNITS, training.largest_scalar / HEADROOM)
    if units / 4 <= spread / training.scalar_delta <= 4 * units:
        return training.scalar_delta
    return float(2.0 ** round(math.log2(spread / units)))


def _three_points(
    trainer: Trainer, distance: float, advance: Callable[[int], None]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return slopes and bends of the first SLOPES directions, each at both sides and on a mini-batch of its
    own, whatever a scalar of the run is; 0 for one that gave no number."""
    slopes, bends = [], []
    for seed in _seeds(trainer):
        batches = [trainer.mini_batch(seed)]
        slope, bend = step_size.three_points(trainer.loaded, trainer.space, 0, [seed], batches, distance)
        slopes.append(slope)
        bends.append(bend)
        advance(len(slopes))
    return _numbers(slopes), _numbers(bends)


def _told(trainer: Trainer, distance: float, slopes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return slopes as scalars tell them, of those by three points: in groups they are others."""
    if not trainer.manifest.training.group:
        return slopes
    return slopes_of(trainer, distance, SLOPES, lambda done: None)


def _seeds(trainer: Trainer) -> list[int]:
    return seeds_of(trainer, SLOPES)[:SLOPES]


def _numbers(parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.nan_to_num(np.concatenate(parts), nan=0.0, posinf=0.0, neginf=0.0)


def _epsilon(trainer: Trainer, weight: float, advance: Callable[[int], None]) -> tuple[float, float]:
    """Return the distance to take, in two digits, and how much slopes there are like exact ones."""
    distances, done = distances_of(weight), 0
    slopes = []
    for distance in distances:
        first = done
        slopes.append(slopes_of(trainer, distance, DIRECTIONS, lambda n, first=first: advance(first + n)))  # type: ignore[misc]
        done += DIRECTIONS
    return best_distance(distances, slopes)


def distances_of(weight: float) -> list[float]:
    """Return the distances to try on a model with such a typical weight, in two digits, descending; none is
    nearer than that of a run may be."""
    tried = [float(f"{weight * LARGEST / FINER**n:.1e}") for n in range(DISTANCES)]
    return [max(distance, LEAST_EPSILON) for distance in tried]


def best_distance(distances: Sequence[float], slopes: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    """Return the largest distance at which slopes are ALIKE to exact ones, and how much, from those of the
    same directions at descending distances."""
    errors = [float(np.mean((a - b) ** 2) / (np.mean(a**2) or math.inf)) for a, b in pairwise(slopes)]
    exact = slopes[int(np.argmin(errors))]
    likeness = [_cosine(one, exact) for one in slopes]
    best = next(place for place, alike in enumerate(likeness) if alike >= ALIKE)
    return distances[best], likeness[best]


def _cosine(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    sizes = math.sqrt(float(one @ one) * float(other @ other))
    return float(one @ other) / sizes if sizes else float(one is other)


def _first_rate(manifest: Manifest, rate: float) -> float:
    """Return the rate to start with in two digits, as a manifest can have it: in an open run OPEN_SHARE of
    the one that suits."""
    rate *= 1.0 if manifest.organised.organiser else OPEN_SHARE
    return min(max(float(f"{rate:.1e}"), 1 / RATE_ONE), 0.5)

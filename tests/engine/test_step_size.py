"""The rate that suits a subspace follows from slopes and bends alone."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from sfnode.engine import forward, step_size
from sfnode.engine.step_size import (
    CAUTIOUS_SIGNAL,
    LEAST_SIGNAL,
    MANY_ROWS,
    MOST_SIGNAL,
    SHARE,
    suitable,
)
from sfnode.engine.trainer import Trainer
from sfnode.models.loader import matrix
from sfnode.tasks.encoding import Encoded
from sfprotocol.seeds import coordinates, stream
from tests.engine.helpers import data_file, in_float64, manifest, trainer

LAYERS, RANK, ROWS = 12, 2, 4


def quadratic(count: int, noise: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Seeds, slopes and bends of a loss g . m + |m|^2 / 2 for entries m, and g (layers, rank, rank)."""
    seeds = stream(7, 0, count)
    row, column, sign = coordinates(seeds, LAYERS, RANK)
    draws = np.random.default_rng(3)
    gradient = draws.normal(size=(LAYERS, RANK, RANK))
    slopes = (sign * gradient[np.arange(LAYERS), row, column]).sum(1) + noise * draws.normal(size=count)
    return seeds, slopes, np.full(count, float(LAYERS)) + draws.normal(size=count), gradient


def test_the_signal_is_the_part_of_slopes_that_is_no_noise() -> None:
    seeds, slopes, bends, gradient = quadratic(65536, 15.0)
    rate = suitable(seeds, slopes, bends, (LAYERS, RANK), ROWS)
    assert rate
    expected = float((gradient**2).sum()) / RANK**2 / float((slopes**2).mean())
    assert LEAST_SIGNAL < rate * bends.mean() / SHARE < MOST_SIGNAL * ROWS
    assert rate * bends.mean() / SHARE == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(("noise", "bounded"), [(100.0, LEAST_SIGNAL), (0.0, MOST_SIGNAL * ROWS)])
def test_a_signal_out_of_bounds_is_not_believed(noise: float, bounded: float) -> None:
    seeds, slopes, bends, _ = quadratic(64, noise)
    found = suitable(seeds, slopes, bends, (LAYERS, RANK), ROWS)
    assert found
    assert found == pytest.approx(SHARE * bounded / bends.mean())


def test_a_signal_that_cannot_be_told_is_taken_for_the_largest() -> None:
    seeds, slopes, bends, _ = quadratic(64, 0.0)
    for rows in (1, ROWS, MANY_ROWS, 64):
        found = suitable(seeds, slopes, bends, (LAYERS, 8 * RANK), rows)
        assert found
        most = MOST_SIGNAL * min(rows, MANY_ROWS)
        assert found == pytest.approx(SHARE * most / bends.mean())


def test_a_loss_that_does_not_evidently_bend_has_no_rate() -> None:
    seeds, slopes, bends, _ = quadratic(64, 1.0)
    assert suitable(seeds, slopes, np.random.default_rng(1).normal(size=64), (LAYERS, RANK), ROWS) is None
    assert suitable(seeds, slopes, -bends, (LAYERS, RANK), ROWS) is None
    assert suitable(seeds, np.zeros(64), bends, (LAYERS, RANK), ROWS) is None, "nothing to divide by"
    bends[5] = math.nan
    assert suitable(seeds, slopes, bends, (LAYERS, RANK), ROWS) is None


def test_a_cautious_rate_suits_the_largest_bend_that_may_be_there_unseen() -> None:
    bends = np.random.default_rng(1).normal(size=64)
    largest = abs(bends.mean()) + 2 * bends.std(ddof=1) / math.sqrt(64)
    assert step_size.cautious(bends) == pytest.approx(SHARE * CAUTIOUS_SIGNAL / largest)


def test_bends_are_second_derivatives_along_the_directions_of_seeds(tmp_path: Path) -> None:
    """Compared with the losses at three places to which updates move the weights themselves."""
    with trainer(manifest("opt", rank=2), data_file(tmp_path)) as single, in_float64(single) as run:
        seeds = stream(9, 0, 3).tolist()
        rows = single.mini_batches.take(seeds)
        slopes, bends = step_size.three_points(run.loaded, run.space, seeds, rows, 1e-2)
        for number, (seed, batch) in enumerate(zip(seeds, rows, strict=True)):
            low, here, high = (moved(run, seed, batch, by) for by in (-1e-2, 0.0, 1e-2))
            assert slopes[number] == pytest.approx((high - low) / 2e-2, rel=0.02, abs=0.02)
            assert bends[number] == pytest.approx((high - 2 * here + low) / 1e-4, rel=0.05, abs=1.0)


def moved(run: Trainer, seed: int, batch: Encoded, by: float) -> float:
    """The loss where all targets are moved by `by` along a seed's direction, by writing the weights."""
    space, loaded = run.space, run.loaded
    directions = space.directions([seed], 0)
    pairs = [(u.clone(), v.clone()) for u, v in zip(directions.u, directions.v, strict=True)]
    kept = [matrix(site).clone() for site in loaded.sites]
    try:
        for site, (u, v) in zip(loaded.sites, pairs, strict=True):
            matrix(site).add_(by * u.t() @ v.t())
        return float(batch.losses(forward.score_in_passes(loaded, batch).log_probs).double().mean())
    finally:
        for site, weight in zip(loaded.sites, kept, strict=True):
            matrix(site).copy_(weight)

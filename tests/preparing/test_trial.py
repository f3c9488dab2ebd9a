"""A trial finds the distance at which slopes are most exact, a unit for scalars, and a first rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sfnode.engine import forward
from sfnode.engine.trainer import Trainer
from sfnode.manifest.training import Training
from sfnode.models.loader import matrix
from sfnode.preparing import scalars, trial
from sfnode.preparing.scalars import Suited, slopes_and_bends
from sfnode.preparing.trial import (
    CAUTIOUS_SIGNAL,
    LEAST_SIGNAL,
    MANY_ROWS,
    MOST_SIGNAL,
    SHARE,
    cautious_rate,
    distances_of,
    suitable_delta,
    suitable_epsilon,
    suitable_rate,
)
from sfnode.tasks.encoding import Encoded
from sfprotocol.seeds import coordinates, stream
from tests.engine.helpers import data_file, in_float64, manifest, trainer


def slopes(distance: float, truncation: float, rounding: float) -> NDArray[np.float64]:
    """Slopes of 64 directions with errors as they come of a third derivative and of rounding."""
    true, third, noise = np.random.default_rng(5).normal(size=(3, 64))
    noise = noise * np.random.default_rng(int(1e9 * distance)).choice([-1, 1], 64)
    return np.asarray(true + truncation * third * distance**2 + rounding * noise / distance)


@pytest.mark.parametrize(("truncation", "rounding"), [(10.0, 1e-8), (1e4, 1e-8), (10.0, 2e-7), (1e4, 2e-7)])
@pytest.mark.parametrize("spacing", [1.0, 2.0**8, 2.0**16])
def test_slopes_at_the_distance_that_is_found_cost_hardly_more_than_at_the_best_one(
    truncation: float, rounding: float, spacing: float
) -> None:
    """Also in formats in which nothing has been measured."""

    def cost(distance: float) -> float:
        found, true = slopes(distance, truncation, rounding * spacing), slopes(1.0, 0.0, 0.0)
        return float((found @ found) * (true @ true) / (found @ true) ** 2)

    distances = [2e-2 / trial.FINER**n for n in range(trial.DISTANCES)]
    measured = [slopes(one, truncation, rounding) for one in distances]
    best = suitable_epsilon(distances, measured, 2 * rounding * spacing)
    least = min(map(cost, np.geomspace(distances[0], distances[-1], 40)))
    assert cost(best) <= 1.4 * least + 0.1


def test_points_that_are_the_same_in_a_format_are_not_taken_for_exact() -> None:
    distances = [2e-2 / trial.FINER**n for n in range(4)]
    told = [slopes(one, 10.0, 1e-4) for one in distances[:2]] + [np.zeros(64)] * 2
    best = suitable_epsilon(distances, told, 2e-4)
    assert distances[0] >= best > distances[1]


@pytest.mark.parametrize("weight", [0.0, 1e-12, 1e-5, 0.03, 10.0])
def test_every_distance_that_is_tried_may_be_that_of_a_run(weight: float) -> None:
    tried = distances_of(weight)
    assert len(tried) == trial.DISTANCES
    assert tried == sorted(tried, reverse=True)
    assert [Training(epsilon=one).epsilon for one in tried] == tried


def test_a_unit_that_is_fine_stays_and_others_become_a_power_of_two() -> None:
    assert suitable_delta(Training(scalar_delta=0.01), 0.32) == 0.01
    assert suitable_delta(Training(scalar_delta=0.01), 100.0) == 4.0
    few = Training(scalar_delta=1.0, scalar_bits=8, scalar_limit=127)
    assert 100.0 / suitable_delta(few, 100.0) < 127 / 4


@pytest.fixture
def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Suited]:
    monkeypatch.setattr(scalars, "SLOPES", 8)
    file = data_file(tmp_path)
    file.write_text(file.read_text() + "".join(file.read_text().splitlines(True)[1:]) * 12)

    def run(learning_rate: float, **training: Any) -> Suited:
        with trainer(manifest("opt", learning_rate=learning_rate, **training), file) as measured:
            return trial.run(measured)

    return run


def test_the_rate_that_is_found_does_not_depend_on_the_one_it_begins_with(
    tried: Callable[..., Suited],
) -> None:
    (one, _), (other, _) = (tried(rate) for rate in (1e-5, 1e-1))
    assert 1 / 20 <= one["learning_rate"] / other["learning_rate"] <= 20
    assert 1 / 5 <= one["epsilon"] / other["epsilon"] <= 5  # distances are a factor of 4 apart
    halves = one["epsilons"]
    assert one["epsilon"] <= halves["float16"] <= halves["bfloat16"]


def test_a_run_with_groups_is_tried_out_with_the_scalars_that_it_will_have(
    tried: Callable[..., Suited],
) -> None:
    (_, pairs), (chosen, groups) = (tried(1e-3, group=m) for m in (0, 5))
    assert chosen["learning_rate"] > 0
    assert len(groups.slopes) == len(pairs.slopes) == 8
    assert 1 / 4 <= groups.spread / pairs.spread <= 4


def test_where_the_loss_does_not_evidently_bend_the_rate_is_a_cautious_one(
    tried: Callable[..., Suited], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "EVIDENCE", math.inf)
    found, _ = tried(1e-3, rank=1)
    monkeypatch.setattr(trial, "CAUTION", 200.0)
    slower, _ = tried(1e-3, rank=1)
    assert slower["learning_rate"] < found["learning_rate"] / 10


# -- the rate that suits a subspace follows from slopes and bends alone ---------------------------------

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
    rate = suitable_rate(seeds, slopes, bends, (LAYERS, RANK), ROWS)
    assert rate
    expected = float((gradient**2).sum()) / RANK**2 / float((slopes**2).mean())
    assert LEAST_SIGNAL < rate * bends.mean() / SHARE < MOST_SIGNAL * ROWS
    assert rate * bends.mean() / SHARE == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(("noise", "bounded"), [(100.0, LEAST_SIGNAL), (0.0, MOST_SIGNAL * ROWS)])
def test_a_signal_out_of_bounds_is_not_believed(noise: float, bounded: float) -> None:
    seeds, slopes, bends, _ = quadratic(64, noise)
    found = suitable_rate(seeds, slopes, bends, (LAYERS, RANK), ROWS)
    assert found == pytest.approx(SHARE * bounded / bends.mean())


def test_a_signal_that_cannot_be_told_is_taken_for_the_largest() -> None:
    seeds, slopes, bends, _ = quadratic(64, 0.0)
    for rows in (1, ROWS, MANY_ROWS, 64):
        found = suitable_rate(seeds, slopes, bends, (LAYERS, 8 * RANK), rows)
        most = MOST_SIGNAL * min(rows, MANY_ROWS)
        assert found == pytest.approx(SHARE * most / bends.mean())


def test_a_loss_that_does_not_evidently_bend_has_no_rate() -> None:
    seeds, slopes, bends, _ = quadratic(64, 1.0)
    flat = np.random.default_rng(1).normal(size=64)
    assert suitable_rate(seeds, slopes, flat, (LAYERS, RANK), ROWS) is None
    assert suitable_rate(seeds, slopes, -bends, (LAYERS, RANK), ROWS) is None
    assert suitable_rate(seeds, np.zeros(64), bends, (LAYERS, RANK), ROWS) is None, "nothing to divide by"
    bends[5] = math.nan
    assert suitable_rate(seeds, slopes, bends, (LAYERS, RANK), ROWS) is None


def test_a_cautious_rate_suits_the_largest_bend_that_may_be_there_unseen() -> None:
    bends = np.random.default_rng(1).normal(size=64)
    largest = abs(bends.mean()) + 2 * bends.std(ddof=1) / math.sqrt(64)
    assert cautious_rate(bends) == pytest.approx(SHARE * CAUTIOUS_SIGNAL / largest)


def test_bends_are_second_derivatives_along_the_directions_of_seeds(tmp_path: Path) -> None:
    """Compared with the losses at three places to which updates move the weights themselves."""
    with trainer(manifest("opt", rank=2), data_file(tmp_path)) as single, in_float64(single) as run:
        seeds = stream(9, 0, 3).tolist()
        rows = single.mini_batches.take(seeds)
        slopes, bends = slopes_and_bends(run.loaded, run.space, seeds, rows, 1e-2)
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

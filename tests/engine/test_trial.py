"""A trial finds the distance at which slopes are most exact, a unit for scalars, and a first rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sfnode.engine import scalar_limit, step_size, trial
from sfnode.engine.trial import Trial, distances_of, suitable_delta, suitable_epsilon
from sfnode.manifest.training import Training
from tests.engine.helpers import data_file, manifest, trainer


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
    best, told = suitable_epsilon(distances, measured, 2 * rounding * spacing)
    least = min(map(cost, np.geomspace(distances[0], distances[-1], 40)))
    assert cost(best) <= 1.4 * least + 0.1
    assert told == pytest.approx(cost(best), rel=0.5)


def test_points_that_are_the_same_in_a_format_are_not_taken_for_exact() -> None:
    distances = [2e-2 / trial.FINER**n for n in range(4)]
    told = [slopes(one, 10.0, 1e-4) for one in distances[:2]] + [np.zeros(64)] * 2
    best, _ = suitable_epsilon(distances, told, 2e-4)
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
def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Trial]:
    """A function that tries out a tiny model."""
    monkeypatch.setattr(scalar_limit, "SLOPES", 8)
    file = data_file(tmp_path)
    file.write_text(file.read_text() + "".join(file.read_text().splitlines(True)[1:]) * 12)

    def run(learning_rate: float, **training: Any) -> Trial:
        with trainer(manifest("opt", learning_rate=learning_rate, **training), file) as measured:
            found = trial.run(measured)
        assert isinstance(found, Trial)
        return found

    return run


def test_the_rate_that_is_found_does_not_depend_on_the_one_it_begins_with(
    tried: Callable[..., Trial],
) -> None:
    found = [tried(rate) for rate in (1e-5, 1e-1)]
    assert all(one.rate > 0 for one in found)
    assert 1 / 20 <= found[0].rate / found[1].rate <= 20
    assert 1 / 5 <= found[0].epsilon / found[1].epsilon <= 5  # distances are a factor of 4 apart
    assert found[0].epsilon <= found[0].epsilons["float16"] <= found[0].epsilons["bfloat16"]


def test_a_run_with_groups_is_tried_out_with_the_scalars_that_it_will_have(
    tried: Callable[..., Trial],
) -> None:
    pairs, groups = (tried(1e-3, group=m) for m in (0, 5))
    assert groups.rate > 0
    assert len(groups.sample.slopes) == len(pairs.sample.slopes) == 8
    assert 1 / 4 <= groups.sample.spread / pairs.sample.spread <= 4


def test_where_the_loss_does_not_evidently_bend_the_rate_is_a_cautious_one(
    tried: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_size, "EVIDENCE", math.inf)
    found = tried(1e-3, rank=1)
    monkeypatch.setattr(step_size, "CAUTION", 200.0)
    slower = tried(1e-3, rank=1)
    assert slower.rate < found.rate / 10

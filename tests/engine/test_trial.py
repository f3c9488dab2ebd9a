"""A trial finds the distance at which slopes are most exact, a unit for scalars, and a first rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sfnode.engine import step_size, trial
from sfnode.engine.trainer import Trainer
from sfnode.engine.trial import Trial, best_distance, distances_of, suitable_delta
from sfnode.manifest import Manifest
from sfnode.manifest.data import Data
from sfnode.manifest.training import Training
from tests.engine.helpers import data_file, manifest, model_folder


def slopes(distance: float, truncation: float, rounding: float) -> NDArray[np.float64]:
    """Slopes of 64 directions with errors as they come of a third derivative and of rounding."""
    true, third, noise = np.random.default_rng(5).normal(size=(3, 64))
    noise = noise * np.random.default_rng(int(1e9 * distance)).choice([-1, 1], 64)
    return np.asarray(true + truncation * third * distance**2 + rounding * noise / distance)


@pytest.mark.parametrize(("truncation", "rounding"), [(10.0, 1e-8), (1e4, 1e-8), (10.0, 1e-3), (1e4, 1e-4)])
def test_the_largest_distance_is_taken_whose_slopes_have_to_do_with_exact_ones(
    truncation: float, rounding: float
) -> None:
    distances = [4.0**-n for n in range(8)]
    true = slopes(1.0, 0.0, 0.0)
    found = {one: slopes(one, truncation, rounding) for one in distances}
    alike = {one: float(np.corrcoef(found[one], true)[0, 1]) for one in distances}
    best, likeness = best_distance(distances, list(found.values()))
    assert alike[best] > 0.03
    assert likeness >= trial.ALIKE
    assert all(alike[one] < 0.3 for one in distances if one > best)


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
def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Trial | str]:
    """A function that tries out a tiny model."""
    for name, value in (("DIRECTIONS", 4), ("SLOPES", 8), ("DISTANCES", 5)):
        monkeypatch.setattr(trial, name, value)
    monkeypatch.setattr(trial, "any_trainer", _any_trainer)
    monkeypatch.chdir(tmp_path)  # no path that varies enters the run id, from which directions follow
    file = data_file(tmp_path)
    file.write_text(file.read_text() + "".join(file.read_text().splitlines(True)[1:]) * 12)

    def run(learning_rate: float, **training: Any) -> Trial | str:
        described = manifest("opt", learning_rate=learning_rate, **training)
        return trial.run(described.model_copy(update={"data": Data(train=file.name)}))

    return run


def _any_trainer(run: Manifest, device: str, dtype: str, bases: Path | None) -> tuple[Trainer, str]:
    return Trainer.load(run, model_override=model_folder("opt"), device=device, dtype=dtype), ""


def test_the_rate_that_is_found_does_not_depend_on_the_one_it_begins_with(
    tried: Callable[..., Trial | str],
) -> None:
    found = [one for rate in (1e-5, 1e-1) if isinstance(one := tried(rate), Trial)]
    assert all(one.rate > 0 for one in found)
    assert 1 / 20 <= found[0].rate / found[1].rate <= 20
    assert 1 / 5 <= found[0].epsilon / found[1].epsilon <= 5  # distances are a factor of 4 apart
    assert found[0].alike > trial.ALIKE


def test_a_run_with_groups_is_tried_out_with_the_scalars_that_it_will_have(
    tried: Callable[..., Trial | str],
) -> None:
    pairs, groups = (tried(1e-3, group=m) for m in (0, 5))
    assert isinstance(pairs, Trial)
    assert isinstance(groups, Trial)
    assert groups.rate > 0
    assert len(groups.pilot.slopes) == 10  # 8 and what completes a group
    assert 1 / 4 <= groups.pilot.spread / pairs.pilot.spread <= 4


def test_where_the_loss_does_not_evidently_bend_the_rate_is_a_cautious_one(
    tried: Callable[..., Trial | str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_size, "EVIDENCE", math.inf)
    found = tried(1e-3, rank=1)
    assert isinstance(found, Trial)
    monkeypatch.setattr(step_size, "CAUTION", 200.0)
    slower = tried(1e-3, rank=1)
    assert isinstance(slower, Trial)
    assert slower.rate < found.rate / 10

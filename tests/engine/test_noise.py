"""Local noise: what is told of a slope that belongs to somebody's rows."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, stdev

import pytest

from sfnode.engine.estimator import LocalNoise
from sfprotocol.seeds import update_seeds
from tests.engine.helpers import data_file, manifest, trainer

SEEDS = update_seeds(5, 0, 4).tolist()


@pytest.mark.parametrize(("alpha", "told"), [(0.5, 0.5), (7.0, 2.0), (-7.0, -2.0), (float("nan"), 0.0)])
def test_a_slope_is_clipped_and_one_that_failed_is_none(alpha: float, told: float) -> None:
    assert LocalNoise(1.0, 2.0, draw=lambda mean, spread: 0.0)(alpha) == told


def test_the_noise_is_in_proportion_to_what_one_row_can_change() -> None:
    drawn = []
    LocalNoise(1.5, 2.0, draw=lambda mean, spread: drawn.append((mean, spread)) or 0.0)(1.0)
    assert drawn == [(0.0, 1.5 * 2 * 2.0)]


def test_the_noise_is_normal_and_never_the_same() -> None:
    told = [LocalNoise(0.5, 1.0)(0.25) for _ in range(4000)]
    assert (mean(told), stdev(told)) == (pytest.approx(0.25, abs=0.1), pytest.approx(1.0, rel=0.1))
    assert len(set(told)) == 4000


def test_a_node_tells_its_scalars_with_noise_and_its_loss_to_itself_as_it_is(tmp_path: Path) -> None:
    run, rows = manifest("opt"), data_file(tmp_path)
    with trainer(run, rows) as plain, trainer(run, rows, noise=LocalNoise(0.0, 1e9)) as exact:
        expected = plain.step(SEEDS, 0)
        assert exact.step(SEEDS, 0) == expected
    with trainer(run, rows, noise=LocalNoise(1.0, 1.0, draw=lambda mean, spread: 100.0)) as noisy:
        told = noisy.step(SEEDS, 0)
    assert told.loss == expected.loss
    delta = run.training.scalar_delta
    assert all(99.0 <= scalar * delta <= 101.0 for scalar in told.scalars)


def test_which_of_its_own_rows_a_node_draws_can_be_a_secret(tmp_path: Path) -> None:
    run, rows = manifest("opt"), data_file(tmp_path)
    told = []
    for secret in (b"", b"one", b"one", b"other"):
        with trainer(run, rows, secret=secret) as node:
            told.append(node.step(SEEDS, 0).scalars)
            assert node.odds == (3, 5)
    assert told[1] == told[2]
    assert len(set(told)) == 3

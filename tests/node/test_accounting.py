"""The (epsilon, delta) of local noise."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from statistics import NormalDist

import pytest

from sfnode.errors import Code, UserError
from sfnode.node import accounting
from tests.node.helpers import manifest, organised


def test_without_the_library_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting.rdp", None)
    with pytest.raises(UserError, match="dp-accounting") as missing:
        accounting.epsilon(1.0, 4, 1024, 10)
    assert missing.value.code is Code.EXTRA_MISSING
    assert "sfnode[privacy]" in missing.value.fix


@pytest.fixture
def library() -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra `privacy`")


@pytest.mark.usefixtures("library")
def test_where_every_row_is_drawn_it_is_the_gaussian_mechanism() -> None:
    """By the usual conversion of Renyi divergence, at the best order: an upper bound of what the library
    says."""
    orders = [1 + n / 100 for n in range(1, 5000)]
    bound = min(order / 2 * 10 / 4**2 + math.log(1 / accounting.DELTA) / (order - 1) for order in orders)
    assert 0.7 * bound < accounting.epsilon(4.0, 8, 8, 10) <= bound


@pytest.mark.usefixtures("library")
def test_more_updates_cost_and_more_rows_and_noise_save() -> None:
    usual = accounting.epsilon(1.0, 4, 1024, 1000)
    assert usual < accounting.epsilon(1.0, 4, 1024, 4000)
    assert usual < accounting.epsilon(1.0, 4, 64, 1000)
    assert usual < accounting.epsilon(0.7, 4, 1024, 1000)
    assert 0.5 < usual < 5


@pytest.mark.usefixtures("library")
def test_a_group_is_one_draw_of_rows_and_one_row_changes_all_its_scalars() -> None:
    """Where every row is drawn, m scalars at once cost as much as m scalars one by one."""
    assert accounting.epsilon(4.0, 8, 8, 16, together=8) == pytest.approx(accounting.epsilon(4.0, 8, 8, 16))
    grouped = accounting.epsilon(1.0, 4, 1024, 1000, together=8)
    assert grouped > accounting.epsilon(1.0, 4, 1024, 1000)
    assert grouped == accounting.epsilon(1.0, 4, 1024, 993, together=8) > 0
    assert grouped == pytest.approx(accounting.epsilon(1 / 8**0.5, 4, 1024, 125))


@pytest.mark.usefixtures("library")
def test_without_updates_nothing_is_told_and_without_noise_there_is_no_bound() -> None:
    assert accounting.epsilon(1.0, 4, 1024, 0) == 0.0
    assert accounting.epsilon(0.0, 4, 1024, 1) == math.inf


@pytest.mark.usefixtures("library")
def test_all_updates_of_all_rows_are_one_gaussian_mechanism_whose_epsilon_is_exact() -> None:
    """Sigma 1.0812 has epsilon 4 at delta 1e-5 (Balle and Wang 2018, theorem 8)."""
    assert accounting.epsilon(4 * 1.0812, 1024, 1024, 16) == pytest.approx(4.0, abs=1e-3)

    def delta(epsilon: float, sigma: float) -> float:
        normal = NormalDist()
        far, near = -epsilon * sigma - 1 / (2 * sigma), 1 / (2 * sigma) - epsilon * sigma
        return normal.cdf(near) - math.exp(epsilon) * normal.cdf(far)

    found = accounting.epsilon(8.0, 8, 8, 16)
    assert delta(found, 2.0) == pytest.approx(accounting.DELTA, rel=1e-6)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("drawn", "updates", "together"), [(1024, 64, 1), (64, 500, 1), (4, 1000, 8)])
def test_the_noise_for_an_epsilon_is_the_least_that_keeps_to_it(
    drawn: int, updates: int, together: int
) -> None:
    found = accounting.multiplier(4.0, drawn, 1024, updates, together)
    assert 3.95 < accounting.epsilon(found, drawn, 1024, updates, together=together) <= 4.0


def test_a_node_that_keeps_to_an_epsilon_makes_its_quota_in_all_rounds_or_the_budget(tmp_path: Path) -> None:
    run = manifest(epoch_updates=4, update_budget=256)
    assert accounting.most_updates(run) == 256
    assert accounting.most_updates(organised(run, tmp_path / "a", quota=1)) == 64
    assert accounting.most_updates(organised(run, tmp_path / "b", quota=64)) == 256

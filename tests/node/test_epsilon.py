"""What local noise is worth, as (epsilon, delta)."""

from __future__ import annotations

import math
import sys
from statistics import NormalDist

import pytest

from sfnode.errors import Code, UserError
from sfnode.node import privacy


def test_without_the_library_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting.rdp", None)
    with pytest.raises(UserError, match="dp-accounting") as missing:
        privacy.epsilon(1.0, 4, 1024, 10)
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
    bound = min(order / 2 * 10 / 4**2 + math.log(1 / privacy.DELTA) / (order - 1) for order in orders)
    assert 0.7 * bound < privacy.epsilon(4.0, 8, 8, 10) <= bound


@pytest.mark.usefixtures("library")
def test_more_updates_cost_and_more_rows_and_noise_save() -> None:
    usual = privacy.epsilon(1.0, 4, 1024, 1000)
    assert usual < privacy.epsilon(1.0, 4, 1024, 4000)
    assert usual < privacy.epsilon(1.0, 4, 64, 1000)
    assert usual < privacy.epsilon(0.7, 4, 1024, 1000)
    assert 0.5 < usual < 5


@pytest.mark.usefixtures("library")
def test_a_group_is_one_draw_of_rows_and_one_row_changes_all_its_scalars() -> None:
    """Where every row is drawn, m scalars at once are m at a time."""
    assert privacy.epsilon(4.0, 8, 8, 16, together=8) == pytest.approx(privacy.epsilon(4.0, 8, 8, 16))
    grouped = privacy.epsilon(1.0, 4, 1024, 1000, together=8)
    assert grouped > privacy.epsilon(1.0, 4, 1024, 1000)
    assert grouped == privacy.epsilon(1.0, 4, 1024, 993, together=8) > 0
    assert grouped == pytest.approx(privacy.epsilon(1 / 8**0.5, 4, 1024, 125))


@pytest.mark.usefixtures("library")
def test_without_updates_nothing_is_told_and_without_noise_there_is_no_bound() -> None:
    assert privacy.epsilon(1.0, 4, 1024, 0) == 0.0
    assert privacy.epsilon(0.0, 4, 1024, 1) == math.inf


@pytest.mark.usefixtures("library")
def test_all_updates_of_all_rows_are_one_gaussian_mechanism_whose_epsilon_is_exact() -> None:
    """Sigma 1.0812 has epsilon 4 at delta 1e-5 (Balle and Wang 2018, theorem 8)."""
    assert privacy.epsilon(4 * 1.0812, 1024, 1024, 16) == pytest.approx(4.0, abs=1e-3)

    def delta(epsilon: float, sigma: float) -> float:
        normal = NormalDist()
        far, near = -epsilon * sigma - 1 / (2 * sigma), 1 / (2 * sigma) - epsilon * sigma
        return normal.cdf(near) - math.exp(epsilon) * normal.cdf(far)

    found = privacy.epsilon(8.0, 8, 8, 16)
    assert delta(found, 2.0) == pytest.approx(privacy.DELTA, rel=1e-6)

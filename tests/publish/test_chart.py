"""The curve: where its points lie, and curves that are hardly any."""

from __future__ import annotations

import math

import pytest

from sfnode.publish.page import NARROW, WIDE, chart
from sfnode.publish.run_file import CurvePoint


def points(*values: float, error: float = 0.02) -> list[CurvePoint]:
    return [CurvePoint(epoch=n, value=v, low=v - error, high=v + error) for n, v in enumerate(values)]


def test_better_is_higher_and_the_base_model_lies_where_its_value_does() -> None:
    found = chart(points(0.5, 0.7, 0.9), 0.5, "accuracy", WIDE)
    assert found is not None
    heights = [dot.y for dot in found.dots]
    assert heights == sorted(heights, reverse=True)
    assert found.base is not None
    assert (found.base.at, found.base.text) == (heights[0], "50.0 %")
    assert [line.text for line in found.across][:2] == ["40 %", "50 %"]
    assert [mark.text for mark in found.below] == ["0", "1", "2"]
    assert all(0 <= dot.x <= WIDE.width and 0 <= dot.y <= WIDE.height for dot in found.dots)


@pytest.mark.parametrize(
    "values", [(0.5,), (0.5, 0.5, 0.5), (0.0, 0.0), (12.5, 1e9), (math.inf, 30.0, math.nan)]
)
@pytest.mark.parametrize("base", [None, 0.5, math.inf])
def test_every_curve_can_be_drawn(values: tuple[float, ...], base: float | None) -> None:
    for metric in ("accuracy", "perplexity"):
        found = chart(points(*values, error=math.inf if values[0] == 12.5 else 0.0), base, metric, NARROW)
        assert found is not None
        assert "nan" not in found.line + found.band
        assert "inf" not in found.line + found.band


def test_without_a_finite_value_there_is_no_curve() -> None:
    assert chart([], 0.5, "accuracy", WIDE) is None
    assert chart(points(math.inf), 0.5, "perplexity", WIDE) is None


def test_a_long_curve_is_thinned_and_shows_its_last_point() -> None:
    found = chart(points(*(n / 5000 for n in range(5000))), None, "accuracy", WIDE)
    assert found is not None
    assert len(found.dots) == WIDE.points
    assert [dot.drawn for dot in found.dots].count(True) == 1
    assert found.dots[-1].title.startswith("round 4999: 100.0 %")

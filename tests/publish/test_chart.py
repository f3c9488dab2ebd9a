"""Tests of the curve: positions of its points, and unusual values."""

from __future__ import annotations

import math
from xml.etree.ElementTree import Element, fromstring

import pytest

from sfnode.publish.page import NARROW, WIDE, Box, chart
from sfnode.publish.run_file import CurvePoint


def points(*values: float, error: float = 0.02) -> list[CurvePoint]:
    return [CurvePoint(epoch=n, value=v, low=v - error, high=v + error) for n, v in enumerate(values)]


def drawn(found: list[CurvePoint], base: float | None, metric: str, box: Box, label: str = "") -> Element:
    said = chart(found, base, metric, box, label)
    assert said is not None
    return fromstring(said)


def all_of(svg: Element, style: str) -> list[Element]:
    return svg.findall(f".//*[@class='{style}']")


def test_better_is_higher_and_the_base_model_lies_where_its_value_does() -> None:
    found = drawn(points(0.5, 0.7, 0.9), 0.5, "accuracy", WIDE)
    dots = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in all_of(found, "dot")]
    heights = [y for _, y in dots]
    assert heights == sorted(heights, reverse=True)
    assert [line.attrib["d"].split("H")[0].split()[1] for line in all_of(found, "base")] == [str(heights[0])]
    texts = [text.text for text in found.findall("text")]
    assert texts[:2] == ["40 %", "50 %"]
    assert texts[-4:] == ["round 0", "1", "2", "base model 50.0 %"]
    assert all(0 <= x <= WIDE.width and 0 <= y <= WIDE.height for x, y in dots)


@pytest.mark.parametrize(
    "values", [(0.5,), (0.5, 0.5, 0.5), (0.0, 0.0), (12.5, 1e9), (math.inf, 30.0, math.nan)]
)
@pytest.mark.parametrize("base", [None, 0.5, math.inf])
def test_every_curve_can_be_drawn(values: tuple[float, ...], base: float | None) -> None:
    for metric in ("accuracy", "perplexity"):
        error = math.inf if values[0] == 12.5 else 0.0
        found = drawn(points(*values, error=error), base, metric, NARROW)
        paths = "".join(path.attrib["d"] for path in found.findall("path"))
        assert "nan" not in paths
        assert "inf" not in paths


def test_without_a_finite_value_there_is_no_curve() -> None:
    assert chart([], 0.5, "accuracy", WIDE, "") is None
    assert chart(points(math.inf), 0.5, "perplexity", WIDE, "") is None


def test_a_long_curve_is_thinned_and_shows_its_last_point() -> None:
    found = drawn(points(*(n / 5000 for n in range(5000))), None, "accuracy", WIDE)
    assert len(all_of(found, "mark")) == WIDE.points
    (dot,) = all_of(found, "dot")
    assert dot.attrib["cx"] == all_of(found, "hit")[-1].attrib["cx"]
    last = found.findall(".//title")[-1].text
    assert last is not None
    assert last.startswith("round 4999: 100.0 %")


def test_what_it_is_called_is_text() -> None:
    found = chart(points(0.5), None, "accuracy", WIDE, '"><script>\x07')
    assert found is not None
    assert "<script>" not in found
    assert fromstring(found).attrib["aria-label"].startswith('"><script>')

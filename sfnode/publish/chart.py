"""The curve of a run as numbers for an SVG: drawn on the server side, so that a page needs no script.

Every size of a screen has a drawing of its own, with letters as large as those around it. Knows no HTML.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from sfnode.publish.facts import thinned
from sfnode.publish.run_file import Point
from sfnode.schema.metrics import metric_of

MOST_DOTS = 60
"""Points that are drawn as dots; of more, only the last one can be seen."""

TICKS = 5
"""Lines across, about."""


class Label(NamedTuple):
    """A text beside an axis, or beside a line."""

    at: float
    text: str


class Dot(NamedTuple):
    """A measurement, and what it says when somebody points at it."""

    x: float
    y: float
    title: str
    drawn: bool
    """Whether it can be seen."""


class Box(NamedTuple):
    """A size, in the units in which letters are 12 high."""

    width: int
    height: int
    left: int
    right: int
    points: int
    """Most points of the curve."""


WIDE = Box(860, 300, 48, 8, 200)
NARROW = Box(360, 240, 48, 8, 80)
SPARK = Box(240, 56, 2, 8, 60)
_TOP, _BOTTOM = 16, 26


class Chart(NamedTuple):
    """A drawing; coordinates are those of its box."""

    box: Box
    line: str
    """Path of the values."""
    band: str
    """Path around the 95 % intervals."""
    dots: list[Dot]
    across: list[Label]
    """Lines across, by height."""
    below: list[Label]
    """Labels of the axis below."""
    base: Label | None
    """Height of the base model."""


def figure(metric: str, value: float) -> str:
    """Return a value for people: `86.4 %`, `12.3`."""
    if not math.isfinite(value):
        return "infinite"
    return f"{100 * value:.1f} %" if metric_of(metric).is_share else f"{value:.3g}"


def chart(points: Sequence[Point], base: float | None, metric: str, box: Box) -> Chart | None:
    """Draw the curve over sealed epochs; None if there is no finite value."""
    shown = thinned([one for one in points if math.isfinite(one.value)], box.points)
    if not shown:
        return None
    lows = [_finite(one.low, one.value) for one in shown]
    highs = [_finite(one.high, one.value) for one in shown]
    beside = [base] if base is not None and math.isfinite(base) else []
    steps = _steps(min(*lows, *beside, shown[0].value), max(*highs, *beside, shown[0].value))
    first, last = shown[0].epoch, shown[-1].epoch
    width = box.width - box.left - box.right
    bottom = box.height - (_BOTTOM if box is not SPARK else 6)
    top = _TOP if box is not SPARK else 6

    def x(epoch: int) -> float:
        return round(box.left + (epoch - first) / max(1, last - first) * width, 1)

    def y(value: float) -> float:
        return round(bottom - (value - steps[0]) / (steps[-1] - steps[0]) * (bottom - top), 1)

    dots = [
        Dot(x(one.epoch), y(one.value), _title(metric, one), len(shown) <= MOST_DOTS or one is shown[-1])
        for one in shown
    ]
    there = [f"{x(one.epoch)} {y(high)}" for one, high in zip(shown, highs, strict=True)]
    back = [f"{x(one.epoch)} {y(low)}" for one, low in zip(shown, lows, strict=True)][::-1]
    ends = dict.fromkeys((first, (first + last) // 2, last)) if last - first > 1 else (first, last)
    return Chart(
        box=box,
        line="M" + "L".join(f"{dot.x} {dot.y}" for dot in dots),
        band="M" + "L".join([*there, *back]) + "Z",
        dots=dots,
        across=[Label(y(value), _tick(metric, value, steps[1] - steps[0])) for value in steps],
        below=[Label(x(epoch), f"{epoch:,}") for epoch in dict.fromkeys(ends)],
        base=Label(y(base), figure(metric, base)) if beside and base is not None else None,
    )


def _finite(value: float, instead: float) -> float:
    return value if math.isfinite(value) else instead


def _title(metric: str, one: Point) -> str:
    values = [figure(metric, value) for value in (one.value, one.low, one.high)]
    return f"epoch {one.epoch}: {values[0]} (95 % interval {values[1]} to {values[2]})"


def _tick(metric: str, value: float, step: float) -> str:
    if metric_of(metric).is_share:
        return f"{100 * value:.{0 if step >= 0.01 else 1}f} %"
    digits = max(0, -math.floor(math.log10(step)))
    return f"{value:.{digits}f}"


def _steps(low: float, high: float) -> list[float]:
    """Return round numbers with even distances around both."""
    span = max(high - low, abs(high) * 1e-3, 1e-9)
    rough = span / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * times for times in (1, 2, 5, 10) if power * times >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(number * step, 12) for number in range(first, max(last, first + 1) + 1)]

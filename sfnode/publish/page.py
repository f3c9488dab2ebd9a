"""Makes pages from templates, with automatic escaping, so that strangers' texts appear as text only. A page
has no script, and one style sheet, which the page's content security policy allows by its hash.

The curve is drawn here as SVG, so that a page needs no script. It is drawn once for each screen size, with
letters as large as the text around it.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element, SubElement, tostring

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

import sfnode
from sfnode.dashboard.formatting import count, percent, qr_svg
from sfnode.dashboard.quality import UNJUDGED, beside, still_rises, verdict
from sfnode.dashboard.snapshot import Words
from sfnode.printable import command, printable, size_text, span
from sfnode.publish.facts import Facts, teams, thinned
from sfnode.publish.run_file import NAME, CurvePoint, RunFile
from sfnode.schema.metrics import better_by, metric_of, value_in_words

MOST_DOTS = 60
"""Maximum number of points of a curve with a dot at each point. If a curve has more points, only its last
point gets a dot."""

TICKS = 5
"""Approximate number of horizontal grid lines of a drawing."""


# -- the curve -----------------------------------------------------------------------------------------


class Box(NamedTuple):
    """Size of a drawing, and its class in the style sheet. Sizes are in units of the drawing; letters are 12
    units high."""

    name: str
    width: int
    height: int
    left: int
    top: int
    bottom: int
    points: int
    """Maximum number of points of the curve."""


WIDE = Box("wide", 860, 300, 48, 16, 26, 200)
NARROW = Box("narrow", 360, 240, 48, 16, 26, 80)
SPARK = Box("spark", 240, 56, 2, 6, 6, 60)
"""Size of a small curve without axes, for the directory of runs."""

_RIGHT = 8


def chart(
    points: Sequence[CurvePoint], base: float | None, metric: str, box: Box, label: str
) -> Markup | None:
    """Draw the metric over sealed epochs with 95 % intervals, as SVG. Return None if there is no finite
    value."""
    shown = thinned([one for one in points if math.isfinite(one.value)], box.points)
    if not shown:
        return None
    lows = [_finite(one.low, one.value) for one in shown]
    highs = [_finite(one.high, one.value) for one in shown]
    beside = [base] if base is not None and math.isfinite(base) else []
    steps = _steps(min(*lows, *beside, shown[0].value), max(*highs, *beside, shown[0].value))
    first, last = shown[0].epoch, shown[-1].epoch
    right, low = box.width - _RIGHT, box.height - box.bottom

    def x(epoch: int) -> float:
        return round(box.left + (epoch - first) / max(1, last - first) * (right - box.left), 1)

    def y(value: float) -> float:
        return round(low - (value - steps[0]) / (steps[-1] - steps[0]) * (low - box.top), 1)

    size = f"0 0 {box.width} {box.height}"
    svg = Element("svg", {"class": f"chart {box.name}", "viewBox": size, "role": "img"})
    svg.set("aria-label", printable(label))
    if box is not SPARK:
        for value in steps:
            _add(svg, "path", "grid", d=f"M{box.left} {y(value)}H{right}")
            _write(svg, box.left - 8, y(value) + 4, "end", _tick(metric, value, steps[1] - steps[0]))
        middle = [(first + last) // 2] if last - first > 1 else []
        for epoch, anchor in {first: "start", **dict.fromkeys(middle, "middle"), last: "end"}.items():
            _write(svg, x(epoch), box.height - 6, anchor, f"{'round ' if epoch == first else ''}{epoch:,}")
    above = [(x(one.epoch), y(high)) for one, high in zip(shown, highs, strict=True)]
    below = [(x(one.epoch), y(low)) for one, low in zip(shown, lows, strict=True)]
    _add(svg, "path", "band", d=f"{_path([*above, *reversed(below)])}Z")
    for value in beside:
        _add(svg, "path", "base", d=f"M{box.left} {y(value)}H{right}")
    _add(svg, "path", "curve", d=_path([(x(one.epoch), y(one.value)) for one in shown]))
    for one in shown[-1:] if box is SPARK else shown:
        mark, at = _add(svg, "g", "mark"), {"cx": x(one.epoch), "cy": y(one.value)}
        if len(shown) <= MOST_DOTS or one is shown[-1]:
            _add(mark, "circle", "dot", r=3.5, **at)
        _add(mark, "circle", "hit", r=8, **at)
        SubElement(mark, "title").text = _title(metric, one)
    for value in beside if box is not SPARK else ():
        _write(svg, right, y(value) - 6, "end", f"base model {value_in_words(metric, value)}")
    return Markup(tostring(svg, encoding="unicode"))  # ElementTree escaped all texts


def _add(inside: Element, tag: str, style: str, **said: object) -> Element:
    return SubElement(inside, tag, {"class": style} | {name: str(value) for name, value in said.items()})


def _write(inside: Element, x: float, y: float, anchor: str, text: str) -> None:
    SubElement(inside, "text", {"x": str(x), "y": str(y), "text-anchor": anchor}).text = text


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in points)


def _finite(value: float, instead: float) -> float:
    return value if math.isfinite(value) else instead


def _title(metric: str, one: CurvePoint) -> str:
    values = [value_in_words(metric, value) for value in (one.value, one.low, one.high)]
    return f"round {one.epoch}: {values[0]} (95 % interval {values[1]} to {values[2]})"


def _tick(metric: str, value: float, step: float) -> str:
    if metric_of(metric).is_share:
        return f"{100 * value:.{0 if step >= 0.01 else 1}f} %"
    digits = max(0, -math.floor(math.log10(step)))
    return f"{value:.{digits}f}"


def _steps(low: float, high: float) -> list[float]:
    """Return evenly spaced round numbers that enclose both values."""
    span = max(high - low, abs(high) * 1e-3, 1e-9)
    rough = span / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * times for times in (1, 2, 5, 10) if power * times >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(number * step, 12) for number in range(first, max(last, first + 1) + 1)]


TEMPLATES = Path(__file__).with_name("templates")

TOP = 10
"""Number of members in each of the two short lists: by worth and by number of updates."""

LISTED = 1_000
"""Maximum number of members in the full list, which then has 250 kB. Nobody reads more."""

TEAMS = 50
"""Maximum number of teams that are listed."""

SHORT = 40
"""Maximum length of an answer that still fits a table, in characters."""


class PageSample(NamedTuple):
    """A test row with the answers of the base model and of a later model."""

    text: str
    right: str
    """The right answer."""
    before: str
    after: str
    epoch: int | None
    before_score: float
    """Score of the answer `before`: 1 if it is right, else 0; in a reward run its reward."""
    after_score: float

    @property
    def answers(self) -> tuple[tuple[str, str, float], ...]:
        """Heading (`Base model` or `Now`), text and score of each of the two answers."""
        return ("Base model", self.before, self.before_score), ("Now", self.after, self.after_score)


@cache
def environment() -> Environment:
    """Return the Jinja environment of the templates."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    made.globals |= {"style": Markup(style), "style_hash": digest, "version": sfnode.__version__}
    made.globals["command"] = command
    made.filters |= {
        "count": count,
        "bytes": size_text,
        "percent": percent,
        "figure": lambda value, metric: value_in_words(metric, value),
        "metric_name": metric_name,
    }
    return made


def _shown(value: object) -> object:
    """Return a template's value as the page shows it. A text is made printable, and the template escapes it.
    Only markup that this program made stays markup."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else printable(value)


def metric_name(metric: str) -> str:
    """Return the name of a metric for people."""
    return metric_of(metric).name


def run_page(
    run: RunFile,
    facts: Facts,
    *,
    samples: Sequence[PageSample],
    by_running_node: bool,
    has_manifest: bool,
) -> str:
    """Return the page of a run. `has_manifest` says whether the run's manifest is published beside the
    page."""
    quality = run.quality
    metric = _metric(run)
    base = quality.base.value if quality and quality.base else None
    label = f"{summary(run)} The curve has {len(run.curve)} rounds."
    charts = [drawn for box in (WIDE, NARROW) if (drawn := chart(run.curve, base, metric, box, label))]
    return render(
        "run.html",
        run=run,
        has_worths=any(one.worth is not None for one in facts.members),
        all_worths=max(1, sum(abs(one.worth or 0) for one in facts.members)),
        title=run.title,
        summary=summary(run),
        url=run.url,
        verdict=verdict_of(run),
        metric=metric,
        gain=gain(run),
        rewards=beside(run.quality.latest, run.quality.base) if run.quality else "",
        charts=charts,
        join=f"{run.url}{NAME}" if run.url else run.link,
        qr=Markup(qr_svg(run.link)) if run.link else "",
        download=size_text(run.sizes.model) if run.sizes.model is not None else "",
        left=_left(run),
        members=facts.members,
        by_updates=sorted(facts.members, key=lambda one: (-one.updates, -(one.worth or 0), one.key)),
        top=TOP,
        listed=LISTED,
        teams=teams(facts.members)[:TEAMS],
        organiser=facts.organiser,
        announcements=facts.announcements,
        samples=sorted(samples, key=lambda one: one.before == one.after),
        short=all(len(text) <= SHORT for one in samples for text in (one.before, one.after, one.right)),
        updated=moment(run.updated),
        by_running_node=by_running_node,
        has_manifest=has_manifest,
    )


def verdict_of(run: RunFile) -> Words:
    """Return the headline on the model's quality, the same as on the dashboard."""
    found = run.quality
    if found is None:
        return Words(UNJUDGED)
    base = [found.base.value] if found.base else []
    last = run.curve[-1:]
    noise = max((one.high - one.low for one in last), default=0.0) / 2
    course = [*base, *(one.value for one in run.curve)]
    rises = not run.complete and bool(last) and still_rises(_metric(run), course, noise)
    return verdict(found.verdict, found.latest, found.base, rises=rises)


def _metric(run: RunFile) -> str:
    return run.quality.latest.metric if run.quality and run.quality.latest else ""


def summary(run: RunFile) -> str:
    """Describe the run in a sentence, for search engines and for previews of its link in chats."""
    told = [run.description.split("\n")[0]] if run.description else []
    if run.quality and run.quality.latest:
        latest, base = run.quality.latest, run.quality.base
        against = f" ({value_in_words(base.metric, base.value)} before)" if base else ""
        value = value_in_words(latest.metric, latest.value)
        told.append(f"{metric_name(latest.metric)} {value}{against}".capitalize())
    told.append(f"{count(run.members)} members, {count(run.updates)} updates")
    return ". ".join(part.rstrip(".") for part in told) + "."


def gain(run: RunFile) -> str:
    """Return in words how much better the model is than the base model (`better_by`); empty if that is
    unknown."""
    found = run.quality
    if not (found and found.latest and found.base):
        return ""
    return better_by(found.latest.metric, found.base.value, found.latest.value)


def moment(at: datetime) -> str:
    """Return a time for people: `23 November 2026, 11:55 UTC`."""
    return f"{at.day} {at:%B %Y, %H:%M} UTC"


def _left(run: RunFile) -> str:
    if run.complete or not run.updates_per_hour:
        return ""
    return span((run.budget - run.updates) * 3600 / run.updates_per_hour)


def render(template: str, **values: Any) -> str:
    """Return a page: the file `template`, filled in with `values`."""
    return environment().get_template(template).render(**values)

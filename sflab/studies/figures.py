"""Figures of the report, drawn with matplotlib: the same results give the same bytes.

Colours are those of Okabe and Ito (2008), which people with any kind of colour vision tell apart; a method
also has a marker and a kind of line of its own, and points are labelled where there is room.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from sflab.experiments.cell import Cell
from sflab.studies.comparisons import label
from sflab.studies.findings import Findings, Group, Interval
from sfnode.errors import Code, UserError

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00", "#6A6A6A")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":")

STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Bitstream Vera Sans", "sans-serif"],
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.5,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.fonttype": "none",
    "svg.hashsalt": "sfnode",
}

WIDTH = 7.6
"""Inches."""

DPI = 150

LETTER, LETTER_HEIGHT = 4.6, 8.0
"""Points that a letter of a label takes, about."""

ABOVE = (-9, 7, -18, 16, -27, 25)
"""Points from a mark up to the foot of its label, the best first."""

UNTRAINED = ("#555555", (0, (1, 1.5)))
CALIBRATED = ("#555555", (0, (5, 2)))


class Drawn(NamedTuple):
    """A figure in both formats."""

    svg: str
    png: bytes


Look = dict[str, Any]

Box = tuple[float, float, float, float]
"""Left, bottom, right and top, in points."""

ORDER = (
    "seedflood",
    "dsgd",
    "dzsgd",
    "chocosgd",
    "dsgd-lora",
    "dzsgd-lora",
    "chocosgd-lora",
    "mezo",
    "sgd",
    "adamw",
)
"""Methods that look the same in all figures."""


def matplotlib() -> Any:
    """Return the library without its windows. Raises UserError EXTRA_MISSING."""
    try:
        import matplotlib as found
    except ImportError as error:
        raise UserError(
            Code.EXTRA_MISSING,
            "the report's figures cannot be drawn: matplotlib is not installed",
            "Install it: pip install 'sfnode[lab]'; results are kept, "
            "and `sfnode simulate report` writes the report then.",
        ) from error
    return found


def drawn(panels: int, draw: Callable[[Sequence[Any]], None], *, height: float = 3.2) -> Drawn:
    """Draw a figure of some panels side by side. Raises UserError EXTRA_MISSING."""
    library = matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with library.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure.subplots(1, panels, squeeze=False)[0])
        svg, png = io.StringIO(), io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        figure.savefig(png, format="png", dpi=DPI, metadata={"Software": None})
    return Drawn(_plain(svg.getvalue()), png.getvalue())


def _plain(svg: str) -> str:
    """Return the drawing alone, without the declarations and the metadata that name places elsewhere."""
    return re.sub(r"\s*<metadata>.*?</metadata>", "", svg[svg.index("<svg ") :], flags=re.DOTALL)


def looks(names: Collection[str]) -> dict[str, Look]:
    """Return the colour, marker and line of each method, or of whatever else lines stand for."""
    order = list(dict.fromkeys((*ORDER, *names))) if any(name in ORDER for name in names) else list(names)
    return {name: _look(order.index(name)) for name in names}


def _look(number: int) -> Look:
    """Return a look; the first eight differ in colour and marker, the next eight in how these go together."""
    turn = number // len(COLOURS)
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[(number + 3 * turn) % len(MARKERS)],
        "linestyle": LINES[(number + turn) % len(LINES)],
    }


def methods_of(groups: Iterable[Group]) -> list[str]:
    """Return the methods of some groups, each once."""
    return list(dict.fromkeys(group.cell.method for group in groups))


def scores(findings: Findings, groups: Sequence[Group]) -> Drawn:
    """Draw the score of each method, a panel for each task."""
    names = methods_of(groups)
    look = looks(names)
    topologies = list(dict.fromkeys(group.cell.network.topology for group in groups))

    def draw(axes: Sequence[Any]) -> None:
        for panel, task in zip(axes, findings.tasks, strict=True):
            _controls(panel, findings, task, upright=True)
            for group in (one for one in groups if findings.subject(one.cell) == task):
                place = topologies.index(group.cell.network.topology)
                height = names.index(group.cell.method) + 0.22 * (place - (len(topologies) - 1) / 2)
                _point(
                    panel, group.of("score"), height, look[group.cell.method] | {"fillstyle": _fill(place)}
                )
            panel.set_yticks(range(len(names)), [label(name) for name in names])
            panel.set_ylim(len(names) - 0.5, -0.5)
            panel.set_xlabel("score on test rows")
            panel.set_title(task)
            panel.grid(axis="y", visible=False)
        _legend_of_fills(axes[-1], topologies)

    return drawn(len(findings.tasks), draw, height=1.4 + 0.34 * len(names))


def _fill(place: int) -> Any:
    return ("full", "none", "left", "top", "right")[place % 5]


def _legend_of_fills(panel: Any, names: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    marks = [
        Line2D([], [], color="#333333", marker="o", linestyle="", fillstyle=_fill(place), label=name)
        for place, name in enumerate(names)
    ]
    handles, texts = panel.get_legend_handles_labels()
    panel.figure.legend([*handles, *marks], [*texts, *names], loc="outside lower center", ncols=6)


def _point(panel: Any, value: Interval | None, height: float, look: Look) -> None:
    if value is not None:
        style = look | {"linestyle": "", "capsize": 2.5, "elinewidth": 1.2}
        panel.errorbar([value.mean], [height], xerr=[[value.half], [value.half]], **style)


def _controls(panel: Any, findings: Findings, task: str, *, upright: bool = False) -> None:
    """Mark the untrained model, as it is and calibrated."""
    line = panel.axvline if upright else panel.axhline
    for name, (colour, dashes), words in (
        ("base_score", UNTRAINED, "untrained"),
        ("calibrated_score", CALIBRATED, "untrained, calibrated"),
    ):
        value = findings.untrained(task).get(name)
        if value is not None:
            line(value.mean, color=colour, linestyle=dashes, linewidth=1.1, label=words, zorder=1)


def score_by_bytes(findings: Findings, groups: Sequence[Group]) -> Drawn:
    """Draw score against bytes per edge, a panel for each task, each point labelled."""
    look = looks(methods_of(groups))

    def draw(axes: Sequence[Any]) -> None:
        for panel, task in zip(axes, findings.tasks, strict=True):
            _controls(panel, findings, task)
            points: dict[str, tuple[float, float]] = {}
            for group in (one for one in groups if findings.subject(one.cell) == task):
                score, size = group.of("score"), group.of("bytes_per_edge")
                if score is None or size is None or size.mean <= 0:
                    continue
                style = look[group.cell.method] | {"linestyle": "", "capsize": 2.5, "elinewidth": 1.2}
                panel.errorbar([size.mean], [score.mean], yerr=[[score.half], [score.half]], **style)
                points[group.cell.method] = size.mean, score.mean
            panel.set_xscale("log")
            panel.margins(x=0.18, y=0.12)
            panel.set_xlabel("bytes per edge (log scale)")
            panel.set_title(task)
            _label(panel, points, look)
        axes[0].set_ylabel("score on test rows")
        _legend_below(axes[0])

    return drawn(len(findings.tasks), draw, height=3.6)


def _label(panel: Any, points: Mapping[str, tuple[float, float]], look: Mapping[str, Look]) -> None:
    """Write the methods' names beside their points, in the first place where they cover nothing."""
    scale = 72 / panel.figure.dpi
    where = {name: panel.transData.transform(point) * scale for name, point in points.items()}
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in where.values()]
    for name, (x, y) in sorted(where.items(), key=lambda one: one[1][0]):
        text = label(name)
        boxes = []
        for above, left in product(ABOVE, (False, True)):
            start = x - 6 - LETTER * len(text) if left else x + 6
            boxes.append((start, y + above, start + LETTER * len(text), y + above + LETTER_HEIGHT))
        box = next((one for one in boxes if not any(_overlap(one, other) for other in taken)), boxes[0])
        taken.append(box)
        panel.annotate(
            text,
            points[name],
            xytext=(box[0] - x, box[1] - y),
            textcoords="offset points",
            fontsize=7.5,
            color=look[name]["color"],
        )


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _legend_below(panel: Any) -> None:
    handles, texts = panel.get_legend_handles_labels()
    if handles:
        panel.figure.legend(handles, texts, loc="outside lower center", ncols=4)


def curves(findings: Findings, groups: Sequence[Group], name: str, words: str) -> Drawn:
    """Draw the means of what was evaluated on the way, by local step; the vertical axis is logarithmic and
    has a place for 0."""
    look = looks(methods_of(groups))

    def draw(axes: Sequence[Any]) -> None:
        least = math.inf
        for panel, task in zip(axes, findings.tasks, strict=True):
            for group in (one for one in groups if findings.subject(one.cell) == task):
                steps, values = group.curve(name)
                least = min([least, *(value for value in values if value > 0)])
                panel.plot(steps, values, label=label(group.cell.method), **look[group.cell.method])
            panel.set_xlabel("local steps of a client")
            panel.set_title(task)
        for panel in axes:
            smallest = 10.0 ** math.floor(math.log10(least)) if math.isfinite(least) else 1.0
            panel.set_yscale("symlog", linthresh=smallest)
            panel.set_ylim(bottom=-0.2 * smallest)  # marks at 0 are seen whole
            panel.xaxis.get_major_locator().set_params(integer=True)
        axes[0].set_ylabel(words)
        _legend_below(axes[0])

    return drawn(len(findings.tasks), draw, height=3.5)


def by_number(
    findings: Findings,
    groups: Sequence[Group],
    key: Callable[[Cell], str],
    words: str,
    series: Callable[[Cell], str] = lambda cell: cell.method,
) -> Drawn:
    """Draw the score by a property of cells, in the order in which it first appears, a line for each
    series."""
    places = list(dict.fromkeys(key(group.cell) for group in groups))
    names = list(dict.fromkeys(series(group.cell) for group in groups))
    tasks = [task for task in findings.tasks if any(findings.subject(group.cell) == task for group in groups)]
    look = looks(names)

    def draw(axes: Sequence[Any]) -> None:
        for panel, task in zip(axes, tasks, strict=True):
            _controls(panel, findings, task)
            for number, name in enumerate(names):
                shift = 0.06 * (number - (len(names) - 1) / 2)
                points = [
                    (places.index(key(group.cell)) + shift, value)
                    for group in groups
                    if series(group.cell) == name and findings.subject(group.cell) == task
                    if (value := group.of("score")) is not None
                ]
                points.sort(key=lambda point: point[0])
                if points:
                    errors = [value.half for _, value in points]
                    panel.errorbar(
                        [place for place, _ in points],
                        [value.mean for _, value in points],
                        yerr=[errors, errors],
                        label=label(name),
                        capsize=2.5,
                        elinewidth=1.2,
                        **look[name],
                    )
            panel.set_xticks(range(len(places)), places)
            panel.set_xlim(-0.5, len(places) - 0.5)
            panel.set_xlabel(words)
            panel.set_title(task)
        axes[0].set_ylabel("score on test rows")
        _legend_below(axes[0])

    return drawn(len(tasks), draw, height=3.4)


def costs(counts: Sequence[int], lines: dict[str, Sequence[float | None]], step_seconds: float) -> Drawn:
    """Draw the seconds that it takes to apply so many updates; None is not drawn."""
    look = looks(lines)

    def draw(axes: Sequence[Any]) -> None:
        (panel,) = axes
        for name, seconds in lines.items():
            points = [
                (count, value) for count, value in zip(counts, seconds, strict=True) if value is not None
            ]
            panel.plot(*zip(*points, strict=True), label=name, **look[name])
        panel.axhline(step_seconds, color="#555555", linestyle=(0, (5, 2)), linewidth=1.1, label="one step")
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(counts, [f"{count:,}" for count in counts])
        panel.set_xlabel("updates")
        panel.set_ylabel("seconds")
        _legend_below(panel)

    return drawn(1, draw, height=3.4)

"""The report of a study, finished or not: tables, the paper's claims with a verdict each, and figures.

All of it follows from the results alone: the same folder gives the same bytes. A claim is met or not by the
means over seeds; whether the difference exceeds its noise is said beside it. Every table and figure of scores
has those of the untrained model, as it is and with calibrated answers.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sflab.baselines import registry
from sflab.experiments import results
from sflab.experiments.cell import Cell
from sflab.studies.findings import Group, Interval, StudyFindings, interval
from sflab.studies.study import describe, short, total
from sfnode.errors import Code, UserError
from sfnode.store.disk_errors import disk_faults

REPORT, FIGURES = "report.md", "figures"

SHOWN_MISSING = 40
"""Missing cells that are named; of more, the number is said."""

ABSENT = "-"

CONTROLS = {"base": "untrained", "calibrated": "untrained, calibrated"}

RATE_OF_SEEDFLOOD = "an update; clients' updates are added"
RATE_OF_AVERAGED = "a local step of a client; clients are averaged"


class StudyPart(NamedTuple):
    """A part of a study: a table for each task, and a figure of the score by what differs."""

    name: str
    title: str
    axis: str
    of: Callable[[Cell], str]
    line: str = "method"
    """Name of what cells of one line of the figure have in common."""
    of_line: Callable[[Cell], str] = lambda cell: cell.method


PARTS = (
    StudyPart(
        "methods",
        "Score by method and topology",
        "method",
        lambda cell: cell.method,
        "topology",
        lambda cell: cell.network.topology,
    ),
    StudyPart(
        "clients",
        "More clients at the same number of rounds",
        "clients",
        lambda cell: str(cell.network.clients),
    ),
    StudyPart(
        "hops",
        "Delayed flooding: links that an update travels in a round",
        "links",
        lambda cell: str(cell.network.hops or "all"),
    ),
    StudyPart(
        "ablation",
        "Rank of the subspace, and local steps between two subspaces",
        "local steps",
        lambda cell: f"{cell.refresh:,}",
        "rank",
        lambda cell: f"rank {cell.rank}",
    ),
    StudyPart(
        "shards",
        "Clients with different data: Dirichlet concentration of their classes",
        "concentration",
        lambda cell: f"{cell.problem.dirichlet:g}" if cell.problem.dirichlet else "IID",
    ),
)


def write(folder: Path) -> Path:
    """Write the report of a results folder, `report.md` with `figures/*.svg`, and return the former.

    Raises UserError RESULTS_UNUSABLE, EXTRA_MISSING, DISK_FULL and DATA_DIR_UNUSABLE.
    """
    findings = StudyFindings.load(folder)
    charts = list(_charts(findings))
    with disk_faults(folder / FIGURES):
        (folder / FIGURES).mkdir(exist_ok=True)
    for chart in charts:
        results.replace(folder / FIGURES / f"{chart.name}.svg", drawn(chart))
    figures = (f"![{chart.title}](figures/{chart.name}.svg)" for chart in charts)
    blocks = [*_summary(findings), *_tables(findings), *_claims(findings), *figures, *_missing(findings)]
    results.replace(folder / REPORT, "\n\n".join(blocks) + "\n")
    return folder / REPORT


# -- tables --------------------------------------------------------------------------------------------


def _summary(findings: StudyFindings) -> Iterator[str]:
    study, cells, missing = findings.study, findings.cells(), len(findings.missing())
    models = ", ".join(dict.fromkeys(cell.problem.model for cell in cells))
    yield f"# {study.title}"
    yield (
        f"`{study.command}`: {findings.finished()} of {findings.finished() + missing} cells are finished, "
        f"{total(cells) / 1e6:.2f} million example-forwards. Model: {models}. Tasks: "
        f"{', '.join(findings.tasks)}. Figures are means over seeds with 95 % t-intervals."
    )
    if missing:
        yield f"This report is partial: {missing} cells are missing. The same command goes on where it was."
    if study.notes:
        yield "\n".join(f"- {note}" for note in study.notes)


def _tables(findings: StudyFindings) -> Iterator[str]:
    for part in PARTS:
        groups = findings.groups(part.name)
        if groups:
            yield f"## {part.title}"
        for task in findings.tasks:
            mine = [group for group in groups if findings.subject(group.cell) == task]
            if mine:
                yield task
                yield _table_of(findings, part, task, mine)
    yield "## Learning rates that were tried"
    yield _tuning(findings)


def _table_of(findings: StudyFindings, part: StudyPart, task: str, groups: Sequence[Group]) -> str:
    anchor = next(
        (group for group in findings.groups("methods") if _is(findings, group, task, "dsgd")), groups[0]
    )
    best = anchor.of("score") if anchor.cell.method == "dsgd" else None
    columns = (part.line, part.axis, "score", "of DSGD's", "loss", "bytes per edge", "consensus error")
    rows = [[words, "", *_control(findings, task, kind)] for kind, words in CONTROLS.items()]
    return table((*columns, "rate", "seeds"), [*rows, *(_row(part, group, best) for group in groups)])


def _control(findings: StudyFindings, task: str, kind: str) -> list[str]:
    found = findings.untrained(task)
    score, loss = (found.get(f"{kind}_{name}") for name in ("score", "loss"))
    said = [ABSENT if one is None else f"{one.mean:.3f}" for one in (score, loss)]
    return [said[0], "", said[1], "", "", "", ""]


def _row(part: StudyPart, group: Group, best: Interval | None) -> list[str]:
    score, size, error = (group.of(name) for name in ("score", "bytes_per_edge", "consensus"))
    return [
        part.of_line(group.cell),
        part.of(group.cell),
        _shown(score),
        ABSENT if score is None or not (best and best.mean) else f"{score.mean / best.mean:.3f}",
        _shown(group.of("loss")),
        ABSENT if size is None else f"{size.mean:,.0f}",
        ABSENT if error is None else f"{error.mean:.3g}",
        f"{group.results[0].cell.learning_rate:.2g}" if group.results else ABSENT,
        f"{len(group.results)} of {group.wanted}",
    ]


def _tuning(findings: StudyFindings) -> str:
    rows = []
    for one in findings.tunings():
        cell = one.trials[0][0]
        tried = "; ".join(f"{trial.learning_rate:.2g}: {_shown(loss)}" for trial, loss in one.trials)
        best = f"{one.winner.learning_rate:.2g}" if one.winner else ABSENT
        edge = "at the edge" if one.at_the_edge else ""
        rate_of = RATE_OF_AVERAGED if cell.method in registry.METHODS else RATE_OF_SEEDFLOOD
        rows.append([cell.method, findings.subject(cell), tried, best, edge, rate_of])
    return table(("method", "task", "rate: validation loss", "chosen", "", "rate of"), rows)


def _missing(findings: StudyFindings) -> Iterator[str]:
    missing = findings.missing()
    if missing:
        lines = [f"- {part}: {describe(cell)}: {short(reason)}" for part, cell, reason in missing]
        more = [f"- and {len(lines) - SHOWN_MISSING} more"] if len(lines) > SHOWN_MISSING else []
        yield "## What is missing"
        yield "\n".join(lines[:SHOWN_MISSING] + more)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows))


def _shown(value: Interval | None) -> str:
    if value is None:
        return ABSENT
    return f"{value.mean:.3f}" if value.seeds == 1 else f"{value.mean:.3f} ± {value.half:.3f}"


def _is(findings: StudyFindings, group: Group, task: str, method: str) -> bool:
    ring = group.cell.network.topology == "ring"
    return ring and group.cell.method == method and findings.subject(group.cell) == task


# -- claims of the paper -------------------------------------------------------------------------------

PAPER_UPDATES = 80_000
"""Updates of the paper's longest run: 16 clients with 5,000 steps each."""

PAPER_BYTES = 400_000
"""Bytes per edge that the paper counts for them."""

PAPER_GAP = -0.06
"""Score of SeedFlood relative to DSGD in the paper, at worst (-4 % at best)."""

RIVALS = ("dzsgd", "dzsgd-lora", "chocosgd-lora")
"""Methods that SeedFlood does not fall below in the paper."""

NOT_MEASURED = "its cells are not finished, or not in this study"


class PaperClaim(NamedTuple):
    """A claim of the paper beside what was found."""

    words: str
    met: bool | None
    """None: it was not measured."""
    found: str = NOT_MEASURED

    def __str__(self) -> str:
        verdict = {True: "met", False: "not met", None: "not measured"}[self.met]
        return f"{self.words}: {verdict}. {self.found}"


def claims(findings: StudyFindings) -> list[PaperClaim]:
    """Compare a study with the paper, claim by claim."""
    found = []
    for task in findings.tasks:
        by_method = {
            name: next((one for one in findings.groups("methods") if _is(findings, one, task, name)), None)
            for name in ("seedflood", "dsgd", *RIVALS)
        }
        ours = by_method["seedflood"]
        for rival in RIVALS:
            words = f"{task}: SeedFlood scores at least as high as {rival} (ring)"
            found.append(_not_below(words, ours, by_method[rival]))
        found.append(_gap(task, ours, by_method["dsgd"]))
        found += [*_bytes(findings, task), _clients(findings, task)]
    return [*found, _consensus(findings)]


def paired(one: Group, other: Group, name: str = "score") -> Interval | None:
    """Return the mean difference of an end value between cells of the same seed, with its interval."""
    others = dict(other.by_seed(name))
    return interval([value - others[seed] for seed, value in one.by_seed(name) if seed in others])


def _claims(findings: StudyFindings) -> Iterator[str]:
    yield "## The paper's claims"
    yield "\n".join(f"- {claim}" for claim in claims(findings))


def _not_below(words: str, ours: Group | None, theirs: Group | None) -> PaperClaim:
    """Return whether the mean score of `ours` is at least that of `theirs`, seed by seed."""
    difference = paired(ours, theirs) if ours and theirs else None
    if ours is None or theirs is None or difference is None:
        return PaperClaim(words, None)
    both = f"{_shown(ours.of('score'))} against {_shown(theirs.of('score'))}"
    return PaperClaim(words, difference.mean >= 0, f"{both}: {noise(difference)}")


def _gap(task: str, ours: Group | None, theirs: Group | None) -> PaperClaim:
    words = f"{task}: SeedFlood stays within 6 % of DSGD (paper: -6 to -4 %)"
    difference = paired(ours, theirs) if ours and theirs else None
    one, other = (group.of("score") if group else None for group in (ours, theirs))
    if difference is None or one is None or other is None or not other.mean:
        return PaperClaim(words, None)
    gap = one.mean / other.mean - 1
    return PaperClaim(words, gap >= PAPER_GAP, f"{100 * gap:+.1f} %: {noise(difference)}")


def noise(difference: Interval) -> str:
    """Write a difference with its interval, and whether it exceeds what seeds make of it."""
    if difference.seeds == 1:
        return f"difference {difference.mean:+.3f}, one seed: nothing is known of the noise"
    includes = "includes" if difference.low <= 0 <= difference.high else "does not include"
    return (
        f"difference {difference.mean:+.3f} ({difference.low:+.3f} to {difference.high:+.3f}); the 95 % "
        f"interval over {difference.seeds} seeds {includes} 0"
    )


def _bytes(findings: StudyFindings, task: str) -> Iterator[PaperClaim]:
    """Yield what an edge carries, both directions together, signatures included: the paper leaves them
    out."""
    words = f"{task}: an edge carries at most {PAPER_BYTES // 1000} KB for {PAPER_UPDATES:,} updates"
    for group in findings.groups("bytes"):
        cell, size = group.cell, group.of("bytes_per_edge")
        if findings.subject(cell) != task:
            continue
        said = f"{words}, with one communication for {cell.local_steps} local steps"
        if size is None:
            yield PaperClaim(said, None)
            continue
        each = size.mean / (cell.steps * cell.network.clients)
        found = f"{each * PAPER_UPDATES / 1000:,.0f} KB, {each:.2f} bytes an update with signatures"
        yield PaperClaim(said, each * PAPER_UPDATES <= PAPER_BYTES, found)


def _clients(findings: StudyFindings, task: str) -> PaperClaim:
    groups = [
        group
        for group in findings.groups("clients")
        if group.results and group.cell.method == "seedflood" and findings.subject(group.cell) == task
    ]
    groups.sort(key=lambda group: group.cell.network.clients)
    if len(groups) < 2:
        return PaperClaim(f"{task}: many clients do not score below few at the same number of rounds", None)
    few, many = groups[0], groups[-1]
    numbers = f"{many.cell.network.clients} clients do not score below {few.cell.network.clients}"
    return _not_below(f"{task}: {numbers} at the same number of rounds", many, few)


def _consensus(findings: StudyFindings) -> PaperClaim:
    words = "All clients of SeedFlood end with the same model where updates reach all in every round"
    groups = [group for group in findings.groups("methods") if group.cell.method == "seedflood"]
    errors = [value for group in groups for _, value in group.by_seed("consensus")]
    if not errors:
        return PaperClaim(words, None)
    return PaperClaim(
        words, not any(errors), f"largest consensus error of {len(errors)} runs: {max(errors):g}"
    )


# -- figures -------------------------------------------------------------------------------------------

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00", "#6A6A6A")
"""Okabe and Ito (2008): people with any kind of colour vision tell them apart."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

STYLE = {"svg.fonttype": "none", "svg.hashsalt": "sfnode", "font.size": 9, "legend.frameon": False}

Points = Sequence[tuple[float, float, float]]
"""Places, means, and half the widths of their intervals."""


class StudyFigure(NamedTuple):
    """A figure: a panel for each task, in it points of some series."""

    name: str
    title: str
    panels: Mapping[str, Mapping[str, Points]]
    controls: Mapping[str, Mapping[str, float]]
    """Scores of the untrained model by task, to be marked."""
    x: str
    y: str = "score on test rows"
    ticks: Sequence[str] = ()
    """Names of the places 0, 1, ...; without them the axis is of numbers."""
    x_scale: str = "linear"
    y_scale: str = "linear"


def _charts(findings: StudyFindings) -> Iterator[StudyFigure]:
    controls = {
        task: {
            words: value.mean
            for kind, words in CONTROLS.items()
            if (value := findings.untrained(task).get(f"{kind}_score"))
        }
        for task in findings.tasks
    }
    for part in PARTS:
        groups = findings.groups(part.name)
        ticks = list(dict.fromkeys(part.of(group.cell) for group in groups))

        def place(group: Group, part: StudyPart = part, ticks: list[str] = ticks) -> Points:
            score = group.of("score")
            return [(ticks.index(part.of(group.cell)), score.mean, score.half)] if score else []

        panels = _panels(findings, groups, place, part.of_line)
        yield StudyFigure(part.name, part.title, panels, controls, part.axis, ticks=ticks)
    ring = [group for group in findings.groups("methods") if group.cell.network.topology == "ring"]
    panels = _panels(findings, ring, _by_bytes, lambda cell: cell.method)
    yield StudyFigure(
        "bytes", "Score by bytes per edge, on a ring", panels, controls, "bytes per edge", x_scale="log"
    )
    panels = _panels(findings, ring, _consensus_curve, lambda cell: cell.method)
    title = "Consensus error by local step, on a ring"
    yield StudyFigure("consensus", title, panels, {}, "local steps", "consensus error", y_scale="symlog")


def _panels(
    findings: StudyFindings,
    groups: Iterable[Group],
    points: Callable[[Group], Points],
    line: Callable[[Cell], str],
) -> dict[str, dict[str, Points]]:
    panels: dict[str, dict[str, Points]] = {}
    for group in groups:
        series = panels.setdefault(findings.subject(group.cell), {})
        series[line(group.cell)] = sorted([*series.get(line(group.cell), ()), *points(group)])
    return panels


def _by_bytes(group: Group) -> Points:
    score, size = group.of("score"), group.of("bytes_per_edge")
    return [(size.mean, score.mean, score.half)] if score and size and size.mean > 0 else []


def _consensus_curve(group: Group) -> Points:
    return [(step, value, 0.0) for step, value in zip(*group.curve("consensus"), strict=True)]


def matplotlib() -> Any:
    """Return the library without its windows. Raises UserError EXTRA_MISSING."""
    try:
        import matplotlib as found
    except ImportError as error:
        raise UserError(
            Code.EXTRA_MISSING,
            "the report's figures cannot be drawn: matplotlib is not installed",
            "Install it: pip install 'sfnode[lab]'; results are kept, "
            "and `sfnode lab simulate report` writes the report then.",
        ) from error
    return found


def drawn(chart: StudyFigure) -> str:
    """Draw a figure as SVG. Raises UserError EXTRA_MISSING."""
    library = matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with library.rc_context(STYLE):
        figure = Figure(figsize=(7.6, 3.8), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, max(1, len(chart.panels)), squeeze=False)[0]
        for panel, task in zip(axes, chart.panels, strict=False):
            _draw(panel, chart, task)
        axes[0].set_ylabel(chart.y)
        handles, names = axes[0].get_legend_handles_labels()
        if handles:
            figure.legend(handles, names, loc="outside lower center", ncols=4)
        svg = io.StringIO()
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    text = svg.getvalue()
    return re.sub(r"\s*<metadata>.*?</metadata>", "", text[text.index("<svg ") :], flags=re.DOTALL)


def _draw(panel: Any, chart: StudyFigure, task: str) -> None:
    for (words, value), dashes in zip(chart.controls.get(task, {}).items(), (":", "--"), strict=False):
        panel.axhline(value, color="#555555", linestyle=dashes, linewidth=1.1, label=words)
    for number, (name, points) in enumerate(chart.panels[task].items()):
        xs, ys, halves = zip(*points, strict=True) if points else ((), (), ())
        # the first eight differ in colour and marker, the next in how these go together
        marker = MARKERS[(number + number // len(COLOURS)) % len(MARKERS)]
        colour = COLOURS[number % len(COLOURS)]
        panel.errorbar(xs, ys, yerr=halves, label=name, capsize=2.5, color=colour, marker=marker)
    if chart.ticks:
        panel.set_xticks(range(len(chart.ticks)), chart.ticks, rotation=30 * (len(chart.ticks) > 5))
    panel.set_xscale(chart.x_scale)
    if chart.y_scale == "symlog":  # logarithmic, with a place for 0
        positive = [y for points in chart.panels[task].values() for _, y, _ in points if y > 0]
        panel.set_yscale("symlog", linthresh=10.0 ** math.floor(math.log10(min(positive, default=1.0))))
    panel.set_xlabel(chart.x)
    panel.set_title(task)

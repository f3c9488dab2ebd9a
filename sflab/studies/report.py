"""The report of a study, finished or not: tables, figures, and where the results differ from the paper's.

Its words follow from the results alone, so that the same folder gives the same report. `document` writes it,
`figures` draws, `comparisons` judges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from sflab.baselines import registry
from sflab.experiments import results
from sflab.experiments.cell import Cell
from sflab.studies import costs, document, figures
from sflab.studies.comparisons import comparisons, label
from sflab.studies.document import Block, Bullets, Figure, Heading, Paragraph, Table
from sflab.studies.figures import Drawn
from sflab.studies.findings import Findings, Group, Interval, find
from sflab.studies.wording import describe, short
from sflab.studies.work import total
from sfnode.store.disk_errors import disk_faults

MARKDOWN, PAGE, FIGURES = "report.md", "report.html", "figures"

CALIBRATION = (
    "On opt-mini-sst, calibration alone, which subtracts the mean log-probability of each answer over "
    "unlabelled "
    "rows and trains nothing, takes SST-2 from 0.514 (loss 0.815) to 0.709 (0.601): as much as 1,920 "
    "updates do. "
    "A score on SST-2 that does not exceed the calibrated one shows that the label prior was removed, not "
    "that "
    "anything was learnt."
)
"""Measured outside the study, by the first token of each answer (docs/benchmarks.md)."""

SHOWN_MISSING = 40
"""Missing cells that are named; of more, the number is said."""

ABSENT = "-"


class Part(NamedTuple):
    """A part of a study as the report shows it."""

    name: str
    title: str
    says: str
    key: Callable[[Cell], str]
    axis: str
    series: Callable[[Cell], str] = lambda cell: cell.method


PARTS = (
    Part(
        "clients",
        "More clients at the same number of rounds",
        "Each client makes as many steps and rounds whatever their number. With SeedFlood more clients make "
        "more updates, each at a rate that is less by as much: a round moves the model as far, with less "
        "noise.",
        lambda cell: str(cell.network.clients),
        "clients",
    ),
    Part(
        "hops",
        "Delayed flooding",
        "An update travels so many links in a round of communication, and goes on from there in the next. "
        "`all`: it "
        "reaches everybody at once.",
        lambda cell: str(cell.network.hops or "all"),
        "links that an update travels in a round",
    ),
    Part(
        "ablation",
        "Rank and refresh of the subspace",
        "The subspace of the given rank is replaced by a new one after so many local steps of a client.",
        lambda cell: f"{cell.refresh:,}",
        "local steps between two subspaces",
        lambda cell: f"rank {cell.rank}",
    ),
    Part(
        "shards",
        "Clients with different data",
        "The classes in a client's rows are drawn from a Dirichlet distribution of this concentration; "
        "`IID`: rows "
        "are dealt out evenly.",
        lambda cell: f"{cell.problem.dirichlet:g}" if cell.problem.dirichlet else "IID",
        "Dirichlet concentration",
    ),
)


class Report(NamedTuple):
    """A report before it is written."""

    title: str
    blocks: list[Block]
    figures: dict[str, Drawn]


def write(folder: Path) -> Path:
    """Write the report of a results folder, and return the page.

    Raises UserError RESULTS_UNUSABLE, EXTRA_MISSING, DISK_FULL and DATA_DIR_UNUSABLE.
    """
    made = make(Findings.load(folder), costs.load(folder))
    with disk_faults(folder / FIGURES):
        (folder / FIGURES).mkdir(exist_ok=True)
    for name, drawn in made.figures.items():
        results.replace(folder / FIGURES / f"{name}.svg", drawn.svg)
        with disk_faults(folder / FIGURES):
            (folder / FIGURES / f"{name}.png").write_bytes(drawn.png)
    results.replace(folder / MARKDOWN, document.markdown(made.title, made.blocks))
    results.replace(folder / PAGE, document.page(made.title, made.blocks))
    return folder / PAGE


def make(findings: Findings, measured: costs.Costs | None) -> Report:
    """Compose a report. Raises UserError EXTRA_MISSING."""
    return _Composer(findings, measured).report()


class _Composer:
    """Composes one report, and keeps its figures."""

    def __init__(self, findings: Findings, measured: costs.Costs | None) -> None:
        self._findings, self._costs = findings, measured
        self._figures: dict[str, Drawn] = {}

    def report(self) -> Report:
        blocks = [
            *self._summary(),
            *self._untrained(),
            *self._methods(),
            *self._by_bytes(),
            *self._consensus(),
            *(block for part in PARTS for block in self._part(part)),
            *self._cost(),
            *self._tuning(),
            *self._differences(),
            *self._missing(),
        ]
        return Report(self._findings.study.title, blocks, self._figures)

    # -- sections ------------------------------------------------------------------------------------

    def _summary(self) -> Iterator[Block]:
        findings = self._findings
        cells = findings.cells()
        models = list(dict.fromkeys(cell.problem.model for cell in cells))
        yield Paragraph(
            f"{findings.finished()} of {findings.finished() + len(findings.missing())} cells are finished; "
            f"a cell is "
            f"one simulated run of one method. Model: {', '.join(f'`{one}`' for one in models)}. Tasks: "
            f"{', '.join(findings.tasks)}. Size of the study: {findings.study.preset or 'a sweep'}, "
            f"{total(cells) / 1e6:.2f} "
            f"million example-forwards. Command: `{findings.study.command}`."
        )
        if findings.missing():
            yield Paragraph(
                f"This report is partial: of {findings.finished() + len(findings.missing())} cells, "
                f"{len(findings.missing())} "
                "are missing (listed at its end). The same command goes on where it was.",
                note=True,
            )
        if findings.study.notes:
            yield Bullets(findings.study.notes)

    def _untrained(self) -> Iterator[Block]:
        yield Heading(2, "What the model scores untrained")
        yield Paragraph(
            "Every score below stands beside that of the untrained model, and beside the untrained model "
            "with "
            "calibrated answers: the mean log-probability of each answer over unlabelled rows is subtracted."
        )
        rows = [
            [task, *(_number(self._findings.untrained(task).get(name)) for name in _CONTROLS)]
            for task in self._findings.tasks
        ]
        columns = ["<task", "score", "loss", "score, calibrated", "loss, calibrated"]
        yield Table(f"The untrained model on test rows. {self._made('methods')}", columns, rows)
        yield from self._warning()

    def _warning(self) -> Iterator[Block]:
        """Yield the sentence that belongs to every figure of a score on SST-2 with opt-mini-sst."""
        if any(_leans(cell) for cell in self._findings.cells()):
            yield Paragraph(CALIBRATION, note=True)

    def _methods(self) -> Iterator[Block]:
        yield Heading(2, "Score by method and topology")
        groups = self._findings.groups("methods")
        yield Paragraph(
            "The score of the average of all clients' models on test rows. Relative: divided by that of "
            "DSGD on a ring "
            f"with {_clients(groups)} clients."
        )
        yield from self._table("methods", groups)
        if _any(groups):
            yield self._figure(
                "methods",
                "scores",
                figures.scores(self._findings, groups),
                "Score by method and topology, beside the untrained model. Bars: 95 % t-intervals over "
                "seeds.",
            )
            yield from self._warning()

    def _by_bytes(self) -> Iterator[Block]:
        yield Heading(2, "Score against bytes per edge")
        groups = [
            group for group in self._findings.groups("methods") if group.cell.network.topology == "ring"
        ]
        yield Paragraph(
            "Bytes that went over a link in both directions together, on a ring, in the encoding of each "
            "method; headers of "
            "the transport are not counted. SeedFlood's are measured from the codec and the flood, with "
            "signatures."
        )
        if not _any(groups):
            yield _nothing()
            return
        yield self._figure(
            "methods",
            "bytes",
            figures.score_by_bytes(self._findings, groups),
            "Score against bytes per edge (logarithmic). Up and to the left is better.",
        )
        yield from self._warning()

    def _consensus(self) -> Iterator[Block]:
        yield Heading(2, "Consensus error by round")
        groups = [
            group
            for group in self._findings.groups("methods")
            if group.cell.network.topology == "ring" and group.cell.method in (*figures.ORDER[:7],)
        ]
        yield Paragraph(
            "The mean over clients of the squared distance between their weights and the mean of all. At 0 "
            "all have the "
            "same model. A round of communication follows every "
            f"{groups[0].cell.local_steps if groups else 'few'} local steps."
        )
        if not _any(groups):
            yield _nothing()
            return
        yield self._figure(
            "methods",
            "consensus",
            figures.curves(self._findings, groups, "consensus", "consensus error (log scale, with 0)"),
            "Consensus error by local step, means over seeds, on a ring.",
        )

    def _part(self, part: Part) -> Iterator[Block]:
        yield Heading(2, part.title)
        yield Paragraph(part.says)
        groups = self._findings.groups(part.name)
        if not groups:
            yield Paragraph("This study has no cells for it; `sfnode simulate paper --long` has.")
            return
        yield from self._table(part.name, groups, part)
        if _any(groups):
            drawn = figures.by_number(self._findings, groups, part.key, part.axis, part.series)
            yield self._figure(
                part.name, part.name, drawn, f"{part.title}: score on test rows by {part.axis}."
            )
            yield from self._warning()

    def _cost(self) -> Iterator[Block]:
        yield Heading(2, "What updates and steps cost")
        found = self._costs
        if found is None:
            yield Paragraph("Not measured yet: that comes after the cells.")
            return
        yield Paragraph(
            f"`{found.model}`, {found.parameters:,} parameters, {found.device}, {found.threads} thread(s). "
            f"Two forward passes "
            f"of a mini-batch take {_time(found.forwards_seconds)}, a step of SeedFlood "
            f"{_time(found.step_seconds)}, one of "
            f"MeZO in place {_time(found.mezo_step_seconds)}. Updates are added to the exact core and "
            f"merged into the "
            "weights once; MeZO's replay writes all parameters for each. Times are this machine's, and the "
            "only "
            "figures of this report that another run does not repeat."
        )
        rows = [
            [
                f"{count:,}",
                _time(add),
                _time(apply),
                _time(replay),
                ABSENT if replay is None else f"{replay / apply:,.0f}",
            ]
            for count, add, apply, replay in zip(
                found.counts, found.add_seconds, found.apply_seconds, found.replay_seconds, strict=True
            )
        ]
        columns = ["updates", "into the core", "into the weights, too", "MeZO's replay", "times as long"]
        caption = f"Seconds to take in updates; {ABSENT}: not measured, more than {found.patience:g} s."
        yield Table(f"{caption} {self._made('')}", columns, rows)
        lines = {"SeedFlood": found.apply_seconds, "MeZO's replay": found.replay_seconds}
        drawn = figures.costs(found.counts, lines, found.step_seconds)
        yield self._figure("", "costs", drawn, "Seconds until so many updates are in the weights.")

    def _tuning(self) -> Iterator[Block]:
        yield Heading(2, "Learning rates that were tried")
        tunings = self._findings.tunings()
        if not tunings:
            yield Paragraph("Rates are those that were given.")
            return
        rows = []
        for one in tunings:
            cell = one.trials[0][0]
            tried = "; ".join(f"{trial.learning_rate:.2g}: {_number(loss)}" for trial, loss in one.trials)
            best = f"{one.winner.learning_rate:.2g}" if one.winner else ABSENT
            edge = "edge of the grid" if one.at_the_edge else ""
            rows.append(
                [label(cell.method), self._findings.subject(cell), tried, best, edge, _rate_of(cell.method)]
            )
        yield Paragraph(
            "The rate with the least validation loss is taken. Where it is at the edge of its grid a better "
            "one may lie "
            "beyond, and the method is shown worse than it is."
        )
        columns = ["<method", "<task", "<rate: validation loss", "chosen", "<", "<rate of"]
        yield Table(f"Tuning, on a ring. {self._made('', seeds=[0])}", columns, rows)

    def _differences(self) -> Iterator[Block]:
        yield Heading(2, "Where this differs from the paper, and why")
        found = comparisons(self._findings)
        rows = [[one.claim, str(one.verdict), one.found, one.why] for one in found]
        yield Table(
            "The paper's claims, judged by means over seeds. " + self._made("methods"),
            ["<claim", "<verdict", "<found", "<to judge it by"],
            rows,
        )
        yield Bullets(list(self._reasons()))

    def _reasons(self) -> Iterator[str]:
        cells = self._findings.cells()
        models = ", ".join(dict.fromkeys(Path(cell.problem.model).name for cell in cells))
        steps = max((cell.steps for cell in cells), default=0)
        yield (
            f"Model and length: the paper trains OPT-125M to 2.7B for 5,000 steps; here {models} for "
            f"{steps:,} at most."
        )
        yield (
            "Directions: one coordinate of a subspace for every layer, with a sign of its own, and bases "
            "with entries +1 and "
            "-1 that follow from integers, so that all clients agree to the bit on any hardware."
        )
        yield (
            "Bytes: every segment is signed and chained here, which the paper's count of seeds and scalars "
            "leaves out."
        )
        yield (
            "Learning rates: a grid by factors of about three for each method. Baselines may gain more from "
            "a finer search, and from rates tuned anew for each topology and number of clients."
        )
        yield (
            "Scores here are no evidence for larger models: gains of a small model are partly its label "
            "prior, and intervals "
            "of few seeds are wide."
        )

    def _missing(self) -> Iterator[Block]:
        yield Heading(2, "What is missing")
        missing = self._findings.missing()
        if not missing:
            yield Paragraph("Nothing: all cells of the study are finished.")
            return
        counts = Counter(one.part for one in missing)
        yield Paragraph(f"Cells by part: {', '.join(f'{part} {count}' for part, count in counts.items())}.")
        shown = missing[:SHOWN_MISSING]
        yield Bullets(
            [f"{one.part}: {describe(one.cell)}: {short(one.reason)}" for one in shown]
            + ([f"and {len(missing) - len(shown)} more"] if len(missing) > len(shown) else [])
        )

    # -- pieces --------------------------------------------------------------------------------------

    def _table(self, name: str, groups: Sequence[Group], part: Part | None = None) -> Iterator[Block]:
        for task in self._findings.tasks:
            mine = [group for group in groups if self._findings.subject(group.cell) == task]
            if not mine:
                continue
            problem = mine[0].cell.problem
            about = {"task": problem.task, "model": problem.model}
            anchor = find(self._findings.groups("methods"), method="dsgd", topology="ring", **about)
            best = anchor.of("score") if anchor else None
            first = ["<method", "<topology" if part is None else f"<{part.axis}"]
            columns = [
                *first,
                "score",
                "relative",
                "loss",
                "bytes per edge",
                "consensus error",
                "rate",
                "seeds",
            ]
            rows = [*self._controls(task), *(_row(group, best, part) for group in mine)]
            done = sum(len(group.results) for group in mine)
            wanted = sum(group.wanted for group in mine)
            partial = "" if done == wanted else f" Partial: {done} of {wanted} cells are finished."
            yield Table(f"{task}.{partial} {self._made(name)}", columns, rows)

    def _controls(self, task: str) -> Iterator[list[str]]:
        found = self._findings.untrained(task)
        for words, kind in (("untrained", "base"), ("untrained, calibrated", "calibrated")):
            score, loss = found.get(f"{kind}_score"), found.get(f"{kind}_loss")
            if score is not None:
                yield [words, "", _number(score), "", _number(loss), "", "", "", ""]

    def _figure(self, part: str, name: str, drawn: Drawn, caption: str) -> Figure:
        self._figures[name] = drawn
        return Figure(name, caption, f"{caption} {self._made(part)}", drawn.svg)

    def _made(self, part: str, seeds: Sequence[int] | None = None) -> str:
        """Say by which command, and with which seeds."""
        chosen = self._findings.seeds(part) if seeds is None else seeds
        said = f" Seeds: {', '.join(map(str, chosen))}." if chosen else ""
        return f"Command: `{self._findings.study.command}`.{said}"


_CONTROLS = ("base_score", "base_loss", "calibrated_score", "calibrated_loss")


def _row(group: Group, best: Interval | None, part: Part | None) -> list[str]:
    cell, score = group.cell, group.of("score")
    relative = ABSENT if score is None or best is None or not best.mean else f"{score.mean / best.mean:.3f}"
    name = label(cell.method)
    if part is not None and part.name == "ablation":
        name += f", rank {cell.rank}"
    size, error = group.of("bytes_per_edge"), group.of("consensus")
    return [
        name,
        cell.network.topology if part is None else part.key(cell),
        _interval(score),
        relative,
        _interval(group.of("loss")),
        ABSENT if size is None else f"{size.mean:,.0f}",
        ABSENT if error is None else f"{error.mean:.3g}",
        f"{group.results[0].cell.learning_rate:.2g}" if group.results else ABSENT,
        f"{len(group.results)} of {group.wanted}",
    ]


def _interval(value: Interval | None) -> str:
    if value is None:
        return ABSENT
    return f"{value.mean:.3f}" if value.seeds == 1 else f"{value.mean:.3f} ± {value.half:.3f}"


def _number(value: Interval | None) -> str:
    return ABSENT if value is None else f"{value.mean:.3f}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ABSENT
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _rate_of(method: str) -> str:
    return registry.METHODS[method].rate if method in registry.METHODS else registry.UPDATE


def _any(groups: Sequence[Group]) -> bool:
    return any(group.results for group in groups)


def _nothing() -> Paragraph:
    return Paragraph("No cell for it is finished yet.")


def _clients(groups: Sequence[Group]) -> int:
    return groups[0].cell.network.clients if groups else 16


def _leans(cell: Cell) -> bool:
    return cell.problem.task == "sst2" and Path(cell.problem.model).name == "opt-mini-sst"

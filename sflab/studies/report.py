"""The report of a study, finished or not: tables, and the paper's claims with a verdict each.

The report depends only on the results: the same folder gives the same bytes. Means over seeds decide whether
a claim is met. The report also says whether a difference of means exceeds the noise between seeds. Every
table of scores includes the untrained model, with and without calibrated answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from sflab.baselines import registry
from sflab.experiments import results
from sflab.experiments.cell import Cell
from sflab.studies.findings import Group, Interval, StudyFindings, interval
from sflab.studies.study import describe, short, total

REPORT = "report.md"

SHOWN_MISSING = 40
"""Maximum number of missing cells to list. The report gives only the number of the others."""

ABSENT = "-"

CONTROLS = {"base": "untrained", "calibrated": "untrained, calibrated"}

RATE_OF_SEEDFLOOD = "an update; clients' updates are added"
RATE_OF_AVERAGED = "a local step of a client; clients are averaged"


class StudyPart(NamedTuple):
    """Part of a study, shown as a table for each task."""

    name: str
    title: str
    axis: str
    of: Callable[[Cell], str]
    line: str = "method"
    """Heading of the first column."""
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
    """Write `report.md` to a results folder, and return its path.

    Raises UserError RESULTS_UNUSABLE, DISK_FULL and DATA_DIR_UNUSABLE.
    """
    findings = StudyFindings.load(folder)
    blocks = [*_summary(findings), *_tables(findings), *_claims(findings), *_missing(findings)]
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
    """Format a table in Markdown."""
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
"""Number of updates of the paper's longest run: 16 clients with 5,000 steps each."""

PAPER_BYTES = 400_000
"""Bytes per edge that the paper states for these updates."""

PAPER_GAP = -0.06
"""Lowest relative difference between the scores of SeedFlood and DSGD in the paper (the highest is -4 %)."""

RIVALS = ("dzsgd", "dzsgd-lora", "chocosgd-lora")
"""Methods that do not score higher than SeedFlood in the paper."""

NOT_MEASURED = "its cells are not finished, or not in this study"


class PaperClaim(NamedTuple):
    """A claim of the paper, with the finding about it."""

    words: str
    met: bool | None
    """Whether the claim is met; None: not measured."""
    found: str = NOT_MEASURED

    def __str__(self) -> str:
        verdict = {True: "met", False: "not met", None: "not measured"}[self.met]
        return f"{self.words}: {verdict}. {self.found}"


def claims(findings: StudyFindings) -> list[PaperClaim]:
    """Judge all claims of the paper from the findings of a study."""
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
    """Return the mean difference of an end value between cells with the same seed, with its interval."""
    others = dict(other.by_seed(name))
    return interval([value - others[seed] for seed, value in one.by_seed(name) if seed in others])


def _claims(findings: StudyFindings) -> Iterator[str]:
    yield "## The paper's claims"
    yield "\n".join(f"- {claim}" for claim in claims(findings))


def _not_below(words: str, ours: Group | None, theirs: Group | None) -> PaperClaim:
    """Judge whether the mean score of `ours` is at least the mean score of `theirs`, compared seed by
    seed."""
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
    """Format a difference with its interval, and whether the interval includes 0."""
    if difference.seeds == 1:
        return f"difference {difference.mean:+.3f}, one seed: nothing is known of the noise"
    includes = "includes" if difference.low <= 0 <= difference.high else "does not include"
    return (
        f"difference {difference.mean:+.3f} ({difference.low:+.3f} to {difference.high:+.3f}); the 95 % "
        f"interval over {difference.seeds} seeds {includes} 0"
    )


def _bytes(findings: StudyFindings, task: str) -> Iterator[PaperClaim]:
    """Judge the paper's claim about the bytes that an edge carries. Here both directions and signatures
    count; the paper leaves signatures out."""
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

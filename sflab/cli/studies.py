"""`sfnode lab simulate paper`, `report` and `sweep`: studies, where their cells run, and how far they are."""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sflab.cli.simulate_training import cell_of, cell_options, results_option
from sfnode.cli.exit import DONE, FAILED, INTERRUPTED
from sfnode.cli.options import device_option, json_option, option
from sfnode.cli.output import echo, table
from sfnode.cli.progress import waiting
from sfnode.errors import Code, UserError
from sfnode.printable import command
from sfnode.tasks.presets import DEFAULT_MODEL

if TYPE_CHECKING:
    from sflab.experiments.cell import Cell, Problem
    from sflab.studies.findings import Group, Interval
    from sflab.studies.study import Study, StudyProgress


F = TypeVar("F", bound=Callable[..., Any])


def study_options(default: str) -> Callable[[F], F]:
    """Return --out with this default, --workers, --ray and --device."""

    def add(function: F) -> F:
        function = device_option(function)
        function = option(
            "--ray",
            metavar="ADDRESS",
            help="Run cells through Ray: the address of a cluster, `auto`, or `local` (docs/experiments.md).",
        )(function)
        function = option(
            "--workers",
            type=click.IntRange(1),
            help="Worker processes with one CPU thread each; 1: none but this one.  "
            "[default: as many as cores]",
        )(function)
        return results_option(default, "study")(function)

    return add


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def typed() -> str:
    """Return the command line as it was typed, for the report."""
    return command("sfnode", *sys.argv[1:])


def run_study(
    plan: Study, results: Path, workers: int | None, ray: str | None, device: str
) -> dict[str, str]:
    """Run a study and show how far it is; return why cells failed, by their names.

    Raises UserError RESULTS_UNUSABLE, EXTRA_MISSING, RAY_UNAVAILABLE.
    """
    from sflab.studies import study
    from sflab.studies.workers import CellJob, Here, Pool, Processes, Ray, run_here

    job = CellJob(run_here, results, device)
    count = workers or cores()
    pool: Pool = Ray(job, ray) if ray else Here(job) if count == 1 else Processes(job, count)
    began = time.monotonic()
    with waiting(f"{len(study.distinct(plan))} cells") as advance:

        def told(progress: StudyProgress) -> None:
            advance(progress.done, progress.total)
            if progress.failure or not sys.stderr.isatty():
                echo(line(progress, time.monotonic() - began), err=True)

        try:
            return study.run(plan, results, pool, told)
        except KeyboardInterrupt:
            echo(f"Interrupted. The same command goes on from {results}.", err=True)
            raise SystemExit(INTERRUPTED) from None


def line(progress: StudyProgress, seconds: float) -> str:
    """Say how far a study is, and how long it will take by the example-forwards that it has made."""
    from sflab.studies.study import describe, short

    left = (progress.total - progress.done) * seconds / max(progress.fresh, 1)
    said = f"{progress.done / max(progress.total, 1):4.0%}, {duration(left)} left: {describe(progress.cell)}"
    return f"{said}\n  failed: {short(progress.failure)}" if progress.failure else said


def duration(seconds: float) -> str:
    """Write a duration in its largest units."""
    minutes = round(seconds / 60)
    return (
        f"{minutes // 60} h {minutes % 60} min"
        if minutes >= 60
        else f"{minutes} min"
        if minutes
        else f"{seconds:.0f} s"
    )


# `sfnode lab simulate paper` and `report`: the SeedFlood paper's comparison, and its report.


@click.command
@option(
    "--model",
    "models",
    multiple=True,
    metavar="SOURCE",
    help=f"Base model; may be repeated.  [default: {DEFAULT_MODEL}; with --full the paper's three]",
)
@option(
    "--task",
    "tasks",
    multiple=True,
    metavar="PRESET",
    help="A ready-made task; may be repeated.  [default: reviews; with --full the paper's six]",
)
@option(
    "--train",
    multiple=True,
    metavar="SOURCE",
    help="Rows to train on: one for each --task, in the same order.",
)
@option("--test", multiple=True, metavar="SOURCE", help="Rows to test on, likewise.")
@option("--smoke", is_flag=True, help="Everything, tiny: less than a minute, and figures that mean nothing.")
@option("--long", is_flag=True, help="The whole table, all methods: a day of two cores with opt-mini-sst.")
@option("--full", is_flag=True, help="The paper's own size, for machines with large GPUs.")
@option("--seeds", type=click.IntRange(1), default=3, help="Seeds of every cell.")
@option(
    "--learning-rate",
    type=click.FloatRange(0, min_open=True),
    metavar="NUMBER",
    help="Rate per update around which zeroth-order rates are tried.  [default: the size's, 6e-6 or so]",
)
@study_options("paper")
@option("--dry-run", is_flag=True, help="Only list the cells, and estimate what they take.")
def paper(
    models: tuple[str, ...],
    tasks: tuple[str, ...],
    train: tuple[str, ...],
    test: tuple[str, ...],
    smoke: bool,
    long: bool,
    full: bool,
    seeds: int,
    learning_rate: float | None,
    results: Path,
    workers: int | None,
    ray: str | None,
    device: str,
    dry_run: bool,
) -> int:
    """Compare SeedFlood with the methods of its paper and write a report with tables and figures.

    What is finished is kept: a study that was ended goes on with the same command, and a larger one takes
    what it shares with a smaller one in the same folder. Without a size, the study takes about two hours of
    two cores with a model of 4 million parameters and two tasks. Exit status 1 if a cell failed.
    """
    from sflab.studies import paper as presets

    if learning_rate is not None and not math.isfinite(learning_rate):
        raise UserError(
            Code.BAD_OPTION, f"--learning-rate: {learning_rate} is no rate", "Give a number such as 6e-6."
        )
    size = _size(smoke=smoke, long=long, full=full)
    problems = _problems(size, models, tasks, train, test)
    plan = presets.study(size, problems, seeds, learning_rate or 0.0, typed())
    if dry_run:
        _list(plan, workers or cores())
        return DONE
    from sflab.studies import report as reports

    reports.matplotlib()  # before hours of work, not after them
    failed = run_study(plan, results, workers, ray, device)
    return _ended(reports.write(results), failed)


@click.command
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def report(folder: Path) -> int:
    """Write the report of a results FOLDER, whose study may still be running."""
    from sflab.studies import report as reports

    return _ended(reports.write(folder), {})


def _ended(report: Path, failed: dict[str, str]) -> int:
    if failed:
        echo(
            f"{len(failed)} cells failed; the report names them. The same command tries them again.", err=True
        )
    echo(f"report: {report}")
    return FAILED if failed else DONE


def _size(**flags: bool) -> str:
    chosen = [name for name, given in flags.items() if given]
    if len(chosen) > 1:
        raise UserError(
            Code.BAD_OPTION,
            f"--{chosen[0]} and --{chosen[1]} are two sizes of one study",
            "Give one of them.",
        )
    return chosen[0] if chosen else "default"


def _problems(
    size: str, models: Sequence[str], tasks: Sequence[str], train: Sequence[str], test: Sequence[str]
) -> list[Problem]:
    from sflab.experiments.cell import Problem
    from sflab.studies import paper as presets
    from sfnode.tasks.presets import preset

    full = size == "full"
    models = models or (presets.FULL_MODELS if full else (DEFAULT_MODEL,))
    tasks = tasks or (presets.FULL_TASKS if full else ("reviews",))
    for flag, given in (("--train", train), ("--test", test)):
        if given and len(given) != len(tasks):
            raise UserError(
                Code.BAD_OPTION,
                f"{len(given)} {flag} for {len(tasks)} tasks: which is whose cannot be told",
                f"Give one {flag} for each --task, in the same order, or none for the tasks' own data.",
            )
    for task in tasks:
        preset(task)
    sources = list(zip(tasks, train or ("",) * len(tasks), test or ("",) * len(tasks), strict=True))
    return [
        Problem(model=model, task=task, train=rows, test=tested)
        for model in models
        for task, rows, tested in sources
    ]


def _list(plan: Study, workers: int) -> None:
    from sflab.studies import study

    cells = study.distinct(plan)
    for cell in cells:
        echo(f"{study.work(cell):10,}  {study.describe(cell)}")
    seconds = study.estimate(cells, workers)
    echo(
        f"{len(cells)} cells, {study.total(cells):,} example-forwards; about {duration(seconds)} with "
        f"{workers} workers if the model is as small as opt-mini-sst and rows are as short as sentences. "
        "Rates are the first that are tried."
    )


# `sfnode lab simulate sweep`: cells over a grid of learning rates, epsilons, ranks and mini-batches.


SWEPT = ("learning_rate", "epsilon", "rank", "batch_size")
"""Fields of a cell that take several values."""

SHOWN = ("validation_score", "validation_loss", "score", "loss")


@click.command
@cell_options(several=SWEPT)
@option("--seeds", type=click.IntRange(1), default=1, help="Seeds of each, from --seed on.")
@study_options("sweep")
@json_option
def sweep(
    options: dict[str, float],
    seeds: int,
    results: Path,
    workers: int | None,
    ray: str | None,
    device: str,
    as_json: bool,
    **fields: Any,
) -> int:
    """Run every combination of the given learning rates, epsilons, ranks and batch sizes; best first.

    Those options may be repeated. Order by validation loss, the mean over seeds; what is finished is not run
    again. `sfnode lab simulate report` does not apply. Exit status 1 if a cell failed.
    """
    from sflab.studies import study

    grid = itertools.product(*(fields[name] for name in SWEPT))
    cells = [
        cell_of(fields | dict(zip(SWEPT, point, strict=True)) | {"seed": fields["seed"] + number}, options)
        for point in grid
        for number in range(seeds)
    ]
    entries = tuple(study.StudyEntry(part="sweep", cell=cell) for cell in cells)
    plan = study.Study(title="Sweep", command=typed(), entries=entries)
    failed = run_study(plan, results, workers, ray, device)
    groups = _ordered(results)
    if as_json:
        echo(json.dumps([_as_dict(group, failed) for group in groups], indent=2))
    else:
        echo("\n".join(_lines(groups)))
    return FAILED if any(cell.name in failed for cell in cells) else DONE


def _ordered(results: Path) -> list[Group]:
    """Return the groups of cells, the least validation loss first; those without results last."""
    from sflab.studies.findings import StudyFindings

    def loss(group: Group) -> float:
        found = group.of("validation_loss") or group.of("loss")
        return found.mean if found else float("inf")

    return sorted(StudyFindings.load(results).groups("sweep"), key=loss)


def _lines(groups: Sequence[Group]) -> list[str]:
    heads = ("rate", "epsilon", "rank", "batch", "val. score", "val. loss", "score", "loss", "seeds")
    rows = [heads, *(_row(group) for group in groups)]
    return [table(rows, right=range(len(heads))), *_untrained(groups)]


def _untrained(groups: Sequence[Group]) -> list[str]:
    """Say what the untrained model scores on the test rows."""
    found = next((group for group in groups if group.results), None)
    if found is None:
        return []
    values = [(words, found.of(f"{kind}_score"), found.of(f"{kind}_loss")) for words, kind in CONTROLS]
    return [
        f"{words}: score {score.mean:.3f}, loss {loss.mean:.4f}"
        for words, score, loss in values
        if score and loss
    ]


CONTROLS = (("untrained", "base"), ("untrained, calibrated", "calibrated"))


def _row(group: Group) -> tuple[str, ...]:
    cell = group.cell
    numbers = (_number(group.of(name)) for name in SHOWN)
    swept = (f"{cell.learning_rate:.3g}", f"{cell.epsilon:.3g}", str(cell.rank), str(cell.batch_size))
    return (*swept, *numbers, f"{len(group.results)} of {group.wanted}")


def _number(value: Interval | None) -> str:
    if value is None:
        return "-"
    return f"{value.mean:.4f}" if value.seeds == 1 else f"{value.mean:.4f} ± {value.half:.4f}"


def _as_dict(group: Group, failed: dict[str, str]) -> dict[str, Any]:
    cell: Cell = group.cell
    swept = {name: getattr(cell, name) for name in SWEPT}
    means = {name: value._asdict() for name in SHOWN if (value := group.of(name)) is not None}
    return {
        "cell": cell.model_dump(mode="json"),
        **swept,
        **means,
        "seeds": [result.cell.seed for result in group.results],
        "wanted": group.wanted,
        "failed": failed.get(cell.name),
    }

"""`sfnode lab simulate paper` and `report`: the SeedFlood paper's comparison, and its report."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sflab.cli.simulate_training import results_option
from sfnode.cli.exit import DONE, FAILED, INTERRUPTED
from sfnode.cli.options import device_option, option
from sfnode.cli.output import echo
from sfnode.cli.progress import waiting
from sfnode.errors import Code, UserError
from sfnode.printable import command
from sfnode.tasks.presets import DEFAULT_MODEL

if TYPE_CHECKING:
    from sflab.experiments.cell import Problem
    from sflab.studies.study import Study, StudyProgress


def cores() -> int:
    """Return the number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def typed() -> str:
    """Return the command line as typed, for the report."""
    return command("sfnode", *sys.argv[1:])


def run_study(plan: Study, results: Path, count: int, device: str) -> dict[str, str]:
    """Run a study with `count` workers and show its progress. Return the reason of each cell's failure, keyed
    by the cell's name.

    Raises UserError RESULTS_UNUSABLE.
    """
    from sflab.studies import study
    from sflab.studies.workers import CellJob, Here, Pool, Processes, run_here

    job = CellJob(run_here, results, device)
    pool: Pool = Here(job) if count == 1 else Processes(job, count)
    began = time.monotonic()
    with waiting(f"{len(study.distinct(plan))} cells") as advance:

        def told(progress: StudyProgress) -> None:
            advance(progress.done, progress.total)
            if progress.failure or not sys.stderr.isatty():
                echo(line(progress, time.monotonic() - began), err=True)

        try:
            return study.run(plan, results, pool, told)
        except KeyboardInterrupt:
            echo(f"Interrupted. The same command continues from {results}.", err=True)
            raise SystemExit(INTERRUPTED) from None


def line(progress: StudyProgress, seconds: float) -> str:
    """Format the progress of a study, with the remaining time estimated from the speed so far."""
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
@results_option("paper", "study")
@option(
    "--workers",
    type=click.IntRange(1),
    help="Worker processes with one CPU thread each; 1: none but this one.  [default: as many as cores]",
)
@device_option
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
    device: str,
    dry_run: bool,
) -> int:
    """Compare SeedFlood with the methods of its paper and write a report with tables.

    Finished cells are kept: the same command continues an interrupted study, and a larger study reuses the
    cells of a smaller one in the same folder. Without a size, the study takes about two hours of two cores
    with a model of 4 million parameters and two tasks. Exit status 1 if a cell failed.

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

    failed = run_study(plan, results, workers or cores(), device)
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

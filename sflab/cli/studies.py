"""Parts that commands for studies share: where cells run, where results go, how far it is."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sfnode.cli.exit import INTERRUPTED
from sfnode.cli.options import device_option, option
from sfnode.cli.output import echo
from sfnode.cli.progress import waiting
from sfnode.printable import command

if TYPE_CHECKING:
    from sflab.studies.study import Progress, Study

F = TypeVar("F", bound=Callable[..., Any])


def study_options(default: str) -> Callable[[F], F]:
    """Return --results with this default, --workers, --ray and --device."""

    def add(function: F) -> F:
        function = device_option(function)
        function = option(
            "--ray",
            metavar="ADDRESS",
            help="Run cells through Ray: the address of a cluster, `auto`, or `local` (docs/paper.md).",
        )(function)
        function = option(
            "--workers",
            type=click.IntRange(1),
            metavar="COUNT",
            help=(
                "Worker processes with one CPU thread each; 1: none but this one.  [default: as many as "
                "cores]"
            ),
        )(function)
        return results_option(default)(function)

    return add


def results_option(default: str) -> Callable[[F], F]:
    """Return --results."""
    return option(
        "--results",
        type=click.Path(path_type=Path, file_okay=False),
        default=default,
        show_default=True,
        metavar="FOLDER",
        help="Where results are written, and where a study that was ended goes on.",
    )


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
    from sflab.studies.workers import Here, Job, Pool, Processes, Ray, run_here

    job = Job(run_here, results, device)
    count = workers or cores()
    pool: Pool = Ray(job, ray) if ray else Here(job) if count == 1 else Processes(job, count)
    began = time.monotonic()
    with waiting(f"{len(study.distinct(plan))} cells", time_left=True) as advance:

        def told(progress: Progress) -> None:
            advance(progress.done, progress.total)
            if progress.failure or not sys.stderr.isatty():
                echo(line(progress, time.monotonic() - began), err=True)

        try:
            return study.run(plan, results, pool, told)
        except KeyboardInterrupt:
            echo(f"Interrupted. The same command goes on from {results}.", err=True)
            raise SystemExit(INTERRUPTED) from None


def line(progress: Progress, seconds: float) -> str:
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

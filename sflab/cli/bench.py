"""`sfnode bench`: what this machine can do with a model. `sflab.bench` measures, `bench_output` prints."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console

from sflab.cli import bench_output
from sfnode.cli.options import (
    devices_option,
    dtype_option,
    json_option,
    option,
    queries_option,
    run_option,
    threads_option,
)
from sfnode.cli.output import echo
from sfnode.manifest import Manifest
from sfnode.tasks.presets import DEFAULT_MODEL

BATCHES = (1, 4, 16)
"""Default batch sizes: one row, MeZO's usual size for a volunteer, and one that fills a processor."""

MOST_TOKENS = 65_535
"""Tokens of the longest prompt; with its answer, as many as a task's max_tokens allows."""


@click.command
@option(
    "--model",
    metavar="SOURCE",
    help="A folder, a Hugging Face id, shape:NAME or a folder with config.json alone (random weights).  "
    f"[default: the run's, or {DEFAULT_MODEL}]",
)
@run_option("Measure with the task and the data of this run manifest.  [default: random tokens]")
@option(
    "--batch",
    "batches",
    type=click.IntRange(1, 4096),
    multiple=True,
    default=BATCHES,
    show_default=True,
    metavar="COUNT",
    help="Rows of a mini-batch; may be repeated.",
)
@option(
    "--tokens",
    type=click.IntRange(1, MOST_TOKENS),
    default=32,
    show_default=True,
    metavar="COUNT",
    help="Length of a random sentence.",
)
@queries_option("Mini-batches of a step, each for one update or for a group.")
@devices_option
@dtype_option
@threads_option("CPU threads.  [default: as many as find a core that is free]")
@option(
    "--rank", type=click.IntRange(0), default=0, metavar="COUNT", help="Rank.  [default: the run's, or 32]"
)
@option(
    "--group",
    type=click.IntRange(0),
    metavar="COUNT",
    help="Updates that share a mini-batch; 0: each is measured at two points.  [default: the run's, or 0]",
)
@option("--compare", type=click.Choice(["mezo"]), help="Time this method's step too.")
@option(
    "--repetitions",
    type=click.IntRange(1),
    default=15,
    show_default=True,
    metavar="COUNT",
    help="Turns of each contestant; medians are shown.",
)
@json_option
def bench(
    model: str | None,
    run: Path | None,
    batches: tuple[int, ...],
    tokens: int,
    queries: int,
    device: str,
    dtype: str,
    threads: int,
    rank: int,
    group: int | None,
    compare: str | None,
    repetitions: int,
    as_json: bool,
) -> None:
    """Measure a training step beside the plain forward passes that it is made of, its memory, and which
    models would fit.

    Shapes are those of published models; one that is unknown lists those that are known. Nothing is sent, and
    a model that was made from a shape is removed at the end.
    """
    manifest = Manifest.from_toml(run) if run else None
    from sflab.bench.runner import Plan, run_benchmark
    from sflab.bench.subject import SubjectSpec

    spec = SubjectSpec(model or "", manifest, tokens, device, dtype, rank, group, run.parent if run else None)
    plan = Plan(batches, queries or 1, compare == "mezo", repetitions, threads)
    result = run_benchmark(spec, plan, _say)
    if as_json:
        echo(result.model_dump_json(indent=2))
    else:
        bench_output.show(result, Console())


def _say(what: str) -> None:
    """Print progress as plain lines at a terminal; a moving bar would take time from what is timed."""
    if sys.stderr.isatty():
        echo(what, err=True)

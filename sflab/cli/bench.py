"""`sfnode lab bench`: prints the speed and the memory of a model on this machine, which `sflab.bench`
measures."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from sfnode.cli import options
from sfnode.cli.output import echo
from sfnode.manifest import Manifest
from sfnode.schema.results import BatchResult, BenchResult, TogetherResult
from sfnode.tasks.presets import DEFAULT_MODEL

BATCHES = (1, 4, 16)
"""Default batch sizes, in rows: the smallest, a usual one on a volunteer's machine, and one that keeps a
processor busy."""

MOST_TOKENS = 65_535
"""Maximum number of tokens of a random prompt: the largest max_tokens that a task may have."""


@click.command
@options.option(
    "--model",
    metavar="SOURCE",
    help="A folder, a Hugging Face id, shape:NAME or a folder with config.json alone (random weights).  "
    f"[default: the run's, or {DEFAULT_MODEL}]",
)
@options.run_option("Measure with the task and the data of this run manifest.  [default: random tokens]")
@options.option(
    "--batch",
    "batches",
    type=click.IntRange(1, 4096),
    multiple=True,
    default=BATCHES,
    help="Rows of a mini-batch; may be repeated.",
)
@options.option(
    "--tokens", type=click.IntRange(1, MOST_TOKENS), default=32, help="Length of a random sentence."
)
@options.setting(
    "--queries", metavar="COUNT", help="Mini-batches of a step, each for one update or for a group."
)
@options.devices_option
@options.dtype_option
@options.threads_option("CPU threads.  [default: as many as find a core that is free]")
@options.option("--rank", type=click.IntRange(0), default=0, help="Rank.  [default: the run's, or 32]")
@options.option(
    "--group",
    type=click.IntRange(0),
    help="Updates that share a mini-batch; 0: each is measured at two points.  [default: the run's, or 0]",
)
@options.option("--compare", type=click.Choice(["mezo"]), help="Time this method's step too.")
@options.option(
    "--repetitions", type=click.IntRange(1), default=15, help="Turns of each contestant; medians are shown."
)
@options.json_option
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
    """Time a training step against the same number of plain forward passes, measure its memory, and find the
    models that would fit.

    Shapes are those of published models. An unknown name prints the known ones. Nothing is sent. A model made
    from a shape is removed at the end.
    """
    manifest = Manifest.from_toml(run) if run else None
    from sflab.bench.runner import BenchPlan, run_benchmark
    from sflab.bench.subject import SubjectSpec

    spec = SubjectSpec(model or "", manifest, tokens, device, dtype, rank, group, run.parent if run else None)
    plan = BenchPlan(batches, queries or 1, compare == "mezo", repetitions, threads)
    result = run_benchmark(spec, plan, _say)
    if as_json:
        echo(result.model_dump_json(indent=2))
    else:
        show(result, Console())


def _say(what: str) -> None:
    """Print progress as plain lines at a terminal. A moving bar would disturb the times."""
    if sys.stderr.isatty():
        echo(what, err=True)


# -- the results as tables of 80 columns ----------------------------------------------------------------


GB = 1e9

BUSY_CORES = 0.25
"""Number of cores used by other programs above which the output warns that its figures are unreliable. A
quiet desktop uses less."""


def show(result: BenchResult, console: Console) -> None:
    """Print the whole result."""
    console.print(heading(result), highlight=False)
    console.print(_times(result), _memory(result))
    if any(batch.mezo_matrices_ratio is not None for batch in result.batches):
        console.print(_mezo(result))
    console.print(_incoming(result), highlight=False)
    if result.together:
        console.print(together(result.together))
    if result.fits:
        console.print(_fits(result))


def heading(result: BenchResult) -> str:
    """Format the model, the device and the settings of the measurement."""
    queries = f"{result.queries} mini-batches" if result.queries > 1 else "one mini-batch"
    if result.group:
        queries += f" for {result.group} updates"
    threads = f"{result.threads} threads" if result.threads > 1 else "one thread"
    return (
        f"{result.model}: {_count(result.parameters)} parameters, {_count(result.trained_parameters)} "
        f"trained in {result.matrices} matrices\n"
        f"{result.dtype} on {result.device} ({result.device_name}), {threads}, rank "
        f"{result.rank}, {queries} a step\n"
        f"medians of {result.repetitions} turns\n{_disturbed(result)}"
    )


def _disturbed(result: BenchResult) -> str:
    """Return a warning if other programs were busy during the measurement; "" if not."""
    if result.busy_cores < BUSY_CORES or result.device != "cpu":
        return ""
    busy = f"The machine is busy: other programs use {result.busy_cores:.1f} cores"
    if result.threads == 1:
        return f"{busy}. Times are seconds of one core, without theirs.\n"
    return f"{busy}. Times and ratios are rough: measure again when it is idle.\n"


def _times(result: BenchResult) -> Table:
    table = _table("Time of a step", "batch", "forwards", "step", "ratio", "tokens/s", "updates/h")
    for batch in result.batches:
        table.add_row(
            str(batch.batch),
            _seconds(batch.forwards_seconds),
            _seconds(batch.step_seconds),
            f"{batch.step_ratio:.2f}",
            f"{batch.tokens_per_second:,.0f}",
            f"{batch.updates_per_hour:,.0f}",
        )
    return table


def _memory(result: BenchResult) -> Table:
    table = _table("Memory at its peak", "batch", "inference, as many rows", "training", "ratio")
    for batch in result.batches:
        ratio = "" if batch.memory_ratio is None else f"{batch.memory_ratio:.2f}"
        table.add_row(
            str(batch.batch), _bytes(batch.inference_peak_bytes), _bytes(batch.training_peak_bytes), ratio
        )
    return table


def _mezo(result: BenchResult) -> Table:
    table = _table("MeZO's step in place", "batch", "same matrices", "by our step", "all", "by our step")
    for batch in result.batches:
        table.add_row(str(batch.batch), *_mezo_cells(batch))
    return table


def _mezo_cells(batch: BatchResult) -> list[str]:
    pairs = (
        (batch.mezo_matrices_seconds, batch.mezo_matrices_ratio),
        (batch.mezo_all_seconds, batch.mezo_all_ratio),
    )
    cells = []
    for seconds, ratio in pairs:
        cells += ["", ""] if seconds is None or ratio is None else [_seconds(seconds), f"{ratio:.1f}"]
    return cells


def _incoming(result: BenchResult) -> Table:
    shares = [f"share, batch {batch.batch}" for batch in result.batches]
    table = _table("Taking in others' updates", "updates a step", "core", "weights, at times", *shares)
    for incoming in result.incoming:
        table.add_row(
            f"{incoming.updates:,}",
            _seconds(incoming.add_seconds),
            _seconds(incoming.fold_seconds),
            *(f"{share:.2%}" for share in incoming.shares.values()),
        )
    return table


def together(results: Sequence[TogetherResult]) -> Table:
    """Format the speeds of several devices together and of each alone."""
    table = _table("Devices together", "batch", "devices", "threads each", "updates/h", "together / this")
    for one in results:
        table.add_row(
            *(str(one.batch), one.devices, str(one.threads), f"{one.updates_per_hour:,.0f}"),
            f"{one.ratio:.2f}",
        )
    return table


def _fits(result: BenchResult) -> Table:
    title = f"Largest model for the {_bytes(result.free_bytes)} that are free"
    table = _table(title, "weights", "bytes a parameter", "parameters")
    for fit in result.fits:
        table.add_row(fit.dtype, f"{fit.bytes_per_parameter:g}", _count(fit.parameters))
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _seconds(value: float) -> str:
    return f"{value * 1e3:.1f} ms" if value < 10 else f"{value:.1f} s"


def _bytes(value: int | None) -> str:
    return "unknown" if value is None else f"{value / GB:.2f} GB"


def _count(value: int) -> str:
    return f"{value / 1e9:.2f} B" if value >= GB else f"{value / 1e6:.1f} M"

"""`sfnode swarm`: several nodes on this machine, shown live and compared. `sfnode.swarm` runs them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from sfnode.cli import options
from sfnode.cli.ending import card, changed, commands, complete, fork_command
from sfnode.cli.output import echo
from sfnode.cli.progress import run as run_loop
from sfnode.cli.progress import waiting
from sfnode.dashboard.formatting import baselines_in_words, beside, count, percent, probe_in_words
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.printable import pace, part_of, span
from sfnode.schema.measurements import Evaluation
from sfnode.schema.metrics import doing_in_words, measured, trained_by
from sfnode.schema.node_state import NodeState
from sfnode.schema.organising import OrganiserStatus
from sfnode.schema.results import SwarmResult
from sfnode.schema.status import Status
from sfnode.schema.views import Samples
from sfnode.swarm import MOST_NODES, LocalSwarm
from sfnode.tasks.verifying import permit

MOST = 0.75
"""Minimum share of updates that count. If the share is smaller, the output says so. A few updates never
count, because they are under way when a run ends, or because a defence skips them."""

MADE_UP = "The data are made up by a program: this shows how training works, not what a model can learn."

PLAIN_INTERVAL = 10.0
"""Seconds between lines of progress where there is no terminal."""


@click.command
@options.option("--nodes", type=click.IntRange(1, MOST_NODES), default=4, help="How many node processes.")
@options.run_option("Run manifest.  [default: the built-in model and task]")
@options.option(
    "--task",
    "preset",
    metavar="PRESET",
    help="Without a manifest: a ready-made task, such as sums, and its model.  [default: reviews]",
)
@options.option(
    "--model",
    metavar="SOURCE",
    help="Base model: what suits it is measured first, as by `sfnode init`.  [default: the task's own, which "
    "reviews and sums have]",
)
@options.option(
    "--organised/--open",
    default=True,
    show_default=True,
    help="Whether the built-in run has an organiser, the first node. A manifest says so itself.",
)
@options.out_option(
    "FOLDER", "Keep the nodes' folders here.  [default: a new one, which is named at the end]", required=False
)
@options.device_option
@options.dtype_option
@options.threads_option("CPU threads of each node.  [default: the cores shared out]")
@options.verifier_option
@options.json_option
def swarm(
    nodes: int,
    run: Path | None,
    preset: str | None,
    model: str | None,
    organised: bool,
    out: Path | None,
    device: str,
    dtype: str,
    threads: int,
    verifier: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run a local swarm of real processes until the run is complete, and compare the nodes.

    Without options, four nodes train a model that comes with sfnode on synthetic reviews. With `--task sums`
    they train another one, by rewards, on sums. Exit status 1 if a node fails or if the nodes do not end with
    the same model. Ctrl-C ends all of them. Nobody's key is used: for an organised run the swarm makes its
    own keys, so the run has another id.
    """
    if run and not organised:
        raise UserError(Code.BAD_OPTION, "--open: the manifest says it", "Leave --open out.")
    if run and preset:
        raise UserError(Code.BAD_OPTION, "--task: the manifest says it", "Leave --task out.")
    from sfnode.models.model_files import named_folder

    started = time.monotonic()
    with TemporaryDirectory(prefix="sfnode-") as made:
        manifest = (
            Manifest.from_toml(run) if run else _made(preset, model, organised, device, dtype, Path(made))
        )
        permit(manifest.task, verifier)
        local = LocalSwarm(
            manifest,
            nodes=nodes,
            folder=out,
            threads=threads,
            device=device,
            dtype=dtype,
            beside=run.parent if run else Path(made),
            model=named_folder(model or ""),
            verifiers=verifier,
        )
        console = Console(stderr=as_json, highlight=False)
        result = run_loop(show_swarm(local, console, nodes))
    if as_json:
        in_all = {"seconds_in_all": round(time.monotonic() - started, 1)}
        echo(result.model_copy(update=in_all).model_dump_json(indent=2))
    if not result.equal:
        raise UserError(
            Code.DIGESTS_DIFFER,
            "the nodes ended with different models",
            f"This is a bug in sfnode: please report it, with the nodes' folders in {local.folder}",
        )


def _made(
    preset: str | None, model: str | None, organised: bool, device: str, dtype: str, folder: Path
) -> Manifest:
    """Return the manifest of a ready-made task. If `model` is given, hyperparameters that suit this model are
    measured, and its bases are written to `folder`."""
    with waiting("loading libraries"):
        from sfnode.models.model_files import named_folder
        from sfnode.preparing.manifest import build, usual_estimator
        from sfnode.preparing.measuring import prepare
        from sfnode.preparing.scalars import Means
        from sfnode.store.run_keys import RunKeys

    given: dict[str, Any] = {name: one for name, one in (("preset", preset), ("model", model)) if one}
    given["estimator"] = usual_estimator(given | {"dtype": dtype}, organised)
    manifest = build(given | (RunKeys.generate().options() if organised else {}))
    if not model:
        return manifest
    means = Means(device, dtype, folder, named_folder(model))
    return prepare(manifest, given, means, waiting).manifest


# -- words, for 80 columns -----------------------------------------------------------------------------


def progress_line(statuses: Sequence[Status | None], organised: OrganiserStatus | None = None) -> str:
    """Format a line of progress: the slowest node, counted updates, the rate of all nodes, the time left, the
    mean loss or reward, and a node's work other than updates.

    The first status is the organiser's.
    """
    there = [status for status in statuses if status]
    if len(there) < len(statuses):
        return f"{len(there)} of {len(statuses)} nodes are up"
    made = min(status.known for status in there)
    budget = organised.budget if organised else there[0].update_budget
    rate = sum(status.updates_per_second for status in there)
    losses = [status.loss for status in there if status.loss is not None]
    trained = trained_by(there[0].task)
    told = [f"{part_of(made, budget)} updates made"]
    told += [f"{count(organised.counted)} count"] if organised else []
    told += [pace(rate)]
    told += [f"{span((budget - made) / rate)} left"] if rate and made < budget else []
    told += [f"{trained.name} {trained.of(sum(losses) / len(losses)):.3f}"] if losses else []
    busy = ((number, status.doing) for number, status in enumerate(there, 1) if status.doing)
    for number, doing in islice(busy, 1):
        who = "organiser" if organised and number == 1 else f"node {number}"
        told[-1] += f"; {who}: {doing_in_words(doing)}"
    return ", ".join(told)


def progress_table(
    name: str, statuses: Sequence[Status | None], organised: OrganiserStatus | None = None
) -> Table:
    """Return a table with one row for each node."""
    table = Table(title=f"run {name}: {progress_line(statuses, organised)}", title_justify="left")
    trained = next((trained_by(status.task).name for status in statuses if status), "")
    for column in ("node", "state", "updates made", "speed", trained, "links"):
        table.add_column(column, justify="left" if column == "state" else "right")
    for number, status in enumerate(statuses, 1):
        table.add_row(str(number), *(_cells(status) if status else (NodeState.STARTING,)))
    return table


def _cells(status: Status) -> list[str]:
    return [
        status.state,
        count(status.contributed),
        pace(status.updates_per_second),
        "" if status.loss is None else f"{trained_by(status.task).of(status.loss):.3f}",
        str(len(status.links)),
    ]


def measurement_line(when: str, found: Evaluation) -> str:
    """Format an evaluation: `base model: accuracy 52.6 % (49.3-55.9 %), loss 0.687 on 872 test rows`."""
    return f"{when}: {measured(found)}{beside(found, 3)} {found.on_rows}"


def _what_does_not_count(result: SwarmResult) -> list[str]:
    """Explain that a run ended before its budget, or that many updates do not count; empty if neither is the
    case."""
    counted, made = result.counted, result.updates
    if counted is None or (counted >= result.update_budget and counted >= made * MOST):
        return []
    many = f"{count(made - counted)} of {count(made)} updates do not count"
    if counted >= result.update_budget and not result.announced:
        return [f"{many}: most came when the run had all that it asks for."]
    why = result.announced or "the organiser has announced no reason; `sfnode log` lists its decisions"
    early = "" if counted >= result.update_budget else f" (of a budget of {count(result.update_budget)})"
    return [f"ATTENTION: {many}{early}: {why}"]


def closing(
    result: SwarmResult, manifest: Manifest, samples: Samples, next_: Sequence[str], folder: Path
) -> str:
    """Format the end: the model's gain, the contributors, whether the nodes agree, and the next commands."""
    made = [node.own_updates for node in result.nodes if node.own_updates]
    parts = ", ".join(percent(updates / sum(made)) for updates in made)
    nodes = f"{len(made)} nodes" if len(made) != 1 else "One node"
    work = [f"{nodes} did it in {span(result.seconds)}: {parts or '0 %'} of the work."]
    if idle := len(result.nodes) - len(made):
        work += [f"{idle} of {len(result.nodes)} nodes did not get to work: it was over before."]
    seal = result.sealed - 1 if result.sealed else None
    work += baselines_in_words(result.baselines)
    work += probe_in_words(result.probe, fork_command(seal, folder)) if result.probe else []
    work += _what_does_not_count(result)
    alike = "OK: the nodes have the same model, to the last bit."
    work += [alike if result.equal else "FAILED: the nodes have different models."]
    work += [MADE_UP] if manifest.data.train.startswith("builtin:") else []
    change = changed(result.after, result.calibrated, result.before)
    return card(complete(result.run_name), change, samples, work, next_)


# -- what is printed on a console ----------------------------------------------------------------------


async def show_swarm(local: LocalSwarm, console: Console, nodes: int) -> SwarmResult:
    """Run the swarm to its end, and print its progress and the comparison of the nodes.

    Raises UserError SWARM_FAILED, and BAD_OPTION for a folder that cannot be written.
    """
    console.print(f"starting {nodes} nodes of run {local.manifest.name}")
    async with local:
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            await _show_progress(local, console, live)
        console.print("measuring the model, and comparing the nodes")
        result, samples = await local.compare(), await local.samples()
        local.keep = True
    where = local.nodes[0].folder
    said = closing(result, local.manifest, samples, commands(local.manifest, where), where)
    console.print(f"{said}\n  Their folders are kept in {where.parent}.", markup=False, soft_wrap=True)
    return result


async def _show_progress(local: LocalSwarm, console: Console, live: Live) -> None:
    """Show a changing table, or occasional lines where there is no terminal, until the end."""
    shown, unsaid = float("-inf"), True
    async for progress in local:
        if local.before and unsaid:
            unsaid = False
            console.print(measurement_line("base model", local.before))
            if local.calibrated:
                console.print(measurement_line("base model, calibrated", local.calibrated))
        if console.is_terminal:
            live.update(progress_table(local.manifest.name, progress.statuses, progress.organised))
        elif progress.seconds - shown >= PLAIN_INTERVAL:
            shown = progress.seconds
            console.print(progress_line(progress.statuses, progress.organised))

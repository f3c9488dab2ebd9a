"""`sfnode swarm`: the command; `sfnode.swarm` runs the nodes, `swarm_progress` prints how they do."""

from __future__ import annotations

import time
from pathlib import Path

import click
from rich.console import Console

from sfnode.cli.event_loop import run as run_loop
from sfnode.cli.options import (
    device_option,
    dtype_option,
    json_option,
    option,
    run_option,
    threads_option,
)
from sfnode.cli.output import echo
from sfnode.cli.swarm_progress import show_swarm
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.swarm.local_swarm import MOST_NODES, LocalSwarm


@click.command
@option(
    "--nodes",
    type=click.IntRange(1, MOST_NODES),
    default=4,
    show_default=True,
    metavar="COUNT",
    help="How many node processes.",
)
@run_option("Run manifest.  [default: the built-in model and task]")
@option(
    "--task",
    "preset",
    metavar="PRESET",
    help="Without a manifest: a ready-made task, such as sums, and its model.  [default: reviews]",
)
@option(
    "--organised/--open",
    default=True,
    show_default=True,
    help="Whether the built-in run has an organiser, the first node. A manifest says so itself.",
)
@option(
    "--split-data/--shared-data",
    default=True,
    show_default=True,
    help="Give every node its own part of the training rows, or all rows to all.",
)
@option(
    "--folder",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Keep the nodes' folders here.  [default: a temporary one, removed at the end]",
)
@device_option
@dtype_option
@threads_option("CPU threads of each node.  [default: the cores shared out]")
@json_option
def swarm(
    nodes: int,
    run: Path | None,
    preset: str | None,
    organised: bool,
    split_data: bool,
    folder: Path | None,
    device: str,
    dtype: str,
    threads: int,
    as_json: bool,
) -> None:
    """Run a local swarm of real processes until the run is complete, and compare the nodes.

    Without options: four nodes train a model that comes with sfnode on synthetic reviews; with `--task sums`
    another one, by rewards, on sums. Exit status 1 when a node fails or when the nodes do not end with the
    same digest. Ctrl-C ends all of them. Nobody's key is used: for an organised run the swarm makes keys of
    its own, so that the run has another id.
    """
    if run and not organised:
        raise UserError(Code.BAD_OPTION, "--open: the manifest says it", "Leave --open out.")
    if run and preset:
        raise UserError(Code.BAD_OPTION, "--task: the manifest says it", "Leave --task out.")
    started = time.monotonic()
    local = LocalSwarm(
        Manifest.from_toml(run) if run else _built_in(preset, organised),
        nodes=nodes,
        folder=folder,
        split_data=split_data,
        threads=threads,
        device=device,
        dtype=dtype,
        beside=run.parent if run else None,
    )
    console = Console(stderr=as_json, highlight=False)
    result = run_loop(show_swarm(local, console, nodes))
    if as_json:
        in_all = {"seconds_in_all": round(time.monotonic() - started, 1)}
        echo(result.model_copy(update=in_all).model_dump_json(indent=2))
    if not result.equal:
        raise UserError(
            Code.DIGESTS_DIFFER,
            "the nodes ended with different digests",
            f"This is a bug in sfnode: please report it, with the nodes' folders in {local.folder}",
        )


def _built_in(preset: str | None, organised: bool) -> Manifest:
    from sfnode.models.manifest_builder import build
    from sfnode.store.run_keys import RunKeys

    chosen = {"preset": preset} if preset else {}
    return build(chosen | (RunKeys.generate().options() if organised else {}))

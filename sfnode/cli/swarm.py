"""`sfnode swarm`: the command; what it does is told by `swarmstory`."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from pathlib import Path

import click
from rich.console import Console

from sfnode.cli.ending import interruptible
from sfnode.cli.localswarm import Plan
from sfnode.cli.options import (
    device_option,
    dtype_option,
    json_option,
    option,
    run_option,
    threads_option,
)
from sfnode.cli.results import SwarmResult
from sfnode.cli.swarmstory import Story
from sfnode.config import Manifest
from sfnode.errors import Code, UserError


@click.command(short_help="Run a local swarm and compare its nodes.")
@option(
    "--nodes",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    metavar="COUNT",
    help="How many node processes.",
)
@run_option("Run manifest.  [default: the built-in model and task]")
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
    split_data: bool,
    folder: Path | None,
    device: str,
    dtype: str,
    threads: int,
    as_json: bool,
) -> None:
    """Run a local swarm of real processes until the run is complete, and compare the nodes.

    Without options: four nodes train the model and the task that come with sfnode. Exit status 1 when a node
    fails or when the nodes do not end with the same digest. Ctrl-C ends all of them.
    """
    started = time.monotonic()
    manifest = Manifest.from_toml(run) if run else _built_in()
    place = folder or Path(tempfile.mkdtemp(prefix="sfnode-swarm-"))
    plan = Plan(
        nodes=nodes,
        run=_written(manifest, place),
        folder=place,
        split_data=split_data,
        threads=threads or max(1, (os.cpu_count() or 1) // nodes),
        device=device,
        dtype=dtype,
    )
    story = Story(plan, manifest, Console(stderr=as_json, highlight=False), started)
    result = _told(story, None if folder else place)
    if as_json:
        click.echo(result.model_dump_json(indent=2))
    if not result.equal:
        raise UserError(
            Code.DIGESTS_DIFFER,
            "the nodes ended with different digests",
            f"This is a bug in sfnode: please report it, with the nodes' folders in {place}",
        )


def _told(story: Story, scratch: Path | None) -> SwarmResult:
    """Run the story; the scratch folder stays only if there is something in it to look into."""
    keep = False
    try:
        result = asyncio.run(interruptible(story.tell()))
        keep = not result.equal
        return result
    except UserError:
        keep = True
        raise
    finally:
        if scratch and not keep:
            shutil.rmtree(scratch, ignore_errors=True)


def _built_in() -> Manifest:
    from sfnode.cli.draft import default_manifest

    return default_manifest()


def _written(manifest: Manifest, place: Path) -> Path:
    path = place / "run.toml"
    try:
        place.mkdir(parents=True, exist_ok=True)
        path.write_text(manifest.to_toml(), encoding="utf-8")
    except OSError as error:
        raise UserError(
            Code.BAD_OPTION, f"cannot write to {place}: {error.strerror}", "Name another --folder."
        ) from error
    return path

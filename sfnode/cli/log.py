"""`sfnode log`: the updates of a node's log, for programs that recompute a run."""

from __future__ import annotations

from pathlib import Path

import click

from sfnode.cli.data_folder import opened_run
from sfnode.cli.options import as_of_now_option, data_dir_option
from sfnode.cli.output import echo


@click.command("log")
@data_dir_option
@as_of_now_option
def log(data_dir: Path, as_of_now: bool) -> None:
    """Print the updates that count, one JSON object a line, feed by feed (docs/json.md).

    Nothing is verified (see `sfnode verify`). Of an organised run it is what counts by the last seal.
    """
    from sfnode.cli.trained_model import counted
    from sfnode.schema.results import UpdateLine
    from sfnode.store.replay import weighed

    with opened_run(data_dir) as (manifest, update_log):
        for update in weighed(update_log, counted(manifest, update_log, as_of_now=as_of_now)):
            line = UpdateLine(
                origin=update.feed.origin.hex(),
                incarnation=update.feed.incarnation,
                step=update.step,
                epoch=update.epoch,
                seed=str(update.seed),
                scalar=update.scalar,
                weight=update.weight,
            )
            echo(line.model_dump_json())

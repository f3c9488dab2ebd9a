"""`sfnode checkout`: the state of a run as one of its seals has it."""

from __future__ import annotations

from pathlib import Path

import click

from sfnode.cli.data_folder import opened_run
from sfnode.cli.export import check_form, format_options
from sfnode.cli.options import (
    data_dir_option,
    device_option,
    epoch_argument,
    json_option,
    model_option,
    option,
)
from sfnode.cli.output import echo
from sfnode.cli.progress import waiting


@click.command
@epoch_argument("epoch")
@option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Write the model to this new folder, as `sfnode export` does.",
)
@format_options
@data_dir_option
@model_option
@device_option
@json_option
def checkout(
    epoch: int,
    out: Path | None,
    form: str,
    lora_rank: int | None,
    dtype: str,
    data_dir: Path,
    model: Path | None,
    device: str,
    as_json: bool,
) -> None:
    """Recompute the state that the seal of EPOCH has made, and print its digests; needs no model.

    It is the state by the decisions up to that seal: what was taken back later still counts in it, and
    nothing of it ever changes. With --out the model is written, too.
    """
    if out:
        from sfnode.cli.trained_model import check

        check_form(check(data_dir, device), out, form, lora_rank)
    with opened_run(data_dir) as (manifest, update_log), waiting("replaying the log"):
        from sfnode.node.time_travel import Past

        state = Past(manifest, update_log, data_dir).result(epoch)
    if out:
        from sfnode.cli.trained_model import load, write

        written = write(load(data_dir, model, device, dtype, epoch=epoch), out, form, lora_rank)
        echo(written, err=as_json)
    if as_json:
        echo(state.model_dump_json(indent=2))
    else:
        echo(f"seal         of epoch {epoch}: {state.updates} updates count")
        echo(f"named digest {state.named_digest}\ncore digest  {state.core_digest}")

"""`sfnode export`: the trained model as a folder that other programs read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sfnode.cli.options import F, as_of_now_option, data_dir_option, device_option, model_option, option
from sfnode.cli.output import echo

if TYPE_CHECKING:
    from sfnode.manifest import Manifest


def format_options(function: F) -> F:
    """Add --format, --lora-rank and --dtype, for commands that write a model."""
    form = option(
        "--format",
        "form",
        type=click.Choice(["hf", "lora"]),
        default="hf",
        show_default=True,
        help="hf: a whole Hugging Face model; lora: a PEFT adapter for the base model.",
    )
    dtype = option(
        "--dtype",
        type=click.Choice(["stored", "float32", "bfloat16", "float16"]),
        default="stored",
        show_default=True,
        help="Number format of the weights; stored: as in the base model's files.",
    )
    rank = option(
        "--lora-rank",
        type=click.IntRange(1),
        metavar="RANK",
        help="lora: at most this rank, by truncated singular value decomposition; the error is printed.  "
        "[default: what it takes to leave nothing out]",
    )
    return form(rank(dtype(function)))


def check_form(manifest: Manifest, out: Path, form: str, lora_rank: int | None) -> None:
    """Refuse what cannot be written before anything is computed. Raises UserError BAD_OPTION."""
    from sfnode.engine.destination import no_adapter, require_new

    if lora_rank is not None and form != "lora":
        raise click.UsageError("--lora-rank is for --format lora")
    require_new(out)
    vectors = [one.name for one in manifest.model.parsed_targets() if one.in_features == 1]
    if form == "lora" and vectors:
        raise no_adapter(vectors[0])


def parse_seal(_context: Any, _parameter: Any, value: str) -> str | int:
    """Return `best`, `last` or an epoch."""
    if value in ("best", "last"):
        return value
    if not value.isdecimal() or len(value) > 5:
        raise click.BadParameter("say best, last or the number of an epoch")
    return int(value)


@click.command
@click.argument("out", type=click.Path(path_type=Path))
@format_options
@data_dir_option
@model_option
@device_option
@as_of_now_option
@option(
    "--seal",
    default="last",
    show_default=True,
    metavar="best|last|EPOCH",
    callback=parse_seal,
    help="Organised run: the last seal; the one with the least loss of those that were evaluated and not "
    "taken back; or that of an epoch.",
)
@option(
    "--push-to-hub",
    "hub_name",
    metavar="OWNER/NAME",
    help="Upload the finished export to the Hugging Face hub, with the token of `hf auth login` or HF_TOKEN; "
    "as a private model, unless --public is said.",
)
@option("--public", is_flag=True, help="With --push-to-hub: let everybody see the model.")
def export(
    out: Path,
    form: str,
    lora_rank: int | None,
    data_dir: Path,
    model: Path | None,
    device: str,
    dtype: str,
    as_of_now: bool,
    seal: str | int,
    hub_name: str | None,
    public: bool,
) -> None:
    """Write the model of the log in a node's folder to the new folder OUT, and put it on the hub if asked to.

    Of an organised run it is that of the last seal, unless --seal names another, of an open one that with all
    updates.
    """
    from sfnode.cli.trained_model import best_epoch, check, load, write

    if as_of_now and seal != "last":
        raise click.UsageError("--as-of-now is not of a seal")
    if public and hub_name is None:
        raise click.UsageError("--public is for --push-to-hub")
    check_form(check(data_dir, device), out, form, lora_rank)
    if hub_name is not None:
        from sfnode import hub_upload

        hub_upload.check(hub_name, public=public)
    epoch = best_epoch(data_dir) if seal == "best" else None if seal == "last" else int(seal)
    trained = load(data_dir, model, device, dtype, as_of_now=as_of_now, epoch=epoch)
    echo(write(trained, out, form, lora_rank))
    if hub_name is not None:
        echo(f"uploaded it: {hub_upload.push(out, hub_name, public=public)}")

"""`sfnode export`: the trained model as a folder that other programs read."""

from __future__ import annotations

from pathlib import Path

import click

from sfnode.cli.options import data_dir_option, device_option, model_option, option
from sfnode.cli.output import echo
from sfnode.cli.progress import waiting


@click.command
@click.argument("out", type=click.Path(path_type=Path))
@option(
    "--format",
    "form",
    type=click.Choice(["hf", "lora"]),
    default="hf",
    show_default=True,
    help="hf: a whole Hugging Face model; lora: a PEFT adapter for the base model.",
)
@data_dir_option
@model_option
@device_option
@option(
    "--dtype",
    type=click.Choice(["stored", "float32", "bfloat16", "float16"]),
    default="stored",
    show_default=True,
    help="Number format of the weights; stored: as in the base model's files.",
)
def export(out: Path, form: str, data_dir: Path, model: Path | None, device: str, dtype: str) -> None:
    """Write the model as of now, with all updates in the log of a node's folder, to the new folder OUT."""
    from sfnode.cli.trained_model import load

    trained = load(data_dir, model, device, dtype)
    with waiting("writing the model"):
        trained.trainer.export(out, "lora" if form == "lora" else "hf")
    echo(f"wrote {out} ({trained.updates} updates, digest {trained.digest})")

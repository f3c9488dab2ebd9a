"""`sfnode export`: the trained model as a folder that other programs read."""

from __future__ import annotations

from pathlib import Path

import click

from sfnode.cli.options import as_of_now_option, data_dir_option, device_option, model_option, option
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
@as_of_now_option
def export(
    out: Path, form: str, data_dir: Path, model: Path | None, device: str, dtype: str, as_of_now: bool
) -> None:
    """Write the model of the log in a node's folder to the new folder OUT.

    Of an organised run it is that of the last seal, of an open one that with all updates.
    """
    from sfnode.cli.trained_model import load

    trained = load(data_dir, model, device, dtype, as_of_now=as_of_now)
    with waiting("writing the model"):
        trained.trainer.export(out, "lora" if form == "lora" else "hf")
    echo(f"wrote {out} ({trained.moment}, digest {trained.digest})")

"""`sfnode export`: the trained model as a folder that other programs read."""

from __future__ import annotations

from pathlib import Path

import click

from sfnode.cli.options import F, as_of_now_option, data_dir_option, device_option, model_option, option


def format_options(function: F) -> F:
    """Add --format and --dtype, for commands that write a model."""
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
    return form(dtype(function))


@click.command
@click.argument("out", type=click.Path(path_type=Path))
@format_options
@data_dir_option
@model_option
@device_option
@as_of_now_option
def export(
    out: Path, form: str, data_dir: Path, model: Path | None, device: str, dtype: str, as_of_now: bool
) -> None:
    """Write the model of the log in a node's folder to the new folder OUT.

    Of an organised run it is that of the last seal (of an earlier one: `sfnode checkout`), of an open one
    that with all updates.
    """
    from sfnode.cli.trained_model import load, write

    write(load(data_dir, model, device, dtype, as_of_now=as_of_now), out, form)

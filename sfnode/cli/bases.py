"""`sfnode organise make-bases`: bases to publish for a coming subspace, at the model of a run's last seal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sfnode.cli.options import model_options, option, out_option
from sfnode.cli.output import echo
from sfnode.cli.progress import waiting
from sfnode.printable import command

if TYPE_CHECKING:
    from sfnode.engine.making_bases import Made


@click.command
@out_option("FOLDER", "Where to write the file, which is named by its digest.")
@option(
    "--basis",
    "kind",
    type=click.Choice(["gradients", "errors"]),
    default="gradients",
    help="gradients: the strongest directions of the mean gradient, by backward passes on this machine; "
    "errors: those of the layers' inputs that go with the errors of its output, by forward passes alone.",
)
@model_options
def make_bases(out: Path, kind: str, data_dir: Path, model: Path | None, device: str, dtype: str) -> None:
    """Make bases for the run of a node's folder, and write them to a file.

    They are made on the run's public training rows, at the model of the last seal (of an open run: as of
    now). `sfnode organise bases FILE` publishes them.
    """
    from sfnode.cli.trained_model import load
    from sfnode.engine import making_bases
    from sfnode.models.bases import path_in
    from sfnode.preparing.scalars import write_bases

    trained = load(data_dir, model, device, dtype, as_of_now=False)
    with trained.trainer as trainer, waiting(f"making bases from {kind}") as advance:
        found = making_bases.make(trainer, kind, advance)
        file = path_in(out, write_bases(out, found.pairs))
    echo(f"made at {trained.moment}: {words(kind, found)}")
    echo(f"wrote {file}; publish it with `{command('sfnode', 'organise', 'bases', file)}`")


def words(kind: str, found: Made) -> str:
    """Return what bases are: how much of each layer they hold, and what they have cost."""
    rank = found.pairs[0][0].shape[1]
    directions = "1 direction of every layer holds" if rank == 1 else f"{rank} directions of every layer hold"
    what = "mean gradient" if kind == "gradients" else "inputs' share in the errors"
    mean, least = (sum(found.held) / len(found.held), min(found.held)) if found.held else (0.0, 0.0)
    return (
        f"{directions} {mean:.0%} of its {what} in the mean over the layers, and {least:.0%} at least; "
        f"two halves of the rows agree to {found.agreement:.2f} of 1; "
        f"{found.example_forwards:,} example-forwards"
    )

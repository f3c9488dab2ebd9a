"""`sfnode export`: the model as a folder for other programs; `sfnode history archive` and `import`: a run as
one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import sfnode
from sfnode.cli import options
from sfnode.cli.data_folder import opened_run
from sfnode.cli.output import echo
from sfnode.cli.progress import waiting

if TYPE_CHECKING:
    from sfnode.manifest import Manifest


def format_options(function: options.F) -> options.F:
    """Add --format, --lora-rank and --dtype, for commands that write a model."""
    form = options.option(
        "--format",
        "form",
        type=click.Choice(["hf", "lora"]),
        default="hf",
        help="hf: a whole Hugging Face model; lora: a PEFT adapter for the base model.",
    )
    dtype = options.option(
        "--dtype",
        type=click.Choice(["stored", "float32", "bfloat16", "float16"]),
        default="stored",
        help="Number format of the weights; stored: as in the base model's files.",
    )
    rank = options.option(
        "--lora-rank",
        type=click.IntRange(1),
        metavar="RANK",
        help="lora: at most this rank, by truncated singular value decomposition; the error is printed.  "
        "[default: what it takes to leave nothing out]",
    )
    return form(rank(dtype(function)))


def check_form(manifest: Manifest, out: Path, form: str, lora_rank: int | None) -> None:
    """Check the options of an export before anything is computed. Raises UserError BAD_OPTION if `out` exists
    or the model cannot be written in this form, and click.UsageError for a rank without the form `lora`."""
    from sfnode.engine.destination import no_adapter, require_new

    if lora_rank is not None and form != "lora":
        raise click.UsageError("--lora-rank is for --format lora")
    require_new(out)
    vectors = [one.name for one in manifest.model.parsed_targets() if one.in_features == 1]
    if form == "lora" and vectors:
        raise no_adapter(vectors[0])


def parse_seal(_context: Any, _parameter: Any, value: str) -> str | int:
    """Return the value of --seal: `best`, `last` or an epoch."""
    if value in ("best", "last"):
        return value
    if not value.isdecimal() or len(value) > 5:
        raise click.BadParameter("say best, last or the number of an epoch")
    return int(value)


@click.command
@options.out_option("FOLDER", "New folder for the model.")
@format_options
@options.data_dir_option
@options.model_option
@options.device_option
@options.as_of_now_option
@options.option(
    "--seal",
    default="last",
    metavar="best|last|EPOCH",
    callback=parse_seal,
    help="Organised run: the last seal; the best of those that were evaluated and not "
    "taken back; or that of an epoch.",
)
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
) -> None:
    """Write the model of a node's folder to a new folder.

    It is the model of the last seal, unless --seal names another one. In an open run it is the model with all
    updates.
    """
    from sfnode.cli.trained_model import best_epoch, check, load, write

    if as_of_now and seal != "last":
        raise click.UsageError("--as-of-now is not of a seal")
    check_form(check(data_dir, device), out, form, lora_rank)
    epoch = best_epoch(data_dir) if seal == "best" else None if seal == "last" else int(seal)
    trained = load(data_dir, model, device, dtype, as_of_now=as_of_now, epoch=epoch)
    echo(write(trained, out, form, lora_rank))


# -- archives ------------------------------------------------------------------------------------------


@click.command
@options.out_option("FILE", "The archive.")
@options.data_dir_option
@options.json_option
def archive(out: Path, data_dir: Path, as_json: bool) -> None:
    """Verify the run in a node's folder and write it to a file: manifest, log, decisions, published bases.

    `sfnode history import` verifies the file wherever it is imported. The file holds no key and no address of
    this node, and no base model (`join --model FOLDER`). The node may be running.
    """
    from sfnode.store import archive as archives
    from sfnode.store.data_folder import Layout

    with opened_run(data_dir) as (manifest, update_log), waiting("verifying and writing the run"):
        said = archives.write(manifest, update_log, Layout(data_dir).bases, out, sfnode.__version__)
    if as_json:
        echo(said.model_dump_json(indent=2))
    else:
        decided = f", {said.decisions} decisions, {said.sealed} seals" if manifest.organised.organiser else ""
        echo(f"wrote {out}: {said.updates} updates of {said.feeds} feeds{decided}\ndigest {said.digest}")


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE")
@options.data_dir_option
@options.json_option
def import_(file: Path, data_dir: Path, as_json: bool) -> None:
    """Verify the archive FILE and import it into a folder: a new folder, or one of the same run without a
    running node.

    The folder then holds the updates of both. Forks are resolved by the organiser's decisions, as among
    peers. Nothing is written before the whole archive was verified.
    """
    from sfnode.history.exchange import take_in

    with waiting("verifying and taking in the archive"):
        result = take_in(file, data_dir)
    if as_json:
        echo(result.model_dump_json(indent=2))
        return
    sealed = "" if result.sealed is None else f", {result.sealed} epochs are sealed"
    echo(f"{result.new_updates} updates and {result.new_decisions} decisions are new to {data_dir}")
    echo(f"run {result.run_name} ({result.run_id[:16]}): {result.updates} updates are here{sealed}")
    echo(f"digest {result.digest}{'' if result.same else ' (more is here than in the archive)'}")

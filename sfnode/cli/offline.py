"""`sfnode verify`, `sfnode export` and `sfnode eval`: what can be known from a node's folder alone.

They read the update log as it is on disk; the node may be running or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from sfnode.cli.options import data_dir_option, device_option, dtype_option, json_option, model_option, option
from sfnode.cli.progress import waiting
from sfnode.cli.results import EvalResult, Measurement, VerifyResult
from sfnode.cli.swarmview import figure
from sfnode.config import Manifest
from sfnode.errors import Code, UserError
from sfnode.store.datadir import Layout
from sfnode.store.log import UpdateLog

if TYPE_CHECKING:
    from sfnode.engine.trainer import Trainer


@click.command(short_help="Replay the log and check every signature.")
@data_dir_option
@json_option
def verify(data_dir: Path, as_json: bool) -> None:
    """Replay the log of a node's folder from genesis, check every signature, and print the digests."""
    from sfnode.runtime.audit import audit

    with _opened(data_dir) as (manifest, update_log), waiting("verifying the log"):
        result = VerifyResult(**audit(manifest, update_log)._asdict())
    if as_json:
        click.echo(result.model_dump_json(indent=2))
        return
    click.echo(
        f"{result.signatures} signatures and {result.updates} updates of {result.feeds} feeds verified"
    )
    click.echo(f"digest       {result.digest}\ncore digest  {result.core_digest}")


@click.command(short_help="Write the trained model to a folder.")
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
    help="What the weights are written in; stored: as in the base model's files.",
)
def export(out: Path, form: str, data_dir: Path, model: Path | None, device: str, dtype: str) -> None:
    """Write the model as of now, with all updates in the log of a node's folder, to the new folder OUT."""
    from sfnode.engine.export import export_lora, export_model

    loaded = _load(data_dir, model, device, dtype)
    with waiting("writing the model"):
        (export_model if form == "hf" else export_lora)(loaded.trainer, out)
    click.echo(f"wrote {out} ({loaded.updates} updates, digest {loaded.digest})")


@click.command("eval", short_help="Measure the base and the trained model.")
@data_dir_option
@model_option
@device_option
@dtype_option
@option(
    "--limit",
    type=click.IntRange(0),
    default=0,
    metavar="COUNT",
    help="Use only so many test rows.  [default: as many as the manifest says]",
)
@json_option
def evaluate(data_dir: Path, model: Path | None, device: str, dtype: str, limit: int, as_json: bool) -> None:
    """Measure the base model, and the model as of now, on the run's test rows."""
    loaded = _load(data_dir, model, device, dtype)
    if not loaded.trainer.manifest.data.test:
        raise UserError(
            Code.DATA_NEEDED,
            "the run's manifest names no test data",
            "`sfnode export` writes the model, to be measured on data of your own.",
        )
    with waiting("measuring the base model"):
        before = Measurement(**loaded.trainer.evaluate_base(limit)._asdict())
    with waiting("measuring the model"):
        after = Measurement(**loaded.trainer.evaluate(limit)._asdict())
    result = EvalResult(
        run_id=loaded.trainer.manifest.run_id.hex(),
        updates=loaded.updates,
        digest=loaded.digest,
        before=before,
        after=after,
    )
    if as_json:
        click.echo(result.model_dump_json(indent=2))
        return
    click.echo(
        f"{before.metric} (95 % interval) on {before.count} test rows, "
        f"{loaded.updates} updates ({loaded.digest[:16]})"
    )
    click.echo(f"before  {figure(before)}  loss {before.loss:.4f}")
    click.echo(f"after   {figure(after)}  loss {after.loss:.4f}")


class _Loaded(NamedTuple):
    """A model as of now."""

    trainer: Trainer
    digest: str
    updates: int


@contextmanager
def _opened(data_dir: Path) -> Iterator[tuple[Manifest, UpdateLog]]:
    layout = Layout(data_dir)
    if not layout.manifest.exists():
        raise UserError(
            Code.DATA_DIR_UNUSABLE,
            f"{data_dir} holds no run",
            "Name a folder in which a node has run with --data-dir.",
        )
    manifest = Manifest.from_toml(layout.manifest)
    with UpdateLog.open(layout.log, manifest.run_id, read_only=True) as update_log:
        yield manifest, update_log


def _load(data_dir: Path, model: Path | None, device: str, dtype: str) -> _Loaded:
    """The model with everything in the log applied."""
    from sfnode.engine.trainer import Trainer
    from sfnode.runtime.audit import state_digest
    from sfnode.runtime.sharing import model_of

    with _opened(data_dir) as (manifest, update_log):
        model = model_of(Layout(data_dir), model)
        trainer = Trainer.load(manifest, model_override=model, device=device, dtype=dtype, training=False)
        _replay(trainer, update_log)
        return _Loaded(trainer, state_digest(manifest, update_log), update_log.updates())


def _replay(trainer: Trainer, update_log: UpdateLog) -> None:
    """Apply everything in the log."""
    from sfnode.runtime.replay import batches

    done, total = 0, update_log.updates()
    with waiting("replaying the log") as advance:
        for batch in batches(update_log, trainer.manifest.run_id, update_log.tails()):
            trainer.apply(batch)
            done += len(batch.seeds)
            advance(done, total)

"""`sfnode verify`, `sfnode export` and `sfnode eval`: what can be known from a node's folder alone.

They read the update log as it is on disk; the node may be running or not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sfnode.cli.options import data_dir_option, option
from sfnode.config import Manifest
from sfnode.errors import Code, UserError
from sfnode.store.datadir import Layout
from sfnode.store.log import UpdateLog

if TYPE_CHECKING:
    from sfnode.engine.trainer import Trainer

model_option = option(
    "--model",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Base model, if not where the manifest says.",
)
device_option = option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:1, mps.")
json_option = option("--json", "as_json", is_flag=True, help="As JSON (docs/json.md).")


@click.command()
@data_dir_option
@json_option
def verify(data_dir: Path, as_json: bool) -> None:
    """Replay the log from the base: check every signature, print the digests."""
    from sfnode.runtime.audit import audit

    with _opened(data_dir) as (manifest, update_log):
        result = audit(manifest, update_log)
    if as_json:
        click.echo(json.dumps(result._asdict()))
        return
    click.echo(
        f"{result.signatures} signatures and {result.updates} updates of {result.feeds} feeds verified"
    )
    click.echo(f"digest       {result.digest}\ncore digest  {result.core_digest}")


@click.command()
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
def export(out: Path, form: str, data_dir: Path, model: Path | None, device: str) -> None:
    """Write the model as of now to the new folder OUT."""
    from sfnode.engine.export import export_lora, export_model

    trainer, digest = _trainer(data_dir, model, device)
    (export_model if form == "hf" else export_lora)(trainer, out)
    click.echo(f"wrote {out} (digest {digest})")


@click.command("eval")
@data_dir_option
@model_option
@device_option
@option("--limit", type=click.IntRange(0), default=0, help="Only so many test rows; 0: all.")
@json_option
def evaluate(data_dir: Path, model: Path | None, device: str, limit: int, as_json: bool) -> None:
    """Measure the base model and the model as of now on the run's test rows."""
    trainer, digest = _trainer(data_dir, model, device)
    before, after = trainer.evaluate_base(limit), trainer.evaluate(limit)
    if as_json:
        click.echo(json.dumps({"digest": digest, "before": before._asdict(), "after": after._asdict()}))
        return
    click.echo(f"{before.metric} on {before.count} test rows (digest {digest[:16]})")
    click.echo(f"before  {before.value:.4f}  loss {before.loss:.4f}")
    click.echo(f"after   {after.value:.4f}  loss {after.loss:.4f}")


@contextmanager
def _opened(data_dir: Path) -> Iterator[tuple[Manifest, UpdateLog]]:
    layout = Layout(data_dir)
    if not layout.manifest.exists():
        raise UserError(
            Code.DATA_DIR_UNUSABLE, f"{data_dir} holds no run", "Name the node's folder with --data-dir."
        )
    manifest = Manifest.from_toml(layout.manifest)
    with UpdateLog.open(layout.log, manifest.run_id, read_only=True) as update_log:
        yield manifest, update_log


def _trainer(data_dir: Path, model: Path | None, device: str) -> tuple[Trainer, str]:
    """The model with everything in the log applied, and the digest of that state."""
    from sfnode.engine.trainer import Trainer
    from sfnode.runtime.audit import state_digest
    from sfnode.runtime.replay import batches

    with _opened(data_dir) as (manifest, update_log):
        trainer = Trainer.load(manifest, model_override=model, device=device, training=False)
        for batch in batches(update_log, manifest.run_id):
            trainer.apply(batch)
        return trainer, state_digest(manifest, update_log)

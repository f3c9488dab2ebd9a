"""`sfnode audit`: recompute updates of a node's log and compare them with what their origins have said."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sfnode.cli.data_folder import opened_run
from sfnode.cli.exit import DONE, FAILED, warn
from sfnode.cli.join import parse_shard
from sfnode.cli.options import (
    data_dir_option,
    device_option,
    dtype_option,
    json_option,
    model_option,
    option,
    setting,
)
from sfnode.cli.output import echo
from sfnode.cli.progress import waiting
from sfnode.schema.audits import Finding

if TYPE_CHECKING:
    from sfnode.engine.trainer import Trainer
    from sfnode.manifest import Manifest
    from sfnode.schema.audits import AuditResult
    from sfnode.store.data_folder import Layout

LIKE_DEVICES = (
    "Answers are written anew here: another kind of device or number format writes some with other words, "
    "and honest scalars then differ (docs/rewards.md)."
)


@click.command
@data_dir_option
@option("--origin", default="", metavar="HEX", help="Audit origins alone whose key begins so.")
@option(
    "--sample",
    type=click.IntRange(1, 1_000_000),
    default=32,
    show_default=True,
    metavar="COUNT",
    help="Updates of each origin that are recomputed, drawn at random.",
)
@option(
    "--tolerance",
    type=click.FloatRange(0.01, 0.25),
    default=0.15,
    show_default=True,
    metavar="SHARE",
    help="Largest mean disagreement that is taken for honest (docs/benchmarks.md has what nodes differ by).",
)
@setting(
    "--shard",
    callback=parse_shard,
    metavar="K/N",
    help="Part of the rows on which these origins say that they train.",
)
@model_option
@device_option
@dtype_option
@json_option
def audit(
    data_dir: Path,
    origin: str,
    sample: int,
    tolerance: float,
    shard: tuple[int, int] | None,
    model: Path | None,
    as_json: bool,
    **engine: str,
) -> int:
    """Recompute updates of a node's folder, and say whose scalars are what the run's rows give.

    Anybody can do that for a run with public training data. Origins that train on rows of their own cannot
    be told from those that invent their scalars. The exit status is 1 if an origin is refuted. Signatures are
    not checked: see `sfnode verify`.
    """
    from sfnode.modelshare.sharing import model_of
    from sfnode.node.audits import Chosen, audit_folder, problem
    from sfnode.store.data_folder import Layout

    layout = Layout(data_dir)
    source = {"model_override": model_of(layout, model), "shard": shard}
    with opened_run(data_dir) as (manifest, update_log), waiting("recomputing updates") as advance:
        if not manifest.task.has_slopes:
            echo(LIKE_DEVICES, err=True)
        load = partial(_trainer, manifest, layout, source | engine)
        chosen = Chosen(origin, sample, tolerance)
        result = audit_folder(manifest, update_log, layout.checkpoints, chosen, load, advance)
    echo(result.model_dump_json(indent=2) if as_json else "\n".join(_lines(result)))
    refuted = [one for one in result.origins if one.finding == Finding.REFUTED]
    for one in refuted:
        warn(problem(bytes.fromhex(one.origin), one.disagreement, one.audited))
    return FAILED if refuted else DONE


def _trainer(manifest: Manifest, layout: Layout, source: dict[str, Any]) -> Trainer:
    from sfnode.engine.trainer import Trainer

    return Trainer.load(manifest, bases=layout.bases, data=layout.data, **source)


def _lines(result: AuditResult) -> list[str]:
    rows = [
        f"{one.origin[:16]}  {one.finding:9}  {one.audited:7}  {one.disagreement:12.3f}  "
        + ("          -" if one.correlation is None else f"{one.correlation:11.3f}")
        for one in result.origins
    ]
    head = "origin            finding    audited  disagreement  correlation"
    return [head, *rows, f"{result.audited} updates of {len(rows)} origins recomputed in {result.dtype}"]

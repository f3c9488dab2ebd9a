"""`sfnode bisect`: which epoch, and who in it, has made a run's model worse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sfnode.cli.data_folder import opened_run
from sfnode.cli.options import (
    data_dir_option,
    device_option,
    dtype_option,
    json_option,
    model_option,
)
from sfnode.cli.output import echo
from sfnode.cli.progress import waiting
from sfnode.printable import called

if TYPE_CHECKING:
    from sfnode.engine.trainer import Trainer
    from sfnode.node.time_travel import Loss, Past
    from sfnode.schema.history import BisectResult
    from sfprotocol.seeds import I64


BASE_MODEL = "base"
"""Stands for the base model in place of an epoch."""

DIGITS = 5
"""Most digits of an epoch."""


def parse_good(_context: Any, _parameter: Any, value: str | None) -> int | None:
    """Return an epoch, or what stands for the base model."""
    from sfnode.node.time_travel import BASE

    if value is None or value == BASE_MODEL:
        return None if value is None else BASE
    if not (value.isdecimal() and len(value) <= DIGITS):
        raise click.BadParameter(f"name a sealed epoch, or {BASE_MODEL} for the base model")
    return int(value)


@click.command
@click.argument("good", required=False, callback=parse_good, metavar="[GOOD")
@click.argument("bad", type=click.IntRange(0), required=False, metavar="[BAD]]")
@data_dir_option
@model_option
@device_option
@dtype_option
@json_option
def bisect(
    good: int | None,
    bad: int | None,
    data_dir: Path,
    model: Path | None,
    device: str,
    dtype: str,
    as_json: bool,
) -> None:
    """Find the epoch between the seals of GOOD and BAD that has raised the loss, and whose work did.

    Measures the loss on the run's validation rows: of a few seals all, of many by halves; then of that
    epoch's without what each origin has brought in it. GOOD is by default the best seal that the organiser
    has evaluated (it may be `base`, the base model), BAD the last one. Prints the commands that take back
    what did harm.
    """
    with opened_run(data_dir) as (manifest, update_log):
        from sfnode.cli.trained_model import base_model
        from sfnode.node import time_travel
        from sfnode.store.data_folder import Layout

        layout = Layout(data_dir)
        past = time_travel.Past(manifest, update_log, data_dir)
        last = past.latest.sealed - 1 if bad is None else bad
        first = _best(past, last) if good is None else good
        with base_model(manifest, layout, model, device, dtype) as trainer:
            trainer.use_bases(past.latest.bases)
            trainer.begin(past.cores(past.counted(first)))  # what lies between is a line of few subspaces
            with waiting(f"measuring from {first} to {last}"):
                found = time_travel.bisect(
                    past, first, last, _measure(trainer), lambda said: echo(said, err=True)
                )
    echo(found.model_dump_json(indent=2) if as_json else "\n".join(_lines(found)))


def _measure(trainer: Trainer) -> Loss:
    def loss(cores: Mapping[int, I64]) -> float:
        return trainer.evaluate_towards(cores, 1.0, rows="validation").loss

    return loss


def _best(past: Past, before: int) -> int:
    """Return the evaluated seal before this one with the least published loss; that of the base model if
    there is none."""
    from sfnode.node.time_travel import BASE

    known = {one.epoch: one.evaluation.loss for one in past.history.epochs()[:before] if one.evaluation}
    return min(known, key=lambda epoch: known[epoch], default=BASE)


def _lines(found: BisectResult) -> Iterator[str]:
    if found.epoch is None:
        yield f"The loss has not risen: {found.before:.4f} before, {found.after:.4f} after."
        return
    yield f"epoch {found.epoch} has raised the loss from {found.before:.4f} to {found.after:.4f}"
    for one in found.origins:
        yield f"  without the {one.updates} updates of {called(one.origin, one.name)}: {one.loss:.4f}"
    if not found.origins:
        yield "  no few origins account for half of that: the epoch as a whole, or its rate, did harm"
    yield "To take it back, on the organiser's node:"
    yield from (f"  {command}" for command in found.undo)

"""`sfnode diff`: what has changed between two seals of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sfnode.cli.data_folder import opened_run
from sfnode.cli.log import DIGITS, entry_lines
from sfnode.cli.options import data_dir_option, epoch_argument, json_option
from sfnode.cli.output import echo
from sfnode.cli.progress import waiting
from sfnode.dashboard.formatting import beside
from sfnode.printable import called
from sfnode.schema.metrics import measured

if TYPE_CHECKING:
    from sfnode.schema.history import DiffResult


@click.command
@epoch_argument("a")
@epoch_argument("b")
@data_dir_option
@json_option
def diff(a: int, b: int, data_dir: Path, as_json: bool) -> None:
    """Show what has changed from the seal of epoch A to that of epoch B; needs no model.

    Updates by origin, what was decided between the two, and the change of each matrix: its Frobenius norm and
    the root mean square of what its weights have changed by.
    """
    with opened_run(data_dir) as (manifest, update_log), waiting("replaying the log"):
        from sfnode.node import comparison
        from sfnode.node.time_travel import Past
        from sfnode.store.data_folder import Layout

        past = Past(manifest, update_log, data_dir)
        found = comparison.diff(past, a, b, Layout(data_dir).bases)
    echo(found.model_dump_json(indent=2) if as_json else "\n".join(_lines(found)))


def _lines(found: DiffResult) -> Iterator[str]:
    for state in (found.before, found.after):
        yield f"epoch {state.epoch}: {state.updates} updates count, core digest {state.core_digest}"
    for one in found.evaluations:
        yield f"epoch {one.epoch}: {measured(one)}{beside(one)}"
    yield "updates:"
    for origin in found.origins:
        yield f"  {called(origin.origin[: 2 * DIGITS], origin.name)}  {origin.updates:+}"
    yield "decisions:"
    for entry in found.entries:
        yield from entry_lines(entry)
    yield f"weights: changed by {found.norm:.4g} in all"
    width = max(len(layer.name) for layer in found.layers)
    for layer in found.layers:
        yield f"  {layer.name:<{width}}  {layer.norm:.4g} ({layer.per_weight:.3g} a weight)"

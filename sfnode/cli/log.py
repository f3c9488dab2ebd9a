"""`sfnode log`: the history of a run by a node's log, or its updates, for programs that recompute it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sfnode.cli.data_folder import opened_run
from sfnode.cli.options import as_of_now_option, data_dir_option, json_option, option
from sfnode.cli.output import echo
from sfnode.dashboard.formatting import beside, count
from sfnode.errors import Code, UserError
from sfnode.printable import called, command
from sfnode.schema.metrics import measured
from sfnode.sizes import part_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sfnode.manifest import Manifest
    from sfnode.schema.history import EpochEntry, HistoryEntry, HistoryResult
    from sfnode.store.log import UpdateLog

SHOWN = 4
"""Origins of an epoch that are shown: those that have brought most."""

DIGITS = 8
"""Hex digits of their keys."""


@click.command("log")
@option("--updates", is_flag=True, help="Print the updates that count instead, as JSON lines (docs/json.md).")
@data_dir_option
@as_of_now_option
@json_option
def log(updates: bool, data_dir: Path, as_of_now: bool, as_json: bool) -> None:
    """Show what was decided in the run of a node's folder, and what became of each epoch, oldest first.

    Of an open run, in which nobody decides, its epochs. Nothing is verified (see `sfnode verify`).
    --as-of-now is for --updates, which are otherwise those that count by the last seal.
    """
    if as_of_now and not updates:
        raise UserError(
            Code.BAD_OPTION, "--as-of-now: a history is always that of now", "Leave it out, or add --updates."
        )
    with opened_run(data_dir) as (manifest, update_log):
        if updates:
            _print_updates(manifest, update_log, as_of_now)
            return
        from sfnode.node.time_travel import history

        found = history(manifest, update_log)
    if as_json:
        echo(found.model_dump_json(indent=2))
        return
    echo("\n".join([*_begins(manifest), *_lines(found)]))


def _print_updates(manifest: Manifest, update_log: UpdateLog, as_of_now: bool) -> None:
    from sfnode.cli.trained_model import counted
    from sfnode.schema.results import UpdateLine
    from sfnode.store.replay import weighed

    for update in weighed(update_log, counted(manifest, update_log, as_of_now=as_of_now)):
        line = UpdateLine(
            origin=update.feed.origin.hex(),
            incarnation=update.feed.incarnation,
            step=update.step,
            epoch=update.epoch,
            seed=str(update.seed),
            scalar=update.scalar,
            weight=update.weight,
        )
        echo(line.model_dump_json())


def _begins(manifest: Manifest) -> Iterator[str]:
    """Yield from which runs this one has come, the oldest first."""
    from sfnode.cli.lineage import ancestors

    for one in reversed(ancestors(manifest)):
        more = (
            f"; `{command('sfnode', 'log', '--data-dir', one.folder)}` has what came before"
            if one.folder
            else ""
        )
        yield f"{'':6}  {'begins':<10}  with {one}, core digest {one.seal.digest[:DIGITS]}{more}"


def _lines(found: HistoryResult) -> Iterator[str]:
    for entry in found.entries:
        yield from entry_lines(entry)
    counts = f"{part_of(found.counted, found.budget)} updates count"
    if found.sealed is None:
        yield f"run {found.run_name} ({found.run_id[:16]}), open: {counts}"
    else:
        others = "others do not count" if found.complete else "are not judged yet"
        seals = f"{found.sealed} seal{'' if found.sealed == 1 else 's'}, {counts}, {count(found.waiting)}"
        complete = "complete, " if found.complete else ""
        yield f"run {found.run_name} ({found.run_id[:16]}): {complete}{seals} {others}"


def entry_lines(entry: HistoryEntry) -> Iterator[str]:
    """Yield what to print of a part of a history."""
    number = "" if entry.position is None else str(entry.position)
    yield f"{number:>6}  {entry.kind:<10}  {entry.text}{_figures(entry.epoch) if entry.epoch else ''}"
    if entry.epoch and entry.epoch.origins:
        yield f"{'':20}{_who(entry.epoch)}"


def _figures(epoch: EpochEntry) -> str:
    said = [] if epoch.factor is None else [f"factor {epoch.factor:.4g}"]
    said.append(f"rate {epoch.rate:.3g}")
    if epoch.digest:
        said.append(f"digest {epoch.digest[:DIGITS]}")
    if one := epoch.evaluation:
        said.append(f"{measured(one)}{beside(one)}")
    return "; " + ", ".join(said)


def _who(epoch: EpochEntry) -> str:
    shown = [f"{called(one.origin[:DIGITS], one.name)} {count(one.updates)}" for one in epoch.origins[:SHOWN]]
    others = epoch.origins[SHOWN:]
    if others:
        shown.append(f"{len(others)} others {count(sum(one.updates for one in others))}")
    return ", ".join(shown)

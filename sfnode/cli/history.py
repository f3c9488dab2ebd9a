"""Commands about the past of a run: `sfnode log` and `sfnode history checkout`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sfnode.cli import options
from sfnode.cli.data_folder import opened_run
from sfnode.cli.export import check_form, format_options
from sfnode.cli.output import echo
from sfnode.cli.progress import waiting
from sfnode.dashboard.formatting import beside, count
from sfnode.errors import Code, UserError
from sfnode.printable import called, command, part_of
from sfnode.schema.metrics import measured
from sfnode.schema.node_state import UNCOUNTED_WORDS

if TYPE_CHECKING:
    from sfnode.manifest import Manifest
    from sfnode.schema.history import EpochEntry, HistoryEntry, HistoryResult, WhyResult
    from sfnode.store.log import UpdateLog


SHOWN = 4
"""Maximum number of origins shown for an epoch: those with the most updates."""

DIGITS = 8
"""Number of hex digits of the key that are shown for an origin without a name."""

WHEN = 16
"""Width of the column with the time at which a decision arrived."""


# -- log -----------------------------------------------------------------------------------------------


@click.command("log")
@options.option(
    "--updates", is_flag=True, help="Print the updates that count instead, as JSON lines (docs/json.md)."
)
@options.option(
    "--why",
    metavar="MEMBER",
    help="Show what became of a member's work, and why: by number, name or key.",
)
@options.data_dir_option
@options.as_of_now_option
@options.details_option
@options.json_option
def log(
    updates: bool, why: str | None, data_dir: Path, as_of_now: bool, details: bool, as_json: bool
) -> None:
    """Show the decisions in the run of a node's folder, and the outcome of each round, oldest first.

    Each has the time at which it arrived at this node. For an open run, which has no decisions, the rounds
    are shown. Nothing is verified (see `sfnode verify`). --updates lists the updates that count by the last
    decision, or with --as-of-now all of them.
    """
    if as_of_now and not updates:
        raise UserError(
            Code.BAD_OPTION, "--as-of-now: a history is always that of now", "Leave it out, or add --updates."
        )
    with opened_run(data_dir) as (manifest, update_log):
        if updates:
            _print_updates(manifest, update_log, as_of_now)
            return
        from sfnode.history import time_travel

        if why:
            told = time_travel.why(manifest, update_log, why)
            echo(told.model_dump_json(indent=2) if as_json else "\n".join(_why_lines(told)))
            return
        found = time_travel.history(manifest, update_log)
    if as_json:
        echo(found.model_dump_json(indent=2))
        return
    echo("\n".join([*_begins(manifest), *_lines(found, details)]))


def _print_updates(manifest: Manifest, update_log: UpdateLog, as_of_now: bool) -> None:
    from sfnode.cli.trained_model import counted
    from sfnode.schema.results import UpdateLine
    from sfnode.store.replay import weighed

    for update in weighed(update_log, counted(manifest, update_log, as_of_now=as_of_now)):
        feed = {"origin": update.feed.origin.hex(), "incarnation": update.feed.incarnation}
        same = {name: getattr(update, name) for name in ("step", "epoch", "scalar", "weight")}
        echo(UpdateLine.model_validate(feed | same | {"seed": str(update.seed)}).model_dump_json())


def _why_lines(found: WhyResult) -> Iterator[str]:
    """Yield lines with the outcome of a member's work in each round."""
    for one in found.verdicts:
        because = f": {UNCOUNTED_WORDS[one.reason]}" if one.reason else ""
        yield f"round {one.epoch}: {one.counted:,} of {one.named:,} updates count{because}"
    revoked = "" if found.revoked is None else f", revoked from round {found.revoked} on"
    counts = f"{sum(one.counted for one in found.verdicts):,} updates count"
    yield f"member {found.member}, {called(found.origin[: 2 * DIGITS], found.name)}: {counts}{revoked}"


def _begins(manifest: Manifest) -> Iterator[str]:
    """Yield a line for each ancestor of this run, the oldest first."""
    from sfnode.cli.fork import ancestors

    for one in reversed(ancestors(manifest)):
        more = (
            f"; `{command('sfnode', 'log', '--data-dir', one.folder)}` has what came before"
            if one.folder
            else ""
        )
        yield f"{'':{WHEN}}  begins with {one}, fingerprint {one.seal.digest[:DIGITS]}{more}"


def _lines(found: HistoryResult, details: bool) -> Iterator[str]:
    for entry in found.entries:
        yield from entry_lines(entry, details)
    counts = f"{part_of(found.counted, found.budget)} updates count"
    if found.sealed is None:
        yield f"run {found.run_name} ({found.run_id[:16]}), open: {counts}"
    else:
        others = "others do not count" if found.complete else "are not judged yet"
        seals = f"{found.sealed} round{'' if found.sealed == 1 else 's'}, {counts}, {count(found.waiting)}"
        complete = "complete, " if found.complete else ""
        yield f"run {found.run_name} ({found.run_id[:16]}): {complete}{seals} {others}"


def entry_lines(entry: HistoryEntry, details: bool = False) -> Iterator[str]:
    """Yield the lines of an entry in the history of a run. With `details`, also show the entry's number, kind
    and figures."""
    when = "" if entry.arrived is None else f"{datetime.fromtimestamp(entry.arrived):%Y-%m-%d %H:%M}"
    number = f"{'' if entry.position is None else entry.position:>6}  {entry.kind:<10}  " if details else ""
    figures = "".join(f", {said}" for said in _figures(entry.epoch, details)) if entry.epoch else ""
    yield f"{when:{WHEN}}  {number}{entry.text}{figures}"
    if entry.epoch and entry.epoch.origins:
        yield f"{'':{WHEN + len(number) + 4}}{_who(entry.epoch)}"


def _figures(epoch: EpochEntry, details: bool) -> Iterator[str]:
    if details:
        yield from [] if epoch.factor is None else [f"factor {epoch.factor:.4g}"]
        yield f"rate {epoch.rate:.3g}"
        yield from [f"digest {epoch.digest[:DIGITS]}"] if epoch.digest else []
    if one := epoch.evaluation:
        yield f"{measured(one)}{beside(one) if details else ''} {one.on_rows}"


def _who(epoch: EpochEntry) -> str:
    shown = [f"{one.name or one.origin[:DIGITS]} {count(one.updates)}" for one in epoch.origins[:SHOWN]]
    others = epoch.origins[SHOWN:]
    if others:
        shown.append(f"{len(others)} others {count(sum(one.updates for one in others))}")
    return ", ".join(shown)


# -- checkout ------------------------------------------------------------------------------------------


@click.command
@options.epoch_argument("epoch")
@options.out_option(
    "FOLDER", "Write the model to this new folder, as `sfnode export --out FOLDER` does.", required=False
)
@format_options
@options.data_dir_option
@options.model_option
@options.device_option
@options.json_option
def checkout(
    epoch: int,
    out: Path | None,
    form: str,
    lora_rank: int | None,
    dtype: str,
    data_dir: Path,
    model: Path | None,
    device: str,
    as_json: bool,
) -> None:
    """Recompute the state after the seal of EPOCH, and print its digests; needs no model.

    The state follows from the decisions up to that seal. Updates that were taken back later still count in
    it, and it never changes. With --out the model is written, too.
    """
    if out:
        from sfnode.cli.trained_model import check

        check_form(check(data_dir, device), out, form, lora_rank)
    with opened_run(data_dir) as (manifest, update_log), waiting("replaying the log"):
        from sfnode.history.time_travel import Past

        state = Past(manifest, update_log, data_dir).result(epoch)
    if out:
        from sfnode.cli.trained_model import load, write

        written = write(load(data_dir, model, device, dtype, epoch=epoch), out, form, lora_rank)
        echo(written, err=as_json)
    if as_json:
        echo(state.model_dump_json(indent=2))
    else:
        echo(f"up to round {epoch} {state.updates:,} updates count")
        echo(f"fingerprint  {state.core_digest}\nnamed digest {state.named_digest}")

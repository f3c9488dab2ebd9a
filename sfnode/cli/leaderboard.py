"""`sfnode leaderboard`: the contributions of the members of an organised run, and their worth."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sfnode.cli import options
from sfnode.cli.data_folder import opened_run
from sfnode.cli.output import echo, table
from sfnode.cli.progress import waiting
from sfnode.dashboard.formatting import count, nats, percent
from sfnode.errors import Code, UserError
from sfnode.printable import SHORT_KEY

if TYPE_CHECKING:
    from sfnode.manifest import Manifest
    from sfnode.organising.reporting.run_history import RunHistory
    from sfnode.schema.history import LeaderboardResult, Ranked, Remeasured
    from sfnode.store.log import UpdateLog


DIGITS = 16
"""Number of hex digits of a key that --details shows."""


@click.command
@options.option(
    "--recompute",
    is_flag=True,
    help="First check every signature and every count of the log, as `sfnode verify` does.",
)
@options.option(
    "--remeasure",
    type=click.IntRange(1),
    metavar="ROUNDS",
    help="Measure the last so many rounds anew, on the run's validation rows, and compare.",
)
@options.model_options
@options.details_option
@options.json_option
def leaderboard(
    recompute: bool,
    remeasure: int | None,
    data_dir: Path,
    model: Path | None,
    device: str,
    dtype: str,
    details: bool,
    as_json: bool,
) -> None:
    """Show the contribution of each member of an organised run, the greatest worth first.

    Computed from the manifest and the log of a node's folder alone, whether the node runs or not. With the
    same decisions everybody sees the same digits. A member's worth is the amount by which its counted updates
    lowered the loss on the organiser's validation rows, according to figures that the organiser signed
    (docs/judging.md). Its gain is its share of the worth of all members. --details shows the worth in nats,
    or in reward.
    """
    with opened_run(data_dir) as (manifest, update_log):
        from sfnode.node.startup import settled
        from sfnode.organising.reporting.run_history import RunHistory
        from sfnode.store.verification import verify_log

        run = manifest.parameters()
        if run.organised is None:
            raise UserError(
                Code.RUN_IS_OPEN,
                "an open run has no leaderboard by worth: nobody says what updates have brought",
                "`sfnode top` ranks its origins by updates.",
            )
        if recompute:
            with waiting("verifying the log"):
                verify_log(manifest, update_log, None)
        unit = "reward" if manifest.task.is_rewarded else "nats"
        names = settled(run, update_log).cards.names()
        history = RunHistory(run, names, manifest.training).follow(update_log.control())
        found = _result(manifest, history, verified=recompute)
        if remeasure:
            found = _remeasured(found, manifest, update_log, data_dir, remeasure, model, device, dtype)
    echo(found.model_dump_json(indent=2) if as_json else "\n".join(_lines(found, unit if details else "")))


def _result(manifest: Manifest, history: RunHistory, *, verified: bool) -> LeaderboardResult:
    from sfnode.schema.history import LeaderboardResult

    members = history.members()
    return LeaderboardResult(
        run_id=manifest.run_id.hex(),
        run_name=manifest.name,
        sealed=history.run_state.sealed,
        counted=history.run_state.counted,
        worth=sum(one.worth for one in members),
        verified=verified,
        epochs=[],
        members=members,
    )


def _remeasured(
    found: LeaderboardResult,
    manifest: Manifest,
    update_log: UpdateLog,
    data_dir: Path,
    epochs: int,
    model: Path | None,
    device: str,
    dtype: str,
) -> LeaderboardResult:
    from sfnode.cli.trained_model import base_model
    from sfnode.history import time_travel
    from sfnode.store.data_folder import Layout
    from sfnode.store.replay import run_state_of

    layout, entries = Layout(data_dir), update_log.control()
    with base_model(manifest, layout, model, device, dtype) as trainer:
        trainer.use_bases(run_state_of(manifest.parameters(), entries).bases)
        with waiting(f"measuring {epochs} rounds anew"):
            compared = time_travel.remeasure(
                manifest, update_log, entries, epochs, trainer, lambda one: echo(_compared(one), err=True)
            )
    return found.model_copy(update={"tolerance": time_travel.TOLERANCE, "epochs": compared})


def _compared(one: Remeasured) -> str:
    word = "agrees" if one.agrees else "DIFFERS"
    figures = f"{nats(one.said)} signed, {nats(one.found)} measured here"
    return f"round {one.epoch}: loss lowered by {figures} on {one.rows} rows: {word}"


def _lines(found: LeaderboardResult, unit: str) -> Iterator[str]:
    """Yield the lines of the table. With a `unit`, they also show the worths in that unit."""
    whole = sum(abs(one.worth) for one in found.members)
    gain = ["gain"] * bool(whole)
    worths = ["measured", f"worth, {unit}"] if unit else []
    heads = ["rank", "who", "key", "count", *gain, *worths, ""]
    rows = (_row(one, whole, bool(unit)) for one in found.members)
    yield f"members by {'gain, then by ' if whole else ''}updates that count"
    yield table([heads, *rows], right=(0, *range(3, len(heads) - 1)))
    counts = f"{found.sealed} rounds, {count(found.counted)} updates count"
    worth = f", worth {nats(found.worth)} {unit}" if unit and whole else ""
    checked = ", log verified" if found.verified else ""
    yield f"run {found.run_name} ({found.run_id[:16]}): {counts}{worth}{checked}"
    if found.tolerance is not None:
        agreeing = sum(one.agrees for one in found.epochs)
        of = f"{agreeing} of {len(found.epochs)} rounds that were measured anew"
        yield f"{of} agree within {found.tolerance:.0%}"


def _row(one: Ranked, whole: int, details: bool) -> list[str]:
    gain = [percent(one.worth / whole) if one.worth >= 0 else "worse"] if whole else []
    worths = [count(one.measured), nats(one.worth)] if details else []
    key = one.origin[: DIGITS if details else SHORT_KEY]
    now = "revoked" if one.revoked else f"left out: {one.left_out}" if one.left_out else ""
    return [str(one.rank), one.name or "", key, count(one.counted), *gain, *worths, now]

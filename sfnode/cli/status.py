"""`sfnode status` and `list`: what a running node is doing; the runs on this machine."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sfnode.cli.data_folder import running_node
from sfnode.cli.folders import known_folders
from sfnode.cli.options import data_dir_option, json_option, option
from sfnode.cli.output import echo
from sfnode.cli.owner import limit_lines
from sfnode.dashboard.formatting import evidence_in_words, health_in_words, limits_in_words, nats
from sfnode.errors import UserError
from sfnode.schema.metrics import drift_in_words, trained_by
from sfnode.schema.unchecked import plain
from sfnode.sizes import pace, part_of, size_text, span
from sfnode.store.data_folder import Layout, holder

if TYPE_CHECKING:
    from sfnode.schema import FeedStatus, Status
    from sfnode.schema.organising import ValidatorStatus
    from sfnode.schema.status import RunStatus


@click.command
@data_dir_option
@option("--feeds", "with_feeds", is_flag=True, help="Also list what every feed has contributed.")
@json_option
def status(data_dir: Path, with_feeds: bool, as_json: bool) -> None:
    """Show what the node that runs in this folder is doing."""
    node = running_node(data_dir)
    answer, feeds = node.status(), node.every_feed() if with_feeds else []
    if as_json:
        more = {"feeds": plain(feeds)} if with_feeds else {}
        echo(json.dumps(plain(answer) | more, indent=2, ensure_ascii=False))
    else:
        for alarm in answer.alarms:
            echo(f"{alarm.code}: {alarm.what}\n  {alarm.fix}", colour="red")
        echo("\n".join(_lines(answer, feeds)))


def _lines(s: Status, feeds: Sequence[FeedStatus]) -> list[str]:
    trained = trained_by(s.task)
    told = "" if s.loss is None else f", {trained.name} {trained.of(s.loss):.3f}"
    agreeing = sum(link.agrees for link in s.links)
    lines = [
        f"run      {s.run_name} ({s.run_id[:16]})",
        f"state    {s.state} as {s.role}, up {s.uptime / 60:.1f} min",
        _updates(s),
        f"own      {s.own_updates} since start, {pace(s.updates_per_second)}{told}",
        *([f"busy     {s.doing.what}, {span(s.doing.seconds)}"] if s.doing else []),
        *_device_lines(s),
        f"links    {len(s.links)} ({agreeing} with the same digest)",
        f"digest   {s.digest}",
        f"traffic  {s.bytes_sent / 1000:.1f} kB out, {s.bytes_received / 1000:.1f} kB in",
    ]
    lines += _run_lines(s.organised) if s.organised else []
    lines += [f"drift    {drift_in_words(s.drift.distance, s.drift.kl)}"] if s.drift else []
    lines += [_validator_line(s.validator)] if s.validator else []
    if s.wait:
        lines.append(f"waits    {s.wait.text}")
    if s.fetch:
        done, total = size_text(s.fetch.done), size_text(s.fetch.total)
        what = "bases   " if s.fetch.what == "bases" else "model   "
        lines.append(f"{what} {done} of {total} downloaded from {s.fetch.peers} peers")
    lines += [f"paused   {why}" for why in s.pauses]
    if limits_in_words(s.limits):
        lines += [f"limit    {line}" for line in limit_lines(s.limits).splitlines()]
    lines += [f"address  {address}" for address in s.addresses]
    return lines + [f"feed     {feed.origin}/{feed.incarnation} {feed.updates}" for feed in feeds]


def _device_lines(s: Status) -> list[str]:
    """Say what each of several devices has done."""
    if len(s.devices) < 2:
        return []
    speeds = ["" if one.seconds is None else f", {one.seconds * 1000:.3g} ms each" for one in s.devices]
    return [
        f"device   {one.name}: {one.updates} updates{speed}{'; it has failed' if one.problem else ''}"
        for one, speed in zip(s.devices, speeds, strict=True)
    ]


def _updates(s: Status) -> str:
    left = f", {span(s.seconds_left)} left" if s.seconds_left else ""
    if s.organised is None:
        return f"updates  {part_of(s.known, s.update_budget)}, epoch {s.epoch + 1} of {s.epochs}{left}"
    counted = f"{part_of(s.organised.counted, s.update_budget)} count"
    return f"updates  {counted}, {s.known} are here, epoch {s.epoch} is open{left}"


def _validator_line(validator: ValidatorStatus) -> str:
    """Say what a node does that the organiser has named a validator."""
    if not validator.willing:
        return "checks   named a validator, and declines (--no-validator)"
    problem = f"; the last one could not be: {validator.problem}" if validator.problem else ""
    return f"checks   named a validator: {validator.measured} epochs measured since start{problem}"


def _run_lines(run: RunStatus) -> list[str]:
    """Say how an organised run stands, and this node in it."""
    last = "" if run.seconds_since_seal is None else f", the last one {span(run.seconds_since_seal)} ago"
    here = "" if run.organiser is None else f"; organised here ({run.organiser})"
    lines = [
        f"sealed   {run.sealed} epochs{last}{here}",
        f"health   {health_in_words(run.health)}",
    ]
    if run.member is not None:
        left = f"{run.room} of {run.quota} updates left in this epoch"
        lines.append(f"member   number {run.member} of {run.members}, {left}")
    if run.evidence:
        counts = "left out of seals" if run.evidence.skipped else "no doubt of it"
        about = f"{nats(run.evidence.worth)} nats by {run.evidence.updates} measured updates"
        lines.append(f"worth    {about}, {counts} ({evidence_in_words(run.evidence)})")
    if run.announced:
        lines.append(f"said     {run.announced}")
    if run.behind:
        lines.append(f"behind   {run.behind} updates that the organiser has named are not here yet")
    return lines


# `sfnode list`: the runs on this machine.


HEADS = ("folder", "run", "run id", "state", "own updates")


@click.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the runs on this machine: folder, name, run id, whether a node runs there, updates that it made.

    Looks into the default folder, those of --profile, and those in which `sfnode join` was run by this user.
    """
    found = [_described(folder) for folder in known_folders() if Layout(folder).manifest.exists()]
    if as_json:
        echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    if not found:
        echo("No run on this machine yet: `sfnode join LINK` joins one, `sfnode swarm` shows one.")
        return
    rows = [HEADS, *(tuple(_words(value) for value in run.values()) for run in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS))]
    for row in rows:
        echo("  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip())


def _described(folder: Path) -> dict[str, Any]:
    """Return what there is to say about the run in `folder`; its node is asked if one runs."""
    run: dict[str, Any] = {"folder": str(folder), "run_name": None, "run_id": None}
    if holder(folder) is not None:
        try:
            status = running_node(folder).status()
        except UserError:  # it starts or ends at this moment, or hangs
            return run | _kept(folder) | {"state": "not answering"}
        more = {"run_name": status.run_name, "run_id": status.run_id, "state": status.state}
        return run | more | {"contributed": status.contributed}
    return run | {"state": "not running"} | _kept(folder)


def _kept(folder: Path) -> dict[str, Any]:
    """Return what the files in `folder` say about its run."""
    from sfnode.node.startup import contributed
    from sfnode.store.log import UpdateLog

    layout = Layout(folder)
    kept: dict[str, Any] = {"contributed": None}
    try:
        kept["run_name"] = str(tomllib.loads(layout.manifest.read_text("utf-8")).get("name", ""))
        with UpdateLog.open(layout.log, read_only=True) as log:
            kept |= {"run_id": log.run_id.hex(), "contributed": contributed(layout, log)}
    except (OSError, ValueError, UserError):  # it says so when it is used
        pass
    return kept


def _words(value: object) -> str:
    text = "?" if value is None else str(value)
    return text[:16] if len(text) == 64 and "/" not in text else text

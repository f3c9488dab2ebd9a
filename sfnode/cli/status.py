"""`sfnode status`: the state of a running node; `sfnode list`: the runs on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sfnode.cli.data_folder import running_node
from sfnode.cli.options import data_dir_option, details_option, json_option, known_folders, option
from sfnode.cli.output import echo, table
from sfnode.cli.owner import limit_lines
from sfnode.control.client import plain
from sfnode.dashboard.formatting import (
    count,
    download_in_words,
    evidence_in_words,
    health_in_words,
    limits_in_words,
    nats,
    percent,
)
from sfnode.errors import UserError
from sfnode.printable import pace, part_of, read_toml, size_text, span
from sfnode.schema.metrics import doing_in_words, drift_in_words, moved_in_words, trained_by
from sfnode.store.data_folder import Layout, holder

if TYPE_CHECKING:
    from sfnode.schema.status import PrivacyStatus, RunStatus, Status


@click.command
@data_dir_option
@option("--feeds", "with_feeds", is_flag=True, help="Also list what every feed has contributed.")
@details_option
@json_option
def status(data_dir: Path, with_feeds: bool, details: bool, as_json: bool) -> None:
    """Show the state of the node that runs in this folder."""
    node = running_node(data_dir)
    answer, feeds = node.status(), node.every_feed() if with_feeds else []
    if as_json:
        more = {"feeds": plain(feeds)} if with_feeds else {}
        echo(json.dumps(plain(answer) | more, indent=2, ensure_ascii=False))
    else:
        for alarm in answer.alarms:
            echo(f"{alarm.code}: {alarm.what}\n  {alarm.fix}", colour="red")
        lines = _lines(answer) + (_detail_lines(answer) if details else [])
        echo("\n".join(lines + [f"feed     {one.origin}/{one.incarnation} {one.updates}" for one in feeds]))


def _lines(s: Status) -> list[str]:
    trained = trained_by(s.task)
    told = "" if s.loss is None else f", {trained.name} {trained.of(s.loss):.3f}"
    agreeing = sum(link.agrees for link in s.links)
    lines = [
        f"run      {s.run_name} ({s.run_id[:16]})",
        f"state    {s.state.replace('-', ' ')} as {s.role}, for {span(s.uptime)}",
        _updates(s),
        *([f"yours    {_own(s)}, {pace(s.updates_per_second)}{told}"] if s.origin else []),
        *([f"private  {_private(s.privacy)}"] if s.privacy else []),
        *([f"busy     {doing_in_words(s.doing)}"] if s.doing else []),
        *_device_lines(s),
        f"links    {len(s.links)} ({agreeing} with the same model)",
        f"traffic  {size_text(s.bytes_sent)} out, {size_text(s.bytes_received)} in",
    ]
    lines += _run_lines(s.organised) if s.organised else []
    lines += [f"change   {moved_in_words(s.drift.distance)}"] if s.drift else []
    if s.wait:
        lines.append(f"waits    {s.wait.text}")
    if s.fetch:
        done, total = size_text(s.fetch.done), size_text(s.fetch.total)
        lines.append(f"getting  {download_in_words(s.fetch)}: {done} of {total}, from {s.fetch.peers} peers")
    lines += [f"paused   {why}" for why in s.pauses]
    if limits_in_words(s.limits):
        lines += [f"limit    {line}" for line in limit_lines(s.limits).splitlines()]
    return lines + [f"address  {address}" for address in s.addresses]


def _detail_lines(s: Status) -> list[str]:
    """Return lines with precise figures, for --details."""
    lines = [f"digest   {s.digest}"]
    lines += [f"origin   {s.origin}, incarnation {s.incarnation}"] if s.origin else []
    lines += [f"drift    {drift_in_words(s.drift)}"] if s.drift else []
    run = s.organised
    if run is None:
        return lines
    lines.append(f"sealed   {run.sealed} epochs; epoch {s.epoch} is open")
    lines += [f"quota    {run.room} of {run.quota} are left in it"] if run.member is not None else []
    if run.evidence:
        counts = "left out of seals" if run.evidence.skipped else "no doubt of it"
        about = f"loss lowered by {nats(run.evidence.worth)} with {run.evidence.updates} measured updates"
        lines.append(f"worth    {about}, {counts} ({evidence_in_words(run.evidence)})")
    return lines


def _own(s: Status) -> str:
    """Describe this node's updates."""
    part = percent(s.contributed / max(s.known, s.contributed, 1))
    return f"{count(s.contributed)} updates ({part} of all), {count(s.own_updates)} since start"


def _private(known: PrivacyStatus) -> str:
    """Describe how much this node's updates reveal of its rows."""
    if known.epsilon is None:
        return "what is told of your rows has noise"
    return f"what is told of any of your rows is epsilon {known.epsilon:.2f} at most (delta {known.delta:g})"


def _device_lines(s: Status) -> list[str]:
    """Describe the work of each of several devices."""
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
        at = min(s.epoch + 1, s.epochs)
        return f"updates  {part_of(s.known, s.update_budget)}, round {at} of {s.epochs}{left}"
    counted = f"{part_of(s.organised.counted, s.update_budget)} count"
    return f"updates  {counted}, {count(s.known)} are here, round {s.epoch} is open{left}"


def _run_lines(run: RunStatus) -> list[str]:
    """Describe an organised run, and this node's part in it."""
    last = "" if run.seconds_since_seal is None else f", the last one {span(run.seconds_since_seal)} ago"
    here = "" if run.organiser is None else f"; organised here ({run.organiser})"
    lines = [f"rounds   {run.sealed} count{last}{here}", f"model    {health_in_words(run.health)}"]
    if run.stand_ins:
        lines.append(
            f"organise {run.stand_ins_here} of {run.stand_ins} who stand in for the organiser are here"
        )
    if run.member is not None:
        left = f"{run.room} of {run.quota} updates left in this round"
        lines.append(f"member   number {run.member} of {run.members}, {left}")
    if run.evidence and run.evidence.skipped:
        lines.append("doubt    your latest work does not count for now (`sfnode status --details`)")
    if run.announced:
        lines.append(f"said     {run.announced}")
    if run.behind:
        lines.append(f"missing  {run.behind} updates that count are not here yet")
    return lines


HEADS = ("folder", "run", "run id", "state", "your updates")


@click.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the runs on this machine: folder, name, run id, whether a node runs there, and its updates.

    Searches the default folder, the folders of profiles, and folders in which this user ran `sfnode join`.
    """
    found = [_described(folder) for folder in known_folders() if Layout(folder).manifest.exists()]
    if as_json:
        echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    if not found:
        echo("No run on this machine yet: `sfnode join LINK` joins one, `sfnode swarm` shows one.")
        return
    echo(table([HEADS, *(tuple(_words(value) for value in run.values()) for run in found)]))


def _described(folder: Path) -> dict[str, Any]:
    """Describe the run in `folder`, from the answers of its node if one runs."""
    run: dict[str, Any] = {"folder": str(folder), "run_name": None, "run_id": None}
    if holder(folder) is not None:
        try:
            status = running_node(folder).status()
        except UserError:  # it is starting or ending, or hangs
            return run | _kept(folder) | {"state": "not answering"}
        more = {"run_name": status.run_name, "run_id": status.run_id, "state": status.state}
        return run | more | {"contributed": status.contributed}
    return run | {"state": "not running"} | _kept(folder)


def _kept(folder: Path) -> dict[str, Any]:
    """Describe the run from the files in `folder`."""
    from sfnode.node.startup import contributed
    from sfnode.store.log import UpdateLog

    layout = Layout(folder)
    kept: dict[str, Any] = {"contributed": None}
    try:
        kept["run_name"] = str(read_toml(layout.manifest.read_text("utf-8")).get("name", ""))
        with UpdateLog.open(layout.log, read_only=True) as log:
            kept |= {"run_id": log.run_id.hex(), "contributed": contributed(layout, log)}
    except (OSError, ValueError, UserError):  # commands that use the folder report the error
        pass
    return kept


def _words(value: object) -> str:
    text = "?" if value is None else str(value)
    return text[:16] if len(text) == 64 and "/" not in text else text

"""Requests of the owner to a running node: `sfnode pause`, `resume`, `limit`, `leave`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sfnode.cli.data_folder import running_node
from sfnode.cli.options import F, data_dir_option, json_option, option, reason
from sfnode.cli.output import echo
from sfnode.control.client import plain
from sfnode.dashboard.formatting import limits_in_words
from sfnode.errors import Code, UserError
from sfnode.store.data_folder import holder

if TYPE_CHECKING:
    from sfnode.limits import Limits

EXAMPLES = (
    "cpu=50 gpu=50 threads=2 watts=200 celsius=80 memory=2G hours=22:00-07:00 idle=10 mains=yes "
    "not_while=steam,blender mb_per_day=500 upload_rate=500k download_rate=2M"
)
NAMES = dict(one.split("=") for one in EXAMPLES.split())
"""Example values of limits, keyed by the field of `Limits`. They are written here because importing `Limits`
takes long."""

NO_LIMIT = ("none", "off", "")
"""Values that remove a limit."""

LEAVE_DEADLINE = 10.0
"""Time limit for a node to end, in seconds. A node takes less than 2 s."""

_POLL = 0.05
"""Seconds between two checks of whether the node has ended."""


# -- pause and resume ----------------------------------------------------------------------------------


def parse_duration(_context: Any, _parameter: Any, value: str | None) -> float | None:
    """Return a duration such as `2h`, `90m`, `1h30m` or `45s` in seconds."""
    if value is None:
        return None
    form = re.fullmatch(r"(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?", value.strip(), re.ASCII)
    hours, minutes, seconds = (int(part or 0) for part in form.groups()) if form else (0, 0, 0)
    if not (hours or minutes or seconds):
        raise click.BadParameter("say how long, for example 2h, 90m or 1h30m")
    return hours * 3600.0 + minutes * 60 + seconds


@click.command
@click.argument("duration", callback=parse_duration, required=False, metavar="[2h]")
@data_dir_option
def pause(duration: float | None, data_dir: Path) -> None:
    """Have the node compute nothing for a while (2h, 90m, 1h30m), or until `sfnode resume`.

    The running forward pass is completed, and a GPU's memory is free within two seconds; an evaluation ends
    without a result. The node still forwards and serves others' updates. A pause ends with the node: after a
    restart it computes.
    """
    answer = running_node(data_dir).pause(duration)
    echo(f"paused: {'; '.join(answer.pauses)}")


@click.command
@data_dir_option
def resume(data_dir: Path) -> None:
    """End a pause that was requested. Limits stay in force."""
    answer = running_node(data_dir).resume()
    echo(f"still paused: {'; '.join(answer.pauses)}" if answer.pauses else "resumed")


# -- limit ---------------------------------------------------------------------------------------------


@click.command
@click.argument("changes", nargs=-1, metavar="[NAME=VALUE]...")
@data_dir_option
@json_option
def limit(changes: tuple[str, ...], data_dir: Path, as_json: bool) -> None:
    """Show the limits of a running node, after changing some. `sfnode join` takes the same as --limit.

    \b
    cpu=50             percent of all cores        gpu=50        percent of the time
    threads=2          CPU threads                 watts=200     that the GPU draws on average
    celsius=80         hottest processor           memory=2G     of the process
    hours=22:00-07:00  times of the day            idle=10       minutes that nobody used the machine
    mains=yes          not on battery              not_while=steam,blender    programs
    mb_per_day=500     up and down together        upload_rate=500k, download_rate=2M    a second

    `idle=none` removes a limit. All changes are made, or none. They last until the node ends.
    """
    node = running_node(data_dir)
    wanted = _changes(changes)
    try:
        limits = node.limit(wanted) if wanted else node.limits()
    except UserError as error:
        if error.code is not Code.BAD_OPTION:
            raise
        raise UserError(error.code, error.what, _form(wanted)) from error
    echo(json.dumps(plain(limits), indent=2) if as_json else limit_lines(limits))


def limit_lines(limits: object) -> str:
    """Return the limits in force, one per line."""
    lines = [f"{name:<13} {value}" for name, value in limits_in_words(limits).items()]
    return "\n".join(lines) or "no limits"


_SEVERAL = re.compile(r",(?=[ ]*[a-z_-]+[ ]*=)")
"""Pattern of a comma that separates two limits, as in `cpu=50,threads=2`. A name and `=` follow it, unlike a
comma within a value."""


def _changes(words: Iterable[str]) -> dict[str, str | None]:
    """Return the limits in command-line words such as `cpu=50,hours=22:00-07:00`, keyed by field. The value
    None removes a limit."""
    return dict(_change(text) for word in words for text in _SEVERAL.split(word))


def _change(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    field = name.strip().replace("-", "_")
    if not equals or field not in NAMES:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE with one of {', '.join(NAMES)}")
    return field, None if value.strip().lower() in NO_LIMIT else value


def _form(names: Iterable[str]) -> str:
    return f"Give it as {' '.join(f'{name}={NAMES[name]}' for name in names)}; {NO_LIMIT[0]} removes a limit."


# -- leave ---------------------------------------------------------------------------------------------


@click.command
@option("--finish", is_flag=True, help="First complete the step that is running, and hand it over.")
@data_dir_option
def leave(finish: bool, data_dir: Path) -> None:
    """End the node that runs in this folder within two seconds, as Ctrl-C does, and wait for that.

    A running step is discarded. With --finish the node completes the step and hands it to a neighbour first.
    If it has no neighbour this takes some seconds more, and if no neighbour accepts the step, half a minute
    at most. Interrupting the command does not withdraw the request.
    """
    node = running_node(data_dir)
    if finish:
        node.finish()
    else:
        node.leave()
    _wait_until_gone(data_dir, None if finish else LEAVE_DEADLINE)
    echo("finished" if finish else "left")


def _wait_until_gone(data_dir: Path, deadline: float | None) -> None:
    begun = time.monotonic()
    while (process := holder(data_dir)) is not None:
        if deadline is not None and time.monotonic() - begun > deadline:
            raise UserError(
                Code.NODE_NOT_ANSWERING,
                f"the node in {data_dir} was told to end and is still there after {deadline:g} s",
                f"See what it logs, or kill process {process}: its update log is on disk.",
            )
        time.sleep(_POLL)


# -- join --limit --------------------------------------------------------------------------------------


def parse_limits(_context: Any, _parameter: Any, words: tuple[str, ...]) -> Limits:
    """Return the limits that `--limit` names, in the notation of `sfnode limit`."""
    from pydantic import ValidationError

    from sfnode.limits import Limits

    try:
        return Limits().changed(_changes(words))
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        raise click.BadParameter(f"{name}: {reason(error)}. {_form([name])}") from error


def limit_option(function: F) -> F:
    """Add --limit."""
    return option(
        "--limit",
        "limits",
        multiple=True,
        callback=parse_limits,
        metavar="LIMITS",
        help="What it may use: cpu=50,hours=22:00-07:00,... (`sfnode limit -h`).",
    )(function)

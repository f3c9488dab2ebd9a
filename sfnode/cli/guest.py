"""`sfnode pause`, `resume`, `finish`, `leave` and `limit`: what the owner of a machine tells the node on it.

Also the options of `sfnode join` for the same limits. What they mean, the node knows.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from pydantic import ValidationError

from sfnode.cli.options import data_dir_option, json_option, option
from sfnode.client import Client
from sfnode.errors import Code, UserError
from sfnode.limits import Limits
from sfnode.store.datadir import Layout, holder

F = TypeVar("F", bound=Callable[..., Any])

LEAVE_DEADLINE = 10.0
"""Seconds for a node to end; it takes less than two."""

NO_LIMIT = ("none", "off", "")
"""What takes a limit away."""

_POLL = 0.05

_HELP = {
    "cpu": ("PERCENT", "Use so much of all cores, on average."),
    "gpu": ("PERCENT", "Keep the GPU busy for so much of the time."),
    "watts": ("WATTS", "Let the GPU draw so much on average (NVIDIA)."),
    "celsius": ("DEGREES", "Pause while the processor, or the GPU with --device cuda, is hotter."),
    "memory": ("BYTES", "Pause while the process has more resident memory: 800M, 2G."),
    "hours": ("FROM-TO", "Compute at these times of the day only: 22:00-07:00, or several with commas."),
    "idle": ("MINUTES", "Compute only when for so long nobody typed in a terminal and no program was busy."),
    "not_while": ("NAMES", "Pause while one of these programs runs: steam,blender."),
    "mb_per_day": ("MB", "Leave the network until tomorrow after so many megabytes, up and down together."),
    "upload_rate": ("BYTES", "Send at most so much a second over all links: 500k, 2M."),
    "download_rate": ("BYTES", "Receive at most so much a second over all links: 500k, 2M."),
}
"""How each limit is given, but for --threads and the switch --limit-mains."""


class LimitValue(click.ParamType):  # type: ignore[type-arg] # generic since click 8.2 only
    """The value of one limit, as `Limits` reads it."""

    def __init__(self, field: str) -> None:
        self.name = field

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        try:
            return getattr(Limits.model_validate({self.name: value}), self.name)
        except ValidationError as error:
            self.fail(_reason(error), parameter, context)


def limit_options(function: F) -> F:
    """--limit-NAME for every limit; `take_limits` collects their values."""
    function = option("--limit-mains", is_flag=True, help="Compute on mains power only.")(function)
    for field, (metavar, text) in reversed(_HELP.items()):
        flag = "--limit-" + field.replace("_", "-")
        function = option(flag, type=LimitValue(field), metavar=metavar, help=text)(function)
    return function


def take_limits(fields: dict[str, Any]) -> Limits:
    """Takes the values of --threads and of `limit_options` out of a command's parameters."""
    given = {name: fields.pop(f"limit_{name}") for name in (*_HELP, "mains")}
    given["threads"] = fields.pop("threads") or None
    return Limits().changed(given)


def parse_duration(_context: Any, _parameter: Any, value: str | None) -> float | None:
    """`2h`, `90m`, `1h30m`, `45s`: in seconds."""
    if value is None:
        return None
    form = re.fullmatch(r"(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?", value.strip(), re.ASCII)
    hours, minutes, seconds = (int(part or 0) for part in form.groups()) if form else (0, 0, 0)
    if not (hours or minutes or seconds):
        raise click.BadParameter("say how long, for example 2h, 90m or 1h30m")
    return hours * 3600.0 + minutes * 60 + seconds


@click.command(short_help="Have a running node compute nothing for a while.")
@click.argument("duration", callback=parse_duration, required=False, metavar="[2h]")
@data_dir_option
def pause(duration: float | None, data_dir: Path) -> None:
    """Have the node compute nothing for so long (2h, 90m, 1h30m), or until `sfnode resume`.

    The pass that is running is completed, and a GPU's memory is free within two seconds; an evaluation
    ends without a result. The node goes on passing on what others make, and serving it. A node that is
    started anew does not pause any more.
    """
    answer = asyncio.run(_client(data_dir).pause(duration))
    click.echo(f"paused: {'; '.join(answer.pauses)}")


@click.command(short_help="End a pause.")
@data_dir_option
def resume(data_dir: Path) -> None:
    """End a pause that was asked for. Limits stay in force."""
    answer = asyncio.run(_client(data_dir).resume())
    click.echo(f"still paused: {'; '.join(answer.pauses)}" if answer.pauses else "resumed")


@click.command(short_help="Have a running node complete its step, then leave.")
@data_dir_option
def finish(data_dir: Path) -> None:
    """Have the node complete what is running, hand it over to its neighbours, and leave; wait for that.

    It takes as long as a step, and some seconds more if there is no neighbour; half a minute at most if what
    neighbours there are do not take it. Interrupting this command does not call it off.
    """
    asyncio.run(_client(data_dir).finish())
    _wait_until_gone(data_dir, None)
    click.echo("finished")


@click.command(short_help="End a running node; nothing that is finished is lost.")
@data_dir_option
def leave(data_dir: Path) -> None:
    """End the node that runs in this folder within two seconds, as Ctrl-C does, and wait for that.

    A step that is running is given up; `sfnode finish` completes it.
    """
    asyncio.run(_client(data_dir).leave())
    _wait_until_gone(data_dir, LEAVE_DEADLINE)
    click.echo("left")


@click.command(short_help="Show or change the limits of a running node.")
@click.argument("changes", nargs=-1, metavar="[NAME=VALUE]...")
@data_dir_option
@json_option
def limit(changes: tuple[str, ...], data_dir: Path, as_json: bool) -> None:
    """Show the limits of a running node, after changing some: `sfnode limit cpu=50 hours=22:00-07:00`.

    Names are those of the options --limit-NAME of `sfnode join`, and `threads`; `idle=none` takes a limit
    away. All changes are made, or none. They last until the node ends.
    """
    client = _client(data_dir)
    wanted = dict(_change(text) for text in changes)
    limits = asyncio.run(client.limit(wanted) if wanted else client.limits())
    click.echo(limits.model_dump_json(indent=2) if as_json else limit_lines(limits))


def limit_lines(limits: Limits) -> str:
    """For people: those in force."""
    return "\n".join(f"{name:<13} {value}" for name, value in limits.told().items()) or "no limits"


def _change(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    field = name.strip().replace("-", "_")
    if not equals or field not in Limits.model_fields:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE with one of {', '.join(Limits.model_fields)}")
    return field, None if value.strip().lower() in NO_LIMIT else value


def _reason(error: ValidationError) -> str:
    return error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")


def _client(data_dir: Path) -> Client:
    return Client(Layout(data_dir).control_socket)


def _wait_until_gone(data_dir: Path, deadline: float | None) -> None:
    begun = time.monotonic()
    while (process := holder(data_dir)) is not None:
        if deadline is not None and time.monotonic() - begun > deadline:
            raise UserError(
                Code.NODE_NOT_RUNNING,
                f"the node in {data_dir} was told to end and is still there after {deadline:g} s",
                f"See what it says, or kill process {process}: its log is on disk.",
            )
        time.sleep(_POLL)

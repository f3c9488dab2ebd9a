"""Words of the owner to a running node: `sfnode pause`, `resume`, `limit`, `finish`, `leave`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sfnode.cli.data_folder import running_node
from sfnode.cli.options import data_dir_option, json_option, option
from sfnode.cli.output import echo
from sfnode.dashboard.formatting import limits_in_words
from sfnode.errors import Code, UserError
from sfnode.schema.unchecked import plain
from sfnode.store.data_folder import holder

if TYPE_CHECKING:
    from pydantic import ValidationError

    from sfnode.limits import Limits

F = TypeVar("F", bound=Callable[..., Any])


# `sfnode pause` and `sfnode resume`.


def parse_duration(_context: Any, _parameter: Any, value: str | None) -> float | None:
    """Return `2h`, `90m`, `1h30m` or `45s` in seconds."""
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
    """Have the node compute nothing for so long (2h, 90m, 1h30m), or until `sfnode resume`.

    The forward pass that is running is completed, and a GPU's memory is free within two seconds; an
    evaluation ends without a result. The node still forwards and serves others' updates. A pause does not
    outlast the node: one that is started again computes.
    """
    answer = running_node(data_dir).pause(duration)
    echo(f"paused: {'; '.join(answer.pauses)}")


@click.command
@data_dir_option
def resume(data_dir: Path) -> None:
    """End a pause that was asked for. Limits stay in force."""
    answer = running_node(data_dir).resume()
    echo(f"still paused: {'; '.join(answer.pauses)}" if answer.pauses else "resumed")


# `sfnode limit`: the limits of a running node.


LIMITS = {
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
"""Metavariable and help of each limit, but for --threads and the switch --limit-mains."""

NAMES = (*LIMITS, "mains", "threads")

NO_LIMIT = ("none", "off", "")
"""Values that remove a limit."""


@click.command
@click.argument("changes", nargs=-1, metavar="[NAME=VALUE]...")
@data_dir_option
@json_option
def limit(changes: tuple[str, ...], data_dir: Path, as_json: bool) -> None:
    """Show the limits of a running node, after changing some: `sfnode limit cpu=50 hours=22:00-07:00`.

    Names are those of the options --limit-NAME of `sfnode join`, and `threads`; `idle=none` removes a limit.
    All changes are made, or none. They last until the node ends.
    """
    node = running_node(data_dir)
    wanted = dict(_change(text) for text in changes)
    limits = node.limit(wanted) if wanted else node.limits()
    echo(json.dumps(plain(limits), indent=2) if as_json else limit_lines(limits))


def limit_lines(limits: object) -> str:
    """Return the limits in force, one a line."""
    lines = [f"{name:<13} {value}" for name, value in limits_in_words(limits).items()]
    return "\n".join(lines) or "no limits"


def _change(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    field = name.strip().replace("-", "_")
    if not equals or field not in NAMES:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE with one of {', '.join(NAMES)}")
    return field, None if value.strip().lower() in NO_LIMIT else value


# `sfnode leave` and `sfnode finish`: two ways to end a running node.


LEAVE_DEADLINE = 10.0
"""Seconds for a node to end; it takes less than two."""

_POLL = 0.05
"""Seconds between two looks at whether it has ended."""


@click.command
@data_dir_option
def finish(data_dir: Path) -> None:
    """Have the node complete what is running, hand it over to its neighbours, and leave; wait for that.

    It takes as long as a step, and some seconds more if there is no neighbour; half a minute at most if the
    neighbours do not take it. Interrupting this command does not call it off.
    """
    running_node(data_dir).finish()
    _wait_until_gone(data_dir, None)
    echo("finished")


@click.command
@data_dir_option
def leave(data_dir: Path) -> None:
    """End the node that runs in this folder within two seconds, as Ctrl-C does, and wait for that.

    A step that is running is given up; `sfnode finish` completes it.
    """
    running_node(data_dir).leave()
    _wait_until_gone(data_dir, LEAVE_DEADLINE)
    echo("left")


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


# The options --limit-NAME of `sfnode join`, one for every limit.


class LimitValue(click.ParamType):  # type: ignore[type-arg] # generic since click 8.2 only
    """The value of one limit, as `Limits` reads it."""

    def __init__(self, field: str) -> None:
        self.name = field

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        from pydantic import ValidationError

        from sfnode.limits import Limits

        try:
            return getattr(Limits.model_validate({self.name: value}), self.name)
        except ValidationError as error:
            self.fail(reason(error), parameter, context)


def limit_options(function: F) -> F:
    """Add --limit-NAME for every limit; `take_limits` collects their values."""
    function = option("--limit-mains", is_flag=True, help="Compute on mains power only.")(function)
    for field, (metavar, text) in reversed(LIMITS.items()):
        flag = "--limit-" + field.replace("_", "-")
        function = option(flag, type=LimitValue(field), metavar=metavar, help=text)(function)
    return function


def take_limits(fields: dict[str, Any]) -> Limits:
    """Take the values of --threads and of `limit_options` out of a command's parameters."""
    from sfnode.limits import Limits

    given = {name: fields.pop(f"limit_{name}") for name in (*LIMITS, "mains")}
    given["threads"] = fields.pop("threads") or None
    return Limits().changed(given)


def reason(error: ValidationError) -> str:
    """Return what is wrong with a value, in pydantic's words or ours."""
    return error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")

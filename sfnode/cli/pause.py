"""`sfnode pause` and `sfnode resume`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from sfnode.cli.data_folder import running_node
from sfnode.cli.options import data_dir_option
from sfnode.cli.output import echo


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

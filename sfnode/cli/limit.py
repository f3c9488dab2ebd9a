"""`sfnode limit`: the limits of a running node."""

from __future__ import annotations

import json
from pathlib import Path

import click

from sfnode.cli.data_folder import running_node
from sfnode.cli.options import data_dir_option, json_option
from sfnode.cli.output import echo
from sfnode.dashboard.formatting import limits_in_words
from sfnode.schema.unchecked import plain

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

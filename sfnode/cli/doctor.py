"""`sfnode doctor`: would a node work here? The looking is done by `sfnode.doctor`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from sfnode.cli.ending import DONE, FAILED, interruptible
from sfnode.cli.options import (
    data_dir_option,
    device_option,
    dtype_option,
    host_maddrs_option,
    json_option,
    link_argument,
    option,
    peers_option,
    run_option,
)

if TYPE_CHECKING:
    from sfnode.doctor.findings import Examination

NTP_SERVER = "pool.ntp.org"
NTP_PORT = 123

COLOURS = {"ok": "green", "note": "yellow", "problem": "red"}


def parse_ntp(_context: Any, _parameter: Any, value: str) -> tuple[str, int] | None:
    """`HOST[:PORT]`, or `none`."""
    if value == "none":
        return None
    host, colon, port = value.partition(":")
    if not host or (colon and not (port.isdecimal() and int(port) <= 65_535)):
        raise click.BadParameter("give it as HOST or HOST:PORT, or none")
    return host, int(port or NTP_PORT)


@click.command(short_help="Find out what would keep a node from working here.")
@link_argument
@peers_option("Address of a node of the run, to be tried; repeat for more.  [default: those met before]")
@run_option("Run manifest.  [default: the data folder's, or the peers']")
@data_dir_option
@option("--model", default="", metavar="SOURCE", help="Would this model fit? A folder, or shape:NAME.")
@device_option
@dtype_option
@host_maddrs_option("Where the node would listen. Repeat for more.")
@option(
    "--ntp",
    default=NTP_SERVER,
    show_default=True,
    callback=parse_ntp,
    metavar="HOST",
    help="Time server to compare the clock with; none asks the peers only.",
)
@option(
    "--measure",
    is_flag=True,
    help="Load the model, whatever its size, and measure steps.  [default: if it is here and small]",
)
@json_option
def doctor(link: str | None, as_json: bool, **fields: Any) -> int:
    """Examine this machine, its network and the peers (those of LINK, too), as a node would use them.

    Tells what is wrong and what to do. Takes about 15 seconds, joins nothing and leaves nothing behind. Every
    finding has a number, which docs/doctor.md explains. Exit status 1 if there is a problem.
    """
    import uvloop

    from sfnode.doctor.case import Case
    from sfnode.doctor.examine import examine
    from sfnode.runtime.invitations import read_link

    if link:
        fields["peers"] = (*read_link(link).addresses, *fields["peers"])
    if sys.stderr.isatty():
        click.echo("examining (about 15 s) ...", err=True)
    result = uvloop.run(interruptible(examine(Case(**fields))))
    click.echo(result.model_dump_json(indent=2) if as_json else _told(result))
    return FAILED if result.problems else DONE


def _told(result: Examination) -> str:
    lines = []
    for one in result.findings:
        verdict = click.style(f"{one.verdict:<8}", fg=COLOURS[one.verdict])
        lines.append(f"{verdict} {one.number}  {one.what}")
        if one.fix:
            lines.append(f"{'':16}{one.fix}")
    count = result.problems
    end = "no problems" if not count else "1 problem" if count == 1 else f"{count} problems"
    return "\n".join([*lines, f"{end} ({result.seconds:g} s)"])

"""`sfnode doctor`: prints whether a node would work here. `sfnode.doctor` has the checks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from sfnode.cli import options
from sfnode.cli.exit import DONE, FAILED
from sfnode.cli.output import echo

if TYPE_CHECKING:
    from sfnode.doctor.findings import Examination

NTP_SERVER = "pool.ntp.org"
NTP_PORT = 123

COLOURS = {"ok": "green", "note": "yellow", "problem": "red"}


def parse_ntp(_context: Any, _parameter: Any, value: str) -> tuple[str, int] | None:
    """Return `HOST[:PORT]` as (host, port), and `none` as None."""
    if value == "none":
        return None
    host, colon, port = value.partition(":")
    if not host or (colon and not (port.isdecimal() and int(port) <= 65_535)):
        raise click.BadParameter("give it as HOST or HOST:PORT, or none")
    return host, int(port or NTP_PORT)


@click.command
@options.link_option
@options.peers_option(
    "Address of a node of the run, to be tried. Repeat for more.  [default: those met before]"
)
@options.run_option("Run manifest.  [default: the data folder's, or the peers']")
@options.data_dir_option
@options.option(
    "--model", "source", default="", metavar="SOURCE", help="Would this model fit? A folder, or shape:NAME."
)
@options.devices_option
@options.dtype_option
@options.host_maddrs_option("Address on which the node would listen. Repeat for more.")
@options.option(
    "--ntp",
    default=NTP_SERVER,
    callback=parse_ntp,
    metavar="HOST",
    help="Time server to compare the clock with; none asks the peers only.",
)
@options.option(
    "--measure",
    is_flag=True,
    help="Load the model, whatever its size, and measure steps.  [default: if it is here and small]",
)
@options.json_option
def doctor(link: str | None, as_json: bool, **fields: Any) -> int:
    """Examine this machine, its network and the peers, as a node would use them.

    Prints problems with their solutions, and whether this sfnode can join the run of --link or --run. Takes
    about 15 seconds, joins nothing and leaves nothing behind. Every finding has a number, which
    docs/doctor.md explains. Exit status 1 if there is a problem.
    """
    import uvloop

    from sfnode.cli.progress import run
    from sfnode.doctor.examination import examine
    from sfnode.doctor.findings import CheckedCase
    from sfnode.peers.invitations import read_link

    if link:
        fields["peers"] = (*read_link(link).addresses, *fields["peers"])
    if sys.stderr.isatty():
        echo("examining (about 15 s) ...", err=True)
    result = run(examine(CheckedCase(**fields)), uvloop.run)
    if as_json:
        echo(result.model_dump_json(indent=2))
    else:
        _print(result)
    return FAILED if result.problems else DONE


def _print(result: Examination) -> None:
    for one in result.findings:
        echo(f"{one.verdict:<8} ", colour=COLOURS[one.verdict], end="")
        echo(f"{one.number}  {one.what}")
        if one.fix:
            echo(f"{'':16}{one.fix}")
    count = result.problems
    end = "no problems" if not count else "1 problem" if count == 1 else f"{count} problems"
    echo(f"{end} ({result.seconds:g} s)")

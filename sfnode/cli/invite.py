"""`sfnode invite`: print the link with which others join."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sfnode.cli.data_folder import opened_run, running_node
from sfnode.cli.options import data_dir_option, json_option, option
from sfnode.cli.output import echo
from sfnode.errors import Code, UserError

if TYPE_CHECKING:
    from sfnode.schema import InviteResult

QR_BORDER = 2
"""Width of the margin in modules; the standard asks for four, but telephones read codes with two."""

NOTES = {
    "internet": "",
    "network": "It holds addresses of your own network only: others can join from there, not over the "
    "internet.\nFor others outside, forward a port and name it with `join --announce-maddrs`, or "
    "join with --auto-relay.",
    "machine": "It holds addresses of this machine only: nobody can join from another one.",
}


@click.command
@data_dir_option
@option(
    "--qr/--no-qr",
    default=None,
    help="Whether to draw the link as a QR code.  [default: at a terminal]",
)
@json_option
def invite(data_dir: Path, qr: bool | None, as_json: bool) -> None:
    """Print the link with which others join the run of this folder: `sfnode join LINK` is all they need.

    The link holds the run's id and addresses of this node and of peers that it has met; if the node does not
    run, only the latter. Anybody who has the link can join; it holds no secret of this node.
    """
    invitation = _from_running_node(data_dir)
    online = invitation is not None
    invitation = invitation or _from_folder(data_dir)
    if as_json:
        echo(json.dumps(vars(invitation), indent=2, ensure_ascii=False))
        return
    if qr if qr is not None else sys.stdout.isatty():
        _draw(invitation.link)
    echo(f"sfnode join {invitation.link}")
    if not online:
        echo("This node does not run: the link holds addresses of peers that it has met.", err=True)
    if note := NOTES[invitation.reach]:
        echo(note, err=True)


def _from_running_node(data_dir: Path) -> InviteResult | None:
    """Return the invitation by the node of this folder; None if it does not run."""
    try:
        return running_node(data_dir).invitation()
    except UserError as error:
        if error.code != Code.NODE_NOT_RUNNING:
            raise
        return None


def _from_folder(data_dir: Path) -> InviteResult:
    """Return an invitation by the peers that the node of this folder has met."""
    from sfnode.node.startup import remembered_peers
    from sfnode.peers.invitations import invite as invitation

    with opened_run(data_dir) as (manifest, update_log):
        return invitation(manifest, [], remembered_peers(update_log))


def _draw(link: str) -> None:
    """Print the QR code, and a warning if the terminal is too narrow for it."""
    drawing = _drawn(link)
    columns = len(drawing.partition("\n")[0])
    click.echo(drawing)
    if sys.stdout.isatty() and columns > shutil.get_terminal_size().columns:
        echo(f"The code is {columns} columns wide: make the window wider to see it whole.", err=True)


def _drawn(link: str) -> str:
    """Return the link as a QR code of half blocks for light text on a dark ground; readers accept both."""
    from io import StringIO

    import segno

    drawing = StringIO()
    segno.make(link, error="l", boost_error=False, micro=False).terminal(
        drawing, border=QR_BORDER, compact=True
    )
    return drawing.getvalue()

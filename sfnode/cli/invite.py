"""`sfnode invite` prints the link with which others join, `sfnode peer-id` a node's peer id."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sfnode.cli.data_folder import running_node, used_folder
from sfnode.cli.options import data_dir_option, json_option, option
from sfnode.cli.output import echo
from sfnode.control.client import if_running, unchecked
from sfnode.dashboard.formatting import REACHES
from sfnode.errors import Code, UserError
from sfnode.printable import command

if TYPE_CHECKING:
    from sfnode.schema.results import InviteResult


QR_BORDER = 2
"""Width of a QR code's margin, in modules. The standard requires four, but telephones read codes with two."""


def parse_url(_context: Any, _parameter: Any, value: str) -> str:
    """Return the URL. Raises click.BadParameter for one that an invitation link cannot contain."""
    if value:
        from sfprotocol.invitation import URL_FORM, is_url

        if not is_url(value):
            raise click.BadParameter(f"give it as {URL_FORM}")
    return value


@click.command
@data_dir_option
@option(
    "--qr/--no-qr",
    default=None,
    help="Whether to draw the link as a QR code.  [default: at a terminal]",
)
@option(
    "--contacts-url",
    callback=parse_url,
    default="",
    metavar="URL",
    help="Have the link name this web page, where you keep what --run-json writes: so it still leads to "
    "the run when all peers in it have moved.  [default: the page that the node knows]",
)
@option(
    "--run-json",
    "run_json",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write the current contacts to FILE, for a web server (docs/organising.md).",
)
@json_option
def invite(data_dir: Path, qr: bool | None, contacts_url: str, run_json: Path | None, as_json: bool) -> None:
    """Print the link with which others join the run of this folder by `sfnode join LINK`.

    The link holds the run's id, and addresses of this node and of peers that it met, relays first. Without a
    running node it holds only the peers' addresses. Anybody with the link can join. It holds no secret of
    this node.
    """
    found = if_running(running_node(data_dir).invitation)
    invitation = {**vars(found or _from_folder(data_dir))}
    invitation.pop("updated", None)  # the time of the file, not of this output
    if contacts_url:
        from sfnode.peers.contacts import naming

        invitation |= {"link": naming(invitation["link"], contacts_url), "contacts_url": contacts_url}
    if run_json:
        from sfnode.peers import contacts

        contacts.write(run_json, invitation)
    if as_json:
        echo(json.dumps(invitation, indent=2, ensure_ascii=False))
        return
    link, reach = invitation["link"], invitation["reach"]
    if qr if qr is not None else sys.stdout.isatty():
        _draw(link)
    echo(command("sfnode", "join", link))
    if found is None:
        echo("This node does not run: the link holds addresses of peers that it has met.", err=True)
    if note := REACHES[reach]:
        echo(note, err=True)


def _from_folder(data_dir: Path) -> InviteResult:
    """Return an invitation with the peers that the node of this folder met and recorded."""
    layout = used_folder(data_dir)
    try:
        kept: InviteResult = unchecked(layout.contacts.read_bytes())
    except (OSError, ValueError):
        raise UserError(
            Code.NO_ADDRESS,
            "there is no address to invite to: this node does not run, and has met nobody",
            "Start it (`sfnode join`), or ask for a link where a node of the run can be reached.",
        ) from None
    return kept


def _draw(link: str) -> None:
    """Print the link as a QR code of half blocks, light on dark, which readers accept as well as dark on
    light. If the terminal is too narrow for the code, print a warning."""
    from io import StringIO

    import segno

    drawing = StringIO()
    code = segno.make(link, error="l", boost_error=False, micro=False)
    code.terminal(drawing, border=QR_BORDER, compact=True)
    columns = len(drawing.getvalue().partition("\n")[0])
    click.echo(drawing.getvalue())
    if sys.stdout.isatty() and columns > shutil.get_terminal_size().columns:
        echo(f"The code is {columns} columns wide: make the window wider to see it whole.", err=True)


# -- peer-id -------------------------------------------------------------------------------------------


@click.command("peer-id")
@data_dir_option
def peer_id_command(data_dir: Path) -> None:
    """Print the libp2p peer id of this folder's node. Make the folder and its key if they do not exist.

    With the host and port this gives the node's address before it runs: /dns4/HOST/tcp/PORT/p2p/PEER-ID.
    """
    from sfnode.store.data_folder import Layout, open_data_dir
    from sfnode.transport.libp2p.keys import ensure_key, peer_id

    key = Layout(data_dir).libp2p_identity
    if key.exists():
        ensure_key(key)
    else:
        with open_data_dir(data_dir):
            ensure_key(key)
    echo(peer_id(key))

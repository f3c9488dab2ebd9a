"""`sfnode invite`: the link that brings the next volunteer."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

import click

from sfnode.cli.options import data_dir_option, json_option, option
from sfnode.cli.results import InviteResult
from sfnode.client import Client
from sfnode.config import Manifest
from sfnode.errors import Code, UserError
from sfnode.runtime.invitations import compose, reach
from sfnode.store.datadir import Layout
from sfprotocol import invitation

QR_BORDER = 2
"""Modules around the code; its standard asks for four, telephones are content with two."""

NOTES = {
    "internet": "",
    "network": "It has addresses of your own network only: others can join from there, not over the "
    "internet.\nTo be reached from outside, forward a port and name it with `join --announce-maddrs`, or "
    "join with --auto-relay.",
    "machine": "It has addresses of this machine only: nobody can join from another one.",
}


@click.command(short_help="Print the link with which others join.")
@data_dir_option
@option(
    "--qr/--no-qr",
    default=None,
    help="Whether to draw the link as a QR code.  [default: at a terminal]",
)
@json_option
def invite(data_dir: Path, qr: bool | None, as_json: bool) -> None:
    """Print the link with which others join the run of this folder: `sfnode join LINK` is all they need.

    It carries the run's id and addresses of this node and of peers that it has met. If the node does not run,
    it is made from the addresses remembered. Who has the link can join; it holds no secret of this node's.
    """
    layout = Layout(data_dir)
    own, online = _own_addresses(layout)
    manifest, remembered = _remembered(layout)
    said = compose(manifest.run_id, own, remembered)
    link = invitation.write(said)
    if as_json:
        result = InviteResult(
            link=link,
            run_id=manifest.run_id.hex(),
            run_name=manifest.name,
            protocol=manifest.protocol,
            addresses=list(said.addresses),
            reach=reach(said),
        )
        click.echo(result.model_dump_json(indent=2))
        return
    if qr if qr is not None else sys.stdout.isatty():
        _draw(link)
    click.echo(f"sfnode join {link}")
    if not online:
        click.echo("This node does not run: the link leads to peers that it has met.", err=True)
    if note := NOTES[reach(said)]:
        click.echo(note, err=True)


def _own_addresses(layout: Layout) -> tuple[list[str], bool]:
    """Where the node of this folder is reached now, and whether it runs."""
    try:
        return asyncio.run(Client(layout.control_socket).status()).addresses, True
    except UserError as error:
        if error.code != Code.NODE_NOT_RUNNING:
            raise
        return [], False


def _remembered(layout: Layout) -> tuple[Manifest, list[str]]:
    """The folder's run, and the addresses of peers that its node has met."""
    from sfnode.runtime.joining import remembered_peers
    from sfnode.store.log import UpdateLog

    if not layout.manifest.exists():
        raise UserError(
            Code.DATA_DIR_UNUSABLE,
            f"{layout.path} holds no run",
            "Name a folder in which a node has run with --data-dir.",
        )
    manifest = Manifest.from_toml(layout.manifest)
    with UpdateLog.open(layout.log, manifest.run_id, read_only=True) as update_log:
        return manifest, remembered_peers(update_log)


def _draw(link: str) -> None:
    """Show the QR code, and say so if the terminal breaks it."""
    drawing = _drawn(link)
    columns = len(drawing.partition("\n")[0])
    click.echo(drawing)
    if sys.stdout.isatty() and columns > shutil.get_terminal_size().columns:
        click.echo(f"The code is {columns} columns wide: make the window wider to see it whole.", err=True)


def _drawn(link: str) -> str:
    """The link as a QR code of half blocks, for a terminal with light text on dark ground (readers take the
    other way round as well)."""
    from io import StringIO

    import segno

    drawing = StringIO()
    segno.make(link, error="l", boost_error=False, micro=False).terminal(
        drawing, border=QR_BORDER, compact=True
    )
    return drawing.getvalue()

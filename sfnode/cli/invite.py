"""`sfnode invite`, `peer-id` and `upgrade-check`: how others join, and whether this sfnode can."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import sfnode
from sfnode.cli.data_folder import running_node, used_folder
from sfnode.cli.options import (
    data_dir_option,
    json_option,
    link_argument,
    option,
    peers_option,
)
from sfnode.cli.output import echo
from sfnode.errors import Code, UserError
from sfnode.printable import command
from sfnode.schema import unchecked
from sfnode.schema.results import PeerProtocol, UpgradeResult
from sfnode.transport.base import peer_of
from sfprotocol import PROTOCOL_VERSION

if TYPE_CHECKING:
    from sfnode.peers.compatibility import Compatibility
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


def parse_url(_context: Any, _parameter: Any, value: str) -> str:
    """Return a URL that a link can name."""
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
    metavar="FILE",
    help="Also write the current contacts to FILE, for a web server (docs/organising.md).",
)
@json_option
def invite(data_dir: Path, qr: bool | None, contacts_url: str, run_json: Path | None, as_json: bool) -> None:
    """Print the link with which others join the run of this folder: `sfnode join LINK` is all they need.

    The link holds the run's id and addresses of this node and of peers that it has met, relays first; if the
    node does not run, only of the latter. Anybody who has the link can join; it holds no secret of this node.
    """
    found = _from_running_node(data_dir)
    invitation = {**vars(found or _from_folder(data_dir))}
    invitation.pop("updated", None)  # of the file in the folder, not of what is said now
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
    if note := NOTES[reach]:
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
    """Return the invitation by the peers that the node of this folder has met, which the node has kept."""
    layout = used_folder(data_dir)
    try:
        kept: InviteResult = unchecked.read(layout.contacts.read_bytes())
    except (OSError, ValueError):
        raise UserError(
            Code.NO_ADDRESS,
            "there is no address to invite to: this node does not run, and has met nobody",
            "Start it (`sfnode join`), or ask for a link where a node of the run can be reached.",
        ) from None
    return kept


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


# `sfnode peer-id`: a node's name in the network, before it runs.


@click.command("peer-id")
@data_dir_option
def peer_id_command(data_dir: Path) -> None:
    """Print the libp2p peer id of the node of this folder; make the folder and its key if there are none.

    With it a node's address is known before the node runs, to anybody who knows its host and port:
    /dns4/HOST/tcp/PORT/p2p/PEER-ID.
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


# `sfnode upgrade-check`: whether this sfnode can take part in a run, before it does.


@click.command("upgrade-check")
@link_argument
@peers_option("Address of a node of the run, instead of LINK.")
@json_option
def upgrade_check(link: str | None, peers: tuple[str, ...], as_json: bool) -> None:
    """Say which protocol the run of LINK speaks, which its peers speak, and whether this sfnode can join.

    Nothing is joined and nothing is kept. Exit status 1, and what to do, if it cannot join.
    """
    from sfnode.peers.invitations import read_link

    said = read_link(link) if link else None
    addresses = (*(said.addresses if said else ()), *peers)
    if not addresses:
        raise UserError(Code.BAD_OPTION, "there is no run to look at", "Give a LINK, or --peers ADDRESS.")
    for address in addresses:
        peer_of(address)
    found = asyncio.run(_ask(addresses, said.run_id.hex() if said else ""))
    result = _result(found)
    echo(result.model_dump_json(indent=2) if as_json else "\n".join(_lines(result)))
    if not result.can_join:
        raise _why_not(found, result)


async def _ask(addresses: Sequence[str], run_id: str) -> Compatibility:
    """Ask the peers under a temporary identity."""
    from sfnode.doctor.network import start_caller
    from sfnode.peers.compatibility import examine

    async with AsyncExitStack() as stack:
        return await examine(await start_caller(stack), addresses, run_id)


def _result(found: Compatibility) -> UpgradeResult:
    run = found.run
    return UpgradeResult(
        version=sfnode.__version__,
        protocol=PROTOCOL_VERSION,
        run_id=run.run_id.hex() if run else None,
        run_name=(run.name or None) if run else None,
        run_protocol=run.protocol if run else None,
        peers=[PeerProtocol(**peer._asdict() | {"reason": peer.reason or None}) for peer in found.peers],
        can_join=found.speaks_ours,
    )


def _lines(result: UpgradeResult) -> list[str]:
    run = f"protocol {result.run_protocol}" if result.run_protocol else "unknown: no peer sent its manifest"
    name = f"  {result.run_name} ({result.run_id[:16]})" if result.run_name and result.run_id else ""
    lines = [
        f"this sfnode  protocol {result.protocol}  version {result.version}",
        f"the run      {run}{name}",
    ]
    for peer in result.peers:
        spoken = f"protocol {peer.protocol}" if peer.protocol else f"unknown: {peer.reason}"
        lines.append(f"peer         {spoken}  {peer.address}")
    return lines + ["This sfnode can join the run."] * result.can_join


def _why_not(found: Compatibility, result: UpgradeResult) -> UserError:
    """Return the error for a run that this sfnode cannot join."""
    spoken = {peer.protocol for peer in found.peers if peer.protocol}
    if found.run is None and not spoken:
        return UserError(
            Code.PEERS_UNREACHABLE,
            "no peer answers, so there is no telling whether this sfnode can join",
            "Ask for a fresh link, or try again later.",
        )
    theirs = found.run.protocol if found.run else max(spoken)
    theirs = theirs if theirs != PROTOCOL_VERSION or not spoken else max(spoken)
    if theirs > PROTOCOL_VERSION:
        return UserError(
            Code.NEWER_PROTOCOL,
            f"they speak protocol {theirs}; this sfnode speaks {PROTOCOL_VERSION}",
            "Upgrade: pip install --upgrade sfnode",
        )
    if theirs < PROTOCOL_VERSION:
        return UserError(
            Code.OLDER_PROTOCOL,
            f"they speak protocol {theirs}; this sfnode speaks {PROTOCOL_VERSION}",
            f"Install an sfnode that speaks protocol {theirs} (CHANGELOG.md), in an environment of its own.",
        )
    return UserError(
        Code.PEERS_UNREACHABLE,
        "the versions fit, but no peer of the run could be both asked and greeted",
        "Ask for a fresh link, or try again later.",
    )

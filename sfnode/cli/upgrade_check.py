"""`sfnode upgrade-check`: whether this sfnode can take part in a run, before it does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import click

import sfnode
from sfnode.cli.options import (
    json_option,
    link_argument,
    peers_option,
)
from sfnode.cli.output import echo
from sfnode.errors import Code, UserError
from sfnode.schema.results import PeerProtocol, UpgradeResult
from sfnode.transport.base import peer_of
from sfprotocol.messages import PROTOCOL_VERSION

if TYPE_CHECKING:
    from sfnode.peers.compatibility import Compatibility


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

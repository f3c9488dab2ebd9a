"""Composes the link of a node, and reads a link for `sfnode join`.

Imports neither torch nor the network. `sfprotocol.invitation` has the format of a link (SPEC N1-N4). This
module decides which addresses a link contains.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sfnode.errors import Code, UserError
from sfnode.transport.base import best_first, is_loopback, is_private
from sfprotocol import invitation
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.invitation import Invitation, NewerLinkError
from sfprotocol.messages import OLDEST_VERSION, PROTOCOL_VERSION

if TYPE_CHECKING:
    from sfnode.manifest import Manifest
    from sfnode.schema.results import InviteResult, Reach

OWN_ADDRESSES = 2
"""Maximum number of own addresses in a link: one address is mostly enough, and a QR code has little room."""

OTHER_PEERS = 3
"""Maximum number of other peers in a link, with one address each. They serve while this node is away."""


def compose(
    run_id: bytes, own: Sequence[str], others: Sequence[str], relays: Collection[str] = (), url: str = ""
) -> Invitation:
    """Compose an invitation from a node's `own` addresses and the addresses of `others`, which are peers that
    it has met. Peers whose ids are in `relays` come first: relays stay when trainers leave. `url` is the page
    with current contacts, if any.

    Loopback addresses are left out unless there is nothing else. Raises UserError NO_ADDRESS.
    """
    met = _one_each(others, OTHER_PEERS, relays)
    addresses = [
        *(address for address in met if _peer(address) in relays),
        *_reachable_first(own)[:OWN_ADDRESSES],
        *(address for address in met if _peer(address) not in relays),
    ]
    useful = [address for address in addresses if not is_loopback(address)] or addresses
    if not useful:
        raise UserError(
            Code.NO_ADDRESS,
            "there is no address to invite to: this node listens nowhere and has met nobody",
            "Ask for a link where a node of the run can be reached, or start this one without client_mode.",
        )
    return replace(invitation.invite(OLDEST_VERSION, run_id, useful), url=url)


def invite(manifest: Manifest, said: Invitation) -> InviteResult:
    """Return an invitation to the run, as a link and as separate fields."""
    # this import is a third of what `sfnode join` loads before its first line
    from sfnode.schema.results import InviteResult

    said = replace(said, protocol=manifest.protocol)
    return InviteResult(
        link=invitation.write(said),
        contacts_url=said.url,
        run_id=manifest.run_id.hex(),
        run_name=manifest.name,
        protocol=manifest.protocol,
        addresses=list(said.addresses),
        reach=reach(said),
    )


def _reachable_first(own: Sequence[str]) -> list[str]:
    """Sort a node's own addresses, the best first. Private addresses after the first private one come last:
    they are mostly IPv6 addresses of the same network, and an address through a relay can be reached from
    further away."""
    order = best_first(own)
    more = [address for address in order if is_private(address)][1:]
    return sorted(order, key=lambda address: address in more)


def _one_each(addresses: Iterable[str], count: int, relays: Collection[str]) -> list[str]:
    """Return the best address of each of at most `count` peers: first relays, then the most widely reachable
    peers."""
    best: dict[str, str] = {}
    for address in best_first(list(addresses)):
        best.setdefault(_peer(address), address)
    return sorted(best.values(), key=lambda address: _peer(address) not in relays)[:count]


def _peer(address: str) -> str:
    return address.rpartition("/p2p/")[2]


def reach(said: Invitation) -> Reach:
    """Return from where this invitation can be used: from this machine, its network or the internet."""
    if all(is_loopback(address) for address in said.addresses):
        return "machine"
    return "network" if all(is_private(address) for address in said.addresses) else "internet"


def read_link(link: str) -> Invitation:
    """Read a link. Raises UserError BAD_LINK or NEWER_PROTOCOL."""
    try:
        said = invitation.read(link)
    except NewerLinkError as error:
        raise _newer(f"this is {error.reason}") from None
    except RemoteProtocolError as error:
        raise UserError(
            Code.BAD_LINK,
            f"this is not an invitation: {error.reason}",
            "Copy it whole, from `sfnode:` to its last character; a plain address goes with --peers.",
        ) from None
    if said.protocol > PROTOCOL_VERSION:
        raise _newer(f"the run speaks protocol {said.protocol}; this sfnode speaks {PROTOCOL_VERSION}")
    return said


def check_same_run(
    said: Invitation,
    wanted: str,
    where: str = "the link",
    fix: str = "Leave out --set run.id, or ask for a link to the run you want.",
) -> None:
    """Raise UserError WRONG_RUN unless the run id of an invitation starts with `wanted` (hex, may be empty).
    `where` is the place where the invitation was found."""
    led = said.run_id.hex()
    if not led.startswith(wanted.lower()):
        raise UserError(Code.WRONG_RUN, f"{where} leads to run {led[:16]}, not to {wanted[:16]}", fix)


def _newer(what: str) -> UserError:
    return UserError(Code.NEWER_PROTOCOL, what, "Upgrade: pip install --upgrade sfnode")

"""From a node to the link that brings others to it, and from a link to what `sfnode join` needs.

Loads neither torch nor the network. What a link looks like is in `sfprotocol.invitation` (SPEC N1-N4); which
addresses are worth putting into one is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from sfnode.errors import Code, UserError
from sfnode.transport.base import best_first, is_loopback, is_private
from sfprotocol import PROTOCOL_VERSION, invitation
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.invitation import Invitation, NewerLinkError

OWN_WAYS = 2
"""Addresses of the node itself in a link: one of them mostly does it, and a QR code has little room."""

OTHER_PEERS = 2
"""Other peers in a link, with one address each: for the day on which this node is away."""

Reach = Literal["internet", "network", "machine"]
"""From where the addresses of a link can be reached at all, as far as they tell."""


def compose(run_id: bytes, own: Sequence[str], others: Sequence[str]) -> Invitation:
    """An invitation by a node's own addresses and those of peers that it has met.

    Addresses that lead nowhere from another machine are left out unless there is nothing else. Raises
    UserError NO_ADDRESS.
    """
    addresses = [*best_first(own)[:OWN_WAYS], *_one_each(others, OTHER_PEERS)]
    useful = [address for address in addresses if not is_loopback(address)] or addresses
    if not useful:
        raise UserError(
            Code.NO_ADDRESS,
            "there is no address to invite to: this node listens nowhere and has met nobody",
            "Ask for a link where a node of the run can be reached, or start this one without --client-mode.",
        )
    return invitation.invite(PROTOCOL_VERSION, run_id, useful)


def _one_each(addresses: Iterable[str], count: int) -> list[str]:
    """The best address of each of `count` peers, those that are reached most widely first."""
    best: dict[str, str] = {}
    for address in best_first(list(addresses)):
        best.setdefault(address.rpartition("/p2p/")[2], address)
    return list(best.values())[:count]


def reach(said: Invitation) -> Reach:
    """From where somebody may join by this invitation."""
    if all(is_loopback(address) for address in said.addresses):
        return "machine"
    return "network" if all(is_private(address) for address in said.addresses) else "internet"


def read_link(link: str) -> Invitation:
    """What a link says. Raises UserError BAD_LINK or NEWER_PROTOCOL."""
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


def check_same_run(said: Invitation, wanted: str) -> None:
    """Raises UserError WRONG_RUN unless the link's run id starts with `wanted` (hex, may be empty)."""
    if not said.run_id.hex().startswith(wanted.lower()):
        raise UserError(
            Code.WRONG_RUN,
            f"the link leads to run {said.run_id.hex()[:16]}, not to {wanted[:16]}",
            "Leave out --run-id, or ask for a link to the run you want.",
        )


def _newer(what: str) -> UserError:
    return UserError(Code.NEWER_PROTOCOL, what, "Upgrade: pip install --upgrade sfnode")

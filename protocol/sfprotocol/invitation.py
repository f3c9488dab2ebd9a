"""Invitations: one line of text that leads a newcomer to a run (SPEC N1-N4).

A link is read by a person, copied through chats and typed off screens, so it is short and has a checksum. It
says which run and whom to ask, nothing that the run's manifest says too. Knows no sockets; whether somebody
is there at all is for the reader to find out.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack

from sfprotocol.errors import LocalProtocolError, RemoteProtocolError

SCHEME = "sfnode:"

VERSION = 1
"""Of the form of a link; the run's protocol has its own (SPEC N2)."""

MAX_LINK = 2048
"""Characters: a QR code of this size can still be read from a screen."""

MAX_PEERS = 8
MAX_WAYS = 4
"""Whoever answers tells of everybody else; a few more are for those who are away that day."""

MAX_WAY = 200
"""Characters: a relayed address with two ids and a long host name."""

CHECKSUM_BYTES = 4
"""Of four billion links with a typo, one passes; the run id would still have to be a run's."""

_BASE64URL = re.compile(r"[A-Za-z0-9_-]*")
_PEER = re.compile(r"[A-Za-z0-9_-]{1,64}")
_WAY = re.compile(rf"/[!-~]{{1,{MAX_WAY - 1}}}")
_U32 = (1 << 32) - 1
_BOUNDS = {"max_array_len": MAX_PEERS, "max_map_len": 0, "max_ext_len": 0}


class NewerLinkError(RemoteProtocolError):
    """The link is whole, and of a form that came after this one."""


class Contact(NamedTuple):
    """A peer and the ways to it, without its id at their ends."""

    peer: str
    ways: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a link says."""

    protocol: int
    """The protocol version of the run (SPEC M1)."""
    run_id: bytes
    contacts: tuple[Contact, ...]

    @property
    def addresses(self) -> tuple[str, ...]:
        """Full addresses, in the order in which they should be tried."""
        return tuple(f"{way}/p2p/{contact.peer}" for contact in self.contacts for way in contact.ways)


def invite(protocol: int, run_id: bytes, addresses: Iterable[str]) -> Invitation:
    """An invitation by these full addresses; of more than fit, the first, and none that no link can hold."""
    ways: dict[str, list[str]] = {}
    for address in addresses:
        way, _, peer = address.rpartition("/p2p/")
        if not (_WAY.fullmatch(way) and _PEER.fullmatch(peer)):
            continue
        if len(ways) < MAX_PEERS or peer in ways:
            ways.setdefault(peer, []).append(way)
    contacts = (Contact(peer, tuple(dict.fromkeys(of_peer))[:MAX_WAYS]) for peer, of_peer in ways.items())
    return Invitation(protocol, run_id, tuple(contacts))


def write(invitation: Invitation) -> str:
    """The link. Raises LocalProtocolError for what no reader would take."""
    contacts = [[contact.peer, list(contact.ways)] for contact in invitation.contacts]
    fields = [invitation.protocol, invitation.run_id, contacts]
    try:
        _build(fields)
    except RemoteProtocolError as error:
        raise LocalProtocolError(f"writing an invitation: {error}") from None
    body = bytes([VERSION]) + msgpack.packb(fields, use_bin_type=True)
    link = SCHEME + urlsafe_b64encode(body + _checksum(body)).decode().rstrip("=")
    if len(link) > MAX_LINK:
        raise LocalProtocolError(f"an invitation of {len(link)} characters exceeds MAX_LINK")
    return link


def read(link: str) -> Invitation:
    """What a link says; white space around it does not count.

    Raises NewerLinkError, and RemoteProtocolError (N rules) for what is no link, or one with a typo.
    """
    body = _body(link.strip())
    if body[0] > VERSION:
        raise NewerLinkError("N2", f"a link of version {body[0]}, this is version {VERSION}")
    _require(body[0] == VERSION, "N2", "there is no such version of links")
    try:
        fields = msgpack.unpackb(body[1:], raw=False, strict_map_key=True, **_BOUNDS)
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise RemoteProtocolError("N3", f"not MessagePack: {error}") from None
    invitation = _build(fields)
    _require(write(invitation) == link.strip(), "N3", "not in canonical form")
    return invitation


def _body(link: str) -> bytes:
    """The bytes of a link whose checksum is right, without it."""
    _require(link.startswith(SCHEME), "N1", f"it does not begin with {SCHEME}")
    _require(len(link) <= MAX_LINK, "N1", "it is too long")
    text = link.removeprefix(SCHEME)
    _require(_BASE64URL.fullmatch(text) is not None, "N1", "it has characters that no link has")
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        raise RemoteProtocolError("N1", "a character is missing, or one too many") from None
    body, checksum = data[:-CHECKSUM_BYTES], data[-CHECKSUM_BYTES:]
    _require(bool(body) and _checksum(body) == checksum, "N1", "its checksum is wrong: a character differs")
    return body


def _build(fields: Any) -> Invitation:
    _require(isinstance(fields, list) and len(fields) == 3, "N3", "not three fields")
    protocol, run_id, contacts = fields
    _require(type(protocol) is int and 0 < protocol <= _U32, "N3", "the protocol is not a version")
    _require(isinstance(run_id, bytes) and len(run_id) == 32, "N3", "the run id is not 32 bytes")
    _require(isinstance(contacts, list) and 0 < len(contacts) <= MAX_PEERS, "N3", "no peers, or too many")
    found = tuple(_contact(item) for item in contacts)
    _require(len({contact.peer for contact in found}) == len(found), "N3", "one peer twice")
    return Invitation(protocol, run_id, found)


def _contact(value: Any) -> Contact:
    _require(isinstance(value, list) and len(value) == 2, "N3", "a peer has not two fields")
    peer, ways = value
    _require(isinstance(peer, str) and _PEER.fullmatch(peer) is not None, "N3", "not the id of a peer")
    _require(isinstance(ways, list) and 0 < len(ways) <= MAX_WAYS, "N3", "no way to a peer, or too many")
    for way in ways:
        _require(isinstance(way, str) and _WAY.fullmatch(way) is not None, "N3", "not a way to a peer")
    _require(len(set(ways)) == len(ways), "N3", "one way twice")
    return Contact(peer, tuple(ways))


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=CHECKSUM_BYTES, person=b"sfnode-link").digest()


def _require(condition: bool, rule: str, reason: str) -> None:
    if not condition:
        raise RemoteProtocolError(rule, reason)

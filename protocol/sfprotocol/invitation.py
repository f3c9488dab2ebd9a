"""Invitations: one line of text that leads a newcomer to a run (SPEC N1-N6).

People read invitation links, copy them through chats and type them off screens. So a link is short and has a
checksum. It contains the run's id and some peers to ask, and leaves out everything that the manifest
contains. This module knows no sockets; the caller finds out whether a peer still answers.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from sfprotocol.errors import LocalProtocolError, RemoteProtocolError
from sfprotocol.fields import pack, require, unpack

SCHEME = "sfnode:"

VERSION = 3
"""Latest version of the format of a link, independent of the protocol's version (SPEC N2). Links with a URL
have version 3, other links with a ticket have version 2, and all others have version 1."""

SECRET_BYTES = 16, 32
"""Minimum and maximum size of a ticket's secret, in bytes. Nobody can guess 16 random bytes. More than 32
bytes would be of no use, as the private key that is derived from the secret has 32."""

MAX_LINK = 2048
"""Maximum length of a link, in characters. A QR code of this size can still be read from a screen."""

MAX_PEERS = 8
MAX_ADDRESSES = 4
"""Maximum number of peers, and of addresses of each peer. One address that answers is enough, and some peers
may be offline."""

MAX_ADDRESS = 200
"""Maximum length of an address, in characters. The address of a node behind a circuit relay, with two peer
ids and a long host name, is shorter."""

MAX_URL = 300
"""Maximum length of a URL, in characters. It leaves room for eight peers in a link."""

CHECKSUM_BYTES = 4
"""Size of the checksum, in bytes. One of four billion mistyped links passes the check, and its run id most
likely belongs to no run."""

PLAIN = r"A-Za-z0-9%+,\-./:=@_~"
"""Characters allowed in an address or a URL, to be put between the brackets of a regular expression: those of
RFC 3986 that have no meaning to a shell. People paste addresses and URLs of strangers into command lines."""

URL_FORM = "https://HOST/PATH of letters, digits and %+,-./:=@_~, without a name and a password"
"""The form of a URL (SPEC N6), in words."""

_BASE64URL = re.compile(r"[A-Za-z0-9_-]*")
_PEER = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ADDRESS = re.compile(rf"/[{PLAIN}]{{1,{MAX_ADDRESS - 1}}}")
_URL = re.compile(rf"https?://[A-Za-z0-9.\-:]+(/[{PLAIN}]*)?")
_U32 = (1 << 32) - 1
_BOUNDS = {"max_array_len": MAX_PEERS, "max_map_len": 0, "max_ext_len": 0}


class NewerLinkError(RemoteProtocolError):
    """The link is intact, but its version is later than the versions that this code reads."""


class Contact(NamedTuple):
    """A peer and its addresses. The addresses lack the peer's id at their end: they are the prefixes of SPEC
    N3."""

    peer: str
    addresses: tuple[str, ...]


class Ticket(NamedTuple):
    """The ticket of a link, which admits its reader to an organised run (SPEC N5)."""

    invitation: int
    """Number of the invitation in the control feed, counted from 1."""
    secret: bytes
    """The secret from which the invitation's private key is derived."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """The contents of a link."""

    protocol: int
    """The protocol version of the run (SPEC M1)."""
    run_id: bytes
    contacts: tuple[Contact, ...]
    ticket: Ticket | None = None
    url: str = ""
    """The web page with the current contacts of the run (SPEC N6); empty if there is none."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Full addresses, in the order in which to try them."""
        return tuple(
            f"{address}/p2p/{contact.peer}" for contact in self.contacts for address in contact.addresses
        )


def invite(protocol: int, run_id: bytes, addresses: Iterable[str]) -> Invitation:
    """Return an invitation with these full addresses, leaving out invalid ones and those beyond the bounds of
    a link."""
    by_peer: dict[str, list[str]] = {}
    for full in addresses:
        address, _, peer = full.rpartition("/p2p/")
        if not (_ADDRESS.fullmatch(address) and _PEER.fullmatch(peer)):
            continue
        if len(by_peer) < MAX_PEERS or peer in by_peer:
            by_peer.setdefault(peer, []).append(address)
    contacts = (Contact(peer, tuple(dict.fromkeys(found))[:MAX_ADDRESSES]) for peer, found in by_peer.items())
    return Invitation(protocol, run_id, tuple(contacts))


def write(invitation: Invitation) -> str:
    """Return the link that contains an invitation. Raises LocalProtocolError if `read` would refuse the
    link."""
    contacts = [[contact.peer, list(contact.addresses)] for contact in invitation.contacts]
    ticket = list(invitation.ticket) if invitation.ticket else None
    more = [ticket, invitation.url] if invitation.url else [ticket] if ticket else []
    fields = [invitation.protocol, invitation.run_id, contacts, *more]
    try:
        _build(fields)
    except RemoteProtocolError as error:
        raise LocalProtocolError(f"writing an invitation: {error}") from None
    body = bytes([len(fields) - 2]) + pack(fields)
    link = SCHEME + urlsafe_b64encode(body + _checksum(body)).decode().rstrip("=")
    if len(link) > MAX_LINK:
        raise LocalProtocolError(f"an invitation of {len(link)} characters exceeds MAX_LINK")
    return link


def read(link: str) -> Invitation:
    """Return the invitation that a link contains. White space around the link is ignored.

    Raises NewerLinkError for a link of a later version, and RemoteProtocolError (N rules) for a text that is
    no link or has a typo.
    """
    body = _body(link.strip())
    if body[0] > VERSION:
        raise NewerLinkError("N2", f"a link of version {body[0]}, this is version {VERSION}")
    require(body[0] > 0, "N2", "there is no such version of links")
    invitation = _build(unpack(body[1:], _BOUNDS, "N3"))
    require(write(invitation) == link.strip(), "N3", "not in canonical form")
    return invitation


def _body(link: str) -> bytes:
    """Return the bytes of a link without the checksum, after checking it."""
    require(link.startswith(SCHEME), "N1", f"it does not begin with {SCHEME}")
    require(len(link) <= MAX_LINK, "N1", "it is too long")
    text = link.removeprefix(SCHEME)
    require(_BASE64URL.fullmatch(text) is not None, "N1", "it has characters that no link has")
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        raise RemoteProtocolError("N1", "a character is missing, or one too many") from None
    body, checksum = data[:-CHECKSUM_BYTES], data[-CHECKSUM_BYTES:]
    require(bool(body) and _checksum(body) == checksum, "N1", "its checksum is wrong: a character differs")
    return body


def _build(fields: Any) -> Invitation:
    require(isinstance(fields, list) and 3 <= len(fields) <= 5, "N3", "not three fields, or two more")
    protocol, run_id, contacts, *more = fields
    require(type(protocol) is int and 0 < protocol <= _U32, "N3", "the protocol is not a version")
    require(isinstance(run_id, bytes) and len(run_id) == 32, "N3", "the run id is not 32 bytes")
    require(isinstance(contacts, list) and 0 < len(contacts) <= MAX_PEERS, "N3", "no peers, or too many")
    found = tuple(_contact(item) for item in contacts)
    require(len({contact.peer for contact in found}) == len(found), "N3", "one peer twice")
    require(len(more) != 1 or more[0] is not None, "N5", "an empty ticket")
    ticket = _ticket(more[0]) if more and more[0] is not None else None
    return Invitation(protocol, run_id, found, ticket, _url(more[1]) if len(more) == 2 else "")


def _ticket(value: Any) -> Ticket:
    require(isinstance(value, list) and len(value) == 2, "N5", "a ticket has not two fields")
    number, secret = value
    require(type(number) is int and 0 < number < 1 << 31, "N5", "not the number of an invitation")
    least, most = SECRET_BYTES
    require(isinstance(secret, bytes) and least <= len(secret) <= most, "N5", "not a secret")
    return Ticket(number, secret)


def is_url(text: str) -> bool:
    """Return whether contacts may be published at this URL (SPEC N6)."""
    return len(text) <= MAX_URL and _URL.fullmatch(text) is not None


def _url(value: Any) -> str:
    if not isinstance(value, str) or not is_url(value):
        raise RemoteProtocolError("N6", "not a URL of a web page")
    return value


def _contact(value: Any) -> Contact:
    require(isinstance(value, list) and len(value) == 2, "N3", "a peer has not two fields")
    peer, addresses = value
    require(isinstance(peer, str) and _PEER.fullmatch(peer) is not None, "N3", "not the id of a peer")
    fitting = isinstance(addresses, list) and 0 < len(addresses) <= MAX_ADDRESSES
    require(fitting, "N3", "no address of a peer, or too many")
    for address in addresses:
        valid = isinstance(address, str) and _ADDRESS.fullmatch(address) is not None
        require(valid, "N3", "not an address of a peer")
    require(len(set(addresses)) == len(addresses), "N3", "one address twice")
    return Contact(peer, tuple(addresses))


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=CHECKSUM_BYTES, person=b"sfnode-link").digest()

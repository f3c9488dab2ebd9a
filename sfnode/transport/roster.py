"""The roster of a run: who is there. What a record looks like, and what is taken from strangers.

Anybody can write anything under any name there, so a record is a hint about whom to dial and nothing more;
the transport authenticates whoever answers. Knows no DHT, only values that one may hold.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Protocol

from sfnode.transport.base import PEER_ID, PeerRecord

MAX_ADDRESSES = 6
MAX_ADDRESS_CHARS = 200
"""Of a record in the roster. A relayed address has about 130 characters; nobody needs more than a few."""

MAX_ROSTER = 512
"""Records kept and returned for one topic. A node needs a dozen neighbours; others it meets through them."""

MAX_RECORD_BYTES = 1_536
"""Of an encoded record: MAX_ADDRESSES of the longest fit. A full roster stays below 1 MiB."""

MAX_TTL = 3_600.0
"""Seconds that a record may live: a roster of peers an hour gone is worthless."""

_CLOCK_SLACK = 60.0
_MAX_SUBKEY_BYTES = 80
_MAX_KNOWN = 1 << 63


def roster_key(topic: bytes) -> str:
    """Where the roster of a topic is kept in the DHT."""
    return f"sfnode/roster/{topic.hex()}"


def pack_record(record: PeerRecord) -> list[Any]:
    """What goes into the roster: [peer, addresses, role, known], with the best MAX_ADDRESSES addresses."""
    fitting = [address for address in record.addresses if len(address) <= MAX_ADDRESS_CHARS]
    return [record.peer, fitting[:MAX_ADDRESSES], record.role, record.known]


def read_record(peer: object, value: object) -> PeerRecord | None:
    """The record that somebody stored under `peer`, or None if it is not exactly what `pack_record` writes.

    Items after the fourth are left for later versions.
    """
    if not isinstance(value, list | tuple) or len(value) < 4:
        return None
    name, addresses, role, known = value[:4]
    if name != peer or not isinstance(name, str) or not PEER_ID.fullmatch(name):
        return None
    if not isinstance(addresses, list | tuple) or len(addresses) > MAX_ADDRESSES:
        return None
    if not all(_leads_to(name, address) for address in addresses):
        return None
    if not _is_count(role, 256) or not _is_count(known, _MAX_KNOWN):
        return None
    return PeerRecord(name, tuple(addresses), role, known)


def _leads_to(peer: str, address: object) -> bool:
    if not isinstance(address, str) or len(address) > MAX_ADDRESS_CHARS:
        return False
    return address.startswith("/") and address.endswith(f"/p2p/{peer}") and address.isascii()


def _is_count(value: object, limit: int) -> bool:
    return type(value) is int and 0 <= value < limit


class StoredRecord(Protocol):
    """What the DHT asks about: hivemind's DHTRecord."""

    subkey: bytes
    value: bytes
    expiration_time: float


class Bounds:
    """hivemind's record validator: takes small values that decode, are for one name, and expire soon.

    Without it one value that does not decode keeps hivemind searching for ever. It looks into no record, so
    that nodes of a later version may write more into theirs.
    """

    def __init__(self, decode: Callable[[bytes], object]) -> None:
        self._decode = decode

    def validate(self, record: StoredRecord) -> bool:
        lifetime = record.expiration_time - time.time()
        if not math.isfinite(lifetime) or lifetime > MAX_TTL + _CLOCK_SLACK:
            return False
        if len(record.value) > MAX_RECORD_BYTES or len(record.subkey) > _MAX_SUBKEY_BYTES:
            return False
        try:
            self._decode(record.value)
            return isinstance(self._decode(record.subkey), str)
        except Exception:  # foreign bytes: whatever the decoder raises, they are not wanted
            return False

    def sign_value(self, record: StoredRecord) -> bytes:
        """Records are not signed."""
        return record.value

    def strip_value(self, record: StoredRecord) -> bytes:
        return record.value

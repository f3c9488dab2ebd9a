"""The roster of a run: the form of a record, and what is accepted from strangers.

Anybody can write anything under any name there, so a record is a hint about whom to dial and nothing more;
the transport authenticates whoever answers. Knows no DHT, only values that a DHT may hold.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Protocol

from sfnode.transport.base import PEER_ID, PeerRecord

MAX_ADDRESSES = 6
MAX_ADDRESS_CHARS = 200
"""Bounds of a record. A relayed address has about 130 characters; a few addresses are enough for any peer."""

MAX_ROSTER = 512
"""Most records kept and returned for one topic. A node needs a dozen neighbours only."""

MAX_RECORD_BYTES = 1_536
"""Most bytes of an encoded record: MAX_ADDRESSES of the longest fit. A full roster stays below 1 MiB."""

MAX_TTL = 3_600.0
"""Most seconds that a record may live: a list of peers that left an hour ago is worthless."""

_CLOCK_SLACK = 60.0
_MAX_SUBKEY_BYTES = 80
_MAX_KNOWN = 1 << 63


def roster_key(topic: bytes) -> str:
    """Return the DHT key of a topic's roster."""
    return f"sfnode/roster/{topic.hex()}"


def pack_record(record: PeerRecord) -> list[Any]:
    """Return the stored form, [peer, addresses, role, known], with the first MAX_ADDRESSES addresses."""
    fitting = [address for address in record.addresses if len(address) <= MAX_ADDRESS_CHARS]
    return [record.peer, fitting[:MAX_ADDRESSES], record.role, record.known]


def read_record(peer: object, value: object) -> PeerRecord | None:
    """Return the record stored under `peer`; None unless it has the form that `pack_record` writes.

    Items after the fourth are ignored: later versions may add some.
    """
    if not isinstance(value, list | tuple) or len(value) < 4:
        return None
    name, addresses, role, known = value[:4]
    if name != peer or not isinstance(name, str) or not PEER_ID.fullmatch(name):
        return None
    if not isinstance(addresses, list | tuple) or len(addresses) > MAX_ADDRESSES:
        return None
    if not all(_is_address_of(name, address) for address in addresses):
        return None
    if not _is_count(role, 256) or not _is_count(known, _MAX_KNOWN):
        return None
    return PeerRecord(name, tuple(addresses), role, known)


def _is_address_of(peer: str, address: object) -> bool:
    if not isinstance(address, str) or len(address) > MAX_ADDRESS_CHARS:
        return False
    return address.startswith("/") and address.endswith(f"/p2p/{peer}") and address.isascii()


def _is_count(value: object, limit: int) -> bool:
    return type(value) is int and 0 <= value < limit


class StoredRecord(Protocol):
    """Fields of hivemind's DHTRecord that a validator reads."""

    subkey: bytes
    value: bytes
    expiration_time: float


class Bounds:
    """A record validator for hivemind: accepts small values that decode, have a name, and expire soon.

    Without it one value that does not decode keeps hivemind searching for ever. It does not check the form
    of records, so that nodes of a later version may write more into theirs.
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
        except Exception:  # strangers' bytes: the decoder may raise anything
            return False

    def sign_value(self, record: StoredRecord) -> bytes:
        """Return the value as it is: records are not signed."""
        return record.value

    def strip_value(self, record: StoredRecord) -> bytes:
        return record.value

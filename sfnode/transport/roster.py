"""The roster of a run: the format of a record, and the checks of strangers' records.

Each peer signs its own record, but new peer ids cost nothing. So a record is only a hint about whom to dial,
and the transport authenticates the peer that answers. This module knows values that a DHT may store, but no
DHT and no kind of key.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Protocol

from sfnode.transport.base import PEER_ID, PeerRecord

MAX_ADDRESSES = 6
MAX_ADDRESS_CHARS = 200
"""Maximum number of addresses in a record, and of characters in one address. A relayed address has about 130
characters."""

MAX_ROSTER = 512
"""Maximum number of records stored and returned for one topic. A node needs only a dozen neighbours."""

MAX_RECORD_BYTES = 1_536
"""Maximum size, in bytes, of an encoded record without its signature: MAX_ADDRESSES of the longest addresses
fit. A full roster stays below 1.4 MiB."""

MAX_TTL = 90.0
"""Maximum lifetime of a record, in seconds. A record that expires later is refused, with an allowance for
clocks that differ. So no stranger's record outlives honest ones, which are renewed every 30 s."""

MAX_ANSWER = 128
"""Maximum number of records taken from one peer's answer, drawn at random. So a peer that invents a thousand
records adds no more records than any other peer that is asked."""

CLOCK_WRONG = 30.0
"""Difference, in seconds, from which on a clock counts as wrong. It is a third of a record's lifetime."""

_CLOCK_SLACK = 60.0
_LENGTHS, _EXPIRY = struct.Struct(">HH"), struct.Struct(">d")
_MAX_SEAL = 1_100
"""Maximum bytes of a public key, a signature and their lengths: enough for an RSA key of 4,096 bits."""

_MAX_SUBKEY_BYTES = 80
_MAX_KNOWN = 1 << 63


def roster_key(topic: bytes) -> str:
    """Return the DHT key of a topic's roster."""
    return f"sfnode/roster/{topic.hex()}"


def sample(records: Iterable[PeerRecord], random: Random) -> list[PeerRecord]:
    """Return at most MAX_ROSTER of these records, sorted by peer. They are drawn at random, because in any
    predictable order strangers could take all places."""
    found = list(records)
    return sorted(found if len(found) <= MAX_ROSTER else random.sample(found, MAX_ROSTER))


def pack_record(record: PeerRecord) -> list[Any]:
    """Return the stored form of a record: [peer, addresses, role, known], with the first MAX_ADDRESSES
    addresses."""
    fitting = [address for address in record.addresses if len(address) <= MAX_ADDRESS_CHARS]
    return [record.peer, fitting[:MAX_ADDRESSES], record.role, record.known]


def read_record(peer: object, value: object) -> PeerRecord | None:
    """Return the record stored under `peer`; None unless it has the format that `pack_record` writes.

    Later versions may add items, so items after the fourth are ignored.
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

    key: bytes
    subkey: bytes
    value: bytes
    expiration_time: float


class Key(Protocol):
    """The key from which a node's peer id is derived."""

    public: bytes

    def sign(self, message: bytes) -> bytes: ...


class SignedRecords:
    """A record validator for hivemind. It accepts small values that decode, expire soon and are signed by
    their own peer.

    A record is stored under its peer's id. It carries the peer's public key, of which the id is a hash, and a
    signature over the roster, the id, the value and the expiry. So nobody can replace another peer's record
    or prolong its lifetime. A stranger can still make any number of ids, reachable or not, and sign a record
    for each of them. The format of values is not checked, so that nodes of a later version may write more.
    But a value must decode: hivemind would never end a search that finds an undecodable value.
    """

    def __init__(
        self,
        key: Key,
        *,
        decode: Callable[[bytes], object],
        peer_of: Callable[[bytes], str],
        is_signed: Callable[[bytes, bytes, bytes], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`peer_of(public)` returns the peer id of a public key; `is_signed(public, message, signature)`
        checks a signature."""
        self._key = key
        self._decode = decode
        self._peer_of = peer_of
        self._is_signed = is_signed
        self._clock = clock

    def validate(self, record: StoredRecord) -> bool:
        """Return whether a stored record is signed by its peer and within bounds. Never raises."""
        try:
            lifetime = record.expiration_time - self._clock()
            if not 0 <= lifetime <= MAX_TTL + _CLOCK_SLACK:  # NaN, too
                return False
            if len(record.value) > MAX_RECORD_BYTES + _MAX_SEAL or len(record.subkey) > _MAX_SUBKEY_BYTES:
                return False
            value, public, signature = _unseal(record.value)
            self._decode(value)
            peer = self._decode(record.subkey)
            if len(value) > MAX_RECORD_BYTES or peer != self._peer_of(public):
                return False
            return self._is_signed(public, _statement(record, value), signature)
        except Exception:  # strangers' bytes: the decoder may raise anything
            return False

    def sign_value(self, record: StoredRecord) -> bytes:
        """Return our own record's value as it is stored: followed by the public key, the signature and the
        lengths of both."""
        signature = self._key.sign(_statement(record, record.value))
        public = self._key.public
        return record.value + public + signature + _LENGTHS.pack(len(public), len(signature))

    def strip_value(self, record: StoredRecord) -> bytes:
        """Return the value of a stored record without key and signature."""
        return _unseal(record.value)[0]


def _unseal(stored: bytes) -> tuple[bytes, bytes, bytes]:
    """Return value, public key and signature. Raises struct.error or ValueError."""
    public, signature = _LENGTHS.unpack(stored[-_LENGTHS.size :])
    end = len(stored) - _LENGTHS.size - signature
    if end < public:
        raise ValueError("a record without a value")
    return stored[: end - public], stored[end - public : end], stored[end : end + signature]


def _statement(record: StoredRecord, value: bytes) -> bytes:
    """Return the bytes that the peer signs: the record's key, subkey, expiry and value. They can be parsed in
    one way only, as the DHT key always has 20 bytes and the subkey is MessagePack."""
    return b"sfnode-roster" + record.key + record.subkey + _EXPIRY.pack(record.expiration_time) + value

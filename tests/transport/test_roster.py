"""The roster's records: what is written can be read, and nothing that strangers write can do harm."""

from __future__ import annotations

import hashlib
from random import Random
from types import SimpleNamespace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfnode.errors import Code
from sfnode.transport import roster
from sfnode.transport.base import PeerRecord, best_first, peer_of
from tests.refusals import fails_with

PEER = "QmWv4MDNkJnWMTaHJxSwZ8dnkwJPZvLScPZzYD9bCHMgdB"
ADDRESS = f"/ip4/203.0.113.7/tcp/31337/p2p/{PEER}"
GOOD = [PEER, [ADDRESS], 1, 7]

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.just(PEER) | st.just(ADDRESS),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.integers(0, roster.MAX_ADDRESSES), st.integers(0, 255), st.integers(0, (1 << 63) - 1))
def test_what_is_packed_is_read_back(addresses, role, known):
    record = PeerRecord(PEER, (ADDRESS,) * addresses, role, known)
    packed = msgpack.packb(roster.pack_record(record))
    assert roster.read_record(PEER, msgpack.unpackb(packed)) == record
    assert len(packed) <= roster.MAX_RECORD_BYTES


def test_only_the_best_addresses_are_packed():
    far = ADDRESS.replace("203", "8" * 200)
    record = PeerRecord(PEER, (far, *[ADDRESS] * 20), 0, 0)
    assert roster.pack_record(record)[1] == [ADDRESS] * roster.MAX_ADDRESSES


@given(junk, junk)
def test_junk_is_never_a_record_and_never_an_error(peer, value):
    record = roster.read_record(peer, value)
    assert record is None or roster.pack_record(record) == list(value[:4])


@pytest.mark.parametrize(
    "value",
    [
        GOOD[:3],
        ["somebody else", *GOOD[1:]],
        [PEER, ["/ip4/203.0.113.7/tcp/31337/p2p/QmOther"], 1, 7],
        [PEER, ["203.0.113.7"], 1, 7],
        [PEER, [ADDRESS] * (roster.MAX_ADDRESSES + 1), 1, 7],
        [PEER, ["/ip4/" + "1" * 500 + ADDRESS], 1, 7],
        [PEER, ADDRESS, 1, 7],
        [PEER, [ADDRESS], -1, 7],
        [PEER, [ADDRESS], 256, 7],
        [PEER, [ADDRESS], True, 7],
        [PEER, [ADDRESS], 1, 1 << 63],
        [PEER, [ADDRESS], 1, 7.0],
    ],
)
def test_a_record_with_one_fault_is_none(value):
    assert roster.read_record(PEER, GOOD) is not None
    assert roster.read_record(PEER, value) is None


def test_a_later_version_may_write_more():
    assert roster.read_record(PEER, [*GOOD, {"more": 1}]) == roster.read_record(PEER, GOOD)


class Key:
    """A key of a toy scheme: the id is the public key, and everybody can sign who has not to."""

    def __init__(self, name: str = PEER) -> None:
        self.public = name.encode()

    def sign(self, message: bytes) -> bytes:
        return hashlib.sha256(self.public + message).digest()


def is_signed(public: bytes, message: bytes, signature: bytes) -> bool:
    return hashlib.sha256(public + message).digest() == signature


NOW = 1e9
OWN = Key()


def validator(key: Key = OWN) -> roster.SignedRecords:
    return roster.SignedRecords(
        key, decode=msgpack.unpackb, peer_of=bytes.decode, is_signed=is_signed, clock=lambda: NOW
    )


def stored(key: Key = OWN, **changes):
    """A record as its peer has signed it."""
    record = SimpleNamespace(
        key=bytes(20), subkey=msgpack.packb(PEER), value=msgpack.packb(GOOD), expiration_time=NOW + 60
    )
    record.__dict__.update(changes)
    record.value = validator(key).sign_value(record)
    return record


def changed(**changes):
    """A record that somebody has changed after it was signed."""
    record = stored()
    record.__dict__.update(changes)
    return record


def test_a_record_that_its_peer_has_signed_is_kept_and_read() -> None:
    record = stored()
    assert validator().validate(record)
    assert msgpack.unpackb(validator().strip_value(record)) == GOOD


@pytest.mark.parametrize(
    "changes",
    [
        {"value": b"\xc1"},
        {"value": msgpack.packb(bytes(roster.MAX_RECORD_BYTES))},
        {"subkey": b"\xc1"},
        {"subkey": msgpack.packb(None)},
        {"subkey": msgpack.packb(["not", "hashable"])},
        {"subkey": msgpack.packb("x" * 100)},
        {"expiration_time": NOW + 2 * roster.MAX_TTL},
        {"expiration_time": NOW - 1},
        {"expiration_time": float("nan")},
        {"expiration_time": float("inf")},
    ],
)
def test_the_dht_keeps_nothing_that_is_large_broken_stale_or_eternal(changes):
    assert not validator().validate(stored(**changes))


@pytest.mark.parametrize(
    "record",
    [
        changed(key=bytes(19) + b"1"),
        changed(subkey=msgpack.packb("QmSomebodyElse")),
        changed(expiration_time=NOW + 80),
        changed(expiration_time="later"),
        changed(value=msgpack.packb(GOOD)),
        changed(value=stored().value.replace(b"203.0.113.7", b"198.51.100.7"[:11])),
        changed(value=stored().value[:-1]),
        changed(value=b""),
        changed(value=None),
        stored(Key("QmSomebodyElse")),
    ],
)
def test_the_dht_keeps_nothing_about_a_peer_that_another_has_written(record):
    assert not validator().validate(record)


def test_no_record_outlives_the_others():
    """By more than clocks may differ."""
    lifetimes = [roster.MAX_TTL * tenths / 10 for tenths in range(1, 100)]
    kept = [life for life in lifetimes if validator().validate(stored(expiration_time=NOW + life))]
    assert roster.MAX_TTL <= max(kept) <= roster.MAX_TTL + 60


@given(st.binary(), st.binary(), st.floats())
def test_no_foreign_record_is_an_error(subkey, value, expiry):
    validator().validate(changed(subkey=subkey, value=value, expiration_time=expiry))


def test_of_more_records_than_are_kept_chance_decides_which():
    """Not an order of ids, which strangers would make to fit."""
    records = [PeerRecord(f"Qm{number:05d}", (), 0, 0) for number in range(4 * roster.MAX_ROSTER)]
    found = roster.sample(records, Random(1))
    assert len(found) == roster.MAX_ROSTER
    assert found == sorted(found)
    later = sum(record.peer >= records[2 * roster.MAX_ROSTER].peer for record in found)
    assert 0.4 < later / roster.MAX_ROSTER < 0.6
    assert roster.sample(reversed(records[:5]), Random(1)) == records[:5]


def test_addresses_that_reach_furthest_come_first():
    public, name, private = "/ip4/8.8.8.8/tcp/1", "/dns4/example.org/tcp/1", "/ip4/192.168.1.2/tcp/1"
    relayed, loopback = f"/ip4/8.8.8.8/tcp/1/p2p/{PEER}/p2p-circuit", "/ip6/::1/tcp/1"
    assert best_first([loopback, relayed, private, name, public]) == [
        public,
        name,
        private,
        relayed,
        loopback,
    ]


def test_the_peer_of_a_relayed_address_is_its_last():
    assert peer_of(f"/ip4/8.8.8.8/tcp/1/p2p/QmRelay/p2p-circuit/p2p/{PEER}") == PEER
    with fails_with(Code.BAD_ADDRESS):
        peer_of("/ip4/8.8.8.8/tcp/1/p2p/QmRelay/p2p-circuit")

"""The roster's records: what is written can be read, and nothing that strangers write can do harm."""

from __future__ import annotations

import time
from types import SimpleNamespace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfnode.errors import Code, UserError
from sfnode.transport.base import PeerRecord, best_first, peer_of
from sfnode.transport.roster import (
    MAX_ADDRESSES,
    MAX_RECORD_BYTES,
    MAX_TTL,
    Bounds,
    pack_record,
    read_record,
)

PEER = "QmWv4MDNkJnWMTaHJxSwZ8dnkwJPZvLScPZzYD9bCHMgdB"
ADDRESS = f"/ip4/203.0.113.7/tcp/31337/p2p/{PEER}"
GOOD = [PEER, [ADDRESS], 1, 7]

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.just(PEER) | st.just(ADDRESS),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.integers(0, MAX_ADDRESSES), st.integers(0, 255), st.integers(0, (1 << 63) - 1))
def test_what_is_packed_is_read_back(addresses, role, known):
    record = PeerRecord(PEER, (ADDRESS,) * addresses, role, known)
    packed = msgpack.packb(pack_record(record))
    assert read_record(PEER, msgpack.unpackb(packed)) == record
    assert len(packed) <= MAX_RECORD_BYTES


def test_only_the_best_addresses_are_packed():
    far = ADDRESS.replace("203", "8" * 200)
    record = PeerRecord(PEER, (far, *[ADDRESS] * 20), 0, 0)
    assert pack_record(record)[1] == [ADDRESS] * MAX_ADDRESSES


@given(junk, junk)
def test_junk_is_never_a_record_and_never_an_error(peer, value):
    record = read_record(peer, value)
    assert record is None or pack_record(record) == list(value[:4])


@pytest.mark.parametrize(
    "value",
    [
        GOOD[:3],
        ["somebody else", *GOOD[1:]],
        [PEER, ["/ip4/203.0.113.7/tcp/31337/p2p/QmOther"], 1, 7],
        [PEER, ["203.0.113.7"], 1, 7],
        [PEER, [ADDRESS] * (MAX_ADDRESSES + 1), 1, 7],
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
    assert read_record(PEER, GOOD) is not None
    assert read_record(PEER, value) is None


def test_a_later_version_may_write_more():
    assert read_record(PEER, [*GOOD, {"more": 1}]) == read_record(PEER, GOOD)


def stored(**changes):
    record = {
        "subkey": msgpack.packb(PEER),
        "value": msgpack.packb(GOOD),
        "expiration_time": time.time() + 60,
    }
    return SimpleNamespace(**{**record, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"value": b"\xc1"},
        {"value": msgpack.packb(bytes(MAX_RECORD_BYTES))},
        {"subkey": b"\xc1"},
        {"subkey": msgpack.packb(None)},
        {"subkey": msgpack.packb(["not", "hashable"])},
        {"subkey": msgpack.packb("x" * 100)},
        {"expiration_time": time.time() + 2 * MAX_TTL},
        {"expiration_time": float("nan")},
        {"expiration_time": float("inf")},
    ],
)
def test_the_dht_keeps_nothing_that_is_large_broken_or_eternal(changes):
    bounds = Bounds(msgpack.unpackb)
    assert bounds.validate(stored())
    assert not bounds.validate(stored(**changes))


@given(st.binary(), st.binary(), st.floats())
def test_no_foreign_record_is_an_error(subkey, value, expiry):
    Bounds(msgpack.unpackb).validate(stored(subkey=subkey, value=value, expiration_time=expiry))


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
    with pytest.raises(UserError) as error:
        peer_of("/ip4/8.8.8.8/tcp/1/p2p/QmRelay/p2p-circuit")
    assert error.value.code is Code.BAD_ADDRESS

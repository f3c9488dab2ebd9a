"""The codec: every message has one encoding, and other bytes are refused (SPEC C1-C9)."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfprotocol import fields, messages, wire_codec
from sfprotocol.errors import LocalProtocolError, RemoteProtocolError
from sfprotocol.segments import MAX_SEGMENT_UPDATES
from sfprotocol.wire_codec import LENGTH_BYTES, MAX_ENTRIES, MAX_FRAME, MAX_PART_BYTES

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
B32 = st.binary(min_size=32, max_size=32)
POSITIONS = st.dictionaries(st.builds(messages.Feed, B32, U32), U32, max_size=6).map(
    lambda found: tuple(messages.Position(feed, found[feed]) for feed in sorted(found))
)
CLAIMS = st.tuples(POSITIONS, st.binary(min_size=4, max_size=4)).map(
    lambda found: tuple(messages.Claim(*position, found[1]) for position in found[0])
)
AHEAD = st.dictionaries(U64, U32, max_size=6).map(
    lambda found: tuple(messages.Ahead(key, found[key]) for key in sorted(found))
)
KEYS = st.sets(U64, max_size=6).map(lambda found: tuple(sorted(found)))


def parts(scalar: st.SearchStrategy[int]) -> st.SearchStrategy[tuple[messages.EpochScalars, ...]]:
    scalars = st.lists(scalar, min_size=1, max_size=5).map(tuple)
    return st.dictionaries(U32, scalars, min_size=1, max_size=4).map(
        lambda found: tuple(messages.EpochScalars(epoch, found[epoch]) for epoch in sorted(found))
    )


NAMES = st.text(max_size=12).filter(lambda text: not fields.text_fault(text))


def drawn(scalar_bytes: int) -> st.SearchStrategy[messages.Message]:
    bound = 1 << (8 * scalar_bytes - 1)
    signature = st.binary(min_size=64, max_size=64)
    octet = st.integers(0, 255)
    branch = st.builds(messages.Branch, st.just(()) | parts(st.integers(-bound, bound - 1)), signature)
    return st.one_of(
        st.builds(messages.Hello, U32, B32, octet, U64),
        st.builds(messages.Segment, U64, U32, parts(st.integers(-bound, bound - 1)), signature, octet),
        st.builds(messages.Summary, st.booleans(), U64, B32, CLAIMS),
        st.builds(messages.Want, POSITIONS),
        st.builds(messages.Have, AHEAD),
        st.builds(messages.Prune, KEYS),
        st.builds(
            messages.Proof,
            st.builds(messages.Feed, B32, U32),
            U32,
            st.tuples(B32, B32),
            st.tuples(branch, branch),
        ),
        st.just(messages.ManifestRequest()),
        st.builds(messages.ManifestReply, st.binary(max_size=300)),
        st.builds(messages.PartRequest, B32, U32, U32, st.integers(1, MAX_PART_BYTES)),
        st.builds(messages.PartReply, st.integers(300, 2**32 - 1), st.binary(max_size=300)),
        st.builds(messages.Card, st.builds(messages.Feed, B32, U32), U32, NAMES, NAMES, signature),
        st.builds(messages.Floor, U32),
        st.builds(messages.Goodbye, st.text(max_size=50)),
    )


@given(st.data(), st.sampled_from([1, 2]))
def test_every_message_survives_the_wire(data: st.DataObject, scalar_bytes: int) -> None:
    message = data.draw(drawn(scalar_bytes))
    assert wire_codec.decode(wire_codec.encode(message, scalar_bytes), scalar_bytes) == message


def test_an_announced_length_is_not_allocated() -> None:
    # Each header promises 65,535 elements, that is half a megabyte, inside of the one before.
    hostile = b"\x92\x03" + b"\xdc\xff\xff" * (MAX_FRAME // 3 - 1)
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match="C2"):
            wire_codec.decode(hostile)
        assert tracemalloc.get_traced_memory()[1] < 4 * MAX_FRAME
    finally:
        tracemalloc.stop()


def test_a_message_beyond_the_largest_frame_is_refused_on_both_sides() -> None:
    fits = messages.ManifestReply(bytes(MAX_FRAME - 7))
    assert len(wire_codec.encode(fits)) == MAX_FRAME
    with pytest.raises(LocalProtocolError):
        wire_codec.encode(messages.ManifestReply(bytes(MAX_FRAME - 6)))
    with pytest.raises(RemoteProtocolError, match="C1"):
        wire_codec.decode(msgpack.packb([5, bytes(MAX_FRAME - 6)]))


def entries(count: int) -> tuple[messages.Position, ...]:
    return tuple(
        messages.Position(messages.Feed(index.to_bytes(32, "big"), 2**32 - 1), 2**32 - 1)
        for index in range(count)
    )


def test_the_fullest_lists_fit_a_frame_and_longer_ones_are_refused() -> None:
    claims = tuple(messages.Claim(*entry, bytes(4)) for entry in entries(MAX_ENTRIES))
    page = messages.Summary(True, 2**64 - 1, bytes(32), claims)
    assert wire_codec.decode(wire_codec.encode(page)) == page
    fields = [[*entry.feed, entry.next] for entry in entries(MAX_ENTRIES + 1)]
    with pytest.raises(RemoteProtocolError, match=r"C[25]"):
        wire_codec.decode(msgpack.packb([3, fields]))


def test_the_largest_segment_fits_a_frame_even_with_an_epoch_for_every_update() -> None:
    # A larger limit let a hostile origin make feeds that honest nodes admitted and could not pass on.
    worst = tuple(
        messages.EpochScalars(2**32 - 1 - MAX_SEGMENT_UPDATES + i, (-32768,))
        for i in range(MAX_SEGMENT_UPDATES)
    )
    segment = messages.Segment(2**64 - 1, 2**32 - 1, worst, bytes(64), 255)
    assert wire_codec.decode(wire_codec.encode(segment)) == segment
    branch = messages.Branch(worst, bytes(64))
    proof = messages.Proof(
        messages.Feed(bytes(32), 2**32 - 1), 2**32 - 1, (bytes(32), bytes(32)), (branch, branch)
    )
    assert wire_codec.decode(wire_codec.encode(proof)) == proof
    too_many = [[0, bytes(2 * (MAX_SEGMENT_UPDATES + 1))]]
    with pytest.raises(RemoteProtocolError, match="C7"):
        wire_codec.decode(msgpack.packb([1, 0, 0, 0, too_many, bytes(64)]))


GOOD = messages.Segment(1, 0, (messages.EpochScalars(0, (1,)),), bytes(64))


@pytest.mark.parametrize(
    "message",
    [
        replace(GOOD, parts=()),
        replace(GOOD, parts=(messages.EpochScalars(0, ()),)),
        replace(GOOD, parts=(messages.EpochScalars(1, (1,)), messages.EpochScalars(0, (1,)))),
        replace(GOOD, parts=(messages.EpochScalars(0, (32768,)),)),
        replace(GOOD, parts=(messages.EpochScalars(0, (0,) * (MAX_SEGMENT_UPDATES + 1)),)),
        replace(GOOD, signature=b""),
        replace(GOOD, hops=256),
        replace(GOOD, first=2**32),
        messages.Want(entries(2)[::-1]),
        messages.Want(entries(1) * 2),
        messages.Want(entries(MAX_ENTRIES + 1)),
        messages.Hello(1, b"short", 0, 0),
        messages.Goodbye("é" * 101),
        messages.Card(messages.Feed(bytes(32), 0), 1, "é" * 17, "", bytes(64)),
        messages.Card(messages.Feed(bytes(32), 0), 1, "", "\ud800", bytes(64)),
    ],
    ids=str,
)
def test_a_message_that_the_peer_would_refuse_is_not_encoded(message: messages.Message) -> None:
    with pytest.raises(LocalProtocolError):
        wire_codec.encode(message)


def wire_size(segment: messages.Segment) -> int:
    return LENGTH_BYTES + len(wire_codec.encode(segment))


@pytest.mark.parametrize(("updates", "most"), [(1, 95), (32, 157)])
def test_a_segment_takes_at_most_95_bytes_on_the_wire_and_with_32_updates_5_bytes_each(
    updates: int, most: int
) -> None:
    scalars = (messages.EpochScalars(65_535, (-32767,) * updates),)
    assert wire_size(messages.Segment(2**64 - 1, 2**32 - 33, scalars, bytes(64), hops=16)) == most

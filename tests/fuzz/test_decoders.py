"""Decoders accept or refuse any bytes as declared, and accept only the one encoding of a message."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError, validate_call

from sfnode.control.server import fields
from sfnode.schema.views import Count
from sfnode.transport.base import LinkClosed
from sfnode.transport.libp2p.streams import StreamLink
from sfprotocol.wire_codec import LENGTH_BYTES, MAX_FRAME
from tests.fuzz.choices import Choices
from tests.fuzz.decoders import DECODERS, frugal, mutated, seeds, with_another_value
from tests.fuzz.effort import EFFORT
from tests.fuzz.frames import stream_of

CHANGES = st.binary(max_size=40)
PACKED = ("codec", "decision", "listing", "manifest", "roster")
"""The decoders of MessagePack."""

SEED = st.integers(0, 2**16)
"""The place of a valid encoding among those of a decoder, counted round and round."""

of_every_kind = pytest.mark.parametrize("name", sorted(DECODERS))


@of_every_kind
@EFFORT
@given(st.binary(max_size=300))
@example(b"\x91\xd6\xff\x00\x00\x00\x00")  # a timestamp
@example(b"\x92\x06\xa3\xed\xa0\x80")  # half of a surrogate pair
def test_any_bytes_are_refused_or_read_as_they_are_written(name: str, data: bytes) -> None:
    DECODERS[name](data)


@of_every_kind
@EFFORT
@given(SEED, CHANGES)
def test_a_damaged_encoding_is_refused_or_is_another_encoding(name: str, seed: int, changes: bytes) -> None:
    DECODERS[name](mutated(seeds(name)[seed % len(seeds(name))], Choices(changes)))


@pytest.mark.parametrize("name", PACKED)
@EFFORT
@given(SEED, CHANGES)
def test_an_encoding_with_a_value_of_another_kind_is_refused_or_is_another_encoding(
    name: str, seed: int, changes: bytes
) -> None:
    DECODERS[name](with_another_value(seeds(name)[seed % len(seeds(name))], Choices(changes)))


@EFFORT
@given(st.sampled_from(PACKED), st.binary(min_size=1, max_size=4), st.integers(0, 16))
def test_no_bytes_however_repeated_take_more_than_a_bounded_amount_of_memory(
    name: str, pattern: bytes, size: int
) -> None:
    frugal(DECODERS[name], (pattern * ((2 << size) // len(pattern) + 1))[:MAX_FRAME])


@of_every_kind
@pytest.mark.parametrize(
    "head", [b"\xdc\x10\x00", b"\xdd\xff\xff\xff\xff", b"\xc6\x7f\xff\xff\xff", b"\x91", b"\x81"]
)
def test_lengths_that_lie_and_depth_without_end_cost_little(name: str, head: bytes) -> None:
    for repeats in (1, 1_000, MAX_FRAME // len(head)):
        frugal(DECODERS[name], head * repeats)


# -- frames ----------------------------------------------------------------------------------------------


async def heard(stream: bytes, cuts: list[int]) -> list[bytes]:
    """Return the frames that a link receives before it is closed, if `stream` arrives in these pieces."""
    near, far = socket.socketpair()
    link = StreamLink("somebody", False, *await asyncio.open_connection(sock=near))
    frames: list[bytes] = []
    bounds = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    try:
        for start, stop in pairwise(bounds):
            far.sendall(stream[start:stop])
            await asyncio.sleep(0)
        far.close()
        with suppress(LinkClosed):
            while True:
                frames.append(await link.receive())
        with pytest.raises(LinkClosed):
            await link.receive()
    finally:
        await link.close()
        far.close()
    return frames


def expected(stream: bytes) -> list[bytes]:
    """Return the same, by a second implementation of SPEC F1 and F2."""
    frames: list[bytes] = []
    while len(stream) >= LENGTH_BYTES:
        length = int.from_bytes(stream[:LENGTH_BYTES], "big")
        if length > MAX_FRAME or len(stream) < LENGTH_BYTES + length:
            break
        frames.append(stream[LENGTH_BYTES : LENGTH_BYTES + length])
        stream = stream[LENGTH_BYTES + length :]
    return frames


@EFFORT
@given(
    st.lists(st.binary(max_size=20), max_size=5),
    st.binary(max_size=8),
    st.lists(st.integers(0, 200), max_size=4),
)
def test_a_stream_is_the_frames_that_it_says_and_then_an_end(
    frames: list[bytes], rest: bytes, cuts: list[int]
) -> None:
    stream = stream_of(*frames) + rest
    assert asyncio.run(heard(stream, cuts)) == expected(stream)


# -- the control API ---------------------------------------------------------------------------------------


@EFFORT
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_body_of_a_request_is_understood_or_refused(body: bytes) -> None:
    refused_or_whole(body)


@EFFORT
@given(CHANGES)
def test_a_damaged_body_of_a_request_is_understood_or_refused(changes: bytes) -> None:
    refused_or_whole(mutated(b'{"base": true, "limit": 100}', Choices(changes)))


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"limit": 1' + b"0" * 5_000 + b"}", b'{"base":{' * 9_999])
def test_a_body_that_nests_or_counts_without_end_is_refused(body: bytes) -> None:
    refused_or_whole(body)


@validate_call
def evaluate(base: bool = False, limit: Count = 0) -> int:
    return limit


def refused_or_whole(body: bytes) -> None:
    try:
        assert evaluate(**fields(body)) >= 0
    except ValidationError as error:
        error.errors(include_url=False)  # what the API answers with

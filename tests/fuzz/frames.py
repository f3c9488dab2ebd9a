"""A conversation of one machine with a peer that sends frames: a stream of bytes as in SPEC F1.

Unlike in `steps`, no messages are composed, so a coverage-guided fuzzer controls every bit.
"""

from __future__ import annotations

from sfprotocol import wire_codec
from sfprotocol.messages import OLDEST_VERSION, Claim, Hello, Message, Summary
from sfprotocol.plumtree import NO_TAG
from sfprotocol.wire_codec import LENGTH_BYTES
from tests.fuzz.arena import Arena
from tests.fuzz.decoders import seeds
from tests.fuzz.stories import RUN, SAGAS
from tests.protocol.vectors.plain import load

MAX_FRAMES = 64

SECONDS = 0.11
"""Seconds between two frames: more than an announcement waits for its segment."""


def conversation(data: bytes) -> None:
    """Send a host the frames in `data`, one a tenth of a second. Raises what goes wrong."""
    arena = Arena(1)
    arena.stories.others = True  # those of the vectors
    [host] = arena.hosts
    end = arena.link_hostile(host)
    for frame in frames_of(data)[:MAX_FRAMES]:
        arena.inject(end, frame)
        arena.sweep()
        arena.check()
        arena.now += SECONDS
        if end.number not in host.ends:
            end = arena.link_hostile(host)


def frames_of(data: bytes) -> list[bytes]:
    """Return the frames of a stream. The last one may be truncated, so that the fuzzer need not count
    bytes."""
    frames = []
    while len(data) > LENGTH_BYTES:
        length = int.from_bytes(data[:LENGTH_BYTES], "big")
        frames.append(data[LENGTH_BYTES : LENGTH_BYTES + length])
        data = data[LENGTH_BYTES + length :]
    return frames


def stream_of(*frames: bytes) -> bytes:
    return b"".join(len(frame).to_bytes(LENGTH_BYTES, "big") + frame for frame in frames)


def conversations() -> list[bytes]:
    """Return the seeds: every vector after a greeting, recorded conversations, and a fork with its proof."""
    hello, names = (wire_codec.encode(message) for message in greeting())
    said = [stream_of(hello, names, frame) for frame in seeds("codec")]
    recorded = load("flood.json")
    frames = [bytes.fromhex(frame) for frame in _frames(recorded)]
    story: list[Message] = [SAGAS[0].segment(0, 0, 12), SAGAS[0].segment(2, 0, 12), SAGAS[0].fork(2, 2)]
    return [*said, stream_of(*frames), stream_of(hello, names, *map(wire_codec.encode, story))]


def greeting() -> tuple[Hello, Summary]:
    feeds = sorted(saga.feed for saga in SAGAS)
    claims = tuple(Claim(feed, 0, NO_TAG) for feed in feeds)
    return Hello(OLDEST_VERSION, RUN.run_id, 0, 0), Summary(False, 0, bytes(32), claims)


def _frames(value: object) -> list[str]:
    """Return all values called "frame" in a recorded conversation, in their order."""
    if isinstance(value, dict):
        own = [value["frame"]] if isinstance(value.get("frame"), str) else []
        return own + [frame for inner in value.values() for frame in _frames(inner)]
    return [frame for inner in value for frame in _frames(inner)] if isinstance(value, list) else []

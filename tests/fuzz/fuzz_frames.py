"""One machine and one peer that only knows how to send frames: the bytes of a stream as SPEC F1 has them.

Nearer to the wire than `fuzz_steps`: what the peer says is not composed, so that a fuzzer which watches the
code has every bit of it in its hand.
"""

from __future__ import annotations

import json

from fuzz_arena import Arena
from fuzz_decoders import VECTORS, seeds
from fuzz_stories import RUN, SAGAS

from sfprotocol import PROTOCOL_VERSION, codec
from sfprotocol.flood import NO_TAG
from sfprotocol.messages import Claim, Hello, Message, Summary

LENGTH_BYTES = 3
MAX_FRAMES = 64

SECONDS = 0.11
"""Between two frames: more than an announcement waits for its segment."""


def conversation(data: bytes) -> None:
    """Let a host hear the frames in `data`, one a tenth of a second. Raises what goes wrong."""
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
    """What is cut off counts, too: the fuzzer need not learn to count."""
    frames = []
    while len(data) > LENGTH_BYTES:
        length = int.from_bytes(data[:LENGTH_BYTES], "big")
        frames.append(data[LENGTH_BYTES : LENGTH_BYTES + length])
        data = data[LENGTH_BYTES + length :]
    return frames


def stream_of(*frames: bytes) -> bytes:
    return b"".join(len(frame).to_bytes(LENGTH_BYTES, "big") + frame for frame in frames)


def conversations() -> list[bytes]:
    """Seeds: every vector after a greeting, what recorded conversations say, and a fork with its proof."""
    hello, names = (codec.encode(message) for message in greeting())
    said = [stream_of(hello, names, frame) for frame in seeds("codec")]
    recorded = json.loads((VECTORS / "flood.json").read_text(encoding="utf-8"))
    frames = [bytes.fromhex(frame) for frame in _frames(recorded)]
    story: list[Message] = [SAGAS[0].segment(0, 0, 12), SAGAS[0].segment(2, 0, 12), SAGAS[0].fork(2, 2)]
    return [*said, stream_of(*frames), stream_of(hello, names, *map(codec.encode, story))]


def greeting() -> tuple[Hello, Summary]:
    feeds = sorted(saga.feed for saga in SAGAS)
    claims = tuple(Claim(feed, 0, NO_TAG) for feed in feeds)
    return Hello(PROTOCOL_VERSION, RUN.run_id, 0, 0), Summary(False, 0, bytes(32), claims)


def _frames(value: object) -> list[str]:
    """All values called "frame" in a recorded conversation, in their order."""
    if isinstance(value, dict):
        own = [value["frame"]] if isinstance(value.get("frame"), str) else []
        return own + [frame for inner in value.values() for frame in _frames(inner)]
    return [frame for inner in value for frame in _frames(inner)] if isinstance(value, list) else []

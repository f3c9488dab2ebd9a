"""Measures what one hostile link can make a node's protocol do: CPU time, log, and the wait of own updates.

    python tests/bench/flood.py [--seconds 10]

The host, the machine and the update log of the node, without an engine. A link brings valid news of as many
origins as it likes, as fast as it is read: long segments, segments of one update, fork proofs as large as
they may be. Meanwhile the node makes ten segments of its own a second. The reserve for catching up is taken
away first, since a hostile link has soon used it up. Exit status 1 when a link takes more than a sixth of a
core.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfnode.node.driver import LogStore
from sfnode.store.log import UpdateLog
from sfprotocol import wire_codec
from sfprotocol.events import LinkUp, OwnUpdates, Received, Writable
from sfprotocol.frontier import Frontier
from sfprotocol.host import Advanced, Host, Send
from sfprotocol.machine import Machine
from sfprotocol.messages import (
    PROTOCOL_VERSION,
    Branch,
    Claim,
    EpochScalars,
    Feed,
    Hello,
    Message,
    Proof,
    RunParameters,
    Segment,
    Summary,
)
from sfprotocol.seeds import feed_key
from sfprotocol.segments import MAX_SEGMENT_UPDATES
from sfprotocol.signing import extend, genesis, head_message

RUN = RunParameters(bytes(range(32)), 1 << 16, (1 << 32) - 1, scalar_bytes=2, scalar_limit=1000)
OWN_PACE = 0.1
"""Seconds between own updates."""

MOST_CPU = 1 / 6
"""Share of a core that one hostile link may take."""

HOSTILE = 1
DAY = 86_400


class Origin:
    """A key with one feed, of which it can sign more and more."""

    def __init__(self, number: int) -> None:
        self.key = Ed25519PrivateKey.from_private_bytes(number.to_bytes(32, "big"))
        self.feed = Feed(self.key.public_key().public_bytes_raw(), 0)
        self.chain, self.next = genesis(RUN.run_id, self.feed), 0

    def named(self) -> Message:
        return Summary(False, 0, bytes(32), (Claim(self.feed, 0, bytes(4)),))

    def sign(self, stop: int, chain: bytes) -> bytes:
        return self.key.sign(head_message(RUN.run_id, self.feed, stop, chain))

    def segment(self, count: int) -> Segment:
        parts = (EpochScalars(0, (7,) * count),)
        first, self.chain, self.next = self.next, extend(self.chain, parts), self.next + count
        return Segment(
            feed_key(RUN.run_id, *self.feed), first, parts, self.sign(self.next, self.chain), hops=1
        )

    def proof(self) -> Proof:
        """A proof as large as it may be: every update has an epoch of its own."""
        branches = []
        for scalar in (1, 2):
            parts = tuple(EpochScalars(epoch, (scalar,)) for epoch in range(MAX_SEGMENT_UPDATES))
            branches.append(Branch(parts, self.sign(MAX_SEGMENT_UPDATES, extend(self.chain, parts))))
        return Proof(self.feed, 0, (self.chain, self.chain), (branches[0], branches[1]))


def long_segments() -> Iterator[Message]:
    """Segments of 4,096 updates, of sixteen origins in turn."""
    origins = [Origin(number) for number in range(1, 17)]
    yield from (origin.named() for origin in origins)
    for origin in itertools.cycle(origins):
        yield origin.segment(MAX_SEGMENT_UPDATES)


def short_segments() -> Iterator[Message]:
    """Segments of one update, of a thousand origins in turn."""
    origins = [Origin(number) for number in range(1, 1001)]
    yield from (origin.named() for origin in origins)
    for origin in itertools.cycle(origins):
        yield origin.segment(1)


def proofs() -> Iterator[Message]:
    """Fork proofs of 82 kB, each of another origin."""
    for number in itertools.count(1):
        yield Origin(number).proof()


FLOODS: dict[str, tuple[Callable[[], Iterator[Message]], int]] = {
    "long segments": (long_segments, 1500),
    "short segments": (short_segments, 25_000),
    "proofs": (proofs, 600),
}
"""The floods, each with the number of frames that are made before the clock runs: more than a node without
limits takes in."""


class Row(NamedTuple):
    """What was measured, per second."""

    updates: float
    frames: float
    cpu: float
    log: float
    slowest: float
    """Longest wait of own updates for the log, in milliseconds."""


def flooded(frames: list[bytes], seconds: float, folder: Path) -> Row:
    """Feed one link's `frames` to a node for so long, or until there are no more."""
    own = Origin(10**9)
    log = UpdateLog.open(folder / "log.db", RUN.run_id)
    machine = Machine(
        RUN, Frontier(RUN), own=own.feed, sign=own.key.sign, draw_incarnation=lambda: 1, proven=True,
        now=time.monotonic(),
    )  # fmt: skip
    if hasattr(machine, "reserve"):
        machine.reserve.level = 0.0
    store = LogStore(log, RUN, lambda feed: None)
    host = Host(machine, store)
    host.post(LinkUp(HOSTILE, "hostile"))
    host.post(Received(HOSTILE, wire_codec.encode(Hello(PROTOCOL_VERSION, RUN.run_id, 0, 0))))
    source, size = iter(frames), size_of(folder)
    start, cpu = time.monotonic(), time.process_time()
    due, made_at, slowest, taken = start, 0.0, 0.0, 0
    while (now := time.monotonic()) < start + seconds:
        while host.has_room(HOSTILE) and (frame := next(source, None)) is not None:
            host.post(Received(HOSTILE, frame))
            taken += 1
        if now >= due and not made_at:
            made_at, due = now, due + OWN_PACE
            host.post(OwnUpdates(own.feed, machine.frontier.next(own.feed), (EpochScalars(0, (1,)),)))
        if commit := host.decide(now, clock=time.monotonic):
            store.append(commit)
        for effect in host.carry_out():
            match effect:
                case Advanced(feed=own.feed):
                    slowest, made_at = max(slowest, time.monotonic() - made_at), 0.0
                case Send(message=Segment()):
                    host.post(Writable(HOSTILE))
        if not host.waiting and not host.has_room(HOSTILE):
            wake = min(getattr(host, "next_deadline", machine.next_deadline)(), due)
            time.sleep(max(0.0, min(wake - time.monotonic(), OWN_PACE)))
    took = time.monotonic() - start
    slowest = max(slowest, time.monotonic() - made_at if made_at else 0.0)
    spent = time.process_time() - cpu
    log.close()
    admitted = machine.counters.admitted
    return Row(admitted / took, taken / took, spent / took, (size_of(folder) - size) / took, 1000 * slowest)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    most = 0.0
    print(
        "| | updates/s | frames/s | CPU | log, GB/day | slowest own updates, ms |\n|---|---|---|---|---|---|"
    )
    for name, (flood, count) in FLOODS.items():
        frames = [wire_codec.encode(message) for message in itertools.islice(flood(), count)]
        with tempfile.TemporaryDirectory() as folder:
            row = flooded(frames, given.seconds, Path(folder))
        most = max(most, row.cpu)
        figures = (
            f"{row.updates:,.0f}",
            f"{row.frames:,.0f}",
            f"{row.cpu:.0%}",
            f"{row.log * DAY / 1e9:.1f}",
        )
        print(f"| {name} | {' | '.join(figures)} | {row.slowest:.0f} |", flush=True)
    return int(most > MOST_CPU)


if __name__ == "__main__":
    sys.exit(main())

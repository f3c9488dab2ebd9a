"""The frontier: for every feed, how much of it we have (SPEC D1-D3).

The exact state of a run is the set of admitted updates; because feeds are contiguous, one number and one
chain hash per feed describe that set completely. Nothing here knows links or time.
"""

from __future__ import annotations

import hashlib
from bisect import insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sfprotocol import seeds
from sfprotocol.messages import EpochScalars, Feed, Position, RunParameters
from sfprotocol.signing import genesis


@dataclass(slots=True)
class FeedState:
    """Where one feed stands."""

    feed: Feed
    key: int
    next: int
    """The first step we lack."""
    chain: bytes
    epoch: int
    """Epoch of the last update; 0 for an empty feed."""


class Frontier:
    """All feeds of one run with at least one admitted update."""

    def __init__(self, run: RunParameters) -> None:
        self.run = run
        self.known = 0
        self._states: dict[Feed, FeedState] = {}
        self._order: list[Feed] = []
        self._by_key: dict[int, list[Feed]] = {}
        self._records: dict[Feed, bytes] = {}  # of the digest, which is wanted several times a second
        self._digest: bytes | None = None

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[FeedState]:
        """In the order of feeds (SPEC D2)."""
        return (self._states[feed] for feed in self._order)

    def __contains__(self, feed: object) -> bool:
        return feed in self._states

    def keyed(self, key: int) -> list[Feed]:
        """The feeds with this 64-bit key: none, one, or several where keys collide (SPEC S5)."""
        return self._by_key.get(key, [])

    def next(self, feed: Feed) -> int:
        """The first step of `feed` that we lack."""
        state = self._states.get(feed)
        return state.next if state else 0

    def state(self, feed: Feed) -> FeedState:
        """The state of `feed`; a fresh empty one if we have nothing of it (not yet counted)."""
        known = self._states.get(feed)
        if known:
            return known
        key = seeds.feed_key(self.run.run_id, feed.origin, feed.incarnation)
        return FeedState(feed, key, 0, genesis(self.run.run_id, feed), 0)

    def advance(self, feed: Feed, following: int, chain: bytes, epoch: int) -> None:
        """Record that everything before step `following` is admitted; `chain` is the head there."""
        state = self.state(feed)
        if feed not in self._states:
            self._states[feed] = state
            insort(self._order, feed)
            self._by_key.setdefault(state.key, []).append(feed)
        self.known += following - state.next
        state.next, state.chain, state.epoch = following, chain, epoch
        numbers = feed.incarnation.to_bytes(8, "big") + following.to_bytes(8, "big")
        self._records[feed] = feed.origin + numbers + chain
        self._digest = None

    def positions(self) -> list[Position]:
        """Every feed with its next step, in the order of feeds."""
        return [Position(feed, self._states[feed].next) for feed in self._order]

    def within(self, has: Mapping[Feed, int], *, but: Feed) -> bool:
        """Whether somebody who has `has` (next steps) lacks nothing that we have, `but` left aside."""
        return all(has.get(state.feed, 0) >= state.next for state in self if state.feed != but)

    def digest(self) -> bytes:
        """The state digest (SPEC D3): equal digests mean equal sets of updates, hence equal models."""
        if self._digest is None:
            records = b"".join(self._records[feed] for feed in self._order)
            hasher = hashlib.blake2b(self.run.run_id + records, digest_size=32, person=b"sfnode-state")
            self._digest = hasher.digest()
        return self._digest


def drop_updates(parts: tuple[EpochScalars, ...], count: int) -> tuple[EpochScalars, ...]:
    """`parts` without their first `count` updates."""
    kept = []
    for epoch, scalars in parts:
        if count >= len(scalars):
            count -= len(scalars)
            continue
        kept.append(EpochScalars(epoch, scalars[count:]))
        count = 0
    return tuple(kept)

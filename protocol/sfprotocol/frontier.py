"""The frontier: for every feed, how much of it counts (SPEC D1-D4, E4).

The exact state of a run is the set of admitted updates; because feeds are contiguous, one number and one
chain hash per feed describe that set completely. A feed whose origin was caught with two histories has a cut
besides: nothing from there on counts. Nothing here knows links or time.
"""

from __future__ import annotations

import hashlib
from bisect import insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sfprotocol import seeds
from sfprotocol.messages import Claim, EpochScalars, Feed, RunParameters
from sfprotocol.signing import genesis

TAG_BYTES = 4
"""Of a feed's record: two histories that look alike by chance, once in 2^32, are told apart one update on."""

UNCUT = 1 << 32
"""The cut of a feed that has none: no step reaches it."""


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
    cut: int = UNCUT
    """The first step that never counts."""
    cut_chain: bytes = b""
    """The chain head there."""

    @property
    def open(self) -> bool:
        """Whether anything more of it can be admitted."""
        return self.next < self.cut

    def record(self) -> bytes:
        """What the state digest is made of (SPEC D3)."""
        numbers = self.feed.incarnation.to_bytes(8, "big") + self.next.to_bytes(8, "big")
        mark = b"" if self.cut == UNCUT else b"cut" + self.cut.to_bytes(8, "big") + self.cut_chain
        return self.feed.origin + numbers + self.chain + mark

    def claim(self) -> Claim:
        """What a Summary says of it (SPEC D4)."""
        tag = hashlib.blake2b(self.record(), digest_size=TAG_BYTES).digest()
        return Claim(self.feed, self.next, tag)


class Frontier:
    """All feeds of one run of which something is admitted, or that are cut."""

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

    def lacks(self, feed: Feed, following: int) -> bool:
        """Whether who has everything of `feed` before step `following` has what counts and we lack."""
        state = self._states.get(feed)
        return following > state.next and state.open if state else following > 0

    def is_cut(self, feed: Feed) -> bool:
        """Whether an origin was caught contradicting itself in this feed (SPEC E4)."""
        state = self._states.get(feed)
        return state is not None and state.cut != UNCUT

    def state(self, feed: Feed) -> FeedState:
        """The state of `feed`; a fresh empty one if we have nothing of it (not yet counted)."""
        known = self._states.get(feed)
        if known:
            return known
        key = seeds.feed_key(self.run.run_id, feed.origin, feed.incarnation)
        return FeedState(feed, key, 0, genesis(self.run.run_id, feed), 0)

    def advance(self, feed: Feed, following: int, chain: bytes, epoch: int) -> None:
        """Record that everything before step `following` is admitted; `chain` is the head there."""
        state = self._kept(feed)
        self.known += following - state.next
        state.next, state.chain, state.epoch = following, chain, epoch
        self._changed(state)

    def cut(self, feed: Feed, at: int, chain: bytes) -> None:
        """From step `at` on nothing of `feed` counts any more; `chain` is the head there (SPEC E4).

        A later cut changes nothing. Of a feed that goes further, the caller knows that its head at `at` is
        `chain`.
        """
        state = self._kept(feed)
        if at >= state.cut:
            return
        state.cut, state.cut_chain = at, chain
        if state.next > at:
            self.known -= state.next - at
            state.next, state.chain = at, chain
        self._changed(state)

    def claims(self) -> list[Claim]:
        """Every feed as a Summary tells it, in the order of feeds."""
        return [state.claim() for state in self]

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

    def _kept(self, feed: Feed) -> FeedState:
        state = self.state(feed)
        if feed not in self._states:
            self._states[feed] = state
            insort(self._order, feed)
            self._by_key.setdefault(state.key, []).append(feed)
        return state

    def _changed(self, state: FeedState) -> None:
        self._records[state.feed] = state.record()
        self._digest = None


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


def first_updates(parts: tuple[EpochScalars, ...], count: int) -> tuple[EpochScalars, ...]:
    """The first `count` updates of `parts`."""
    kept = []
    for epoch, scalars in parts:
        if count <= 0:
            break
        kept.append(EpochScalars(epoch, scalars[:count]))
        count -= len(scalars)
    return tuple(kept)

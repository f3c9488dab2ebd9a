"""The frontier: for every feed, the first missing step (SPEC D1-D4, E4).

The exact state of a run is the set of admitted updates. As feeds have no gaps, one number and one chain hash
per feed describe that set completely. A feed whose origin has signed two histories also has a cut, and no
update after the cut counts. This module knows no links and no time.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice, takewhile
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from sfprotocol import seeds, signing
from sfprotocol.checkpoints import Base
from sfprotocol.decisions import Checkpoint
from sfprotocol.messages import Claim, Feed, RunParameters
from sfprotocol.run_state import NEVER, RunState
from sfprotocol.signing import genesis

LANES = 1024
"""Number of 16-bit lanes in the hash of all records (LtHash, SPEC D3).

An extendable-output function expands each record to this many numbers. The numbers of all records are added
lane by lane, modulo 2^16 (Bellare and Micciancio 1997; Lewi, Kim, Maykov and Weis 2019, "Securing Update
Propagation with Homomorphic Hashing"). So the cost of adding or removing a record does not depend on the
others. To find two sets with equal sums, one must find a short solution of a lattice problem in 1,024
dimensions, which takes about 2^200 steps. With a single sum or XOR in place of the lanes, chosen feeds could
be made to collide at once, by a generalised birthday attack or Gaussian elimination."""

TAG_BYTES = 4
"""Bytes of a feed's tag in a Summary. Two different histories have equal tags with a probability of 2^-32; if
so, their tags most likely differ after the next update."""

MAX_FEEDS = 65_536
"""Maximum number of feeds of an open run; the feeds with the lowest work are kept. Also the maximum number of
feeds without stored updates whose names one link may teach us. That many feeds take 40 MB in the frontier,
and 20 MB (32 MB if their names are invented) for each link. In an organised run admissions bound the number
of feeds."""

_FEED = attrgetter("feed")

UNCUT = 1 << 32
"""Number that stands for "no cut"; larger than every real step."""


@dataclass(slots=True)
class FeedState:
    """The state of one feed."""

    feed: Feed
    key: int
    next: int
    """The first missing step."""
    chain: bytes
    epoch: int
    """Epoch of the last update; 0 for an empty feed."""
    labelled: int = 0
    """Number of consecutive updates at the end of the feed that belong to `epoch`."""
    forked: int = UNCUT
    """The lowest step at which a fork proof cuts the feed; UNCUT without a proof."""
    forked_chain: bytes = b""
    """The chain head before step `forked`, according to the proof of this cut; empty without a proof."""
    named: int = 0
    """The first step that no close lists, in an organised run. Forks do not cut below it (SPEC O7)."""
    ended: int = UNCUT
    """The step at which the organiser has ended the feed; UNCUT if it has not. 0 for a feed that an open run
    excludes."""
    base: int = 0
    """The first stored step; a checkpoint counts the updates before it (SPEC O14)."""
    stopped: int = UNCUT
    """The first step that was seen and does not count, because of a cut or a revoked origin; UNCUT without
    such a step."""
    summed: bytes = b""
    """The feed's record as it is included in the state digest; empty if none is included."""
    claimed: Claim | None = field(default=None, repr=False, compare=False)
    """The cached result of `claim`; None if the feed has changed since."""

    @property
    def fork_cut(self) -> int:
        """The first step that does not count because of a fork; UNCUT without a fork."""
        return max(self.forked, self.named) if self.is_forked else UNCUT

    @property
    def cut(self) -> int:
        """The first step that does not count, for any reason; UNCUT if there is none. The updates before
        `base` always count, as a checkpoint counts them."""
        return max(self.base, min(self.ended, self.stopped, self.fork_cut))

    @property
    def is_forked(self) -> bool:
        """Whether there is a proof that the feed's origin has signed two histories."""
        return self.forked != UNCUT

    @property
    def cut_chain(self) -> bytes:
        """The chain head before `fork_cut`, according to the fork proof. Empty without a fork, or if the feed
        is cut after the last listed step instead."""
        return self.forked_chain if self.fork_cut == self.forked else b""

    @property
    def open(self) -> bool:
        """Whether more updates of the feed can be admitted."""
        return self.next < self.cut

    @property
    def empty(self) -> bool:
        """Whether the feed is without effect on the state: no update admitted, and no proof of a fork."""
        return not self.next and not self.is_forked

    def record(self) -> bytes:
        """Return the feed's record for the state digest and for tags (SPEC D3, D4)."""
        numbers = self.feed.incarnation.to_bytes(8, "big") + self.next.to_bytes(8, "big")
        cut = self.fork_cut
        mark = b"" if cut == UNCUT else b"cut" + cut.to_bytes(8, "big") + self.cut_chain
        return self.feed.origin + numbers + self.chain + mark

    def claim(self) -> Claim:
        """Return the feed's entry in a Summary (SPEC D4)."""
        if self.claimed is None:
            tag = hashlib.blake2b(self.record(), digest_size=TAG_BYTES).digest()
            self.claimed = Claim(self.feed, self.next, tag)
        return self.claimed


class Frontier:
    """All feeds of one run with admitted updates or a cut. An open run keeps only the MAX_FEEDS feeds with
    the lowest work (SPEC S8)."""

    def __init__(self, run: RunParameters) -> None:
        self.run = run
        self.run_state: RunState | None = None
        """State of the run according to the organiser's decisions; None in an open run. `control_sync` sets
        it."""
        self.control = b""
        """The control feed's part of the state digest (SPEC O10)."""
        self.waiting = False
        """Whether no update may be held yet, because the steps at which feeds begin are unknown (SPEC
        O15)."""
        self.checkpoint: Checkpoint | None = None
        """The checkpoint that stands for all updates before the stored ones; None if updates are stored from
        step 0 on."""
        self.known = 0
        self._bases: dict[Feed, Base] = {}
        self._states: dict[Feed, FeedState] = {}
        self._order: list[FeedState] = []
        """The states in the order of feeds."""
        self._by_key: dict[int, list[Feed]] = {}
        self._by_work: list[tuple[int, Feed]] = []
        """A heap of (negated work, feed) for the feeds of an open run: the feed with the highest work is
        first."""
        self._records = np.zeros(LANES, "<u2")
        """The sum of the expanded records of all feeds."""
        self._unsummed: dict[Feed, FeedState] = {}
        """Feeds that have changed since the digest was last computed."""
        self._digest: bytes | None = None

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[FeedState]:
        """Yield the states in the order of feeds (SPEC D2)."""
        return iter(self._order)

    def __contains__(self, feed: object) -> bool:
        return feed in self._states

    def keyed(self, key: int) -> list[Feed]:
        """Return the feeds with this 64-bit key: none, one, or several where keys collide (SPEC S5)."""
        return self._by_key.get(key, [])

    def next(self, feed: Feed) -> int:
        """Return the first missing step of `feed`."""
        state = self._states.get(feed)
        return state.next if state else 0

    def held(self, origin: bytes) -> int:
        """Return the number of admitted updates of `origin` in all its incarnations, including updates that a
        checkpoint stands for. The feeds of an origin are adjacent in the order of feeds."""
        first = bisect_left(self._order, Feed(origin, 0), key=_FEED)
        feeds = takewhile(lambda state: state.feed.origin == origin, islice(self._order, first, None))
        return sum(state.next for state in feeds)

    def lacks(self, feed: Feed, following: int) -> bool:
        """Return whether a peer that has `feed` up to step `following` has updates that are missing here and
        may count."""
        state = self._states.get(feed)
        if state and not self.waiting:
            return following > state.next and state.open
        return following > 0 and self.may_hold(feed)

    def may_hold(self, feed: Feed) -> bool:
        """Return whether updates of `feed` may be held at all (SPEC S7, S8, O6, O15)."""
        if self.waiting:
            return False
        return not (self.is_strange(feed) or self.excludes(feed))

    def is_strange(self, feed: Feed) -> bool:
        """Return whether the decisions of an organised run allow no update of `feed`."""
        return self.run_state is not None and self.run_state.number(feed) is None

    def excludes(self, feed: Feed) -> bool:
        """Return whether `feed` can never be held, as its work is too high (SPEC S7, S8)."""
        if self.run.organised or feed in self._states:
            return False
        return signing.work(self.run.run_id, *feed) >= self.highest_work

    @property
    def highest_work(self) -> int:
        """The exclusive upper bound of the work of a new feed in an open run. It never grows."""
        if len(self._order) < MAX_FEEDS:
            return signing.work_bound(self.run.work_bits)
        return -self._by_work[0][0]

    def evict(self) -> tuple[Feed, int] | None:
        """Remove the feed with the highest work if there are too many feeds (SPEC S8). Return the removed
        feed with its first missing step; None if none was removed."""
        if self.run.organised or len(self._order) <= MAX_FEEDS:
            return None
        _, feed = heappop(self._by_work)
        state = self._states.pop(feed)
        del self._order[bisect_left(self._order, feed, key=_FEED)]
        self._by_key[state.key].remove(feed)
        stop, state.next, state.forked = state.next, 0, UNCUT
        self.known -= stop
        self._changed(state)
        return feed, stop

    @property
    def floor(self) -> int:
        """The first epoch whose listed steps are stored here; 0 without a checkpoint (SPEC O15)."""
        return self.checkpoint.epoch + 1 if self.checkpoint else 0

    def kept_from(self, feed: Feed, floor: int) -> int:
        """Return the first step of `feed` that is stored by a node with this floor (an epoch); NEVER if that
        is unknown."""
        if not floor or self.run_state is None:
            return 0
        number = self.run_state.number(feed)
        if number is None or floor > self.run_state.open_epoch:
            return NEVER
        return self.run_state.named(number, floor - 1)

    def base(self, feed: Feed) -> Base:
        """Return the base at which the stored part of `feed` begins: step 0 without a checkpoint."""
        return self._bases.get(feed) or Base(feed, 0, genesis(self.run.run_id, feed), 0, 0)

    def is_cut(self, feed: Feed) -> bool:
        """Return whether this feed is ended, or forked by its origin (SPEC E4)."""
        state = self._states.get(feed)
        return state is not None and min(state.ended, state.forked) != UNCUT

    def state(self, feed: Feed) -> FeedState:
        """Return the state of `feed`. For an unknown feed it is a new empty one that is not stored."""
        known = self._states.get(feed)
        if known:
            return known
        key = seeds.feed_key(self.run.run_id, feed.origin, feed.incarnation)
        state = FeedState(feed, key, 0, genesis(self.run.run_id, feed), 0)
        number = self.run_state.number(feed) if self.run_state else None
        if self.run_state and number is not None:
            state.named, state.ended = self.run_state.named(number), self.run_state.ended(number)
        elif self.excludes(feed):
            state.ended = 0
        return state

    def advance(self, feed: Feed, following: int, chain: bytes, epoch: int, labelled: int = 0) -> None:
        """Record that all updates of `feed` before step `following` are admitted. `chain` is the chain head
        there, and `epoch` the epoch of the last update.

        `labelled` is the number of consecutive updates at the end that belong to `epoch`; open runs do not
        use it.
        """
        state = self._kept(feed)
        self.known += following - state.next
        state.next, state.chain, state.epoch, state.labelled = following, chain, epoch, labelled
        self._changed(state)

    def go_back(self, feed: Feed, step: int, chain: bytes, epoch: int, labelled: int) -> None:
        """Set the end of `feed` back to `step`; later updates do not count. The other arguments describe the
        feed's end at `step`, as in `advance`."""
        self.advance(feed, step, chain, epoch, labelled)

    def rebase(self, checkpoint: Checkpoint, bases: Iterable[Base]) -> None:
        """Set the beginning of each feed's stored part to its base. The `bases` belong to `checkpoint`.

        If updates of a feed are stored, the caller ensures that they reach the base.
        """
        self.waiting, self.checkpoint = False, checkpoint
        for base in bases:
            self._bases[base.feed] = base
            self._kept(base.feed).base = base.step
            if self.next(base.feed) < base.step:
                self.advance(*base)

    def stop(self, feed: Feed) -> None:
        """Record that the next updates of `feed` were seen and do not count."""
        state = self._kept(feed)
        state.stopped = state.next

    def named(self, feed: Feed, stop: int, ended: int) -> None:
        """Record that closes list `feed` up to step `stop`, and that it is ended at step `ended`."""
        if feed in self._states:
            state = self._states[feed]
            state.named, state.ended = stop, ended
            if stop > state.stopped:
                state.stopped = UNCUT
            self._changed(state)

    def cut(self, feed: Feed, at: int, chain: bytes) -> None:
        """Cut `feed`: updates from step `at` on do not count (SPEC E4). `chain` is the chain head before step
        `at`.

        A cut that is not lower than the present one changes nothing. If the stored feed extends beyond `at`,
        the caller ensures that `chain` is its chain head there. Steps that closes list still count (SPEC O7).
        If other steps are stored after them, the caller finds out to which history they belong, and then
        calls `go_back`.
        """
        state = self._kept(feed)
        if at >= state.forked:
            return
        state.forked, state.forked_chain = at, chain
        if state.next > state.fork_cut == at >= state.base:
            self.known -= state.next - at
            state.next, state.chain = at, chain
        self._changed(state)

    def decided_by(self, run_state: RunState) -> None:
        """Set the state of the run. Its decisions may allow other feeds than before, and only allowed feeds
        are part of the digest."""
        self.run_state = run_state
        for state in self:
            self._changed(state)

    def tell_control(self, control: bytes) -> None:
        """Set the control feed's part of the state digest (SPEC O10)."""
        self.control = control
        self._digest = None

    def claims(self) -> list[Claim]:
        """Return the entry of every feed in a Summary, in the order of feeds."""
        return [state.claimed or state.claim() for state in self._order]

    def within(self, has: Mapping[Feed, int], *, but: Feed) -> bool:
        """Return whether a peer has all updates that we have, in all feeds other than `but`. `has` is the
        peer's first missing step, keyed by feed."""
        return all(has.get(state.feed, 0) >= state.next for state in self if state.feed != but)

    def digest(self) -> bytes:
        """Return the state digest (SPEC D3): equal digests mean equal sets of updates, hence equal models.

        The cost is proportional to the number of feeds changed since the last call.
        """
        if self._digest is None:
            self._sum_up()
            said = self.run.run_id + self.control + self._records.tobytes()
            self._digest = hashlib.blake2b(said, digest_size=32, person=b"sfnode-state").digest()
        return self._digest

    def _sum_up(self) -> None:
        for state in self._unsummed.values():
            if state.summed:
                self._records -= _expand(state.summed)
            state.summed = b"" if state.empty or self.is_strange(state.feed) else state.record()
            if state.summed:
                self._records += _expand(state.summed)
        self._unsummed.clear()

    def _kept(self, feed: Feed) -> FeedState:
        state = self.state(feed)
        if feed not in self._states:
            self._states[feed] = state
            if not self.run.organised:
                heappush(self._by_work, (-signing.work(self.run.run_id, *feed), feed))
            insort(self._order, state, key=_FEED)
            self._by_key.setdefault(state.key, []).append(feed)
        return state

    def _changed(self, state: FeedState) -> None:
        self._unsummed[state.feed] = state
        self._digest = state.claimed = None


def _expand(record: bytes) -> NDArray[np.uint16]:
    return np.frombuffer(hashlib.shake_128(record).digest(2 * LANES), "<u2")

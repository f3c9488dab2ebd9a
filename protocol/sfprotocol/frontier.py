"""The frontier: for every feed, the first missing step (SPEC D1-D4, E4).

The exact state of a run is the set of admitted updates. As feeds have no gaps, one number and one chain hash
per feed describe that set completely. A feed whose origin has signed two histories also has a cut: a step
from which on its updates do not count. This module knows no links and no time.
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
"""Number of 16-bit lanes in the sum of all feeds' records, which the state digest covers (LtHash, SPEC D3).

An extendable-output function expands each record to this many numbers. The numbers of all records are added
lane by lane, modulo 2^16 (Bellare and Micciancio 1997; Lewi, Kim, Maykov and Weis 2019, "Securing Update
Propagation with Homomorphic Hashing"). So the cost of adding or removing a record does not depend on the
number of records. To find two sets with equal sums, an attacker must find a short solution of a lattice
problem in 1,024 dimensions, which takes about 2^200 steps. If the records were combined by XOR, Gaussian
elimination would find two such sets. With a single sum in place of the lanes, a generalised birthday attack
would find them.
"""

TAG_BYTES = 4
"""Size of a feed's tag in a Summary, in bytes. Two different histories have equal tags with a probability of
2^-32. If their tags are equal by chance, they most likely differ after the next update."""

MAX_FEEDS = 65_536
"""Maximum number of feeds of an open run. The feeds with the smallest proof-of-work hashes are kept.
MAX_FEEDS is also the maximum number of feeds without stored updates whose names one link may teach us. 65,536
feeds take 40 MB in the frontier, and 20 MB (32 MB if their names are invented) for each link. In an organised
run, admissions bound the number of feeds."""

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
    """The first step that is not listed by any Close, in an organised run; 0 in an open run. A fork does not
    cut the feed before this step (SPEC O7)."""
    ended: int = UNCUT
    """The step at which the organiser has ended the feed; UNCUT if the feed was not ended. For a feed that an
    open run excludes, it is 0."""
    base: int = 0
    """The first stored step; the updates before this step are counted by a checkpoint (SPEC O14)."""
    stopped: int = UNCUT
    """The first step after the stored ones, if its update has arrived and does not count, because the feed is
    cut or its origin is revoked; UNCUT otherwise."""
    summed: bytes = b""
    """The feed's record in the last computed state digest; empty if the feed had none there."""
    claimed: Claim | None = field(default=None, repr=False, compare=False)
    """The cached result of `claim`; None if the feed has changed since."""

    @property
    def fork_cut(self) -> int:
        """The first step that does not count because of a fork; UNCUT without a fork."""
        return max(self.forked, self.named) if self.is_forked else UNCUT

    @property
    def cut(self) -> int:
        """The first step that does not count, for any reason; UNCUT if all steps count. The updates before
        `base` always count, because a checkpoint counts them."""
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
    """All feeds of one run with admitted updates or a cut. In an open run they are at most MAX_FEEDS: those
    with the smallest proof-of-work hashes (SPEC S8)."""

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
        """A heap of pairs (negated proof-of-work hash, feed) for the feeds of an open run. The feed with the
        largest hash is first."""
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
        checkpoint counts."""
        first = bisect_left(self._order, Feed(origin, 0), key=_FEED)
        feeds = takewhile(lambda state: state.feed.origin == origin, islice(self._order, first, None))
        return sum(state.next for state in feeds)

    def lacks(self, feed: Feed, following: int) -> bool:
        """Return whether updates of `feed` before step `following` are missing here and may still be
        admitted."""
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
        """Return whether this open run excludes `feed` for good, because the feed's proof-of-work hash is too
        large (SPEC S7, S8)."""
        if self.run.organised or feed in self._states:
            return False
        return signing.work(self.run.run_id, *feed) >= self.highest_work

    @property
    def highest_work(self) -> int:
        """Exclusive upper bound of the proof-of-work hash of a new feed in an open run. The bound never
        increases."""
        if len(self._order) < MAX_FEEDS:
            return signing.work_bound(self.run.work_bits)
        return -self._by_work[0][0]

    def evict(self) -> tuple[Feed, int] | None:
        """Remove the feed with the largest proof-of-work hash if an open run has more than MAX_FEEDS feeds
        (SPEC S8). Return the removed feed with its first missing step; None if none was removed."""
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
        """Return the first step of `feed` that is stored by a node with this `floor` (see the property);
        NEVER if the step is unknown."""
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
        """Return whether this feed can never be continued: its origin has forked it, the organiser has ended
        it, or an open run excludes it (SPEC E4)."""
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
        """Record that the updates of `feed` after the stored ones have arrived and do not count."""
        state = self._kept(feed)
        state.stopped = state.next

    def named(self, feed: Feed, stop: int, ended: int) -> None:
        """Record that Closes list the steps of `feed` before `stop`, and that the organiser has ended the
        feed at step `ended` (UNCUT if not)."""
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
        the caller ensures that `chain` is its chain head there. Steps that Closes list still count (SPEC O7).
        If a listed step lies beyond `at`, this method does not shorten the stored feed. The caller then
        compares the stored history with the listed one, and calls `go_back`.
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
        """Set the state of the run. It may allow other feeds than the state before, and only allowed feeds
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
        """Return whether a peer has all our updates of all feeds other than `but`. `has` is the first step
        that the peer lacks, keyed by feed."""
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

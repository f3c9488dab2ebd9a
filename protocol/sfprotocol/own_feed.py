"""Our own feed: whether we may extend it, and when our updates are signed (SPEC I1-I4).

A feed must never be continued in two different ways. A log from a backup, or a copied data folder, looks
intact but may lack later updates that others have. So a node whose log has updates of its own first asks its
peers whether they have more:

    asking -> proven   when a peer has our feed, and no more of it than our log (a witness), or when we begin
                       a new incarnation

If a peer claims to have more of our feed, it is asked for these updates. A segment that verifies proves the
claim, and we begin a new incarnation. From the claim on, witnesses do not count until the time for asking is
over.

We make updates only in the state proven. This module knows no links; the machine reports which feeds peers
have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from sfprotocol import signing, validation
from sfprotocol.decisions import INCARNATIONS
from sfprotocol.errors import LocalProtocolError
from sfprotocol.events import Action, ContinueAs, OwnUpdates
from sfprotocol.frontier import Frontier
from sfprotocol.messages import EpochScalars, Feed, Segment
from sfprotocol.segments import merge
from sfprotocol.signing import Sign, extend, head_message
from sfprotocol.validation import Verified

MOST_TRIED = 1 << 24
"""Maximum number of incarnations whose proof-of-work hash is computed when a new feed of an open run is
begun. This takes some ten seconds. The hash of the first incarnation tried is usually small enough already,
unless the run has the maximum number of feeds."""

FIRST_INCARNATION = 0
"""The incarnation for a key that has never been used. In an organised run, a feed with this incarnation may
have updates up to the member's quota from the start. A feed with another incarnation may have a single update
until a Close lists it (SPEC O20)."""

LEAD_SHARE = 16
"""Divisor of the number of epochs of an open run. If updates are removed, the run's epoch goes back. If our
last update's label is then ahead of the run's epoch by more than a sixteenth of all epochs, we begin a new
feed."""


def fresh(frontier: Frontier, origin: bytes, drawn: int) -> Feed:
    """Return a feed of `origin` that nobody knows (SPEC I1); `drawn` is a random incarnation of 32 bits.

    It is the first incarnation from the drawn one on that is unknown here and that the run allows. An
    organised run allows 64 for each origin (SPEC O6); in an open run most incarnations lack the proof of work
    (SPEC S7). If there is none, the result is the feed with the drawn incarnation, although it cannot be
    used: in an organised run it is known already, and in an open run it lacks the proof of work.
    """
    if frontier.run.organised:
        turns = (Feed(origin, (drawn + turn) % INCARNATIONS) for turn in range(INCARNATIONS))
        unheard = (feed for feed in turns if feed not in frontier and not frontier.state(feed).named)
        return next(unheard, Feed(origin, drawn % INCARNATIONS))
    numbers = (number & 0xFFFFFFFF for number in range(drawn, drawn + MOST_TRIED))
    found = signing.solutions(frontier.run.run_id, origin, frontier.highest_work, numbers)
    feeds = (Feed(origin, number) for number in found)
    return next((feed for feed in feeds if feed not in frontier), Feed(origin, drawn))


class OwnFeed:
    """Our feed, and whether it is proven that nobody has more updates of it than our log. A relay has no
    feed."""

    def __init__(
        self,
        feed: Feed | None,
        frontier: Frontier,
        *,
        sign: Sign,
        draw: Callable[[], int],
        proven: bool,
        ask_until: float,
    ) -> None:
        """`draw` returns a random incarnation (32 bits). `proven`: whether it is certain that nobody has more
        updates of `feed` than our log.

        Raises LocalProtocolError if the feed is cut, because such a feed can never be continued.
        """
        if feed is not None and frontier.is_cut(feed):
            raise LocalProtocolError("the own feed is cut: it takes a new incarnation")
        self.feed = feed
        self.proven = proven
        self._frontier = frontier
        self._sign = sign
        self._draw = draw
        self._ask_until = ask_until
        self._witnessed = self._contested = False
        self._no_room = False
        """Whether no incarnation was found whose proof-of-work hash is small enough for a run with the
        maximum number of feeds."""

    @property
    def deadline(self) -> float:
        """Time at which to stop asking peers; infinity if they are not being asked."""
        return float("inf") if self.proven or self.feed is None else self._ask_until

    def check(self, has: Mapping[Feed, int]) -> None:
        """Note whether a peer claims to have more updates of our feed than our log. `has` is the peer's first
        missing step, keyed by feed."""
        if self.feed is not None and has.get(self.feed, 0) > self._frontier.next(self.feed):
            self._contested = True

    def hear_out(self, has: Mapping[Feed, int]) -> None:
        """Judge whether a peer that has told everything it has is a witness of our feed (SPEC I2). `has` is
        the peer's first missing step, keyed by feed.

        A peer that has all of our own feed is a witness. So is a peer that lacks the end of our own feed, but
        has everything else that our log has: that end was most likely never sent. A peer that does not know
        our feed is no witness, as it may have joined a minute ago. Once a peer has claimed to have more of
        our feed, witnesses count only after the time for asking is over (`give_up`).
        """
        if self.feed is None or self.proven:
            return
        theirs, ours = has.get(self.feed, 0), self._frontier.next(self.feed)
        informed = self._frontier.within(has, but=self.feed)
        self._witnessed |= 0 < theirs <= ours and (informed or theirs == ours)
        self.proven = self._witnessed and not self._contested

    def give_up(self) -> list[Action]:
        """Stop asking. If there is a witness, continue the feed, as nobody has shown more of it in time.
        Otherwise, begin a new feed."""
        if self._witnessed:
            self.proven = True
            return []
        return self.renew()

    def overtaken(self, feed: Feed) -> list[Action]:
        """Begin a new feed if `feed`, of which others have shown further updates, is ours (SPEC I3)."""
        return self.renew() if feed == self.feed else []

    def taken_back(self, feed: Feed) -> list[Action]:
        """Begin a new feed if `feed`, of which fewer updates count than before, is ours (SPEC E5, S8).

        Also begin a new feed if the run has lost so many updates that the label of our last update is far
        ahead of the run's epoch: labels of a feed cannot go back (SPEC I3).
        """
        return self.renew() if feed == self.feed or self._is_ahead() else []

    def _is_ahead(self) -> bool:
        run = self._frontier.run
        if run.organised or self.feed is None:
            return False
        lead = self._frontier.state(self.feed).epoch - run.epoch_of(self._frontier.known)
        return lead > max(1, run.last_epoch // LEAD_SHARE)

    def look_for_room(self) -> list[Action]:
        """Begin a new feed if our feed does not belong to the feeds with the smallest proof-of-work hashes,
        which an open run keeps (SPEC S8). Do nothing if this was tried before without success."""
        if self.feed is None or self._no_room or not self._frontier.excludes(self.feed):
            return []
        return self.renew()

    def renew(self) -> list[Action]:
        """Continue under a new incarnation, which nobody can know yet (SPEC I3)."""
        assert self.feed is not None
        self.feed = fresh(self._frontier, self.feed.origin, self._draw())
        self._no_room = self._frontier.excludes(self.feed)
        self.proven = True
        return [ContinueAs(self.feed)]

    def overruled(self, updates: OwnUpdates) -> bool:
        """Return whether these updates may not be held, or do not count, because of decisions (SPEC O6) or
        feeds with smaller proof-of-work hashes (SPEC S8) that have arrived in the meantime."""
        state, run_state = self._frontier.state(updates.feed), self._frontier.run_state
        if run_state is None:
            return self._frontier.excludes(updates.feed)
        if state.next < state.named:
            return True  # our log has lost updates that others have
        segment = Segment(state.key, updates.first, updates.parts, b"")
        holds = state.open and validation.label_fault(run_state, state, segment) is None
        return not holds or validation.countable(run_state, state, segment) < segment.count

    def signed(self, updates: OwnUpdates) -> Verified:
        """Return our new updates as a signed segment. Raises LocalProtocolError if peers would refuse the
        segment."""
        if not self.proven:
            raise LocalProtocolError("own updates before the own feed is proven")
        run, state = self._frontier.run, self._frontier.state(updates.feed)
        if updates.first != state.next:
            raise LocalProtocolError(f"own updates from step {updates.first}; the feed is at {state.next}")
        segment = Segment(state.key, updates.first, updates.parts, b"")
        if fault := validation.fault(run, state, segment, self._frontier.run_state):
            raise LocalProtocolError(fault)
        chain = extend(state.chain, updates.parts)
        signature = self._sign(head_message(run.run_id, updates.feed, segment.stop, chain))
        return Verified(replace(segment, signature=signature), chain, segment.count, chain)


MAX_WAIT = 30.0
"""Maximum time from one own segment to the next, in seconds. A process that is killed loses its updates of
that time. Until a segment is sent, other nodes do not see these updates."""

MIN_INTERVAL = 0.1
"""Minimum time between two own segments, in seconds. It bounds the number of signatures and commits, however
fast the engine is."""

ENOUGH = 32
"""Number of waiting updates at which they are signed without further delay. The signature of 64 bytes then
adds 2 bytes to each update, as many as its scalar takes. An update of a first-order run has hundreds of
scalars, and is signed without waiting for others."""

EPOCH_SHARE = 10
"""Divisor: our updates wait while the whole run makes at most a tenth of the updates of an epoch, or of the
remaining update budget, if that is smaller. How many updates the run makes is estimated from our share of its
updates."""

SEEN_SHARES = 2
"""Number of tenths of an epoch (see EPOCH_SHARE) after our last segment at which we sign, as counted from the
updates that were admitted. This second bound holds even if others have become faster, so that the estimate
from our share is wrong. It is 2 and not 1, because one tenth may be updates that others had made before our
last segment and sent after it."""

REMEMBERED = 8
"""Number of own segments over which our share of the run's updates is measured. With so many, the estimate is
smooth."""


class Coalescing:
    """The finished updates of one feed that wait to be signed together (SPEC I4). Time is an argument.

    Most bytes of a segment with one update are its signature. So updates wait for later updates of the same
    feed, to share a signature. But while they wait, others train without them. Therefore the wait ends after
    a certain progress of the run. A node sees the progress of others only when they sign: in bursts, or not
    at all while all nodes have just started and wait. So the progress is estimated: from the number of our
    waiting updates, and our share of all updates in our last segments. The number of updates in a segment at
    most doubles from one segment to the next.

    The step scheduler asks for `deadline` after every step and every round of the host, and takes the updates
    when the deadline has passed. Waiting updates are neither signed nor stored. A process that is killed
    loses them, and may compute the same steps again.
    """

    def __init__(self, frontier: Frontier, feed: Feed) -> None:
        """Create an empty buffer; its first step follows the admitted updates of `feed`."""
        self.feed = feed
        self.first = frontier.next(feed)
        """The first step whose update was not taken to be signed yet."""
        self.count = 0
        """Number of waiting updates."""
        self._frontier = frontier
        self._parts: tuple[EpochScalars, ...] = ()
        self._taken: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)
        """Pairs (first step of one of our last segments, number of updates of the run that were known before
        it), in order."""
        self._taken_at = float("-inf")

    @property
    def stop(self) -> int:
        """The first unfinished step."""
        return self.first + self.count

    @property
    def waiting(self) -> OwnUpdates | None:
        """All waiting updates; None without any."""
        return OwnUpdates(self.feed, self.first, self._parts) if self.count else None

    def add(self, parts: tuple[EpochScalars, ...]) -> None:
        """Add the next finished updates. Their epochs must not decrease."""
        self._parts = merge((*self._parts, *parts))
        self.count += sum(len(part.scalars) for part in parts)

    def deadline(self) -> float:
        """Return the time at which to take the waiting updates; infinity if no update waits. The result may
        change whenever updates are admitted."""
        if not self.count:
            return float("inf")
        return self._taken_at + (MIN_INTERVAL if self._enough() else MAX_WAIT)

    def take(self, now: float) -> OwnUpdates | None:
        """Remove the waiting updates and return them, to be signed now; None if no update waits."""
        updates = self.waiting
        if updates:
            self._taken.append((self.first, self._frontier.known))
            self._taken_at = now
            self.first += self.count
            self.count, self._parts = 0, ()
        return updates

    def _enough(self) -> bool:
        """Return whether to sign soon, because a longer wait would do harm or bring no advantage."""
        if not self._taken or self.count >= (1 if self._frontier.run.cells else ENOUGH):
            return True
        (oldest, known_then), (last, known_before) = self._taken[0], self._taken[-1]
        if self.count >= 2 * (self.first - last):
            return True
        run, known = self._frontier.run, self._frontier.known
        harmless = min(run.epoch_updates, run.update_budget - known) // EPOCH_SHARE
        if self.count + known - (known_before + self.first - last) >= SEEN_SHARES * harmless:
            return True
        own = self.first - oldest
        return self.count * max(known - known_then, own) >= harmless * own

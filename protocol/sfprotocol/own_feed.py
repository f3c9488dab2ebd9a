"""Our own feed: whether we may extend it, and when our updates are signed (SPEC I1-I4).

A feed must never be continued in two different ways. A log from a backup, or a copied data folder, looks
intact but may lack later updates that others have. So a node whose log has updates of its own asks its peers
first:

    asking -> proven   when a peer has our feed, and no more of it than our log (a witness), or when we begin
                       a new incarnation

If a peer claims to have more of our feed, it is asked for these updates. A segment that verifies proves the
claim, and we begin a new incarnation. Until such a segment comes or the time for it is over, witnesses do not
count.

Updates are made only while proven. This module knows no links; the machine reports which feeds peers have.
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
"""Maximum number of incarnations whose work is computed when a feed is renewed: some ten seconds of work. The
drawn incarnation already has a proof of work, which is enough unless the run is full."""

FIRST_INCARNATION = 0
"""The incarnation of a key that has never been used. In an organised run, a feed with this incarnation may
have many updates at once. A feed with any other one may have a single update until a close lists it (SPEC
O20)."""

LEAD_SHARE = 16
"""Divisor of a run's number of epochs. After updates were removed, the label of our last update may be ahead
of the run's epoch by up to a sixteenth of this number. If it is further ahead, we begin a new feed."""


def fresh(frontier: Frontier, origin: bytes, drawn: int) -> Feed:
    """Return a feed of `origin` that nobody knows (SPEC I1); `drawn` is a random incarnation of 32 bits.

    It is the first incarnation from the drawn one on that is unknown here and that the run allows. An
    organised run allows 64 for each origin (SPEC O6); in an open run most incarnations lack the proof of work
    (SPEC S7). If there is none, the feed with the drawn incarnation is returned. In an organised run such a
    feed can only be cut, and in an open run it makes no updates.
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
    """Our feed, and whether it is proven that nobody knows more of it than our log; a relay has no feed."""

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
        """`draw` returns a random incarnation (32 bits); `proven`: nobody else can know more of `feed`.

        Raises LocalProtocolError for a feed that is cut: it can never be continued.
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
        """Whether no incarnation was found whose work is low enough for a full run."""

    @property
    def deadline(self) -> float:
        """Time at which to stop asking; infinity if there is no question."""
        return float("inf") if self.proven or self.feed is None else self._ask_until

    def check(self, has: Mapping[Feed, int]) -> None:
        """Note whether a peer claims to have more updates of our feed than our log. `has` is the peer's first
        missing step, keyed by feed."""
        if self.feed is not None and has.get(self.feed, 0) > self._frontier.next(self.feed):
            self._contested = True

    def hear_out(self, has: Mapping[Feed, int]) -> None:
        """Judge whether a peer that has told everything it has is a witness of our feed (SPEC I2). `has` is
        the peer's first missing step, keyed by feed.

        If the peer has all that our log has of the other feeds, but not the end of our own feed, then this
        end was most likely never sent. A peer that does not know our feed may have joined a minute ago. Once
        a peer has claimed to have more updates of our feed, a witness counts only after the time to send them
        is over.
        """
        if self.feed is None or self.proven:
            return
        theirs, ours = has.get(self.feed, 0), self._frontier.next(self.feed)
        informed = self._frontier.within(has, but=self.feed)
        self._witnessed |= 0 < theirs <= ours and (informed or theirs == ours)
        self.proven = self._witnessed and not self._contested

    def give_up(self) -> list[Action]:
        """Stop asking. Continue the feed if there is a witness, as nobody has shown more of it; else begin a
        new feed."""
        if self._witnessed:
            self.proven = True
            return []
        return self.renew()

    def overtaken(self, feed: Feed) -> list[Action]:
        """Begin a new feed if `feed`, which others have extended, is ours (SPEC I3)."""
        return self.renew() if feed == self.feed else []

    def taken_back(self, feed: Feed) -> list[Action]:
        """Begin a new feed if `feed` is ours, as fewer of its updates count than before (SPEC E5, S8).

        Also begin one if so few updates count now that our labels are far ahead of the run, as labels of a
        feed cannot go back (SPEC I3).
        """
        return self.renew() if feed == self.feed or self._is_ahead() else []

    def _is_ahead(self) -> bool:
        run = self._frontier.run
        if run.organised or self.feed is None:
            return False
        lead = self._frontier.state(self.feed).epoch - run.epoch_of(self._frontier.known)
        return lead > max(1, run.last_epoch // LEAD_SHARE)

    def look_for_room(self) -> list[Action]:
        """Begin a new feed, once, if the run is full of feeds with less work than ours (SPEC S8)."""
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
        """Return whether these updates may not be held, or do not count, because decisions (SPEC O6) or feeds
        with less work (SPEC S8) have arrived since they were begun."""
        state, run_state = self._frontier.state(updates.feed), self._frontier.run_state
        if run_state is None:
            return self._frontier.excludes(updates.feed)
        if state.next < state.named:
            return True  # our log has lost updates that others have
        segment = Segment(state.key, updates.first, updates.parts, b"")
        holds = state.open and validation.label_fault(run_state, state, segment) is None
        return not holds or validation.countable(run_state, state, segment) < segment.count

    def signed(self, updates: OwnUpdates) -> Verified:
        """Return new updates as a signed segment. Raises LocalProtocolError if no peer would admit it."""
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
"""Maximum time from one own segment to the next, in seconds. A process that is killed loses the work of that
time. Until a segment is sent, other nodes see no progress of ours."""

MIN_INTERVAL = 0.1
"""Minimum time between two own segments, in seconds. Bounds signatures and commits for any engine."""

ENOUGH = 32
"""Number of waiting updates at which they are signed without further wait. The signature then adds 2 bytes to
each update, no more than its scalar takes. An update of a first-order run has hundreds of scalars and does
not wait."""

EPOCH_SHARE = 10
"""Divisor of the number of updates of an epoch, or of the rest of the run if that has fewer. While our
updates wait, the whole run makes at most a tenth of this number, as estimated from our share."""

SEEN_SHARES = 2
"""Number of tenths of an epoch (see EPOCH_SHARE) that all nodes may make after our last segment before we
sign. This bound does not depend on the estimate of our share, as others may have become faster. It is not 1,
because one tenth may consist of updates that others made earlier and held back."""

REMEMBERED = 8
"""Number of own segments over which our share of the run is measured: enough for a smooth estimate."""


class Coalescing:
    """The finished updates of one feed that wait to be signed together (SPEC I4). Time is an argument.

    A segment with one update is mostly signature. So updates wait for later ones of the same feed, as long as
    that does no harm: others train without the waiting updates. The run's progress therefore bounds the wait.
    A node sees the progress of others only when they sign: in bursts, or not at all while all nodes have just
    started and wait. So the number of updates to be joined follows from our share of all admitted updates,
    measured over several segments. It at most doubles from one segment to the next.

    The step scheduler asks for `deadline` after every step and every round, and takes due updates. Waiting
    updates are neither signed nor on disk. A killed process loses them and may compute the same steps again.
    """

    def __init__(self, frontier: Frontier, feed: Feed) -> None:
        """Begin after the admitted updates of `feed`."""
        self.feed = feed
        self.first = frontier.next(feed)
        """The first step that was not taken yet."""
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
        """Add the next updates; epochs do not decrease."""
        self._parts = merge((*self._parts, *parts))
        self.count += sum(len(part.scalars) for part in parts)

    def deadline(self) -> float:
        """Return the time at which to take the waiting updates; infinity without any. Admissions may change
        it."""
        if not self.count:
            return float("inf")
        return self._taken_at + (MIN_INTERVAL if self._enough() else MAX_WAIT)

    def take(self, now: float) -> OwnUpdates | None:
        """Return the waiting updates, to be signed now; None without any."""
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

"""Our own feed: whether we may extend it, and when what we add is signed (SPEC I1-I4).

A feed must never be continued from two histories. A log that was restored from a backup, or a copied data
folder, looks like an honest past but may lack what we have said since; so a node with a past asks first:

    asking -> proven   when a witness has our feed and no more of it than our log, or under a new incarnation

Who claims to have more of it is asked for that. Only a segment that verifies proves the claim, and costs the
incarnation; until it comes, or the time to ask is over, the word of witnesses does not count either.

Updates are made only while proven. This module knows no links: the machine says what peers have.
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
"""Incarnations of which the work is computed when a feed is renewed, some ten seconds at most. Whoever draws
gives one with a proof of work, so that the first will do unless the run is full."""

FIRST_INCARNATION = 0
"""The incarnation with which a new key begins: an organised run lets it make updates at once, and any other
only when a close has named its first one (SPEC O20). It is for keys that have never been used."""

LEAD_SHARE = 16
"""Part of a run by which our labels may be ahead of it when updates were taken back; else we begin anew."""


def fresh(frontier: Frontier, origin: bytes, drawn: int) -> Feed:
    """Return a feed of `origin` that nobody has heard of, given 32 random bits (SPEC I1).

    It is the first from the drawn one on of which nothing is here and that the run takes. An organised run
    has 64 for each origin (SPEC O6); in an open one most lack the proof of work (SPEC S7). Where none is
    found, the drawn one: in an organised run, it can only be cut; in an open one, it makes no updates.
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
    """Our feed and the proof that nobody knows more of it than our log; a relay has no feed."""

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
        """Whether no incarnation was found with less work than those of a full run."""

    @property
    def deadline(self) -> float:
        """Time at which to stop asking; infinity when there is nothing to ask."""
        return float("inf") if self.proven or self.feed is None else self._ask_until

    def check(self, has: Mapping[Feed, int]) -> None:
        """Note if a peer that has `has` claims to know more of our feed than our log."""
        if self.feed is not None and has.get(self.feed, 0) > self._frontier.next(self.feed):
            self._contested = True

    def hear_out(self, has: Mapping[Feed, int]) -> None:
        """Judge whether a peer that has told everything it has, `has`, is a witness of our feed (SPEC I2).

        If it has at least as much as our log of all other feeds, then what it lacks of ours is most likely a
        tail that we never sent. A peer that knows nothing of us may have joined a minute ago. Once somebody
        has claimed to know more, a witness counts only when the time to show it is over.
        """
        if self.feed is None or self.proven:
            return
        theirs, ours = has.get(self.feed, 0), self._frontier.next(self.feed)
        informed = self._frontier.within(has, but=self.feed)
        self._witnessed |= 0 < theirs <= ours and (informed or theirs == ours)
        self.proven = self._witnessed and not self._contested

    def give_up(self) -> list[Action]:
        """Stop asking: go on if there is a witness, as nobody has shown more of our feed; else anew."""
        if self._witnessed:
            self.proven = True
            return []
        return self.renew()

    def overtaken(self, feed: Feed) -> list[Action]:
        """Continue anew if `feed`, which others have extended, is ours (SPEC I3)."""
        return self.renew() if feed == self.feed else []

    def taken_back(self, feed: Feed) -> list[Action]:
        """Continue anew if `feed`, of which less counts than before, is ours (SPEC E5, S8).

        Also if so much less counts that our own labels are of epochs far ahead, behind which our feed cannot
        go (SPEC I3).
        """
        return self.renew() if feed == self.feed or self._is_ahead() else []

    def _is_ahead(self) -> bool:
        run = self._frontier.run
        if run.organised or self.feed is None:
            return False
        lead = self._frontier.state(self.feed).epoch - run.epoch_of(self._frontier.known)
        return lead > max(1, run.last_epoch // LEAD_SHARE)

    def look_for_room(self) -> list[Action]:
        """Continue anew, once, if the run has filled up with feeds of less work than ours (SPEC S8)."""
        if self.feed is None or self._no_room or not self._frontier.excludes(self.feed):
            return []
        return self.renew()

    def renew(self) -> list[Action]:
        """Continue under a new incarnation, of which nobody can know yet (SPEC I3)."""
        assert self.feed is not None
        self.feed = fresh(self._frontier, self.feed.origin, self._draw())
        self._no_room = self._frontier.excludes(self.feed)
        self.proven = True
        return [ContinueAs(self.feed)]

    def overruled(self, updates: OwnUpdates) -> bool:
        """Return whether they may not be held or do not count by what has come, or gone, since they were
        begun: decisions (SPEC O6), or feeds with less work (SPEC S8)."""
        state, run_state = self._frontier.state(updates.feed), self._frontier.run_state
        if run_state is None:
            return self._frontier.excludes(updates.feed)
        if state.next < state.named:
            return True  # our log has lost what is known to others
        segment = Segment(state.key, updates.first, updates.parts, b"")
        holds = state.open and validation.label_fault(run_state, state, segment) is None
        return not holds or validation.countable(run_state, state, segment) < segment.count

    def signed(self, updates: OwnUpdates) -> Verified:
        """Return new updates as a signed segment. Raises LocalProtocolError for what no peer would admit."""
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
"""Seconds from one own segment to the next: what a killed process may lose, and how long the counts of other
nodes may stand still."""

MIN_INTERVAL = 0.1
"""Seconds between two own segments, however fast the engine: bounds signatures and commits."""

ENOUGH = 32
"""Updates that wait for no more: each carries 2 bytes of the signature, no more than its scalar takes. One of
a first-order run has hundreds of scalars and waits for none."""

EPOCH_SHARE = 10
"""The run makes at most this part of an epoch (a tenth), or of what is left of the run, while one waits,
as far as our share of it tells."""

SEEN_SHARES = 2
"""Such parts that may come in before we sign, whatever our share was: others may have become faster. One may
be what they had made before and were holding back."""

REMEMBERED = 8
"""Segments over which our share of the run is measured: enough to even out the lumps."""


class Coalescing:
    """The finished updates of one feed that wait to be signed together (SPEC I4). Time is an argument.

    A segment with one update is mostly signature. So updates wait for later ones of the same feed, as
    long as that does no harm: others train without what waits. What bounds the wait is therefore the
    run's progress. A node sees of it only what others have signed, in lumps, and nothing if all start
    together and wait. So the number to be joined follows from our share of what is admitted, measured
    over several segments, and at most doubles from one segment to the next.

    Whoever runs an engine asks for `deadline` after every step and every round, and takes what is due.
    Nothing that waits is on disk or signed: a process that is killed loses it, and may compute the same
    steps anew.
    """

    def __init__(self, frontier: Frontier, feed: Feed) -> None:
        """Begin behind what is admitted of `feed`."""
        self.feed = feed
        self.first = frontier.next(feed)
        """The first step that is not taken: that of what waits, if anything does."""
        self.count = 0
        """Number of updates that wait."""
        self._frontier = frontier
        self._parts: tuple[EpochScalars, ...] = ()
        self._taken: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)
        """First steps of the last segments, and what was known of the run before each."""
        self._taken_at = float("-inf")

    @property
    def stop(self) -> int:
        """First step that is not finished."""
        return self.first + self.count

    @property
    def waiting(self) -> OwnUpdates | None:
        """Everything that waits; None if nothing does."""
        return OwnUpdates(self.feed, self.first, self._parts) if self.count else None

    def add(self, parts: tuple[EpochScalars, ...]) -> None:
        """Let the next updates wait; their epochs do not decrease."""
        self._parts = merge((*self._parts, *parts))
        self.count += sum(len(part.scalars) for part in parts)

    def deadline(self) -> float:
        """Return the time at which to take what waits; infinity if nothing does. Admissions may change it."""
        if not self.count:
            return float("inf")
        return self._taken_at + (MIN_INTERVAL if self._enough() else MAX_WAIT)

    def take(self, now: float) -> OwnUpdates | None:
        """Return what waits, to be signed now; None if nothing does."""
        updates = self.waiting
        if updates:
            self._taken.append((self.first, self._frontier.known))
            self._taken_at = now
            self.first += self.count
            self.count, self._parts = 0, ()
        return updates

    def _enough(self) -> bool:
        """Whether waiting for more updates does harm, or does no good."""
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

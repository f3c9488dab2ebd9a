"""Joining: finished own updates wait here to be signed together (SPEC I4).

A segment with one update is mostly signature. So updates wait for later ones of the same feed, as long as
that does no harm: others train without what waits. What bounds the wait is therefore the run's progress. A
node sees of it only what others have signed, in lumps, and nothing if all start together and wait. So the
number to be joined follows from our share of what is admitted, measured over several segments, and at most
doubles from one segment to the next.

Whoever runs an engine asks for `deadline` after every step and every round, and takes what is due. Nothing
that waits is on disk or signed: a process that is killed loses it, and may compute the same steps anew.
"""

from __future__ import annotations

from collections import deque

from sfprotocol.events import OwnUpdates
from sfprotocol.frontier import Frontier
from sfprotocol.messages import EpochScalars, Feed
from sfprotocol.segments import merge

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


class Joining:
    """The finished updates of one feed that are not signed yet. Time is an argument of everything."""

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

"""What every origin has contributed, counted in the signed log: nobody is asked about himself.

The tally follows the log feed by feed, reads every stored segment once, and ranks the origins again where
something has changed. One thread asks, beside the event loop; what is done without letting go of the
interpreter is kept short, so that the loop goes on also in a run of 65,536 feeds. It knows epochs and counts;
it refuses to know wall-clock time, which no update carries.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from sfnode.store.log import Tail, UpdateLog
from sfprotocol.codec import MAX_SEGMENT_UPDATES
from sfprotocol.frontier import first_updates
from sfprotocol.messages import Feed


class Count(NamedTuple):
    """What is counted of one feed."""

    next: int
    epochs: dict[int, int]
    """Updates by epoch, in the order in which they come in the feed, where they never decrease. A plain dict
    of integers, which the garbage collector passes over: there is one for every feed."""


class Contribution(NamedTuple):
    """What is counted of one origin."""

    origin: bytes
    updates: int
    feeds: int
    last_step: int
    """Of its latest feed."""
    first_epoch: int
    last_epoch: int
    cut: bool


class Tally:
    """Of one log. Any thread may close it."""

    def __init__(self, update_log: UpdateLog) -> None:
        self.counts: dict[Feed, Count] = {}
        self.ranked: list[Contribution] = []
        """Those with most updates first, equals in the order of keys."""
        self.updates = 0
        """Of all."""
        self.closed = False
        self._log = update_log
        self._of_origin: dict[bytes, list[Feed]] = {}
        """The feeds of which something is counted, the latest incarnation last."""
        self._cut: frozenset[bytes] = frozenset()

    def close(self) -> None:
        """Read nothing more: what is being read is the last."""
        self.closed = True

    def follow(self, give_up: float) -> bool:
        """Count what has come and what has been cut; False if there was not the time for all of it, which is
        over at `give_up` by the monotonic clock."""
        tails = self._log.standing()
        changed = self._forget(tails)
        complete = True
        for tail in tails:
            count = self.counts.get(tail.feed)
            if count is None or count.next != tail.next:
                complete = complete and self._read(tail, give_up)
                changed.add(tail.feed.origin)
        self._rank(changed)
        return complete

    def _forget(self, tails: list[Tail]) -> set[bytes]:
        """Take out the feeds that are cut at their first step; returns their origins."""
        there = {tail.feed for tail in tails}
        gone = [feed for feed in self.counts if feed not in there]
        for feed in gone:
            del self.counts[feed]
            self._of_origin[feed.origin].remove(feed)
        return {feed.origin for feed in gone}

    def _read(self, tail: Tail, give_up: float) -> bool:
        """Count one feed as far as it goes, or as there is time."""
        following, epochs = self.counts.get(tail.feed) or Count(0, {})
        if following > tail.next:  # cut since: what is behind the cut does not count
            following, epochs = 0, {}
        while following < tail.next:
            if self.closed or time.monotonic() > give_up:
                return False
            segment = self._log.read(tail.feed, following, MAX_SEGMENT_UPDATES)
            if segment is None:
                break
            for epoch, scalars in first_updates(segment.parts, tail.next - following):
                epochs[epoch] = epochs.get(epoch, 0) + len(scalars)
            following = min(segment.stop, tail.next)
            self._note(tail.feed, Count(following, epochs))
        return True

    def _note(self, feed: Feed, count: Count) -> None:
        if feed not in self.counts:
            feeds = self._of_origin.setdefault(feed.origin, [])
            feeds.append(feed)
            feeds.sort()
        self.counts[feed] = count

    # -- ranking -----------------------------------------------------------------------------------

    def _rank(self, changed: set[bytes]) -> None:
        """Put those whose contribution has changed into their places; the others stay in order."""
        cut = frozenset(record.feed.origin for record in self._log.cuts())
        changed |= cut ^ self._cut
        self._cut = cut
        if not changed:
            return
        kept = [contribution for contribution in self.ranked if contribution.origin not in changed]
        there = [self._contribution(origin) for origin in changed if self._of_origin.get(origin)]
        self.ranked = sorted(kept + there, key=lambda one: (-one.updates, one.origin))
        self.updates = sum(one.updates for one in self.ranked)

    def _contribution(self, origin: bytes) -> Contribution:
        feeds = self._of_origin[origin]
        counts = [self.counts[feed] for feed in feeds]
        return Contribution(
            origin=origin,
            updates=sum(count.next for count in counts),
            feeds=len(counts),
            last_step=counts[-1].next - 1,
            first_epoch=min(next(iter(count.epochs)) for count in counts),
            last_epoch=max(next(reversed(count.epochs)) for count in counts),
            cut=origin in self._cut,
        )

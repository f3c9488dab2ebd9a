"""Contributions of every origin, counted in the signed log: no node is believed about itself.

Follows the log feed by feed, reads every stored segment once, and ranks anew only the origins that have
changed. Used by one thread beside the event loop; it holds the interpreter lock for short times only, so that
the loop goes on even in a run of 65,536 feeds. Knows epochs and counts; knows no wall-clock time, which no
update carries.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from sfnode.store.log import Tail, UpdateLog
from sfprotocol.messages import Feed
from sfprotocol.segments import first_updates

READ_UPDATES = 512
"""Updates that are read at once: in a first-order run each has hundreds or thousands of scalars."""


class FeedCount(NamedTuple):
    """Counts for one feed."""

    next: int
    """First step that is not counted."""
    epochs: dict[int, int]
    """Number of updates by epoch, in the order of epochs, which never decrease in a feed. Of those that a
    checkpoint stands for, only how many have the last label is known. A plain dict of integers, which the
    garbage collector skips: there is one for every feed."""


class Contribution(NamedTuple):
    """Counts for one origin."""

    origin: bytes
    updates: int
    feeds: int
    last_step: int
    """Last step of its latest feed."""
    first_epoch: int
    last_epoch: int
    cut: bool


class Contributions:
    """The contributions in one log. One thread calls `follow`; any thread may call `close`."""

    def __init__(self, update_log: UpdateLog) -> None:
        self.counts: dict[Feed, FeedCount] = {}
        self.ranked: list[Contribution] = []
        """All origins, those with most updates first, equals in the order of keys."""
        self.updates = 0
        """Number of updates of all origins."""
        self.closed = False
        self._log = update_log
        self._feeds: dict[bytes, list[Feed]] = {}
        """The feeds of each origin of which something is counted, the latest incarnation last."""
        self._cut: frozenset[bytes] = frozenset()

    def close(self) -> None:
        """Read nothing more after the segment that is being read."""
        self.closed = True

    def follow(self, give_up: float) -> bool:
        """Count what has come and what has been cut since the last call.

        Returns False if that was not finished at `give_up` by the monotonic clock.
        """
        tails = self._log.unsorted_tails()
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
        """Remove the feeds that are cut at their first step; return their origins."""
        present = {tail.feed for tail in tails}
        gone = [feed for feed in self.counts if feed not in present]
        for feed in gone:
            del self.counts[feed]
            self._feeds[feed.origin].remove(feed)
        return {feed.origin for feed in gone}

    def _read(self, tail: Tail, give_up: float) -> bool:
        """Count one feed; return False if there was not the time for all of it."""
        following, epochs = self.counts.get(tail.feed) or FeedCount(0, {})
        if following > tail.next:  # it has been cut since: what is behind the cut does not count
            following, epochs = 0, {}
        base = self._log.base(tail.feed)
        if following < base.step:
            following, epochs = base.step, {base.epoch: base.labelled}
            self._set_count(tail.feed, FeedCount(following, epochs))
        while following < tail.next:
            if self.closed or time.monotonic() > give_up:
                return False
            segment = self._log.read(tail.feed, following, READ_UPDATES)
            if segment is None:
                break
            for epoch, scalars in first_updates(segment.parts, tail.next - following):
                epochs[epoch] = epochs.get(epoch, 0) + len(scalars)
            following = min(segment.stop, tail.next)
            self._set_count(tail.feed, FeedCount(following, epochs))
        return True

    def _set_count(self, feed: Feed, count: FeedCount) -> None:
        if feed not in self.counts:
            feeds = self._feeds.setdefault(feed.origin, [])
            feeds.append(feed)
            feeds.sort()
        self.counts[feed] = count

    # -- ranking -----------------------------------------------------------------------------------

    def _rank(self, changed: set[bytes]) -> None:
        """Put the origins whose contribution has changed into their places; the others stay in order."""
        cut = frozenset(record.feed.origin for record in self._log.cuts())
        changed |= cut ^ self._cut
        self._cut = cut
        if not changed:
            return
        unchanged = [one for one in self.ranked if one.origin not in changed]
        counted = [self._contribution(origin) for origin in changed if self._feeds.get(origin)]
        self.ranked = sorted(unchanged + counted, key=lambda one: (-one.updates, one.origin))
        self.updates = sum(one.updates for one in self.ranked)

    def _contribution(self, origin: bytes) -> Contribution:
        feeds = self._feeds[origin]
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

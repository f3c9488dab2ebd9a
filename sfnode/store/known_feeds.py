"""The feeds as the log knows them without reading a row: their states, their cuts, their last segments.

Kept in memory, and safe to use from any thread: it changes only after a commit, by the one writer there is at
a time. Knows neither SQLite nor files.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from threading import Lock

from sfnode.store import feeds
from sfnode.store.feeds import FeedState
from sfnode.store.records import CutRecord, Record
from sfprotocol.messages import Feed, Segment


class KnownFeeds:
    """The feeds of one log."""

    def __init__(
        self, run_id: bytes, states: Mapping[Feed, FeedState] | None = None, cuts: Sequence[CutRecord] = ()
    ) -> None:
        self._run_id = run_id
        self._lock = Lock()
        """Guards the three below; never held during input or output. The writer reads states without it."""
        self._states = dict(states or {})
        self._cuts = {cut.feed: cut for cut in cuts}
        self._recent = SegmentCache()

    def __contains__(self, feed: Feed) -> bool:
        return feed in self._states

    def __getitem__(self, feed: Feed) -> FeedState:
        return self._states[feed]

    # -- reading -------------------------------------------------------------------------------------

    def state(self, feed: Feed) -> FeedState:
        """Return the state of a feed as it is now; a fresh one if there is nothing of it."""
        with self._lock:
            return self._states.get(feed) or feeds.unknown(self._run_id, feed)

    def cut(self, feed: Feed) -> CutRecord | None:
        """Return the cut of a feed; None if it is not cut."""
        with self._lock:
            return self._cuts.get(feed)

    def states(self) -> dict[Feed, FeedState]:
        """Return the states of all feeds."""
        with self._lock:
            return dict(self._states)

    def cuts(self) -> dict[Feed, CutRecord]:
        """Return the cuts of all feeds that are cut."""
        with self._lock:
            return dict(self._cuts)

    def both(self) -> tuple[list[FeedState], dict[Feed, CutRecord]]:
        """Return the states and the cuts of one moment."""
        with self._lock:
            return list(self._states.values()), dict(self._cuts)

    def recent(self, feed: Feed, first: int) -> tuple[FeedState | None, list[Segment]]:
        """Return a feed's state, and its segments from the one with step `first` to the last; none if they
        are not in memory that far back."""
        with self._lock:
            return self._states.get(feed), self._recent.since(feed, first)

    # -- writing -------------------------------------------------------------------------------------

    def after(
        self, records: Sequence[Record], cuts: Sequence[CutRecord], replacing: bool
    ) -> dict[Feed, FeedState]:
        """Return the states of the feeds after `records` and `cuts`; changes nothing.

        Raises LocalProtocolError unless every record continues its feed, as `feeds.continued`.
        """
        moved: dict[Feed, FeedState] = {}
        following = len(self._states) + 1
        for feed in [*(record.feed for record in records), *(cut.feed for cut in cuts)]:
            if feed not in moved:
                moved[feed] = self._states.get(feed) or feeds.unknown(self._run_id, feed, following)
                following += moved[feed].number == following
        for record in records:
            moved[record.feed] = feeds.continued(moved[record.feed], record, replacing)
        return moved

    def adopt(
        self, moved: Mapping[Feed, FeedState], records: Sequence[Record], cuts: Sequence[CutRecord]
    ) -> None:
        """Take over what was written."""
        with self._lock:
            self._states.update(moved)
            for record in records:
                self._recent.add(record.feed, record.segment)
            self._cuts.update((cut.feed, cut) for cut in cuts)

    def begin_at(self, states: Mapping[Feed, FeedState]) -> None:
        """Have these states and no others, and forget segments: some of their steps may be gone."""
        with self._lock:
            self._states, self._recent = dict(states), SegmentCache()


# A cache of the last segments of every feed, for the reads that follow an append at once.
#
# Flooding sends each segment right after it was logged. Those reads happen on the event loop while the next
# append is in progress; through SQLite the slowest hundredth of them would take five to twenty times as long
# (measured: 0.3 to 1.3 ms). Not thread-safe; the log locks it.


SEGMENTS_PER_FEED = 32
"""A link that falls further behind than this many segments reads from SQLite, which costs a fraction of a
millisecond."""

MAX_UPDATES = 131_072
"""Most updates in the whole cache: about 5 MB."""


class SegmentCache:
    """A bounded tail of every feed; the feeds that have been silent the longest are dropped first."""

    def __init__(self) -> None:
        self._tails: OrderedDict[Feed, deque[Segment]] = OrderedDict()
        self._updates = 0

    def add(self, feed: Feed, segment: Segment) -> None:
        """Keep `segment`, which continues `feed`; or takes the place of what is there from its first step."""
        tail = self._tails.setdefault(feed, deque())
        if tail and segment.first != tail[-1].stop:
            self._updates -= sum(segment.count for segment in tail)
            tail.clear()
        self._tails.move_to_end(feed)
        tail.append(segment)
        self._updates += segment.count
        if len(tail) > SEGMENTS_PER_FEED:
            self._updates -= tail.popleft().count
        while self._updates > MAX_UPDATES:
            _, silent = self._tails.popitem(last=False)
            self._updates -= sum(segment.count for segment in silent)

    def since(self, feed: Feed, first: int) -> list[Segment]:
        """Return the segments from the one with step `first` to the last; empty if not kept that far back."""
        tail = self._tails.get(feed)
        if tail is None or tail[0].first > first:
            return []
        found: deque[Segment] = deque()
        for segment in reversed(tail):  # what is asked for is nearly always at the end
            if segment.stop <= first:
                break
            found.appendleft(segment)
        return list(found)

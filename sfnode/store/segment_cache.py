"""A cache of the last segments of every feed, for the reads that follow an append at once.

Flooding sends each segment right after it was logged. Those reads happen on the event loop while the next
append is in progress; through SQLite the slowest hundredth of them would take five to twenty times as long
(measured: 0.3 to 1.3 ms). Not thread-safe; the log locks it.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from sfprotocol.messages import Feed, Segment

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

"""Who contributed what and when, counted in the signed log: nobody is asked about himself.

The index follows the log feed by feed and reads every stored segment once. It runs in threads beside the
event loop. It knows epochs and counts; it refuses to know wall-clock time, which no update carries.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from threading import Lock
from typing import NamedTuple

from sfnode.runtime.viewed import History, HistoryPoint, Leader, Origin, Origins
from sfnode.store.log import Tail, UpdateLog
from sfprotocol.codec import MAX_SEGMENT_UPDATES
from sfprotocol.frontier import first_updates
from sfprotocol.messages import Feed

PATIENCE = 2.0
"""Seconds that one question may wait for the index; what is not counted by then follows with the next."""

LEADERS = 8
"""Origins whose growth is told one by one: as many colours as a chart can bear."""


class _Count(NamedTuple):
    """What is counted of one feed."""

    next: int
    epochs: Counter[int]


class LogIndex:
    """Counts the updates of a log by feed and epoch. Any thread may ask; one at a time is answered."""

    def __init__(self, update_log: UpdateLog) -> None:
        self._log = update_log
        self._lock = Lock()
        self._closed = False
        self._counts: dict[Feed, _Count] = {}

    def close(self) -> None:
        """Read nothing more; returns when nothing is being read."""
        self._closed = True
        with self._lock:
            pass

    def origins(self, own: bytes, offset: int, limit: int, find: str) -> Origins:
        """Those whose key begins with `find` (hex), `limit` of them from the `offset`-th on."""
        with self._lock:
            self._follow()
            feeds = dict(self._counts)
            cut = {record.feed.origin for record in self._log.cuts()} if not self._closed else set()
        ranked = _ranked(feeds)
        total = sum(updates for _, updates in ranked)
        of_origin: dict[bytes, list[Feed]] = defaultdict(list)
        for feed in feeds:
            of_origin[feed.origin].append(feed)
        found = [
            (rank, origin) for rank, (origin, _) in enumerate(ranked, 1) if origin.hex().startswith(find)
        ]
        listed = [
            _origin(rank, origin, sorted(of_origin[origin]), feeds, total, origin in cut, origin == own)
            for rank, origin in found[offset : offset + limit]
        ]
        return Origins(total=len(found), offset=offset, updates=total, indexed=total, origins=listed)

    def history(self, points: int) -> History:
        """The run in at most `points` equal spans of epochs."""
        with self._lock:
            self._follow()
            feeds = dict(self._counts)
            by_epoch = {feed: dict(count.epochs) for feed, count in feeds.items()}
        leaders = [origin for origin, _ in _ranked(feeds)[:LEADERS]]
        last = max((epoch for epochs in by_epoch.values() for epoch in epochs), default=-1)
        spans = _Spans(last, points)
        for feed, epochs in by_epoch.items():
            spans.add(feed.origin, epochs, leading=feed.origin in leaders)
        return spans.told(leaders)

    def _follow(self) -> None:
        give_up = time.monotonic() + PATIENCE
        for tail in [] if self._closed else self._log.tails():
            self._follow_feed(tail, give_up)
            if self._closed or time.monotonic() > give_up:
                return

    def _follow_feed(self, tail: Tail, give_up: float) -> None:
        following, epochs = self._counts.get(tail.feed, _Count(0, Counter()))
        if following > tail.next:  # cut since: what is behind the cut does not count
            following, epochs = 0, Counter()
        while following < tail.next and not self._closed and time.monotonic() < give_up:
            segment = self._log.read(tail.feed, following, MAX_SEGMENT_UPDATES)
            if segment is None:
                break
            for epoch, scalars in first_updates(segment.parts, tail.next - following):
                epochs[epoch] += len(scalars)
            following = min(segment.stop, tail.next)
        self._counts[tail.feed] = _Count(following, epochs)


class _Spans:
    """Sums over spans of epochs."""

    def __init__(self, last_epoch: int, points: int) -> None:
        self._epochs = last_epoch + 1
        self._points = min(points, self._epochs)
        self._updates = [0] * self._points
        self._origins: list[set[bytes]] = [set() for _ in range(self._points)]
        self._leading: dict[bytes, list[int]] = {}

    def add(self, origin: bytes, epochs: dict[int, int], *, leading: bool) -> None:
        """One feed's updates by epoch."""
        own = self._leading.setdefault(origin, [0] * self._points) if leading else None
        for epoch, updates in epochs.items():
            span = epoch * self._points // self._epochs
            self._updates[span] += updates
            self._origins[span].add(origin)
            if own is not None:
                own[span] += updates

    def told(self, leaders: list[bytes]) -> History:
        known = _sums(self._updates)
        led = [Leader(origin=origin.hex(), known=_sums(self._leading[origin])) for origin in leaders]
        return History(
            indexed=known[-1] if known else 0,
            points=[self._point(span, known[span]) for span in range(self._points)],
            leaders=led,
            others=[total - sum(leader.known[span] for leader in led) for span, total in enumerate(known)],
        )

    def _point(self, span: int, known: int) -> HistoryPoint:
        first = -(-span * self._epochs // self._points)
        return HistoryPoint(
            first_epoch=first,
            last_epoch=-(-(span + 1) * self._epochs // self._points) - 1,
            updates=self._updates[span],
            known=known,
            origins=len(self._origins[span]),
        )


def _ranked(feeds: dict[Feed, _Count]) -> list[tuple[bytes, int]]:
    """Origins and their updates, those with most first, equals in the order of keys."""
    updates: Counter[bytes] = Counter()
    for feed, count in feeds.items():
        updates[feed.origin] += count.next
    return sorted(updates.items(), key=lambda item: (-item[1], item[0]))


def _origin(
    rank: int, origin: bytes, own: list[Feed], feeds: dict[Feed, _Count], total: int, cut: bool, is_us: bool
) -> Origin:
    """`own` are its feeds, the latest incarnation last."""
    counts = [feeds[feed] for feed in own]
    updates = sum(count.next for count in counts)
    epochs = [epoch for count in counts for epoch in count.epochs]
    return Origin(
        rank=rank,
        origin=origin.hex(),
        updates=updates,
        share=updates / max(total, 1),
        feeds=len(own),
        first_step=0,
        last_step=counts[-1].next - 1,
        first_epoch=min(epochs, default=0),
        last_epoch=max(epochs, default=0),
        cut=cut,
        own=is_us,
    )


def _sums(numbers: list[int]) -> list[int]:
    """Cumulated."""
    sums, total = [], 0
    for number in numbers:
        total += number
        sums.append(total)
    return sums

"""Statistics on the whole run: the contributions of each origin and team, and the history over epochs.

They are computed on a separate thread, from the signed log and the display names of origins.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any, NamedTuple

from sfnode.manifest.training import Training
from sfnode.organising.reporting.run_history import RunHistory
from sfnode.schema import views
from sfnode.schema.history import Decided, HistoryEntry, Ranked
from sfnode.store.log import Tail, UpdateLog
from sfnode.store.replay import kept_control
from sfprotocol.fields import NAMELESS, Names
from sfprotocol.messages import Feed, RunParameters, Succession
from sfprotocol.segments import first_updates

PATIENCE = 2.0
"""Maximum time, in seconds, for which one request counts updates. The next request continues the counting."""

MIN_AGE = 0.2
"""Minimum time, in seconds, for which computed statistics are used for further requests."""

AGE_FACTOR = 10
"""Minimum time for which computed statistics are used for further requests, as a multiple of the time that
computing them took. With 10, the computation takes at most a tenth of a core."""

MAX_TEAMS = 100
"""Maximum number of teams in an answer: more than anybody reads."""

LEADERS = 8
"""Maximum number of origins with a curve of their own in the history. A chart cannot show more colours."""


class LogIndex:
    """Statistics on one log. One thread requests them; any thread may call `close`."""

    def __init__(
        self,
        update_log: UpdateLog,
        names: Callable[[], Mapping[bytes, Names]],
        run: RunParameters,
        training: Training | None = None,
    ) -> None:
        """`names()` returns display names, keyed by origin. `training` is passed to `RunHistory`."""
        self._log = update_log
        self._decided = RunHistory(run, training=training) if run.organised else None
        """History of an organised run."""
        self._timeline: list[views.TimelineEntry] = []
        self._timeline_of = 0, b""
        """Number of decisions, and their chain hash, when the timeline was last computed. Computing it takes
        long if epochs have many feeds."""
        self._contributions = Contributions(update_log)
        self._members: dict[bytes, Ranked] = {}
        """Members, keyed by origin; empty in an open run."""
        self._has_worths = False
        """Whether the worth of any member's updates was measured (their effect on the validation loss); False
        in an open run."""
        self._all_worths = 0
        """Sum of the absolute values of all members' worths."""
        self._ranked: list[Contribution] = []
        """All origins, in descending order of worth. Origins with equal worth are in descending order of
        updates."""
        self._find_names = names
        self._names: Mapping[bytes, Names] = {}
        self._teams: list[views.Team] = []
        self._history: dict[int, views.History] = {}
        """The last history, keyed by the requested number of points; empty if none was computed from the
        current log."""
        self._valid_until = float("-inf")

    def close(self) -> None:
        """Stop reading after the current segment."""
        self._contributions.close()

    def origins(self, own: bytes, offset: int, limit: int, find: str) -> views.Origins:
        """Return the origins whose key begins with `find` (hex), ordered by rank. The first `offset` of them
        are skipped, and at most `limit` are returned."""
        self._refresh()
        found = list(enumerate(self._ranked, 1))
        if find:
            found = [(rank, one) for rank, one in found if one.origin.hex().startswith(find)]
        return views.Origins(
            total=len(found),
            offset=offset,
            updates=self._contributions.updates,
            indexed=self._contributions.updates,
            origins=[self._origin(rank, one, own) for rank, one in found[offset : offset + limit]],
            teams=self._teams,
        )

    def standing(self, own: bytes) -> views.OwnStanding:
        """Return the contribution of this node's origin, `own`."""
        self._refresh()
        places = {one.origin: rank for rank, one in enumerate(self._ranked, 1)}
        rank, member = places.get(own), self._members.get(own)
        updates = self._ranked[rank - 1].updates if rank else 0
        return views.OwnStanding(
            rank=rank,
            of=len(self._ranked),
            updates=updates,
            share=updates / max(1, self._contributions.updates),
            **self._judged(member),
        )

    def history(self, points: int) -> views.History:
        """Return the history of the run in at most `points` equal spans of epochs."""
        self._refresh()
        if points not in self._history:
            self._history = {points: _history(self._contributions, self._names, points)}
        return self._history[points]

    def timeline(self, limit: int) -> views.Timeline:
        """Return the last `limit` decisions, the latest first."""
        decided = self._follow()
        if decided is None:
            return views.Timeline(total=0, entries=[])
        if self._timeline_of != decided.read:
            authority = kept_control(self._log).authority
            successions = (one for one in authority if isinstance(one, Succession))
            entries = decided.entries(successions, self._log.arrivals())
            self._timeline, self._timeline_of = list(map(timeline_entry, entries)), decided.read
        return views.Timeline(total=len(self._timeline), entries=self._timeline[: -limit - 1 : -1])

    def _follow(self) -> RunHistory | None:
        """Return the history of an organised run after reading the new decisions; None in an open run."""
        if self._decided is None:
            return None
        self._decided.names = self._find_names()
        return self._decided.read_on(self._log.control)

    def _refresh(self) -> None:
        """Read the log up to its end and compute all statistics, unless the last computed statistics are
        still valid."""
        began = time.monotonic()
        if self._contributions.closed or began < self._valid_until:
            return
        complete = self._contributions.follow(began + PATIENCE)
        self._names, self._history = self._find_names(), {}
        if decided := self._follow():
            self._members = {bytes.fromhex(one.origin): one for one in decided.members()}
            self._has_worths = any(one.measured for one in self._members.values())
            self._all_worths = sum(abs(one.worth) for one in self._members.values())
        self._ranked = sorted(self._contributions.ranked, key=lambda one: -self._worth(one.origin))
        self._teams = _teams(self._contributions, self._names)
        now = time.monotonic()
        self._valid_until = now + max(MIN_AGE, AGE_FACTOR * (now - began) if complete else 0.0)

    def _judged(self, member: Ranked | None) -> dict[str, Any]:
        """Return the counted updates, the worth and the gain of a member, as fields of `Origin`."""
        worth = member.worth if member and self._has_worths else None
        return {
            "counted": member.counted if member else None,
            "worth": worth,
            "gain_share": None if worth is None else worth / max(1, self._all_worths),
        }

    def _worth(self, origin: bytes) -> int:
        return self._members[origin].worth if origin in self._members else 0

    def _origin(self, rank: int, one: Contribution, own: bytes) -> views.Origin:
        names = self._names.get(one.origin, NAMELESS)
        member = self._members.get(one.origin)
        return views.Origin(
            **one._asdict() | {"origin": one.origin.hex()},
            rank=rank,
            share=one.updates / self._contributions.updates,
            first_step=0,
            own=one.origin == own,
            **self._judged(member),
            left_out=member.left_out if member else None,
            name=names.name or None,
            team=names.team or None,
        )


def timeline_entry(entry: HistoryEntry) -> views.TimelineEntry:
    """Return a decision as an entry of the timeline."""
    epoch = entry.epoch
    return views.TimelineEntry(
        **{name: getattr(entry, name) for name in Decided.model_fields},
        epoch=epoch.epoch if epoch else None,
        counted=epoch.counted if epoch else None,
        origins=len(epoch.origins) if epoch else None,
        evaluation=epoch.evaluation if epoch else None,
    )


def _teams(contributions: Contributions, names: Mapping[bytes, Names]) -> list[views.Team]:
    """Return the contributions under each team's name."""
    updates, origins = Counter[str](), Counter[str]()
    for one in contributions.ranked:
        if team := names.get(one.origin, NAMELESS).team:
            updates[team] += one.updates
            origins[team] += 1
    first = sorted(updates, key=lambda team: (-updates[team], team))[:MAX_TEAMS]
    return [
        views.Team(
            team=team,
            updates=updates[team],
            share=updates[team] / contributions.updates,
            origins=origins[team],
        )
        for team in first
    ]


def _history(contributions: Contributions, names: Mapping[bytes, Names], points: int) -> views.History:
    """Return the numbers of updates in at most `points` equal spans of epochs."""
    ranked = contributions.ranked
    epochs = max((one.last_epoch for one in ranked), default=-1) + 1
    spans = min(points, epochs)
    updates, origins = [0] * spans, [set[bytes]() for _ in range(spans)]
    leading = {one.origin: [0] * spans for one in ranked[:LEADERS]}
    for feed, count in contributions.counts.items():
        for epoch, made in count.epochs.items():
            span = epoch * spans // epochs
            updates[span] += made
            origins[span].add(feed.origin)
            if feed.origin in leading:
                leading[feed.origin][span] += made
    known = list(accumulate(updates))
    led = {origin: list(accumulate(own)) for origin, own in leading.items()}
    return views.History(
        indexed=known[-1] if known else 0,
        points=[
            views.HistoryPoint(
                first_epoch=-(-span * epochs // spans),
                last_epoch=-(-(span + 1) * epochs // spans) - 1,
                updates=updates[span],
                known=known[span],
                origins=len(origins[span]),
            )
            for span in range(spans)
        ],
        leaders=[
            views.Leader(origin=origin.hex(), name=names.get(origin, NAMELESS).name or None, known=own)
            for origin, own in led.items()
        ],
        others=[total - sum(own[span] for own in led.values()) for span, total in enumerate(known)],
    )


READ_UPDATES = 512
"""Maximum number of updates that are read from the log at a time. This bounds the memory in a first-order
run, where each update has hundreds or thousands of scalars."""


class FeedCount(NamedTuple):
    """Counts for one feed."""

    next: int
    """First step that is not counted."""
    epochs: dict[int, int]
    """Number of the feed's updates in each epoch, keyed by epoch in ascending order. Of the updates that a
    checkpoint replaces, only those of their last epoch are included. The type is a plain dict of integers,
    because the garbage collector skips such a dict, and every feed has one."""


class Contribution(NamedTuple):
    """Counts for one origin."""

    origin: bytes
    updates: int
    feeds: int
    last_step: int
    """Last step of the origin's latest feed."""
    first_epoch: int
    last_epoch: int
    cut: bool


class Contributions:
    """The contributions in one log. One thread calls `follow`; any thread may call `close`."""

    def __init__(self, update_log: UpdateLog) -> None:
        self.counts: dict[Feed, FeedCount] = {}
        self.ranked: list[Contribution] = []
        """All origins, in descending order of updates. Origins with equally many updates are in the order of
        keys."""
        self.updates = 0
        """Number of updates of all origins."""
        self.closed = False
        self._log = update_log
        self._feeds: dict[bytes, list[Feed]] = {}
        """The counted feeds of each origin, the latest incarnation last."""
        self._cut: frozenset[bytes] = frozenset()

    def close(self) -> None:
        """Stop reading after the current segment."""
        self.closed = True

    def follow(self, give_up: float) -> bool:
        """Count the updates that have arrived since the last call, and subtract the updates that were cut.

        Returns False if the monotonic time `give_up` came before all updates were counted.
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
        """Remove the feeds of which no update is left after a cut, and return their origins."""
        present = {tail.feed for tail in tails}
        gone = [feed for feed in self.counts if feed not in present]
        for feed in gone:
            del self.counts[feed]
            self._feeds[feed.origin].remove(feed)
        return {feed.origin for feed in gone}

    def _read(self, tail: Tail, give_up: float) -> bool:
        """Count one feed. Return False if `give_up` came before the whole feed was counted."""
        following, epochs = self.counts.get(tail.feed) or FeedCount(0, {})
        if following > tail.next:  # it was cut meanwhile: updates after the cut do not count
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
        """Move the origins with a changed contribution to their new ranks. The other origins keep their
        order."""
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


MAX_SAMPLES = 512
"""Maximum number of samples of a time series, 40 KiB: more than a chart in a browser can show."""

RATE_WINDOW, RATE_STEPS = 10.0, 4
"""Minimum time in seconds, and minimum number of increases of the count, over which a rate is measured. With
a large model on a CPU, minutes pass between two increases."""


class SeriesSample(NamedTuple):
    """The state of a node at one moment."""

    seconds: float
    """Seconds since the start."""
    known: int
    """Number of updates known."""
    own_rate: float
    """Own updates per second."""
    swarm_rate: float | None
    """Updates per second of all nodes; None until the node caught up."""
    loss: float | None
    cpu: float | None = None
    """Cores that the node keeps busy."""
    memory: int | None = None
    """Bytes of memory that the node holds."""
    gpu: float | None = None
    """Share of the time in which the node's GPU is busy."""


class TimeSeries:
    """Samples at equal intervals from the start until now. When there are more than MAX_SAMPLES, the interval
    is doubled and every second sample is dropped."""

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self._tolerance = interval / 2
        """Maximum time, in seconds, by which a sample may come too early: callers are never exactly on
        time."""
        self.samples: list[SeriesSample] = []

    def add(self, sample: SeriesSample) -> None:
        """Keep this sample if the interval since the last one has passed."""
        if self.samples and sample.seconds - self.samples[-1].seconds < self.interval - self._tolerance:
            return
        self.samples.append(sample._replace(loss=_finite(sample.loss)))
        if len(self.samples) > MAX_SAMPLES:
            self.samples = self.samples[::2]
            self.interval *= 2


class Rate:
    """The growth rate of a count."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, float]] = deque()

    def update(self, now: float, count: float) -> float:
        """Add a count and return its recent growth per second; 0 if it has not grown for a long time.

        A count that falls starts a new measurement.
        """
        counts = self._counts
        if counts and count < counts[-1][1]:
            counts.clear()
        if not counts or count > counts[-1][1]:
            counts.append((now, count))
        while len(counts) > RATE_STEPS + 1 and now - counts[0][0] > RATE_WINDOW:
            counts.popleft()
        (since, first), (last, _) = counts[0], counts[-1]
        usual = (last - since) / max(1, len(counts) - 1)
        if now - last > max(RATE_WINDOW, RATE_STEPS * usual):
            return 0.0
        spent = max(last - since, now - since - usual)  # an update under way is not late yet
        return (count - first) / spent if spent else 0.0


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None

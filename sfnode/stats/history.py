"""Answers about the whole run: contributions by origin and by team, and the history of the run by epochs.

They are computed from the signed log and from the names that origins give themselves, in a thread beside the
event loop.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import accumulate

from sfnode.manifest.training import Training
from sfnode.organising.reporting.run_history import RunHistory
from sfnode.schema.history import Decided, HistoryEntry, Ranked
from sfnode.schema.views import (
    History,
    HistoryPoint,
    Leader,
    Origin,
    Origins,
    OwnStanding,
    Team,
    Timeline,
    TimelineEntry,
)
from sfnode.stats.contributions import Contribution, Contributions
from sfnode.store.log import UpdateLog
from sfnode.store.replay import kept_control
from sfprotocol.fields import NAMELESS, Names
from sfprotocol.messages import RunParameters, Succession

PATIENCE = 2.0
"""Seconds that one question may wait for counting; the rest is counted with the next question."""

MIN_AGE = 0.2
"""Seconds for which an answer is reused at least."""

AGE_FACTOR = 10
"""An answer is reused for this many times as long as it took: counting takes a tenth of a core at most."""

MAX_TEAMS = 100
"""Most teams in an answer: more than anybody reads."""

LEADERS = 8
"""Origins whose growth is shown one by one: as many colours as a chart can bear."""


class LogIndex:
    """Answers from one log. One thread asks; any thread may close it."""

    def __init__(
        self,
        update_log: UpdateLog,
        names: Callable[[], Mapping[bytes, Names]],
        run: RunParameters,
        training: Training | None = None,
    ) -> None:
        """`names()` are the names that origins give themselves; `training` is as for `RunHistory`."""
        self._log = update_log
        self._decided = RunHistory(run, training=training) if run.organised else None
        """History of an organised run."""
        self._timeline: list[TimelineEntry] = []
        self._timeline_of = 0, b""
        """Decisions of which the timeline tells: it takes long where epochs have many feeds."""
        self._contributions = Contributions(update_log)
        self._members: dict[bytes, Ranked] = {}
        """Members by origin; none in an open run."""
        self._has_worths = False
        """Whether the worth of anybody's updates was measured: never in an open run, and one of rewards."""
        self._all_worths = 0
        """Sum of all members' worths, without their signs."""
        self._ranked: list[Contribution] = []
        """All origins, the greatest worth first, then most updates."""
        self._find_names = names
        self._names: Mapping[bytes, Names] = {}
        self._teams: list[Team] = []
        self._history: dict[int, History] = {}
        """The last answer, by the number of points asked for."""
        self._valid_until = float("-inf")

    def close(self) -> None:
        """Read nothing more after the segment that is being read."""
        self._contributions.close()

    def origins(self, own: bytes, offset: int, limit: int, find: str) -> Origins:
        """Return the origins whose key begins with `find` (hex), `limit` of them from rank `offset` on."""
        self._refresh()
        found = list(enumerate(self._ranked, 1))
        if find:
            found = [(rank, one) for rank, one in found if one.origin.hex().startswith(find)]
        return Origins(
            total=len(found),
            offset=offset,
            updates=self._contributions.updates,
            indexed=self._contributions.updates,
            origins=[self._origin(rank, one, own) for rank, one in found[offset : offset + limit]],
            teams=self._teams,
        )

    def standing(self, own: bytes) -> OwnStanding:
        """Return what one origin has contributed."""
        self._refresh()
        places = {one.origin: rank for rank, one in enumerate(self._ranked, 1)}
        rank, member = places.get(own), self._members.get(own)
        updates = self._ranked[rank - 1].updates if rank else 0
        return OwnStanding(
            rank=rank,
            of=len(self._ranked),
            updates=updates,
            share=updates / max(1, self._contributions.updates),
            counted=member.counted if member else None,
            worth=member.worth if member and self._has_worths else None,
            gain_share=self._gain(member),
        )

    def history(self, points: int) -> History:
        """Return the history of the run in at most `points` equal spans of epochs."""
        self._refresh()
        if points not in self._history:
            self._history = {points: self._summarise(points)}
        return self._history[points]

    def timeline(self, limit: int) -> Timeline:
        """Return the last decisions, with the names of origins as they were when these came."""
        decided = self._follow()
        if decided is None:
            return Timeline(total=0, entries=[])
        if self._timeline_of != decided.read:
            authority = kept_control(self._log).authority
            successions = (one for one in authority if isinstance(one, Succession))
            entries = decided.entries(successions, self._log.arrivals())
            self._timeline, self._timeline_of = list(map(timeline_entry, entries)), decided.read
        return Timeline(total=len(self._timeline), entries=self._timeline[: -limit - 1 : -1])

    def _follow(self) -> RunHistory | None:
        """Return the history of an organised run by the decisions of now."""
        if self._decided is None:
            return None
        self._decided.names = self._find_names()
        return self._decided.follow(self._log.control())

    def _refresh(self) -> None:
        """Follow the log, unless the last answer is still valid."""
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

    def _gain(self, member: Ranked | None) -> float | None:
        """Return a member's part of what all have brought, `Origin.gain_share`."""
        if member is None or not self._has_worths:
            return None
        return member.worth / max(1, self._all_worths)

    def _worth(self, origin: bytes) -> int:
        return self._members[origin].worth if origin in self._members else 0

    def _origin(self, rank: int, one: Contribution, own: bytes) -> Origin:
        names = self._names.get(one.origin, NAMELESS)
        member = self._members.get(one.origin)
        return Origin(
            **one._asdict() | {"origin": one.origin.hex()},
            rank=rank,
            share=one.updates / self._contributions.updates,
            first_step=0,
            own=one.origin == own,
            counted=member.counted if member else None,
            worth=member.worth if member and self._has_worths else None,
            gain_share=self._gain(member),
            left_out=member.left_out if member else None,
            name=names.name or None,
            team=names.team or None,
        )

    def _summarise(self, points: int) -> History:
        ranked = self._contributions.ranked
        leaders = [one.origin for one in ranked[:LEADERS]]
        spans = _Spans(max((one.last_epoch for one in ranked), default=-1), points)
        for feed, count in self._contributions.counts.items():
            spans.add(feed.origin, count.epochs, leading=feed.origin in leaders)
        return spans.history(leaders, self._names)


def timeline_entry(entry: HistoryEntry) -> TimelineEntry:
    """Return a decision as the timeline has it."""
    epoch = entry.epoch
    return TimelineEntry(
        **{name: getattr(entry, name) for name in Decided.model_fields},
        epoch=epoch.epoch if epoch else None,
        counted=epoch.counted if epoch else None,
        origins=len(epoch.origins) if epoch else None,
        evaluation=epoch.evaluation if epoch else None,
    )


def _teams(contributions: Contributions, names: Mapping[bytes, Names]) -> list[Team]:
    """Return what was contributed under each team's name."""
    updates, origins = Counter[str](), Counter[str]()
    for one in contributions.ranked:
        if team := names.get(one.origin, NAMELESS).team:
            updates[team] += one.updates
            origins[team] += 1
    first = sorted(updates, key=lambda team: (-updates[team], team))[:MAX_TEAMS]
    return [
        Team(
            team=team,
            updates=updates[team],
            share=updates[team] / contributions.updates,
            origins=origins[team],
        )
        for team in first
    ]


class _Spans:
    """Sums of updates over equal spans of epochs."""

    def __init__(self, last_epoch: int, points: int) -> None:
        self._epochs = last_epoch + 1
        self._points = min(points, self._epochs)
        self._updates = [0] * self._points
        self._origins: list[set[bytes]] = [set() for _ in range(self._points)]
        self._leading: dict[bytes, list[int]] = {}

    def add(self, origin: bytes, epochs: dict[int, int], *, leading: bool) -> None:
        """Add one feed's updates by epoch."""
        own = self._leading.setdefault(origin, [0] * self._points) if leading else None
        for epoch, updates in epochs.items():
            span = epoch * self._points // self._epochs
            self._updates[span] += updates
            self._origins[span].add(origin)
            if own is not None:
                own[span] += updates

    def history(self, leaders: list[bytes], names: Mapping[bytes, Names]) -> History:
        known = list(accumulate(self._updates))
        led = [
            Leader(
                origin=origin.hex(),
                name=names.get(origin, NAMELESS).name or None,
                known=list(accumulate(self._leading[origin])),
            )
            for origin in leaders
        ]
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

"""Answers about the whole run: contributions by origin and by team, and the course of the run by epochs.

They come from the tally of the signed log, and with them what origins call themselves. They are found in a
thread beside the event loop.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping

from sfnode.runtime.tally import Contribution, Tally
from sfnode.runtime.viewed import History, HistoryPoint, Leader, Origin, Origins, Team
from sfnode.store.log import UpdateLog
from sfprotocol.names import NAMELESS, Names

PATIENCE = 2.0
"""Seconds that one question may wait for counting; what is not counted by then follows with the next."""

LEAST_AGE = 0.2
"""Seconds for which an answer is good: whoever asks at the same time is given the same."""

SPARING = 10
"""How much longer than it took to find an answer is good: so counting takes a tenth of a core at most."""

MAX_TEAMS = 100
"""Teams that are told of: more than anybody reads."""

LEADERS = 8
"""Origins whose growth is told one by one: as many colours as a chart can bear."""


class LogIndex:
    """Of one log. One thread asks; any may close it."""

    def __init__(self, update_log: UpdateLog, names: Callable[[], Mapping[bytes, Names]]) -> None:
        """`names`: what origins call themselves."""
        self._tally = Tally(update_log)
        self._find_names = names
        self._names: Mapping[bytes, Names] = {}
        self._teams: list[Team] = []
        self._history: dict[int, History] = {}
        """The last one that was told, by the number of points asked for."""
        self._good_until = float("-inf")

    def close(self) -> None:
        """Read nothing more: what is being read is the last."""
        self._tally.close()

    def origins(self, own: bytes, offset: int, limit: int, find: str) -> Origins:
        """Those whose key begins with `find` (hex), `limit` of them from the `offset`-th on."""
        self._refresh()
        found = list(enumerate(self._tally.ranked, 1))
        if find:
            found = [(rank, one) for rank, one in found if one.origin.hex().startswith(find)]
        return Origins(
            total=len(found),
            offset=offset,
            updates=self._tally.updates,
            indexed=self._tally.updates,
            origins=[self._origin(rank, one, own) for rank, one in found[offset : offset + limit]],
            teams=self._teams,
        )

    def history(self, points: int) -> History:
        """The run in at most `points` equal spans of epochs."""
        self._refresh()
        if points not in self._history:
            self._history = {points: self._summed_up(points)}
        return self._history[points]

    def _refresh(self) -> None:
        """Follow the log, unless that was done a moment ago."""
        began = time.monotonic()
        if self._tally.closed or began < self._good_until:
            return
        complete = self._tally.follow(began + PATIENCE)
        self._names, self._history = self._find_names(), {}
        self._teams = _teams(self._tally, self._names)
        now = time.monotonic()
        self._good_until = now + max(LEAST_AGE, SPARING * (now - began) if complete else 0.0)

    def _origin(self, rank: int, one: Contribution, own: bytes) -> Origin:
        return Origin(
            **one._asdict() | {"origin": one.origin.hex()},
            rank=rank,
            share=one.updates / self._tally.updates,
            first_step=0,
            own=one.origin == own,
            **self._names.get(one.origin, NAMELESS)._asdict(),
        )

    def _summed_up(self, points: int) -> History:
        ranked = self._tally.ranked
        leaders = [one.origin for one in ranked[:LEADERS]]
        spans = _Spans(max((one.last_epoch for one in ranked), default=-1), points)
        for feed, count in self._tally.counts.items():
            spans.add(feed.origin, count.epochs, leading=feed.origin in leaders)
        return spans.told(leaders, self._names)


def _teams(tally: Tally, names: Mapping[bytes, Names]) -> list[Team]:
    """What was contributed under each team's name."""
    updates, origins = Counter[str](), Counter[str]()
    for one in tally.ranked:
        if team := names.get(one.origin, NAMELESS).team:
            updates[team] += one.updates
            origins[team] += 1
    first = sorted(updates, key=lambda team: (-updates[team], team))[:MAX_TEAMS]
    return [
        Team(team=team, updates=updates[team], share=updates[team] / tally.updates, origins=origins[team])
        for team in first
    ]


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

    def told(self, leaders: list[bytes], names: Mapping[bytes, Names]) -> History:
        known = _sums(self._updates)
        led = [
            Leader(
                origin=origin.hex(),
                name=names.get(origin, NAMELESS).name,
                known=_sums(self._leading[origin]),
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


def _sums(numbers: list[int]) -> list[int]:
    """Cumulated."""
    sums, total = [], 0
    for number in numbers:
        total += number
        sums.append(total)
    return sums

"""Authors of updates for tests of coalescing: positions and counts, without links, logs or signatures.

Time is virtual, and each author may have its own pace. A thousand authors take seconds; in the simulator they
take hours.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from sfprotocol import wire_codec
from sfprotocol.events import OwnUpdates
from sfprotocol.frontier import Frontier
from sfprotocol.messages import EpochScalars, Feed, RunParameters, Segment
from sfprotocol.own_feed import Coalescing
from sfprotocol.wire_codec import LENGTH_BYTES

LATENCY = 0.2
"""Seconds from a signature until all other authors have the segment."""


def parameters(epoch_updates: int, update_budget: int = 1 << 31) -> RunParameters:
    return RunParameters(bytes(32), epoch_updates, update_budget, 2, 1000)


def feed(number: int) -> Feed:
    return Feed(number.to_bytes(32, "big"), 0)


class Author:
    """One author, with the updates that it knows of."""

    def __init__(self, run: RunParameters, number: int = 0) -> None:
        self.frontier = Frontier(run)
        self.feed = feed(number)
        self.coalescing = Coalescing(self.frontier, self.feed)
        self.taken: list[OwnUpdates] = []
        self.taken_at: list[float] = []
        self.made_at: list[float] = []

    def make(self, now: float, count: int = 1) -> OwnUpdates | None:
        """Finish `count` updates; return the updates that are due."""
        self.coalescing.add((EpochScalars(self.frontier.run.epoch_of(self.frontier.known), (7,) * count),))
        self.made_at += [now] * count
        return self.look(now)

    def look(self, now: float) -> OwnUpdates | None:
        """Return the waiting updates if they are due."""
        return self.flush(now) if self.coalescing.deadline() <= now else None

    def flush(self, now: float) -> OwnUpdates | None:
        """Return the waiting updates."""
        updates = self.coalescing.take(now)
        if updates:
            self.taken.append(updates)
            self.taken_at.append(now)
            self.hear(updates.count)
        return updates

    def hear(self, updates: int) -> None:
        """Admit `updates` more updates of others."""
        self.frontier.known += updates

    @property
    def counts(self) -> list[int]:
        """Number of updates in each segment."""
        return [updates.count for updates in self.taken]

    @property
    def waited(self) -> list[float]:
        """Seconds that each update has waited."""
        return [
            at - made
            for at, updates in zip(self.taken_at, self.taken, strict=True)
            for made in self.made_at[updates.first : updates.first + updates.count]
        ]


@dataclass
class Course:
    """Totals of a swarm, counted after its warm-up."""

    updates: int = 0
    sent: int = 0
    """Size of all segments, in bytes, each counted once."""
    progress: int = 0
    """Maximum number of updates that the whole run made while one update waited."""

    @property
    def bytes_per_update(self) -> float:
        return self.sent / self.updates


@dataclass
class Swarm:
    """Authors that each make an update at a fixed interval and hear of others' updates after LATENCY."""

    run: RunParameters
    paces: Sequence[float]
    together: bool = False
    """Whether all authors begin at the same time, instead of at random within their first step."""
    authors: list[Author] = field(default_factory=list)

    def play(self, warm: float, measured: float) -> Course:
        """Return the totals of `measured` seconds that follow `warm` seconds of warm-up."""
        random, course = Random(1), Course()
        self.authors = [Author(self.run, number) for number in range(len(self.paces))]
        made: list[list[int]] = [[] for _ in self.authors]
        """For each author, the numbers of its updates in the order of the whole run."""
        total = 0
        agenda = [
            (pace if self.together else random.uniform(0, pace), number, 0)
            for number, pace in enumerate(self.paces)
        ]
        """A heap of (time, author, number of updates that the others hear of). The number is 0 at the end
        of a step and -1 at a deadline."""
        heapq.heapify(agenda)

        def sign(who: int, updates: OwnUpdates | None) -> None:
            if updates:
                heapq.heappush(agenda, (now + LATENCY, who, updates.count))
            if updates and now >= warm:
                course.updates += updates.count
                course.sent += bytes_of(updates)
                course.progress = max(course.progress, total - made[who][updates.first])
            elif self.authors[who].coalescing.count and not updates:
                heapq.heappush(agenda, (max(now, self.authors[who].coalescing.deadline()), who, -1))

        while agenda[0][0] <= warm + measured:
            now, who, heard = heapq.heappop(agenda)
            if heard > 0:
                for other, author in enumerate(self.authors):
                    if other != who:
                        author.hear(heard)
                        if author.coalescing.count and (updates := author.look(now)):
                            sign(other, updates)
            elif heard < 0:
                if updates := self.authors[who].look(now):
                    sign(who, updates)
            else:
                total += 1
                made[who].append(total)
                sign(who, self.authors[who].make(now))
                heapq.heappush(agenda, (now + self.paces[who], who, 0))
        return course


def bytes_of(updates: OwnUpdates) -> int:
    """Return the size of the segment on the wire, in bytes, with its frame header and a feed key of the
    usual size."""
    segment = Segment((1 << 64) - 1, updates.first, updates.parts, bytes(64))
    return LENGTH_BYTES + len(wire_codec.encode(segment, 2))

"""How long own updates wait to be signed together, in virtual time and with what a node can know."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfprotocol import wire_codec
from sfprotocol.events import OwnUpdates
from sfprotocol.frontier import Frontier
from sfprotocol.joining import ENOUGH, EPOCH_SHARE, MAX_WAIT, MIN_INTERVAL, Joining
from sfprotocol.messages import EpochScalars, Feed, RunParameters, Segment
from sfprotocol.wire_codec import LENGTH_BYTES

LATENCY = 0.2
"""Seconds from one node's signature to all others' frontiers."""

TARGET = 10.0
"""Bytes an update, with its share of the segment around it."""


def run(epoch_updates: int, update_budget: int = 1 << 31) -> RunParameters:
    return RunParameters(bytes(32), epoch_updates, max(update_budget, 1), 2, 1000)


def feed(number: int) -> Feed:
    return Feed(number.to_bytes(32, "big"), 0)


def bytes_of(updates: OwnUpdates) -> int:
    """Bytes of the segment on the wire, its frame header included; a feed's key is 8 random bytes."""
    segment = Segment((1 << 64) - 1, updates.first, updates.parts, bytes(64))
    return LENGTH_BYTES + len(wire_codec.encode(segment, 2))


class Author:
    """A node as far as joining goes: a frontier in which only `known` and our own feed move."""

    def __init__(self, parameters: RunParameters, number: int = 0) -> None:
        self.frontier = Frontier(parameters)
        self.feed = feed(number)
        self.joining = Joining(self.frontier, self.feed)
        self.taken: list[tuple[float, OwnUpdates]] = []
        self.made_at: list[float] = []
        self.waited: list[float] = []

    def make(self, now: float, count: int = 1) -> None:
        epoch = self.frontier.run.epoch_of(self.frontier.known)
        self.joining.add((EpochScalars(epoch, (7,) * count),))
        self.made_at += [now] * count
        self.look(now)

    def look(self, now: float) -> OwnUpdates | None:
        """Take what is due."""
        if self.joining.deadline() > now:
            return None
        return self.flush(now)

    def flush(self, now: float) -> OwnUpdates | None:
        updates = self.joining.take(now)
        if updates:
            self.taken.append((now, updates))
            self.waited += [now - made for made in self.made_at[updates.first : updates.first + updates.count]]
            self.frontier.advance(self.feed, updates.first + updates.count, bytes(32), 0)
        return updates

    def hear(self, updates: int) -> None:
        other = feed(10**6)
        self.frontier.advance(other, self.frontier.next(other) + updates, bytes(32), 0)

    @property
    def counts(self) -> list[int]:
        return [updates.count for _, updates in self.taken]


# -- one author ------------------------------------------------------------------------------------------


def test_the_first_update_waits_for_nothing() -> None:
    author = Author(run(1000))
    author.make(5.0)
    assert author.counts == [1]
    assert author.joining.deadline() == float("inf")


def test_more_are_joined_step_by_step_until_the_signature_costs_little() -> None:
    author = Author(run(100_000))
    for second in range(200):
        author.make(float(second))
    assert author.counts[:8] == [1, 2, 4, 8, 16, ENOUGH, ENOUGH, ENOUGH]


def test_one_update_is_signed_every_thirty_seconds_at_least() -> None:
    author = Author(run(100_000))
    for step in range(20):
        author.make(10.0 * step)
    assert author.counts[2:] == [3] * len(author.counts[2:])
    assert max(author.waited) < MAX_WAIT


def test_a_step_that_takes_longer_than_that_is_signed_at_once() -> None:
    author = Author(run(100_000))
    for step in range(5):
        author.make(40.0 * step)
    assert author.counts == [1] * 5
    assert max(author.waited) == 0


def test_what_waits_is_due_although_no_more_comes() -> None:
    author = Author(run(100_000))
    for second in (0.0, 1.0, 2.0, 3.0):
        author.make(second)
    assert author.joining.count == 1
    assert author.joining.deadline() == 2.0 + MAX_WAIT


def test_a_fast_author_signs_ten_times_a_second() -> None:
    author = Author(run(100_000))
    for step in range(10_000):
        author.make(step / 1000)
    times = [when for when, _ in author.taken]
    assert min(b - a for a, b in zip(times, times[1:], strict=False)) >= MIN_INTERVAL - 1e-9
    assert len(times) <= 10 / MIN_INTERVAL + 1


def test_the_progress_of_others_ends_the_wait() -> None:
    author = Author(run(1000))
    for second in range(8):
        author.make(float(second))
    assert author.joining.count == 1
    author.hear(98)
    assert author.look(8.0) is None
    author.hear(1)
    assert author.look(8.0)


def test_what_an_author_adds_to_an_epoch_alone_ends_the_wait_too() -> None:
    author = Author(run(100))
    for second in range(100):
        author.make(float(second))
    assert author.counts[4:] == [10] * len(author.counts[4:])


def test_towards_the_end_of_the_run_less_and_less_waits() -> None:
    author = Author(run(1000, 1000))
    for step in range(1000):
        author.make(0.5 * step)
    assert sum(author.counts) == 1000
    for when, updates in author.taken:
        left = 1000 - updates.first
        assert updates.count <= max(1, left // EPOCH_SHARE), when
    assert author.counts[-5:] == [1] * 5


def test_after_a_pause_the_first_update_goes_out_at_once() -> None:
    author = Author(run(100_000))
    for second in range(20):
        author.make(float(second))
    assert author.flush(20.0)
    author.hear(5000)
    author.make(500.0)
    assert author.joining.count == 0


def test_updates_of_several_epochs_are_joined_in_parts() -> None:
    author = Author(run(1000))
    author.make(0.0)
    for epoch in (0, 1, 1):
        author.joining.add((EpochScalars(epoch, (epoch,)),))
    updates = author.joining.take(1.0)
    assert updates == OwnUpdates(author.feed, 1, (EpochScalars(0, (0,)), EpochScalars(1, (1, 1))))
    assert author.joining.take(1.0) is None


def test_a_feed_is_continued_where_the_log_ends() -> None:
    frontier = Frontier(run(1000))
    frontier.advance(feed(1), 40, bytes(32), 0)
    joining = Joining(frontier, feed(1))
    joining.add((EpochScalars(0, (1, 2)),))
    assert (joining.first, joining.stop) == (40, 42)
    updates = joining.take(0.0)
    assert updates is not None
    assert (updates.first, updates.count, joining.first) == (40, 2, 42)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3000), st.floats(0.001, 100))
def test_nothing_waits_too_long_whatever_happens(chance: int, epoch_updates: int, pace: float) -> None:
    """However steps, news and cuts come: 30 s, a tenth of an epoch as far as is known, and 32 are the most."""
    random = Random(chance)
    author = Author(run(epoch_updates))
    now, known_at, signed_at = 0.0, 0, float("-inf")
    for _ in range(300):
        due = author.joining.deadline()
        now = min(now + random.expovariate(1 / pace), max(due, now))
        before = len(author.taken)
        match random.randrange(3):
            case 0:
                author.make(now, random.randint(1, 3))
            case 1:
                author.hear(random.randint(1, max(1, epoch_updates // 30)))
                author.look(now)
            case 2:
                author.look(now)
        if len(author.taken) > before:
            assert now >= signed_at + MIN_INTERVAL - 1e-9
            signed_at, known_at = now, author.frontier.known
        elif author.joining.count and now > signed_at + MIN_INTERVAL:
            assert now <= signed_at + MAX_WAIT
            assert author.joining.count < ENOUGH
            assert author.frontier.known - known_at + author.joining.count < max(1, epoch_updates // EPOCH_SHARE)
    assert not author.waited or max(author.waited) <= MAX_WAIT + 1e-9
    assert sum(author.counts) + author.joining.count == len(author.made_at)


# -- many authors ----------------------------------------------------------------------------------------


@dataclass
class Course:
    """What came of a swarm of authors."""

    segments: int = 0
    updates: int = 0
    sent: int = 0
    """Bytes of the segments."""
    waits: list[float] = field(default_factory=list)
    """Updates that the whole run made while one waited, as a share of an epoch."""
    seconds: list[float] = field(default_factory=list)

    @property
    def bytes_per_update(self) -> float:
        return self.sent / self.updates


def course(paces: list[float], epoch_updates: int, seconds: float, *, together: bool, warm: float) -> Course:
    """Authors with these seconds a step hear of each other LATENCY after each signature.

    They begin all at once, or within one step of each. Counts what is signed after `warm` seconds.
    """
    import heapq

    random = Random(1)
    parameters = run(epoch_updates)
    authors = [Author(parameters, number) for number in range(len(paces))]
    agenda: list[tuple[float, int, str, int, int]] = []
    order = 0

    def plan(when: float, what: str, who: int, count: int = 0) -> None:
        nonlocal order
        order += 1
        heapq.heappush(agenda, (when, order, what, who, count))

    for number, pace in enumerate(paces):
        plan(pace if together else random.uniform(0, pace), "step", number)
    result, total = Course(), 0
    made_when: list[list[int]] = [[] for _ in paces]
    heard = 0
    seen = [0] * len(paces)
    own = [0] * len(paces)

    def signed(now: float, who: int, updates: OwnUpdates | None) -> None:
        if updates is None:
            return
        own[who] += updates.count
        plan(now + LATENCY, "news", who, updates.count)
        if now < warm:
            return
        result.segments += 1
        result.updates += updates.count
        result.sent += bytes_of(updates)
        for step in range(updates.first, updates.first + updates.count):
            result.waits.append((total - made_when[who][step]) / epoch_updates)
            result.seconds.append(now - authors[who].made_at[step])

    def catch_up(who: int) -> Author:
        """Have an author know all that was said until now; lazily, as nobody looks in between."""
        author = authors[who]
        if heard > seen[who]:
            author.frontier.known += heard - seen[who]
            seen[who] = heard
        return author

    while agenda and agenda[0][0] <= seconds:
        now, _, what, who, count = heapq.heappop(agenda)
        if what == "news":
            heard += count
            seen[who] += count
            for number in range(len(paces)) if len(paces) <= 100 else ():
                signed(now, number, catch_up(number).look(now))
            continue
        author = catch_up(who)
        if what == "step":
            total += 1
            made_when[who].append(total)
            before = len(author.taken)
            author.make(now)
            signed(now, who, author.taken[-1][1] if len(author.taken) > before else None)
            plan(now + paces[who], "step", who)
        else:
            signed(now, who, author.look(now))
        due = author.joining.deadline()
        if due < float("inf"):
            plan(max(due, now), "look", who) if due > now else None
    return result


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(("nodes", "pace"), [(1, 1.0), (10, 0.1), (10, 1.0), (100, 0.5), (100, 1.4)])
def test_twenty_updates_in_the_time_cost_ten_bytes_each(nodes: int, pace: float, together: bool) -> None:
    """A tenth of an epoch is twenty updates of each node."""
    result = course([pace] * nodes, 200 * nodes, 150 * pace, together=together, warm=60 * pace)
    assert result.updates
    assert result.bytes_per_update <= TARGET


if __name__ == "__main__":
    import sys, time
    for together in (True, False):
        for n, pace, e in [(1,1.,1000),(10,1.,1000),(10,1.,2000),(100,1.,1000),(100,1.,20000),(100,.1,20000),(10,10.,1000),(1000,1.,200000),(1000,.1,200000)]:
            t=time.time()
            for warm in (0, 100*pace):
                r = course([pace]*n, e, 200*pace, together=together, warm=warm)
                w=sorted(r.waits)
                print(together, n, pace, e, warm, "bytes %.1f seg %.1f waits p50 %.3f p99 %.3f max %.3f  secs max %.1f"%(r.bytes_per_update, r.updates/r.segments, w[len(w)//2], w[-len(w)//100], w[-1], max(r.seconds)), round(time.time()-t,1), flush=True)
    mixed=[0.1]*5+[1.]*20+[10.]*75
    for together in (True, False):
        r=course(mixed, 20000, 300, together=together, warm=100); w=sorted(r.waits)
        print("mixed", r.bytes_per_update, w[-1], max(r.seconds))

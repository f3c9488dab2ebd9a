"""How long own updates wait to be signed together, in virtual time and with what a node can know."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfprotocol.events import OwnUpdates
from sfprotocol.frontier import Frontier
from sfprotocol.messages import EpochScalars
from sfprotocol.own_feed import ENOUGH, EPOCH_SHARE, MAX_WAIT, MIN_INTERVAL, SEEN_SHARES, Joining
from tests.protocol.authors import LATENCY, Author, Swarm, feed, parameters

TARGET = 10.0
"""Bytes an update where a node makes twenty in the time for which they may wait."""

LONG = parameters(epoch_updates=100_000)
"""A run of which a few steps are next to nothing."""


# -- one author ------------------------------------------------------------------------------------------


def test_the_first_update_waits_for_nothing() -> None:
    author = Author(parameters(1000))
    author.make(5.0)
    assert author.counts == [1]
    assert author.joining.deadline() == float("inf")


def test_more_are_joined_step_by_step_until_the_signature_costs_little() -> None:
    author = Author(LONG)
    for step in range(200):
        author.make(0.5 * step)
    assert author.counts[:8] == [1, 2, 4, 8, 16, ENOUGH, ENOUGH, ENOUGH]


def test_one_update_is_signed_every_thirty_seconds_at_least() -> None:
    author = Author(LONG)
    for step in range(20):
        author.make(10.0 * step)
    assert author.counts[2:] == [3] * len(author.counts[2:])
    assert max(author.waited) < MAX_WAIT


def test_a_step_that_takes_longer_than_that_is_signed_at_once() -> None:
    author = Author(LONG)
    for step in range(5):
        author.make(40.0 * step)
    assert author.counts == [1] * 5
    assert max(author.waited) == 0


def test_what_waits_is_due_although_no_more_comes() -> None:
    author = Author(LONG)
    for second in (0.0, 1.0, 2.0, 3.0):
        author.make(second)
    assert author.joining.count == 1
    assert author.joining.deadline() == 2.0 + MAX_WAIT


def test_a_fast_author_signs_ten_times_a_second() -> None:
    author = Author(LONG)
    for step in range(10_000):
        author.make(step / 1000)
    assert min(b - a for a, b in pairwise(author.taken_at)) >= MIN_INTERVAL - 1e-9
    assert len(author.taken) <= 10 / MIN_INTERVAL + 1


def test_the_progress_of_others_that_become_faster_ends_the_wait() -> None:
    author = Author(parameters(1000))
    for second in range(8):
        author.make(float(second))
    assert author.joining.count == 1
    author.hear(198)
    assert author.look(8.0) is None
    author.hear(1)
    assert author.look(8.0)


def test_as_many_wait_as_are_our_share_of_a_tenth_of_an_epoch() -> None:
    author = Author(parameters(1000))
    for second in range(300):
        author.hear(9)
        author.make(float(second))
    assert set(author.counts[12:]) == {10}


def test_what_an_author_adds_to_an_epoch_alone_ends_the_wait_too() -> None:
    author = Author(parameters(100))
    for second in range(100):
        author.make(float(second))
    assert author.counts[4:] == [10] * len(author.counts[4:])


def test_towards_the_end_of_the_run_less_and_less_waits() -> None:
    author = Author(parameters(1000, 1000))
    for step in range(1000):
        author.make(0.5 * step)
    assert sum(author.counts) == 1000
    for updates in author.taken:
        assert updates.count <= max(1, (1000 - updates.first) // EPOCH_SHARE)
    assert author.counts[-5:] == [1] * 5


def test_after_a_pause_the_first_update_goes_out_at_once() -> None:
    author = Author(LONG)
    for second in range(20):
        author.make(float(second))
    assert author.flush(20.0)
    author.hear(5000)
    author.make(500.0)
    assert author.joining.count == 0


def test_updates_of_several_epochs_are_joined_in_parts() -> None:
    author = Author(parameters(1000))
    author.make(0.0)
    for epoch in (0, 1, 1):
        author.joining.add((EpochScalars(epoch, (epoch,)),))
    updates = author.joining.take(1.0)
    assert updates == OwnUpdates(author.feed, 1, (EpochScalars(0, (0,)), EpochScalars(1, (1, 1))))
    assert author.joining.take(1.0) is None


def test_a_feed_is_continued_where_the_log_ends() -> None:
    frontier = Frontier(parameters(1000))
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
    """However steps and news come: 30 s, two tenths of an epoch seen, and 32 updates are the most."""
    random = Random(chance)
    author = Author(parameters(epoch_updates))
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
            seen = author.frontier.known - known_at + author.joining.count
            assert seen < max(1, SEEN_SHARES * (epoch_updates // EPOCH_SHARE))
    assert not author.waited or max(author.waited) <= MAX_WAIT + 1e-9
    assert sum(author.counts) + author.joining.count == len(author.made_at)


# -- many authors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(("nodes", "pace"), [(1, 1.4), (10, 0.1), (10, 1.0), (100, 0.5), (100, 1.4)])
def test_twenty_updates_in_the_time_cost_ten_bytes_each(nodes: int, pace: float, together: bool) -> None:
    """A tenth of the epoch is twenty updates of each node, and takes less than 30 s."""
    run = parameters(epoch_updates=200 * nodes)
    course = Swarm(run, [pace] * nodes, together).play(warm=60 * pace, measured=60 * pace)
    assert course.updates > 40 * nodes
    assert course.bytes_per_update <= TARGET


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    "paces",
    [[1.0] * 100, [0.1] * 30, [10.0] * 100, [0.1] * 3 + [1.0] * 10 + [10.0] * 40],
    ids=["even", "fast", "slow", "mixed"],
)
@pytest.mark.parametrize("epoch_updates", [100, 1024, 20_000])
def test_the_run_makes_no_more_than_a_tenth_of_an_epoch_while_an_update_waits(
    epoch_updates: int, paces: list[float], together: bool
) -> None:
    """Also when all begin at once, and nobody sees what the others hold back. What comes in the tenth of a
    second between two segments, and during a step or the delay of the network, is beyond joining."""
    course = Swarm(parameters(epoch_updates), paces, together).play(warm=0, measured=64 * min(1.0, paces[0]))
    assert course.updates
    latency = LATENCY + MIN_INTERVAL
    assert course.progress <= epoch_updates / EPOCH_SHARE + latency * sum(1 / pace for pace in paces)

"""Tests of missing updates: they delay seals, and a feed ends before steps that nobody has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sfnode.organising.events import Round
from sfnode.organising.feeds import CLAIMED, OVERSIZED, HeldFeeds
from sfnode.organising.organiser import Organiser
from sfnode.organising.view import Boundary
from sfprotocol.decisions import Admit, Amend, Close
from tests.organising.bench import CONSTANT, EVALUATED, UNEVALUATED, Bench, chain_of, feed_of

ANNE, BOB = feed_of("anne"), feed_of("bob")


def lose_the_last_100(bench: Bench) -> None:
    """Restart without the last hundred listed updates."""
    bench.update(ANNE, 100)
    bench.advance(3)
    bench.policy = replace(bench.policy, seal_wait=0.0)
    bench.held_back = True
    bench.update(ANNE, 100)
    bench.advance(1.5)
    bench.held_back = False
    (close,) = bench.outbox
    bench.outbox.clear()
    bench.node.decide(close.decision)
    del bench.boundaries[ANNE][1:]
    bench.start()
    bench.link()


def test_nothing_is_sealed_while_named_updates_are_missing() -> None:
    bench = Bench(policy=replace(UNEVALUATED, amend_after=None)).begin("anne")
    lose_the_last_100(bench)
    bench.advance(2_000)
    assert sum(one.named - one.stop for one in bench.organiser.known.feeds.missing().values()) == 100
    assert bench.run_state.sealed == 1
    bench.update(ANNE, 100, 1)
    bench.advance(2)
    assert bench.run_state.sealed == 2


@pytest.mark.parametrize(("claimed", "times"), [(False, 1), (True, CLAIMED)])
def test_a_feed_is_ended_before_what_is_not_to_be_had_later_where_a_peer_claims_it(
    claimed: bool, times: int
) -> None:
    bench = Bench(policy=replace(UNEVALUATED, amend_after=720.0)).begin("anne")
    lose_the_last_100(bench)
    bench.node.claims |= {ANNE} if claimed else set()
    bench.advance(times * 720 - 100)
    assert not bench.of(Amend)
    bench.advance(300)
    assert bench.of(Amend) == [Amend(0, 1)]
    assert bench.run_state.sealed == 2


def test_a_feed_is_not_given_up_while_more_of_it_comes_than_there_ever_was() -> None:
    bench = Bench(policy=replace(UNEVALUATED, amend_after=720.0)).begin("anne")
    lose_the_last_100(bench)
    kept = bench.boundaries[ANNE]
    for stop in (120, 140, 160):
        bench.advance(700)
        bench.hold(ANNE, [*kept, Boundary(stop, 0, chain_of(ANNE, stop))])
    for _ in range(7):  # as somebody does who signs ever other histories
        bench.advance(100)
        bench.hold(ANNE, kept)
        bench.hold(ANNE, [*kept, Boundary(150, 0, b"another")])
    assert not bench.of(Amend)
    bench.advance(300)
    assert bench.of(Amend) == [Amend(0, 1)]


def test_nothing_is_given_up_that_is_here_although_its_marks_were_forgotten() -> None:
    bench = Bench(policy=replace(UNEVALUATED, amend_after=720.0)).begin("anne")
    for _ in range(3):
        bench.update(ANNE, 100)
        bench.advance(3)
    bench.boundaries[ANNE] = [Boundary(150, 0, chain_of(ANNE, 150))]
    bench.start()
    bench.link()
    bench.advance(820)
    assert bench.of(Amend) == [Amend(0, 1)]
    assert bench.named(ANNE) == 100


def test_what_is_not_here_is_never_named_whatever_peers_say_that_they_have() -> None:
    bench = Bench().begin("anne")
    bench.update(ANNE, 40)
    bench.node.shows |= {ANNE: 1000, BOB: 1000}
    bench.advance(100)
    assert [close.moves[0].steps for close in bench.of(Close)] == [40]
    assert bench.run_state.positions() == {0: 40}


def test_what_was_shown_of_another_history_is_not_shown_of_this_one() -> None:
    bench = Bench().begin("anne")
    bench.update(ANNE, 40)
    bench.node.shows[ANNE] = 0
    bench.hold(ANNE, [Boundary(40, 0, b"another")])
    bench.advance(100)
    assert not bench.of(Close)
    bench.show(ANNE)
    bench.advance(100)
    assert bench.named(ANNE) == 40


def test_an_epoch_of_which_nothing_is_left_is_sealed_all_the_same() -> None:
    bench = Bench(policy=EVALUATED).begin("anne")
    bench.update(ANNE, 100)
    bench.advance(2)
    bench.decide(Amend(0, 0))
    bench.start()
    bench.link()
    bench.advance(100)
    assert bench.run_state.sealed == 1
    assert bench.run_state.counted == 0


def test_without_peers_the_time_of_what_is_missing_does_not_pass() -> None:
    bench = Bench(policy=replace(UNEVALUATED, amend_after=720.0)).begin("anne")
    lose_the_last_100(bench)
    bench.advance(100)
    bench.node.linked.clear()
    bench.advance(2_000)
    assert not bench.of(Amend)


@pytest.mark.parametrize("signs", [True, False], ids=["the organiser", "who stands by"])
def test_what_is_remembered_of_a_feed_does_not_grow_with_the_rounds(*, signs: bool) -> None:
    bench = Bench().begin("anne")
    other = bench.organiser
    if not signs:
        other = Organiser(
            bench.node, UNEVALUATED, CONSTANT, key=bytes(32), draw=bytes, stands_in=True, now=bench.now
        )
    most = 0
    for _ in range(30):
        for _ in range(10):
            bench.update(ANNE, 10)
            other.handle(Round((ANNE,)), bench.now)
        bench.advance(3)
        other.handle(Round(), bench.now)
        most = max(most, len(other.known.feeds.of(ANNE, bench.now).boundaries))
    assert bench.run_state.sealed >= 29
    assert most <= 31, "those of two or three epochs"


# -- the size of scalars ---------------------------------------------------------------------------------


def oversized(bench: Bench) -> set[int]:
    """Return the feeds with oversized scalars in the first close, which comes now."""
    bench.advance(bench.policy.longest_epoch + 10)
    feeds = HeldFeeds()
    feeds.follow(bench.node, bench.boundaries, 0.0)
    return feeds.oversized(0, bench.run_state)


@pytest.mark.parametrize(
    ("updates", "times", "too_large"),
    [(500, 0.9, False), (500, 1.1, True), (1, 1.5, False), (1, 3.0, True), (0, 9.0, False)],
)
def test_scalars_of_so_many_times_the_usual_size_are_heavy_unless_they_are_few(
    updates: int, times: float, *, too_large: bool
) -> None:
    names = [f"honest {number}" for number in range(9)]
    bench = Bench().begin("anne", *names)
    for name in names:
        bench.update(feed_of(name), max(updates, 1), size=100)
    if updates:
        bench.update(ANNE, updates, size=round(times * OVERSIZED * 100))
    assert oversized(bench) == ({bench.run_state.number(ANNE)} if too_large else set())


def test_who_splits_its_work_over_feeds_weighs_as_much() -> None:
    bench = Bench().begin("anne", *(f"honest {number}" for number in range(9)))
    for number in range(9):
        bench.update(feed_of(f"honest {number}"), 20, size=100)
    splits = [ANNE._replace(incarnation=number) for number in range(10)]
    for feed in splits:
        bench.update(feed, 2, size=round(1.2 * OVERSIZED * 100))
    assert oversized(bench) == {bench.run_state.number(feed) for feed in splits}


@pytest.mark.parametrize("stranger", [False, True])
def test_of_two_members_it_is_only_said_of_a_stranger_that_its_size_is_not_usual(*, stranger: bool) -> None:
    bench = Bench().begin("anne")
    bench.decide(Admit(feed_of("bob").origin, 0 if stranger else 1000, 0))
    bench.update(feed_of("bob"), 60, size=1000)
    bench.update(ANNE, 60, size=1)
    assert oversized(bench) == ({bench.run_state.number(feed_of("bob"))} if stranger else set())
    assert len(bench.run_state.moved(0)) == 2

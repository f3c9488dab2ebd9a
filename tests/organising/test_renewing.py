"""Published bases are made anew at sealed weights, and the epoch that is open meanwhile ends with them."""

from __future__ import annotations

from dataclasses import replace

from sfnode.organising.events import BasesMade, EvaluationEnded
from sfnode.organising.making import MAKE_AGAIN
from sfprotocol.decisions import Bases, Close, Seal
from tests.organising.bench import UNEVALUATED, Bench, feed_of

ANNE = feed_of("anne")
FIRST, SECOND = bytes(32), bytes([1]) * 32
RENEWED = replace(UNEVALUATED, renew_updates=200)


def bench(budget: int = 100_000, **policy: int) -> Bench:
    return Bench(policy=replace(RENEWED, **policy), bases=FIRST, budget=budget).begin("anne", quota=1 << 20)


def train(run: Bench, updates: int) -> None:
    for _ in range(updates // 50):
        run.update(ANNE, 50)
        run.advance(2)


def test_bases_are_made_at_the_last_seal_once_those_of_now_have_served_for_long_enough() -> None:
    run = bench()
    train(run, 150)
    assert not run.making
    train(run, 50)
    assert run.making == [1]
    train(run, 400)
    assert run.making == [1], "one at a time"
    assert run.counting.open_epoch == 2, "members wait for them"


def test_what_was_closed_and_not_sealed_has_not_served_yet() -> None:
    """Bases were made of a model that half of what they have served for had not moved."""
    run = bench(target_updates=2048, search_rows=64, seal_wait=100)
    for epoch in range(2):
        train(run, 150)
        assert run.counting.open_epoch == epoch + 1 > run.counting.sealed
        assert not run.making
        run.do(EvaluationEnded(epoch, None))
        run.advance(2)
    assert run.making == [1]


def test_they_serve_from_the_next_epoch_on_and_the_open_one_is_closed_with_what_it_has() -> None:
    run = bench()
    train(run, 200)
    run.update(ANNE, 20)
    run.do(BasesMade(SECOND))
    run.advance(4)
    assert run.of(Bases) == [Bases(3, SECOND)]
    assert [sum(move.steps for move in close.moves) for close in run.of(Close)] == [100, 100, 20]
    assert run.counting.open_epoch == 3
    assert len(run.of(Seal)) == 3
    train(run, 150)
    assert run.making == [1], "what served before does not count"
    train(run, 50)
    assert len(run.making) == 2


def test_an_epoch_is_no_longer_than_its_bases_serve() -> None:
    run = bench(target_updates=1000)
    train(run, 400)
    assert run.counting.closed_updates(0) == 200


def test_bases_that_could_not_be_made_are_tried_again_later() -> None:
    run = bench()
    train(run, 200)
    run.do(BasesMade(None))
    run.advance(MAKE_AGAIN / 2)
    assert run.making == [1]
    run.advance(MAKE_AGAIN)
    assert len(run.making) == 2
    assert not run.of(Bases)


def test_none_are_made_for_a_run_that_ends_with_random_ones_or_unless_asked() -> None:
    ended, random = bench(budget=200), Bench(policy=RENEWED).begin("anne", quota=1 << 20)
    for run in (ended, random, bench(renew_updates=0)):
        train(run, 400)
        assert not run.making


def test_bases_that_the_owner_publishes_for_a_later_subspace_cut_no_epoch_short() -> None:
    for run in (bench(), bench(renew_updates=0)):
        run.decide(Bases(5, SECOND))
        run.advance(10)
        train(run, 150)
        assert run.of(Bases) == [Bases(5, SECOND)]
        assert run.counting.open_epoch == 1
        assert run.counting.closed_updates(0) == 100

"""Tests of making: bases are made at sealed weights and end the open epoch; checkpoints of settled epochs are
signed unless something else counts by then."""

from __future__ import annotations

from dataclasses import replace

from sfnode.organising.events import EvaluationEnded, MakingEnded
from sfnode.organising.making import MAKE_AGAIN, SETTLED, SUMMARISE_AGAIN
from sfprotocol.decisions import Bases, Checkpoint, Close, Seal, Void
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
    assert run.run_state.open_epoch == 2, "members wait for them"


def test_what_was_closed_and_not_sealed_has_not_served_yet() -> None:
    """Regression: bases were made at a model that lacked half of the updates along the old bases."""
    run = bench(target_updates=2048, search_rows=64, seal_wait=100)
    for epoch in range(2):
        train(run, 150)
        assert run.run_state.open_epoch == epoch + 1 > run.run_state.sealed
        assert not run.making
        run.do(EvaluationEnded(epoch, None))
        run.advance(2)
    assert run.making == [1]


def test_they_serve_from_the_next_epoch_on_and_the_open_one_is_closed_with_what_it_has() -> None:
    run = bench()
    train(run, 200)
    run.update(ANNE, 20)
    run.do(MakingEnded(Bases, SECOND))
    run.advance(4)
    assert run.of(Bases) == [Bases(3, SECOND)]
    assert [sum(move.steps for move in close.moves) for close in run.of(Close)] == [100, 100, 20]
    assert run.run_state.open_epoch == 3
    assert len(run.of(Seal)) == 3
    train(run, 150)
    assert run.making == [1], "what served before does not count"
    train(run, 50)
    assert len(run.making) == 2


def test_an_epoch_is_no_longer_than_its_bases_serve() -> None:
    run = bench(target_updates=1000)
    train(run, 400)
    assert run.run_state.closed_updates(0) == 200


def test_bases_that_could_not_be_made_are_tried_again_later() -> None:
    run = bench()
    train(run, 200)
    run.do(MakingEnded(Bases, None))
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
        assert run.run_state.open_epoch == 1
        assert run.run_state.closed_updates(0) == 100


# -- checkpoints ------------------------------------------------------------------------------------------

CHECKPOINTS = replace(UNEVALUATED, checkpoint_epochs=3)


def epochs(run: Bench, count: int) -> None:
    for _ in range(count):
        run.update(ANNE, 100)
        run.advance(4)


def checkpoint(epoch: int, cores: int = 0) -> Checkpoint:
    return Checkpoint(epoch, bytes(32), cores.to_bytes(32, "big"))


def test_a_checkpoint_is_signed_every_few_seals_of_an_epoch_that_is_settled() -> None:
    run = Bench(CHECKPOINTS).begin("anne")
    epochs(run, SETTLED + 2)
    assert not run.summarising
    epochs(run, 1)
    assert run.summarising == [2]
    epochs(run, 3)
    assert run.summarising == [2], "one at a time"
    run.do(MakingEnded(Checkpoint, checkpoint(2)))
    run.advance(4)
    assert run.of(Checkpoint) == [checkpoint(2)]
    assert run.summarising == [2, 5]
    run.do(MakingEnded(Checkpoint, checkpoint(5)))
    run.advance(60)
    assert run.of(Checkpoint) == [checkpoint(2), checkpoint(5)]
    assert run.summarising == [2, 5]


def test_no_checkpoint_is_signed_of_what_a_decision_has_changed_meanwhile() -> None:
    run = Bench(CHECKPOINTS).begin("anne")
    epochs(run, SETTLED + 3)
    run.decide(Void(1, 1, ()))
    run.advance(2)
    run.do(MakingEnded(Checkpoint, checkpoint(2)))
    run.advance(4)
    assert not run.of(Checkpoint)
    assert run.summarising == [2, 2]
    run.decide(Void(3, 3, ()))
    run.do(MakingEnded(Checkpoint, checkpoint(2, cores=1)))
    run.advance(4)
    assert run.of(Checkpoint) == [checkpoint(2, cores=1)], "what comes after its epoch is no matter"


def test_a_checkpoint_that_is_not_usable_any_more_is_replaced_at_once() -> None:
    run = Bench(CHECKPOINTS).begin("anne")
    epochs(run, SETTLED + 3)
    run.do(MakingEnded(Checkpoint, checkpoint(2)))
    run.advance(4)
    run.decide(Void(0, 0, ()))
    run.advance(4)
    assert run.summarising == [2, 2]


def test_a_checkpoint_that_cannot_be_worked_out_is_tried_again_later() -> None:
    run = Bench(CHECKPOINTS).begin("anne")
    epochs(run, SETTLED + 3)
    run.do(MakingEnded(Checkpoint, None))
    run.advance(SUMMARISE_AGAIN - 5)
    assert run.summarising == [2]
    run.advance(10)
    assert run.summarising == [2, 2]


def test_without_the_policy_no_checkpoint_is_signed() -> None:
    run = Bench(replace(UNEVALUATED, checkpoint_epochs=None)).begin("anne")
    epochs(run, 2 * SETTLED)
    assert not run.summarising

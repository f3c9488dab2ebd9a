"""Checkpoints are signed of epochs that are settled, unless something else counts by then."""

from __future__ import annotations

from dataclasses import replace

from sfnode.organising.events import Summarised
from sfnode.organising.making import SETTLED, SUMMARISE_AGAIN
from sfprotocol.decisions import Checkpoint, Void
from tests.organising.bench import UNEVALUATED, Bench, feed_of

ANNE = feed_of("anne")
CHECKPOINTS = replace(UNEVALUATED, checkpoint_epochs=3)


def epochs(bench: Bench, count: int) -> None:
    """Let so many epochs be closed and sealed."""
    for _ in range(count):
        bench.update(ANNE, 100)
        bench.advance(4)


def checkpoint(epoch: int, cores: int = 0) -> Checkpoint:
    return Checkpoint(epoch, bytes(32), cores.to_bytes(32, "big"))


def test_a_checkpoint_is_signed_every_few_seals_of_an_epoch_that_is_settled() -> None:
    bench = Bench(CHECKPOINTS).begin("anne")
    epochs(bench, SETTLED + 2)
    assert not bench.summarising
    epochs(bench, 1)
    assert bench.summarising == [2]
    epochs(bench, 3)
    assert bench.summarising == [2], "one at a time"
    bench.do(Summarised(checkpoint(2)))
    bench.advance(4)
    assert bench.of(Checkpoint) == [checkpoint(2)]
    assert bench.summarising == [2, 5]
    bench.do(Summarised(checkpoint(5)))
    bench.advance(60)
    assert bench.of(Checkpoint) == [checkpoint(2), checkpoint(5)]
    assert bench.summarising == [2, 5]


def test_no_checkpoint_is_signed_of_what_a_decision_has_changed_meanwhile() -> None:
    bench = Bench(CHECKPOINTS).begin("anne")
    epochs(bench, SETTLED + 3)
    bench.decide(Void(1, 1, ()))
    bench.advance(2)
    bench.do(Summarised(checkpoint(2)))
    bench.advance(4)
    assert not bench.of(Checkpoint)
    assert bench.summarising == [2, 2]
    bench.decide(Void(3, 3, ()))
    bench.do(Summarised(checkpoint(2, cores=1)))
    bench.advance(4)
    assert bench.of(Checkpoint) == [checkpoint(2, cores=1)], "what comes after its epoch is no matter"


def test_a_checkpoint_that_is_not_usable_any_more_is_replaced_at_once() -> None:
    bench = Bench(CHECKPOINTS).begin("anne")
    epochs(bench, SETTLED + 3)
    bench.do(Summarised(checkpoint(2)))
    bench.advance(4)
    bench.decide(Void(0, 0, ()))
    bench.advance(4)
    assert bench.summarising == [2, 2]


def test_a_checkpoint_that_cannot_be_worked_out_is_tried_again_later() -> None:
    bench = Bench(CHECKPOINTS).begin("anne")
    epochs(bench, SETTLED + 3)
    bench.do(Summarised(None))
    bench.advance(SUMMARISE_AGAIN - 5)
    assert bench.summarising == [2]
    bench.advance(10)
    assert bench.summarising == [2, 2]


def test_without_the_policy_no_checkpoint_is_signed() -> None:
    bench = Bench(replace(UNEVALUATED, checkpoint_epochs=None)).begin("anne")
    epochs(bench, 2 * SETTLED)
    assert not bench.summarising

"""What work is worth is a sum of integers that follows from decisions alone (SPEC O16)."""

from __future__ import annotations

from sfprotocol.decisions import Decision, Part, Void, Worth
from sfprotocol.weighing import Sum, worths
from tests.protocol.organised import admit, close, fold, seal

A, B = 0, 64
MADE: list[Decision] = [admit(0), admit(1), close(0, {A: 10, B: 5}), close(1, {A: 3, B: 4})]
SAID = [
    Worth(0, 64, (Part(A, 10, 1001, 2000), Part(B, 5, -301, -900))),
    Worth(1, 64, (Part(A, 3, 70, 10), Part(B, 4, 40, 10))),
]


def sums(*decisions: Decision) -> dict[int, Sum]:
    return worths(fold(*MADE, *decisions), SAID)


def test_what_counts_is_worth_what_was_told_times_its_factor_rounded_down() -> None:
    assert sums(seal(0)) == {0: Sum(1001, 10), 1: Sum(-301, 5)}
    assert sums(seal(0, factor=2048)) == {0: Sum(500, 10), 1: Sum(-151, 5)}
    assert sums(seal(0), seal(1)) == {0: Sum(1071, 13), 1: Sum(-261, 9)}


def test_what_does_not_count_is_worth_nothing() -> None:
    assert sums() == {}
    assert sums(seal(0, factor=0)) == {}
    assert sums(seal(0, skip=(A,))) == {1: Sum(-301, 5)}
    assert sums(seal(0), Void(0, 0, (1,))) == {0: Sum(1001, 10)}


def test_what_a_later_seal_recounts_is_worth_that_seals_factor() -> None:
    assert sums(seal(0, skip=(A,)), seal(1, recount=((A, 0),), factor=1024))[0] == Sum(250 + 17, 13)


def test_the_first_figure_of_a_feed_and_epoch_holds() -> None:
    again = [*SAID, Worth(0, 64, (Part(A, 10, 9999, 1),))]
    assert worths(fold(*MADE, seal(0)), again) == sums(seal(0))

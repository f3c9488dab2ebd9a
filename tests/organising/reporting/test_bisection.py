"""The search for what has made a model worse, with losses that are given."""

from __future__ import annotations

import math
from random import Random

import pytest

from sfnode.organising.reporting.bisection import FEW, culprits, raised


class Losses:
    """Losses by epoch, each measured once."""

    def __init__(self, losses: list[float]) -> None:
        self.losses, self.asked = losses, set[int]()

    def __call__(self, epoch: int) -> float:
        self.asked.add(epoch)
        return self.losses[epoch + 1]


@pytest.mark.parametrize("bad", range(FEW))
def test_of_few_epochs_it_is_the_one_with_the_steepest_rise(bad: int) -> None:
    losses = [1.0 - 0.01 * n + 0.3 * (n > bad) for n in range(FEW + 1)]
    assert raised(-1, FEW - 1, Losses(losses)) == bad


@pytest.mark.parametrize("bad", [0, 1, 100, 511, 999])
def test_of_many_it_is_found_by_halves(bad: int) -> None:
    random = Random(bad)
    losses = Losses([0.7 + random.gauss(0, 0.02) + (n > bad) for n in range(1001)])
    assert raised(-1, 999, losses) == bad
    assert len(losses.asked) <= 13


def test_a_loss_that_has_not_risen_was_raised_by_none() -> None:
    assert raised(0, 4, Losses([9.0, 0.7, 0.9, 0.9, 0.9, 0.7])) is None


def test_a_model_that_gives_no_numbers_is_the_worst() -> None:
    assert raised(-1, 2, Losses([0.7, 0.6, math.nan, math.nan])) == 1
    assert raised(-1, 2, Losses([0.7, 0.6, 0.6, math.inf])) == 2


def harm(**by_origin: float):  # type: ignore[no-untyped-def]
    """Return the names, and the loss of 1 plus the harm of all who are not left out; and who was."""
    asked: list[frozenset[str]] = []

    def without(some: frozenset[str]) -> float:
        asked.append(some)
        return 1.0 + sum(amount for name, amount in by_origin.items() if name not in some)

    return list(by_origin), without, asked


def test_the_one_whose_work_did_harm_is_found() -> None:
    names, without, _ = harm(a=-0.01, b=0.5, c=0.02)
    found = culprits(names, 1.0, without(frozenset()), without)
    assert found == [("b", pytest.approx(1.01))]


@pytest.mark.parametrize("bad", [0, 17, 63])
def test_of_many_origins_the_half_is_looked_into_without_which_it_is_better(bad: int) -> None:
    names, without, asked = harm(**{f"o{n}": 2.0 if n == bad else -0.001 for n in range(64)})
    assert [name for name, _ in culprits(names, 1.0, 3.0, without)] == [f"o{bad}"]
    assert len(asked) == 2 * 3 + FEW


def test_several_are_found_one_after_another() -> None:
    names, without, _ = harm(a=0.4, b=0.0, c=0.5, d=0.01)
    assert [name for name, _ in culprits(names, 1.0, without(frozenset()), without)] == ["c", "a"]


def test_harm_that_all_have_done_is_nobodys() -> None:
    names, without, _ = harm(**{f"o{n}": 0.05 for n in range(40)})
    assert culprits(names, 1.0, 3.0, without) == []
    names, without, _ = harm(a=0.0, b=-0.1)  # as if the rate, or what they do together, did it
    assert culprits(names, 0.5, 0.9, without) == []

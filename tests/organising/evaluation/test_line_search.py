"""Tests of the line search: its conclusions from losses, and runs whose rates follow from it alone."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from sfnode.organising.evaluation.line_search import (
    AMOUNTS,
    FIRST_ROWS,
    LATE_SCALE,
    SURE_ROWS,
    LineSearch,
    SearchResult,
    next_rate,
)
from sfprotocol.decisions import RATE_ONE

C = np.array(AMOUNTS)


def searched(losses: NDArray[np.float64], rows: int | None = None) -> LineSearch:
    search = LineSearch(len(losses) if rows is None else rows)
    while wanted := search.wanted:
        search.take(losses[wanted.start : wanted.stop])
    return search


def parabola(best: float, rows: int = 256, noise: float = 0.0, seed: int = 0) -> NDArray[np.float64]:
    """Return losses that are least at c = `best`; slopes differ between rows by `noise`."""
    slopes = noise * np.random.default_rng(seed).normal(size=(rows, 1))
    found: NDArray[np.float64] = (C - best) ** 2 + slopes * C
    return found


@pytest.mark.parametrize(
    ("best", "factor"),
    [(0.0, 0.0), (0.25, 0.125), (0.5, 0.25), (1.0, 0.5), (2.0, 1.0), (4.0, 1.0), (9.0, 2.0)],
)
def test_half_of_the_best_amount_is_taken_and_a_quarter_beyond_what_an_epoch_has_gone(
    best: float, factor: float
) -> None:
    assert searched(parabola(best)).found.factor == factor


def test_a_step_further_has_to_be_evidently_better_than_the_one_before() -> None:
    """At c = 8 the mean loss is the least, but rows differ so much that it shows little."""
    losses = np.tile([0.62, 0.61, 0.60, 0.58, 0.54, 0.50, 0.48], (FIRST_ROWS, 1))
    losses += np.random.default_rng(0).normal(0, 1e-3, losses.shape)
    assert searched(losses).found.factor == 2.0
    losses[::2, -1] += 0.2
    losses[1::2, -1] -= 0.2
    found = searched(losses).found
    assert (found.factor, found.best) == (1.0, 4.0)


def test_an_evident_result_takes_few_rows_and_a_doubtful_one_all() -> None:
    assert searched(parabola(8.0, noise=1.0)).found.rows == FIRST_ROWS
    noise = 0.05 * np.random.default_rng(1).normal(size=(200, len(AMOUNTS)))
    doubtful = searched(noise).found
    assert (doubtful.factor, doubtful.rows) == (1.0, 200)


def test_no_more_rows_are_asked_for_than_there_are() -> None:
    assert LineSearch(12).wanted == range(12)
    search = LineSearch(20)
    search.take(np.ones((FIRST_ROWS, len(AMOUNTS))))
    assert search.wanted == range(FIRST_ROWS, 20)
    search.take(np.ones((3, len(AMOUNTS))))
    assert not search.wanted, "there are fewer than it was told"


def test_an_epoch_is_given_nothing_only_once_that_is_sure() -> None:
    """The epoch helps on average over all rows, but by chance not over the first sixteen."""
    slopes = np.random.default_rng(0).normal(0, 0.3, (256, 1))
    first, others = slopes[:FIRST_ROWS], slopes[FIRST_ROWS:]
    unlucky = C * np.concatenate([first - first.mean() + 0.05, others - others.mean() - 0.1])
    found = searched(unlucky, FIRST_ROWS).found
    assert found.useful
    assert found.factor > 0
    assert FIRST_ROWS < found.rows <= SURE_ROWS
    assert searched(unlucky[:FIRST_ROWS], FIRST_ROWS).found.factor == 0.5, "there are no more rows"


def test_an_epoch_that_evidently_does_harm_takes_few_rows_and_one_of_noise_no_more_than_it_is_worth() -> None:
    assert searched(parabola(0.0), FIRST_ROWS).found.rows == FIRST_ROWS
    noise = np.random.default_rng(1).normal(0, 0.3, (256, 1)) * np.sqrt(C) + 0.01 * C
    found = searched(noise, FIRST_ROWS).found
    assert (found.factor, found.rows) == (0.5, SURE_ROWS)


def epochs_of_a_real_model(gain: float, number: int = 200) -> list[float]:
    """Return factors of epochs that move losses of rows by 0.3 nats and their mean by `gain`. Searches begin
    with 16 rows, as with SmolLM2-135M on AG News."""
    random = np.random.default_rng(32)
    moves = random.normal(-gain, 0.3, (number, 256, 1))
    epochs = 1 + moves * C + 0.005 * C**2
    return [searched(losses, FIRST_ROWS).found.factor for losses in epochs]


def test_work_counts_unless_it_evidently_does_harm() -> None:
    """Regression: an epoch of 432 updates that brought 0.019 nats got the factor 0, and so did the next
    two."""
    factors = epochs_of_a_real_model(0.019)
    assert np.mean([factor == 0.0 for factor in factors]) < 0.01
    assert np.mean([factor == 0.5 for factor in factors]) > 0.9, "nothing is evident: the rate is lowered"
    harmful = epochs_of_a_real_model(-0.2)
    assert np.mean([factor == 0.0 for factor in harmful]) > 0.95


def test_fewer_rows_have_to_say_more_before_an_epoch_counts_nothing() -> None:
    """One of a hundred good epochs looks bad by 2.3 standard errors by chance."""
    signs = np.resize([1.0, -1.0], (SURE_ROWS, 1))
    for rows, factor in ((FIRST_ROWS, 0.5), (SURE_ROWS, 0.0)):
        mean = 2.3 * 0.3 / np.sqrt(rows - 1)
        assert searched(1 + (mean + 0.3 * signs[:rows]) * C).found.factor == factor


def test_nothing_is_concluded_from_a_handful_of_rows() -> None:
    assert searched(parabola(8.0, rows=7)).found.factor == 1.0
    assert searched(parabola(8.0, rows=0)).found.factor == 1.0


def test_the_same_losses_everywhere_change_nothing() -> None:
    assert searched(np.ones((64, len(AMOUNTS)))).found.factor == 1.0


def test_an_epoch_that_gives_no_numbers_is_worth_what_still_gives_some() -> None:
    losses = parabola(8.0)
    losses[:, 2:] = np.nan
    assert searched(losses).found.factor == 0.125
    assert searched(np.full((64, len(AMOUNTS)), np.nan)).found.factor == 0.0


def at(factor: float) -> SearchResult:
    return SearchResult(factor, 2 * factor, 100)


def test_a_rate_is_divided_by_four_at_most_while_the_run_is_young_and_by_two_later() -> None:
    factors = (0, 0.125, 0.5, 1, 2)
    young = [next_rate(1000, at(factor), young=True) for factor in factors]
    later = [next_rate(1000, at(factor), young=False) for factor in factors]
    assert young == [250, 250, 500, 1000, 2000]
    assert later == [500, 500, 500, 1000, 2000]
    assert next_rate(1, at(0.0), young=True) == 1
    assert next_rate(RATE_ONE - 1, at(2.0), young=True) < RATE_ONE


def test_where_noise_decides_a_rate_is_not_at_its_limit() -> None:
    """Losses are straight lines in c at such rates, and rise or fall by chance."""
    random = np.random.default_rng(2)
    slopes = 0.01 * random.normal(size=(200, 64, 1))
    found = [searched(C * rows + 1e-6 * random.normal(size=(64, len(C)))).found for rows in slopes]
    assert {one.factor for one in found if one.best} <= {1.0, 2.0}
    assert {one.factor for one in found if not one.best} <= {0.0, 0.5, 1.0}


def test_of_what_moves_losses_far_and_not_evidently_down_half_counts() -> None:
    random = np.random.default_rng(1)
    for moves, factor in ((0.05, 1.0), (0.3, 0.5)):
        losses = 1 + moves * np.minimum(C, 1) * random.normal(size=(200, 1))
        assert searched(losses).found.factor == factor


class Quadratic:
    """Zeroth-order training on rows whose losses are quadratic, each with a minimum of its own."""

    def __init__(self, seed: int, size: int = 60) -> None:
        self.random = np.random.default_rng(seed)
        self.curvature = np.logspace(0, -2, size)
        self.weights = self.random.normal(size=size)
        minima = self.random.normal(size=(768, size))
        self.train, self.held_out = minima[:512], minima[512:]
        self.rate = 0.2 / self.curvature.sum()
        """Rate that is about the best constant one."""

    def losses(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = ((weights - self.held_out) ** 2 * self.curvature).sum(1) / 2
        return found

    def epoch(self, updates: int, rate: float) -> NDArray[np.float64]:
        """Return the change of the weights by an epoch."""
        at = self.weights.copy()
        signs = self.random.choice([-1.0, 1.0], size=(updates, len(at)))
        minima = self.train[self.random.integers(512, size=(updates, 4))].mean(1)
        with np.errstate(all="ignore"):
            for z, curved, minimum in zip(signs, signs * self.curvature, minima, strict=True):
                at -= rate * min(max(curved @ (at - minimum), -1e3), 1e3) * z
        return at - self.weights

    def run(self, first: float, updates: int, searching: bool = True) -> list[float]:
        """Train from a rate `first` times the good one; return the factors."""
        rates, count, young, factors = [first * self.rate] * 2, 128, True, []
        while updates > 0:
            rate, updates = rates.pop(0), updates - count  # rates lag by one epoch, as in a run
            direction = self.epoch(count, rate)
            losses = np.stack([self.losses(self.weights + c * direction) for c in AMOUNTS], 1)
            found = searched(losses).found
            factor = found.factor if searching else 1.0
            self.weights = self.weights + factor * direction
            factors.append(factor)
            rates.append(next_rate(round(rate * RATE_ONE), found, young=young) / RATE_ONE)
            if factor == 1.0:
                young, count = False, min(3 * count // 2, 1024)
        return factors

    @property
    def excess(self) -> float:
        return float((self.weights**2 * self.curvature).sum() / 2)


@cache
def gained(seed: int, first: float, *, searching: bool = True) -> float:
    """Return what a run gains from a rate `first` times the good one."""
    run = Quadratic(seed)
    before = run.excess
    run.run(first, 6000, searching)
    return before - run.excess


@pytest.mark.parametrize("first", [0.01, 100.0])
def test_from_rates_a_hundred_times_wrong_a_run_gains_what_the_right_one_gains(first: float) -> None:
    gains = [gained(seed, first) / gained(seed, 1.0, searching=False) for seed in range(3)]
    assert np.mean(gains) > 0.9


def test_at_the_noise_floor_it_does_not_hunt() -> None:
    run = Quadratic(3)
    run.run(1.0, 6000)
    before = run.excess
    later = run.run(0.5, 10_000)[2:]
    assert max(later) == 1.0
    assert 0.0 not in later
    assert sum(later) > 0.8 * len(later)
    assert run.excess < before


def test_along_work_that_has_waited_smaller_steps_are_searched() -> None:
    search = LineSearch(FIRST_ROWS, scale=LATE_SCALE)
    assert search.amounts == tuple(amount / 16 for amount in AMOUNTS)
    assert search.found.factor == 1 / 16, "nothing is evident yet"
    noise = np.random.default_rng(0).normal(0, 1e-3, (FIRST_ROWS, len(AMOUNTS)))
    search.take(np.array([0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.9]) + noise)
    assert (search.found.factor, search.found.best) == (1 / 16, 4 / 16)

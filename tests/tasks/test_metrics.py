"""Tests of metrics against figures computed by hand, and of their intervals' coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfnode.tasks.metrics import macro_f1, perplexity, share


def test_wilson_s_interval_is_that_of_the_textbook() -> None:
    # 8 of 10, z^2 = 3.84146: (0.8 + z^2/20 +- z * sqrt(0.16/10 + z^2/400)) / (1 + z^2/10)
    #   = (0.99207 +- 0.31361) / 1.38415
    measured = share(8, 10)
    assert measured.value == 0.8
    assert measured.low == pytest.approx(0.4902, abs=1e-4)
    assert measured.high == pytest.approx(0.9433, abs=1e-4)


def test_all_right_is_no_proof_of_being_always_right() -> None:
    # 5 of 5: 1 / (1 + 3.8415/5) = 0.5655 is as low as the share may be
    measured = share(5, 5)
    assert measured == pytest.approx((1.0, 0.5655, 1.0), abs=1e-4)


@given(count=st.integers(1, 5000), data=st.data())
def test_a_share_lies_in_its_interval_and_both_between_0_and_1(count: int, data: st.DataObject) -> None:
    measured = share(data.draw(st.integers(0, count)), count)
    assert 0 <= measured.low <= measured.value + 1e-9
    assert measured.value - 1e-9 <= measured.high <= 1


def test_perplexity_is_per_token_and_its_interval_per_row() -> None:
    # Two rows: 2 nats over 1 token, 2 nats over 3 tokens. Mean 4/4 = 1 nat a token. Residuals 2 - 1, 2 - 3,
    # so variance (1 + 1) * 2/1 / 4^2 = 0.25 and standard error 0.5: exp(1 +- 1.95996 * 0.5).
    measured = perplexity(np.array([2.0, 2.0]), np.array([1.0, 3.0]))
    assert measured.value == pytest.approx(math.e)
    assert measured.low == pytest.approx(math.exp(0.02002), rel=1e-4)
    assert measured.high == pytest.approx(math.exp(1.97998), rel=1e-4)


def test_no_perplexity_is_below_1() -> None:
    assert perplexity(np.array([0.0, 2.0]), np.array([1.0, 1.0])).low == 1.0


def test_rows_that_all_say_the_same_leave_no_doubt() -> None:
    measured = perplexity(np.array([2.0, 4.0]), np.array([1.0, 2.0]))
    assert measured == pytest.approx((math.exp(2), math.exp(2), math.exp(2)))


def test_one_row_says_nothing_of_others_and_no_surprise_is_too_large() -> None:
    measured = perplexity(np.array([1e6]), np.array([2.0]))
    assert measured == (math.exp(700), 1.0, math.inf)


RIGHT = np.array([0, 0, 0, 1, 1, 2])
PREDICTED = np.array([0, 0, 1, 1, 0, 2])


def test_macro_f1_is_the_mean_over_the_classes() -> None:
    # class 0: 2 hits, 1 false alarm, 1 miss: 4/6; class 1: 1 hit, 1 false alarm, 1 miss: 2/4; class 2: 1
    assert macro_f1(PREDICTED, RIGHT, 3).value == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)


def test_a_class_that_does_not_occur_does_not_count_but_one_that_is_only_predicted_does() -> None:
    assert macro_f1(PREDICTED, RIGHT, 5) == macro_f1(PREDICTED, RIGHT, 3)
    # class 0: 1 hit, 1 miss: 2/3; class 1: 1 false alarm: 0
    assert macro_f1(np.array([0, 1]), np.array([0, 0]), 2).value == pytest.approx(1 / 3)


def test_the_bootstrap_is_pinned_because_every_node_must_find_it() -> None:
    measured = macro_f1(np.arange(200) % 3 % 2, np.arange(200) % 2, 2)
    assert measured == pytest.approx((0.491146462440, 0.418101753558, 0.560623496182), rel=1e-11)


@settings(max_examples=10)
@given(order=st.permutations(range(6)))
def test_the_order_of_the_rows_does_not_matter(order: list[int]) -> None:
    assert macro_f1(PREDICTED[order], RIGHT[order], 3) == macro_f1(PREDICTED, RIGHT, 3)


def test_the_bootstrap_s_interval_is_about_as_wide_as_theory_says() -> None:
    """With two classes of equal size and equal share of hits, F1 is near that share, whose interval is
    known."""
    rows = 800
    right = np.arange(rows) % 2
    predicted = np.where(np.arange(rows) % 10 < 8, right, 1 - right)  # 80 % hits in either class
    measured, known = macro_f1(predicted, right, 2), share(rows * 8 // 10, rows)
    assert measured.value == pytest.approx(known.value)
    assert measured.low == pytest.approx(known.low, abs=0.01)
    assert measured.high == pytest.approx(known.high, abs=0.01)


def test_rewards_between_0_and_1_add_up_like_hits() -> None:
    assert share(2.5, 10).value == 0.25
    assert share(2.0, 10).low < share(2.5, 10).low < share(3.0, 10).low

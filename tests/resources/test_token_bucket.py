"""A token bucket keeps its rate, in whatever pieces it is spent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfnode.resources.token_bucket import BURST, TokenBucket

PIECES = st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1000)), min_size=1, max_size=60)


@given(st.floats(1, 500), PIECES)
def test_waiting_as_told_never_exceeds_the_rate_by_more_than_one_piece_and_the_burst(
    rate: float, pieces: list[tuple[float, float]]
) -> None:
    now = spent = 0.0
    bucket = TokenBucket(rate, now)
    for delay, amount in pieces:
        now += delay + bucket.wait(now + delay)
        assert spent <= rate * (now + BURST) * (1 + 1e-6) + 1e-6
        bucket.spend(amount, now)
        spent += amount


@given(st.floats(1, 500), st.floats(0.1, 100))
def test_a_rate_that_is_never_exceeded_never_makes_wait(rate: float, step: float) -> None:
    bucket, now = TokenBucket(rate, 0.0), 0.0
    for _ in range(50):
        now += step
        bucket.spend(rate * step * 0.999, now)
        assert bucket.wait(now) == 0


def test_idle_time_is_not_saved_up_beyond_the_burst() -> None:
    bucket = TokenBucket(10, 0.0)
    assert bucket.wait(1000.0) == 0
    bucket.spend(100, 1000.0)
    assert bucket.wait(1000.0) == pytest.approx(10 - BURST)

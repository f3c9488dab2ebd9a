"""Token buckets keep their rate for pieces of any size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfprotocol.rate_limit import (
    INTAKE_BURST,
    INTAKE_RATE,
    LEAST_REST,
    PROOF_BURST,
    PROOF_RATE,
    Bucket,
    Intake,
    OriginBuckets,
)

SECONDS_HELD = 0.25
"""Seconds of its rate that a bucket holds in these tests."""

PIECES = st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1000)), min_size=1, max_size=60)


@given(st.floats(1, 500), PIECES)
def test_waiting_as_told_never_exceeds_the_rate_by_more_than_one_piece_and_the_burst(
    rate: float, pieces: list[tuple[float, float]]
) -> None:
    now = spent = 0.0
    burst = SECONDS_HELD * rate
    bucket = Bucket(burst, now)
    for delay, amount in pieces:
        now += delay + bucket.wait(0.0, now + delay, rate=rate)
        assert spent <= rate * (now + SECONDS_HELD) * (1 + 1e-6) + 1e-6
        bucket.spend(amount, now, rate=rate, burst=burst)
        spent += amount


@given(st.floats(1, 500), st.floats(0.1, 100))
def test_a_rate_that_is_never_exceeded_never_makes_wait(rate: float, step: float) -> None:
    burst = SECONDS_HELD * rate
    bucket, now = Bucket(burst, 0.0), 0.0
    for _ in range(50):
        now += step
        bucket.spend(rate * step * 0.999, now, rate=rate, burst=burst)
        assert bucket.wait(0.0, now, rate=rate) == 0


def test_idle_time_is_not_saved_up_beyond_the_burst() -> None:
    bucket = Bucket(2.5, 0.0)
    assert bucket.wait(2.5, 1000.0, rate=10) == 0
    bucket.spend(0, 1000.0, rate=10, burst=2.5)
    bucket.spend(100, 1000.0, rate=10, burst=2.5)
    assert bucket.wait(0.0, 1000.0, rate=10) == pytest.approx(10 - SECONDS_HELD)


def test_what_is_not_there_is_not_taken() -> None:
    bucket = Bucket(5.0, 0.0)
    assert not bucket.take(6, 0.0, rate=1, burst=10)
    assert bucket.take(6, 1.0, rate=1, burst=10)
    assert not bucket.take(1, 1.5, rate=1, burst=10)
    assert bucket.take(10, 100.0, rate=1, burst=10)
    assert not bucket.holds(1, 100.0, rate=1)


# -- what links and origins may bring ------------------------------------------------------------------


def test_a_link_brings_its_rate_on_average_however_large_the_pieces() -> None:
    intake, reserve, now, brought = Intake(Bucket(0.0, 0.0)), Bucket(0.0, 0.0), 0.0, 0
    for size in [90, 8000, 80_000, 250_000] * 20:
        now = max(now, intake.rests_until)
        intake.charge(size, reserve, now)
        brought += size
    reserved = reserve.level
    assert brought <= INTAKE_RATE * intake.rests_until + 8192 * intake.rests_until - reserved + INTAKE_BURST


def test_a_link_that_comes_up_again_has_no_more_than_one_that_stays() -> None:
    empty = Bucket(0.0, 100.0)
    intake = Intake(Bucket(0.0, 100.0))
    intake.charge(INTAKE_RATE, empty, 100.0)
    assert intake.rests_until == 101.0


def test_the_reserve_pays_for_a_long_history_and_then_the_link_rests() -> None:
    reserve = Bucket(1_000_000.0, 0.0)
    intake = Intake(Bucket(0.0, 0.0))
    for _ in range(10):
        intake.charge(100_000, reserve, 0.0)
        assert intake.rests_until == 0.0
    intake.charge(100, reserve, 0.0)
    assert intake.rests_until == LEAST_REST


def test_proofs_against_an_origin_are_counted_apart_from_its_news() -> None:
    origins = OriginBuckets()
    for _ in range(int(PROOF_BURST)):
        assert origins.may_prove(b"x", 0.0)
        origins.proved(b"x", 0.0)
    assert not origins.may_prove(b"x", 0.5 / PROOF_RATE)
    assert origins.may_prove(b"x", 1.1 / PROOF_RATE)
    assert origins.may_bring(b"x", 0.0)

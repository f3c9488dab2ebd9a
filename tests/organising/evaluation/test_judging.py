"""The schedule of rates."""

from __future__ import annotations

import pytest

from sfnode.organising.evaluation.judging import Schedule


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (Schedule("constant", 1000), [1000, 1000, 1000, 1000]),
        (Schedule("linear", 1000), [1000, 500, 0, 0]),
        (Schedule("cosine", 1000), [1000, 500, 0, 0]),
        (Schedule("cosine", (1 << 32) - 2), [(1 << 32) - 2, (1 << 31) - 1, 0, 0]),
    ],
)
def test_rates_follow_the_schedule_over_the_budget(schedule: Schedule, rates: list[int]) -> None:
    assert [schedule.rate(counted, 400) for counted in (0, 200, 400, 500)] == rates
    assert schedule.rate(0, 0) in (0, schedule.initial)

"""The settings of an organiser and the schedule of rates."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from sfnode.organising.evaluation.rates import Schedule
from sfnode.organising.policy import BOUNDS, OrganiserPolicy


def test_every_number_has_bounds() -> None:
    numbers = {field.name for field in fields(OrganiserPolicy) if field.type != "bool"} - {"admission"}
    assert numbers == set(BOUNDS)


@pytest.mark.parametrize("name", sorted(BOUNDS))
def test_what_is_out_of_bounds_is_refused_by_its_name(name: str) -> None:
    settings: Any = OrganiserPolicy
    least, most = BOUNDS[name]
    for value in (least, most):
        settings(**{name: value})
    for value in (least - 1, most + 1, float("nan")):
        with pytest.raises(ValueError, match=name):
            settings(**{name: value})


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

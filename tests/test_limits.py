"""Tests of the notation of limits, for people and for programs."""

from __future__ import annotations

from datetime import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sfnode.limits import DAY, Hours, Limits

MINUTES = st.integers(0, DAY - 1)


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("cpu", "50", 50.0),
        ("cpu", "12.5%", 12.5),
        ("threads", "2", 2),
        ("memory", "800M", 800_000_000),
        ("memory", "1.5G", 1_500_000_000),
        ("upload_rate", "500k", 500_000),
        ("download_rate", "2MB", 2_000_000),
        ("upload_rate", "4000", 4000),
        ("hours", "22:00-7:00", "22:00-07:00"),
        ("hours", "0:30 - 6:00,12:00-13:00", "00:30-06:00, 12:00-13:00"),
        ("mains", "yes", True),
        ("not_while", "steam, Blender", ("steam", "Blender")),
        ("mb_per_day", "1.5", 1.5),
    ],
)
def test_a_limit_is_read_from_text(field: str, text: str, value: Any) -> None:
    assert getattr(Limits.model_validate({field: text}), field) == value


def test_limits_are_told_as_they_are_given() -> None:
    told = "cpu=12.5, hours=22:00-07:00, mains=yes, not_while=steam,blender, upload_rate=500000"
    given = {"cpu": "12.5", "hours": "22:00-7:00", "mains": "yes", "upload_rate": "500k"}
    assert str(Limits.model_validate(given | {"not_while": "steam, blender"})) == told
    assert str(Limits()) == "none"


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("cpu", "0"),
        ("cpu", "101"),
        ("cpu", "half"),
        ("threads", "0"),
        ("threads", "1000000000"),
        ("memory", "9" * 400),
        ("upload_rate", "1." + "9" * 5000 + "e9"),
        ("mb_per_day", "inf"),
        ("watts", "inf"),
        ("memory", "2 gigs"),
        ("upload_rate", "999"),
        ("hours", "22-7"),
        ("hours", "25:00-26:00"),
        ("hours", "10:60-11:00"),
        ("hours", "24:30-06:00"),
        ("hours", "08:00-08:00"),
        ("hours", "00:00-24:00"),
        ("celsius", "nan"),
        ("idle", "-3"),
        ("bananas", "3"),
    ],
)
def test_an_invalid_limit_is_refused(field: str, text: str) -> None:
    with pytest.raises(ValidationError):
        Limits.model_validate({field: text})


@given(MINUTES, MINUTES, MINUTES)
def test_every_minute_is_in_an_interval_or_in_its_complement(start: int, stop: int, now: int) -> None:
    if start == stop:
        return
    moment, one, other = time(now // 60, now % 60), hours(start, stop), hours(stop, start)
    assert (moment in one) != (moment in other)
    assert (time(start // 60, start % 60) in one, time(stop // 60, stop % 60) in one) == (True, False)


def hours(start: int, stop: int) -> Hours:
    return Hours(f"{start // 60}:{start % 60:02}-{stop // 60}:{stop % 60:02}")


def test_changes_replace_the_limits_they_name_and_none_removes_one() -> None:
    limits = Limits(cpu=50, mains=True).changed({"cpu": "25", "mains": None, "memory": "1G"})
    assert limits == Limits(cpu=25, memory=1_000_000_000)
    assert limits.in_force() == {"cpu": 25, "memory": 1_000_000_000}


def test_limits_survive_json() -> None:
    limits = Limits(cpu=50, hours="22:00-07:00", not_while=("steam",), upload_rate=2000, mains=True)
    assert Limits.model_validate_json(limits.model_dump_json()) == limits

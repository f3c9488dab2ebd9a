"""When a node pauses and how long it rests, as tables."""

from __future__ import annotations

from datetime import time
from typing import Any

import pytest

from sfnode.limits import Limits
from sfnode.resources.pauses import BURST, ComputeRate, ComputeUsage, Readings, pause_reasons, spare_cores

NOTHING = Readings(
    moment=time(12, 0), idle=0, mains=True, programs=frozenset(), celsius=0, resident=0, free=2, day_bytes=0
)


@pytest.mark.parametrize(
    ("limit", "readings", "text"),
    [
        ({"hours": "22:00-07:00"}, {"moment": time(12, 0)}, "hours: only 22:00-07:00"),
        ({"hours": "22:00-07:00"}, {"moment": time(23, 0)}, None),
        ({"hours": "22:00-07:00"}, {"moment": time(6, 59)}, None),
        ({"hours": "22:00-07:00"}, {"moment": time(7, 0)}, "hours: only 22:00-07:00"),
        ({"hours": "1:00-2:00, 11:00-13:00"}, {"moment": time(12, 0)}, None),
        ({"idle": 5}, {"idle": 299}, "idle: in use within the last 5 min"),
        ({"idle": 5}, {"idle": 300}, None),
        ({"mains": True}, {"mains": False}, "battery"),
        ({"mains": True}, {"mains": True}, None),
        ({"not_while": "Steam,blender"}, {"programs": frozenset({"steam"})}, "program: Steam is running"),
        ({"not_while": "Steam,blender"}, {"programs": frozenset({"steamer"})}, None),
        ({"not_while": "Game.EXE"}, {"programs": frozenset({"game"})}, "program: Game.EXE is running"),
        ({"celsius": 80}, {"celsius": 80.5}, "temperature: 80 °C, limit 80"),
        ({"celsius": 80}, {"celsius": 79}, None),
        ({"memory": "1G"}, {"resident": 1_000_000_001}, "memory: 1000 MB, limit 1000"),
        ({"memory": "1G"}, {"resident": 1_000_000_000}, None),
        ({"mb_per_day": 2}, {"day_bytes": 2_000_000}, "traffic: 2.0 MB today, limit 2"),
        ({"mb_per_day": 2}, {"day_bytes": 1_999_999}, None),
    ],
)
def test_a_condition_that_does_not_hold_is_a_reason_to_pause(
    limit: dict[str, Any], readings: dict[str, Any], text: str | None
) -> None:
    found = pause_reasons(Limits.model_validate(limit), NOTHING._replace(**readings), ())
    assert [reason.text for reason in found] == ([text] if text else [])
    assert pause_reasons(Limits(), NOTHING._replace(**readings), ()) == []


@pytest.mark.parametrize(
    ("free", "spare"), [(8.0, 8), (7.6, 8), (7.5, 8), (7.4, 7), (7.0, 7), (0.5, 1), (0.0, 1)]
)
def test_threads_use_the_cores_that_others_leave_free(free: float, spare: int) -> None:
    assert spare_cores(free, None) == spare


def test_the_number_of_threads_does_not_change_while_others_take_about_half_a_core() -> None:
    looks = (8.0, 7.4, 7.6, 7.5, 7.7, 7.74, 7.76, 7.6, 7.5)
    spare, seen = None, []
    for free in looks:
        spare = spare_cores(free, spare)
        seen.append(spare)
    assert seen == [8, 7, 7, 7, 7, 7, 8, 8, 8]


def test_all_reasons_are_given() -> None:
    limits = Limits(hours="22:00-07:00", mains=True, memory=1)
    found = pause_reasons(limits, NOTHING._replace(mains=False, resident=2), ())
    assert [reason.limit for reason in found] == ["hours", "mains", "memory"]


@pytest.mark.parametrize(
    ("limit", "near", "far"),
    [
        ({"celsius": 80}, {"celsius": 78}, {"celsius": 77}),
        ({"memory": 1000}, {"resident": 951}, {"resident": 950}),
    ],
)
def test_a_reading_that_swings_about_its_limit_does_not_switch_every_second(
    limit: dict[str, Any], near: dict[str, Any], far: dict[str, Any]
) -> None:
    limits = Limits.model_validate(limit)
    assert pause_reasons(limits, NOTHING._replace(**near), ()) == []
    assert len(pause_reasons(limits, NOTHING._replace(**near), limit.keys())) == 1
    assert pause_reasons(limits, NOTHING._replace(**far), limit.keys()) == []


@pytest.mark.parametrize(
    ("limits", "cores", "rest"),
    [
        (Limits(), 4, 0),
        (Limits(cpu=50), 4, 1),  # 8 CPU seconds in 3 s, 2 a second allowed
        (Limits(gpu=50), 4, 1),  # busy for 2 s of 3
        (Limits(watts=100), 4, 2),  # 500 J in 3 s
        (Limits(cpu=50, watts=100), 4, 2),
        (Limits(cpu=100), 4, 0),
    ],
)
def test_a_rest_makes_up_for_what_was_used_too_fast(limits: Limits, cores: int, rest: float) -> None:
    rate = ComputeRate(limits, cores, ComputeUsage(1, 1, 1), 10.0)
    assert rate.rest(ComputeUsage(1, 1, 1), 10.0) == 0
    assert rate.rest(ComputeUsage(9, 3, 501), 13.0) == pytest.approx(rest, abs=BURST)
    assert rate.limited == (limits != Limits())

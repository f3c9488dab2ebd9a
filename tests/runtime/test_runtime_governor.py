"""When a good guest computes, as a table; and that no rate is exceeded, in whatever pieces it is spent."""

from __future__ import annotations

from datetime import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfnode.limits import Limits
from sfnode.runtime.governor import CREDIT, Allowance, Pace, Seen, Spent, pauses, spare_cores

NOTHING = Seen(
    moment=time(12, 0), idle=0, mains=True, programs=frozenset(), celsius=0, resident=0, free=2, day_bytes=0
)


@pytest.mark.parametrize(
    ("limit", "seen", "why"),
    [
        ({"hours": "22:00-07:00"}, {"moment": time(12, 0)}, "hours: only 22:00-07:00"),
        ({"hours": "22:00-07:00"}, {"moment": time(23, 0)}, ""),
        ({"hours": "22:00-07:00"}, {"moment": time(6, 59)}, ""),
        ({"hours": "22:00-07:00"}, {"moment": time(7, 0)}, "hours: only 22:00-07:00"),
        ({"hours": "1:00-2:00, 11:00-13:00"}, {"moment": time(12, 0)}, ""),
        ({"idle": 5}, {"idle": 299}, "idle: in use within the last 5 min"),
        ({"idle": 5}, {"idle": 300}, ""),
        ({"mains": True}, {"mains": False}, "battery"),
        ({"mains": True}, {"mains": True}, ""),
        ({"not_while": "Steam,blender"}, {"programs": frozenset({"steam"})}, "program: Steam is running"),
        ({"not_while": "Steam,blender"}, {"programs": frozenset({"steamer"})}, ""),
        ({"not_while": "Game.EXE"}, {"programs": frozenset({"game"})}, "program: Game.EXE is running"),
        ({"celsius": 80}, {"celsius": 80.5}, "temperature: 80 °C, limit 80"),
        ({"celsius": 80}, {"celsius": 79}, ""),
        ({"memory": "1G"}, {"resident": 1_000_000_001}, "memory: 1000 MB, limit 1000"),
        ({"memory": "1G"}, {"resident": 1_000_000_000}, ""),
        ({"mb_per_day": 2}, {"day_bytes": 2_000_000}, "traffic: 2.0 MB today, limit 2"),
        ({"mb_per_day": 2}, {"day_bytes": 1_999_999}, ""),
    ],
)
def test_a_condition_that_does_not_hold_is_a_reason_to_pause(
    limit: dict[str, Any], seen: dict[str, Any], why: str
) -> None:
    found = pauses(Limits.model_validate(limit), NOTHING._replace(**seen), ())
    assert [pause.why for pause in found] == ([why] if why else [])
    assert pauses(Limits(), NOTHING._replace(**seen), ()) == ()


@pytest.mark.parametrize(
    ("free", "spare"),
    [(8.0, 8), (7.6, 8), (7.5, 8), (7.4, 7), (7.0, 7), (0.5, 1), (0.0, 1)],
)
def test_threads_find_room_on_cores_that_others_leave_free(free: float, spare: int) -> None:
    assert spare_cores(free, None) == spare


def test_threads_do_not_change_while_others_take_about_half_a_core() -> None:
    looks = (8.0, 7.4, 7.6, 7.5, 7.7, 7.74, 7.76, 7.6, 7.5)
    spare, seen = None, []
    for free in looks:
        spare = spare_cores(free, spare)
        seen.append(spare)
    assert seen == [8, 7, 7, 7, 7, 7, 8, 8, 8]


def test_all_reasons_are_told() -> None:
    limits = Limits(hours="22:00-07:00", mains=True, memory=1)
    found = pauses(limits, NOTHING._replace(mains=False, resident=2), ())
    assert [pause.limit for pause in found] == ["hours", "mains", "memory"]


@pytest.mark.parametrize(
    ("limit", "near", "far"),
    [
        ({"celsius": 80}, {"celsius": 78}, {"celsius": 77}),
        ({"memory": 1000}, {"resident": 951}, {"resident": 950}),
    ],
)
def test_what_swings_about_its_limit_does_not_switch_by_the_second(
    limit: dict[str, Any], near: dict[str, Any], far: dict[str, Any]
) -> None:
    limits = Limits.model_validate(limit)
    assert pauses(limits, NOTHING._replace(**near), ()) == ()
    assert len(pauses(limits, NOTHING._replace(**near), limit.keys())) == 1
    assert pauses(limits, NOTHING._replace(**far), limit.keys()) == ()


PIECES = st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1000)), min_size=1, max_size=60)


@given(st.floats(1, 500), PIECES)
def test_who_rests_as_long_as_told_never_exceeds_the_rate_by_more_than_one_piece_and_the_credit(
    rate: float, pieces: list[tuple[float, float]]
) -> None:
    now = spent = 0.0
    allowance = Allowance(rate, now)
    for delay, amount in pieces:
        now += delay + allowance.rest(now + delay)
        assert spent <= rate * (now + CREDIT) * (1 + 1e-6) + 1e-6
        allowance.spend(amount, now)
        spent += amount


@given(st.floats(1, 500), st.floats(0.1, 100))
def test_who_never_exceeds_the_rate_never_rests(rate: float, step: float) -> None:
    allowance, now = Allowance(rate, 0.0), 0.0
    for _ in range(50):
        now += step
        allowance.spend(rate * step * 0.999, now)
        assert allowance.rest(now) == 0


def test_idle_time_is_not_saved_up() -> None:
    allowance = Allowance(10, 0.0)
    assert allowance.rest(1000.0) == 0
    allowance.spend(100, 1000.0)
    assert allowance.rest(1000.0) == pytest.approx(10 - CREDIT)


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
def test_what_was_spent_too_fast_is_made_up_for_by_a_rest(limits: Limits, cores: int, rest: float) -> None:
    pace = Pace(limits, cores, Spent(1, 1, 1), 10.0)
    assert pace.rest(Spent(1, 1, 1), 10.0) == 0
    assert pace.rest(Spent(9, 3, 501), 13.0) == pytest.approx(rest, abs=CREDIT)
    assert pace.limited == (limits != Limits())

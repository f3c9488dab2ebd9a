"""Tests of the rate of a run, from the times of its publications."""

from __future__ import annotations

from datetime import UTC, datetime

from sfnode.publish.run_file import MAX_PROGRESS, ProgressMoment, RunFile, hourly, progress
from tests.publish.test_directory import SAID


def moments(*told: tuple[int, int]) -> list[ProgressMoment]:
    return [ProgressMoment(at=at, updates=updates) for at, updates in told]


def test_a_pace_is_that_of_the_last_day() -> None:
    assert hourly(moments((0, 0))) is None
    assert hourly(moments((0, 0), (60, 9))) is None, "too short to tell"
    assert hourly(moments((0, 0), (1800, 100))) == 200
    assert hourly(moments((0, 0), (86_400, 1000), (2 * 86_400, 3400))) == 100
    assert hourly(moments((0, 500), (3600, 0))) == 0, "some was taken back"


def test_moments_are_thinned_out_where_they_are_old() -> None:
    found: tuple[ProgressMoment, ...] = ()
    for number in range(3 * MAX_PROGRESS):
        before = RunFile.model_validate(SAID | {"progress": found})
        found = progress(before, datetime.fromtimestamp(600 * number, UTC), number)
        assert len(found) <= MAX_PROGRESS
    assert found[0].at == 0
    assert found[-1].at == 600 * (3 * MAX_PROGRESS - 1)
    assert [one.updates for one in found[-50:]] == list(range(3 * MAX_PROGRESS - 50, 3 * MAX_PROGRESS))


def test_publishing_twice_in_a_second_is_one_moment() -> None:
    now = datetime(2026, 11, 23, tzinfo=UTC)
    before = RunFile.model_validate(SAID | {"progress": progress(None, now, 5)})
    assert [one.updates for one in progress(before, now, 6)] == [6]

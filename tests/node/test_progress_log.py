"""Lines of progress and alarms in a node's log."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from sfnode.node import recorder
from sfnode.node.recorder import log_progress
from sfnode.schema.status import AlarmStatus, Status
from tests.schema.helpers import organised
from tests.swarm.helpers import status

FALLING = AlarmStatus(code="SF070", what="the sky is falling", fix="Look up.")
RISING = AlarmStatus(code="SF071", what="the sea is rising", fix="Climb.")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "REPORT_INTERVAL", 0.0)


async def told(
    caplog: pytest.LogCaptureFixture, alarms: Sequence[list[AlarmStatus]], **fields: Any
) -> list[str]:
    """Return the lines of a node that has these alarms, one list after the other."""
    caplog.set_level("INFO")
    coming = iter(alarms)

    def look() -> Status:
        if (now := next(coming, None)) is None:
            raise asyncio.CancelledError
        return status(alarms=now, **fields)

    with pytest.raises(asyncio.CancelledError):
        await log_progress(look)
    return [record.getMessage() for record in caplog.records]


async def test_a_line_says_how_far_the_run_is_to_people_and_to_programs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (line,) = await told(caplog, [[]])
    assert line == "catching-up  123,456 of 200,000 updates  own 34,567 at 123/s  loss 12.346  links 0"
    assert vars(caplog.records[0])["update_budget"] == 200_000


async def test_the_line_of_an_organised_run_holds_what_counts_against_the_budget(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What is here is more: strangers' work, skipped work, and what no seal has judged."""
    run = organised(counted=900)["organised"]
    (line,) = await told(caplog, [[]], known=1454, update_budget=1000, organised=run, own_updates=7)
    assert "  900 of 1,000 updates count, 1,454 are here  own 7 at " in line


async def test_it_says_how_much_time_is_left_and_what_the_model_does_beside_updates(
    caplog: pytest.LogCaptureFixture,
) -> None:
    doing = {"what": "looking how far to go in round 3", "seconds": 72.4}
    (line,) = await told(caplog, [[]], updates_per_second=0.1, seconds_left=3720.0, doing=doing)
    assert " of 200,000 updates, 1 h 02 min left  own 34,567 at 6/min  " in line
    assert line.endswith("  looking how far to go in round 3, 1 min 12 s")


async def test_that_a_run_is_complete_is_told_once_and_alarms_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A complete run said so every ten seconds for ever."""
    lines = await told(caplog, [[], [], [FALLING], [FALLING], []], state="complete")
    assert [line.partition("  ")[0].partition(":")[0] for line in lines] == [
        "complete",
        "SF070",
        "SF070 is over",
    ]


async def test_an_alarm_is_told_once_and_again_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    lines = await told(caplog, [[], [FALLING], [FALLING, RISING], [RISING], []])
    assert [line for line in lines if not line.startswith("catching-up")] == [
        "SF070: the sky is falling. Look up.",
        "SF071: the sea is rising. Climb.",
        "SF070 is over",
        "SF071 is over",
    ]

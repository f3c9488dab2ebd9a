"""Tests of durations and limits on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sfnode.cli import owner
from sfnode.cli.owner import NAMES, _changes, limit_lines
from sfnode.errors import Code, UserError
from sfnode.limits import Limits
from tests.cli.helpers import Run

Parse = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(
    ("text", "seconds"), [("2h", 7200), ("90m", 5400), ("1h30m", 5400), ("45s", 45), ("1h1m1s", 3661)]
)
def test_a_duration_is_written_with_its_units(text: str, seconds: int, received: Parse) -> None:
    assert received("pause", text)["duration"] == seconds
    assert received("pause")["duration"] is None


@pytest.mark.parametrize("text", ["2", "h", "0m", "soon", "1m1h", "-2h", "1.5h", "9" * 5000 + "h"])
def test_a_duration_that_makes_no_sense_is_refused(text: str, sfnode: Run) -> None:
    ended = sfnode("pause", "--", text)
    assert (ended.status, ended.out) == (2, "")
    assert "2h, 90m or 1h30m" in ended.err


@pytest.mark.parametrize("text", ["cpu", "bananas=3", "=5", "limit-cpu=50"])
def test_only_limits_can_be_limited(text: str, sfnode: Run) -> None:
    ended = sfnode("limit", text)
    assert (ended.status, ended.out) == (2, "")
    assert "upload_rate" in ended.err


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        (
            "cpu=200",
            "cpu: Input should be less than or equal to 100. Give it as cpu=50; none removes a limit",
        ),
        ("mains=yes,hours=10-12", "hours: '10-12' is not an interval such as 22:00-07:00"),
        ("upload_rate=fast", "500k, 2M or 1.5G"),
        ("upload_rate=5", "1000"),
        ("bananas=3", "NAME=VALUE"),
    ],
)
def test_a_limit_of_join_that_makes_no_sense_is_refused_before_anything_starts(
    limit: str, reason: str, sfnode: Run
) -> None:
    ended = sfnode("join", "--limit", limit)
    assert ended.status == 2
    assert "--limit" in ended.err
    assert reason in ended.err


def test_a_running_node_that_refuses_a_limit_is_told_how_limits_are_given(
    sfnode: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        def limit(self, wanted: object) -> None:
            raise UserError(Code.BAD_OPTION, "the node refuses: hours: no interval", "Ask again.")

    monkeypatch.setattr(owner, "running_node", lambda _: Refusing())
    said = sfnode("limit", "hours=10-12,cpu=50").err
    assert "SF010: the node refuses: hours: no interval\n  Give it as hours=22:00-07:00 cpu=50; " in said


WRITTEN = ("cpu=50%,not_while=a,b,mains=yes", "hours=22:00-07:00,12:00-13:00, idle=none")


def test_join_and_limit_take_limits_in_one_notation(
    received: Parse, config: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    meant = Limits(cpu=50, mains=True, not_while=("a", "b"), hours="22:00-07:00, 12:00-13:00")
    given = [word for limits in WRITTEN for word in ("--limit", limits)]
    assert received("join", *given)["limits"] == meant
    assert Limits().changed(_changes(WRITTEN)) == meant
    config('limit = ["cpu=50", "mains=yes"]\n')
    assert received("join")["limits"] == Limits(cpu=50, mains=True)
    assert received("eval")["limit"] == 0, "the file's limits are nothing to other commands"
    monkeypatch.setenv("SFNODE_LIMIT", "cpu=20,threads=2 watts=none")
    assert received("join")["limits"] == Limits(cpu=20, threads=2)


def test_every_limit_can_be_changed() -> None:
    assert set(NAMES) == set(Limits.model_fields)


def test_limits_are_shown_one_a_line() -> None:
    assert limit_lines(Limits()) == "no limits"
    shown = limit_lines(Limits(cpu=50, mains=True, not_while=("a", "b"), upload_rate=500_000))
    assert [line.split(maxsplit=1) for line in shown.splitlines()] == [
        ["cpu", "50 %"],
        ["mains", "yes"],
        ["not_while", "a, b"],
        ["upload_rate", "500 kB"],
    ]

"""What the owner of a machine types: durations and limits, and what becomes of those that make no sense."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sfnode.cli.owner import NAMES, limit_lines, limit_options, take_limits
from sfnode.limits import Limits
from tests.cli.helpers import Ended

Parse = Callable[..., dict[str, Any]]
Run = Callable[..., Ended]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2h", 7200), ("90m", 5400), ("1h30m", 5400), ("45s", 45), ("1h1m1s", 3661)],
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
    ("flag", "value", "reason"),
    [
        ("--limit-cpu", "200", "less than or equal to 100"),
        ("--limit-hours", "10-12", "22:00-07:00"),
        ("--limit-upload-rate", "fast", "500k, 2M or 1.5G"),
        ("--limit-upload-rate", "5", "1000"),
        ("--limit-memory", "9" * 400, "500k, 2M or 1.5G"),
        ("--threads", "1000000", "0<=x<=1024"),
    ],
)
def test_a_limit_of_join_that_makes_no_sense_is_refused_before_anything_starts(
    flag: str, value: str, reason: str, sfnode: Run
) -> None:
    ended = sfnode("join", flag, value)
    assert ended.status == 2
    assert flag in ended.err
    assert reason in ended.err


def test_every_limit_is_an_option_of_join(received: Parse) -> None:
    @limit_options
    def nothing() -> None:
        pass

    options = {option.name for option in nothing.__click_params__}  # type: ignore[attr-defined]
    assert options == {f"limit_{name}" for name in Limits.model_fields if name != "threads"}
    given = ("--limit-cpu", "50%", "--limit-mains", "--threads", "2", "--limit-not-while", "a,b")
    limits = take_limits(received("join", *given))
    assert limits == Limits(cpu=50, mains=True, threads=2, not_while=("a", "b"))


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

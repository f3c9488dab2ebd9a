"""What a node may take of its machine: the limits that its owner sets, as text or as numbers.

The same names everywhere: `--limit-NAME` of `sfnode join`, `NAME=VALUE` of `sfnode limit`, the keys of
`/limits` in the control API. Knows their bounds and how they are written; does not know how they are kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import time
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

UNITS = {"": 1, "k": 1_000, "M": 1_000_000, "G": 1_000_000_000}
"""Powers of ten, as network rates are given."""

LEAST_RATE = 1_000
"""Bytes per second; slower than that, what links say regularly takes longer than they may be silent."""

DAY = 24 * 60
"""Minutes."""

MOST_THREADS = 1024
"""More than any machine has cores; a process that asks for a million of them dies of it."""

_MOST_DIGITS = 15
"""Of a number of bytes: petabytes, and no number that a float cannot hold."""


def _size(value: Any) -> Any:
    """`500k`, `2M`, `1.5G` or plain bytes."""
    if not isinstance(value, str):
        return value
    form = re.fullmatch(rf"([0-9]{{1,{_MOST_DIGITS}}}(?:\.[0-9]+)?)\s*([kMG]?)B?", value.strip(), re.ASCII)
    if form is None:
        raise ValueError(f"{value!r} is not a number of bytes such as 500k, 2M or 1.5G")
    return round(float(form[1]) * UNITS[form[2]])


def size_text(count: float) -> str:
    """Bytes for people: 87 B, 1.2 kB, 3.4 GB."""
    units = iter(("B", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while abs(count) >= 999.5 and unit != "TB":
        count, unit = count / 1000, next(units)
    return f"{count:.0f} {unit}" if unit == "B" or count >= 99.5 else f"{count:.1f} {unit}"


def _percent(value: Any) -> Any:
    return value.strip().removesuffix("%") if isinstance(value, str) else value


def _names(value: Any) -> Any:
    """`steam, blender` as the names in it."""
    if not isinstance(value, str):
        return value
    return tuple(name.strip() for name in value.split(",") if name.strip())


def _hours(value: Any) -> Any:
    """`22:00-07:00`, also several, put down in one way."""
    return str(Hours(value)) if isinstance(value, str) else value


class Hours:
    """Times of the day from one minute to another, which may be behind midnight; local time."""

    def __init__(self, text: str) -> None:
        """Raises ValueError."""
        self._spans = [_span(part.strip()) for part in text.split(",")]

    def __contains__(self, moment: time) -> bool:
        now = moment.hour * 60 + moment.minute
        return any((now - start) % DAY < (stop - start) % DAY for start, stop in self._spans)

    def __str__(self) -> str:
        return ", ".join(f"{_clock(start)}-{_clock(stop)}" for start, stop in self._spans)


def _span(text: str) -> tuple[int, int]:
    form = re.fullmatch(r"([0-9]{1,2}):([0-9]{2})\s*-\s*([0-9]{1,2}):([0-9]{2})", text, re.ASCII)
    hour, minute, last_hour, last_minute = map(int, form.groups()) if form else (99, 0, 99, 0)
    start, stop = hour * 60 + minute, last_hour * 60 + last_minute
    if max(hour, last_hour) > 24 or max(minute, last_minute) > 59 or max(start, stop) > DAY:
        raise ValueError(f"{text!r} is not an interval such as 22:00-07:00")
    if start % DAY == stop % DAY:
        raise ValueError(f"{text!r} is empty or the whole day; for the whole day set no hours")
    return start, stop


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


Percent = Annotated[float, BeforeValidator(_percent), Field(gt=0, le=100)]
Size = Annotated[int, BeforeValidator(_size), Field(gt=0)]
Rate = Annotated[int, BeforeValidator(_size), Field(ge=LEAST_RATE)]


_SIZES = ("memory", "upload_rate", "download_rate")


def _told(name: str, value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value)
    if name in _SIZES:
        return size_text(value)
    return "yes" if value is True else f"{value:g}" if isinstance(value, float) else str(value)


class Limits(BaseModel):
    """None, False and () stand for no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    cpu: Percent | None = None
    """Of all cores."""
    gpu: Percent | None = None
    """Of the time."""
    threads: int | None = Field(default=None, ge=1, le=MOST_THREADS)
    watts: float | None = Field(default=None, gt=0)
    """What the GPU draws on average."""
    celsius: float | None = Field(default=None, gt=0, le=150)
    memory: Size | None = None
    """Resident bytes of the process."""
    hours: Annotated[str, BeforeValidator(_hours)] | None = None
    """Times of the day in which the node computes."""
    idle: float | None = Field(default=None, gt=0, le=DAY)
    """Minutes without anybody at the machine, after which the node computes."""
    mains: bool = False
    """Compute on mains power only."""
    not_while: Annotated[tuple[str, ...], BeforeValidator(_names)] = ()
    """Names of programs beside which the node does not compute."""
    mb_per_day: float | None = Field(default=None, gt=0)
    """Millions of bytes in both directions, over links and, where the system tells, besides."""
    upload_rate: Rate | None = None
    """Bytes per second over all links."""
    download_rate: Rate | None = None

    def told(self) -> dict[str, str]:
        """Those in force, for people."""
        return {name: _told(name, value) for name, value in self.in_force().items()}

    def changed(self, changes: Mapping[str, Any]) -> Limits:
        """These limits with some replaced; None takes one away. Raises pydantic's ValidationError."""
        wanted = self.in_force() | dict(changes)
        return Limits.model_validate({name: value for name, value in wanted.items() if value is not None})

    def in_force(self) -> dict[str, Any]:
        """Those that are set, by name."""
        return self.model_dump(exclude_defaults=True)

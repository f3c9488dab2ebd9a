"""The limits that a machine's owner sets on a node: names, bounds and notation.

The names are the same everywhere: in `NAME=VALUE` of `sfnode limit` and `join --limit`, and as keys of
`/limits` in the control API. `sfnode.resources` enforces the limits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import time
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

UNITS = {"": 1, "k": 1_000, "M": 1_000_000, "G": 1_000_000_000}
"""Factors that the suffixes of sizes stand for. They are powers of ten, as for network rates."""

MEGABYTE = 1_000_000
"""Number of bytes in a megabyte."""

MIN_RATE = 1_000
"""Minimum of `upload_rate` and `download_rate`, in bytes per second. At a lower rate, an ordinary message
takes longer than a link may be silent."""

DAY = 24 * 60
"""Number of minutes in a day."""

MAX_THREADS = 1024
"""Maximum of the limit `threads`. No machine has more cores, and a process with a million threads would
die."""

_MAX_DIGITS = 15
"""Maximum number of digits of a size before the decimal point. A float represents whole numbers of 15 digits
exactly."""


def _size(value: Any) -> Any:
    """Parse `500k`, `2M`, `1.5G` or plain bytes."""
    if not isinstance(value, str):
        return value
    form = re.fullmatch(rf"([0-9]{{1,{_MAX_DIGITS}}}(?:\.[0-9]+)?)\s*([kMG]?)B?", value.strip(), re.ASCII)
    if form is None:
        raise ValueError(f"{value!r} is not a number of bytes such as 500k, 2M or 1.5G")
    return round(float(form[1]) * UNITS[form[2]])


def _percent(value: Any) -> Any:
    return value.strip().removesuffix("%") if isinstance(value, str) else value


def _names(value: Any) -> Any:
    """Split `steam, blender` into its names."""
    if not isinstance(value, str):
        return value
    return tuple(name.strip() for name in value.split(",") if name.strip())


def _hours(value: Any) -> Any:
    """Normalise `22:00-07:00`, or several such intervals."""
    return str(Hours(value)) if isinstance(value, str) else value


class Hours:
    """Intervals of the day in local time, to the minute. An interval may extend past midnight."""

    def __init__(self, text: str) -> None:
        """Parse intervals such as `22:00-07:00, 12:00-13:00`. Raises ValueError."""
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


def _given(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return f"{value:g}" if isinstance(value, float) else "yes" if value is True else str(value)


Percent = Annotated[float, BeforeValidator(_percent), Field(gt=0, le=100)]
Size = Annotated[int, BeforeValidator(_size), Field(gt=0)]
Rate = Annotated[int, BeforeValidator(_size), Field(ge=MIN_RATE)]


class Limits(BaseModel):
    """The limits of one node. None, False and () mean no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    cpu: Percent | None = None
    """Maximum use of the CPU, in percent of all cores."""
    gpu: Percent | None = None
    """Maximum share of the time in which the GPU computes, in percent."""
    threads: int | None = Field(default=None, ge=1, le=MAX_THREADS)
    watts: float | None = Field(default=None, gt=0)
    """Maximum power that the GPU draws on average, in watts."""
    celsius: float | None = Field(default=None, gt=0, le=150)
    memory: Size | None = None
    """Maximum resident memory of the process, in bytes."""
    hours: Annotated[str, BeforeValidator(_hours)] | None = None
    """Times of the day in which the node computes."""
    idle: float | None = Field(default=None, gt=0, le=DAY)
    """Time, in minutes, for which nobody must have used the machine before the node computes."""
    mains: bool = False
    """Compute on mains power only, not on battery."""
    not_while: Annotated[tuple[str, ...], BeforeValidator(_names)] = ()
    """Names of programs. While one of these programs runs, the node does not compute."""
    mb_per_day: float | None = Field(default=None, gt=0)
    """Maximum traffic a day in both directions together, in millions of bytes: of links and, where the system
    counts it, of the network daemon's other traffic."""
    upload_rate: Rate | None = None
    """Maximum rate in bytes per second, over all links together."""
    download_rate: Rate | None = None

    def changed(self, changes: Mapping[str, Any]) -> Limits:
        """Return these limits with `changes`, in which None removes a limit. Raises pydantic's
        ValidationError."""
        wanted = self.in_force() | dict(changes)
        return Limits.model_validate({name: value for name, value in wanted.items() if value is not None})

    def __str__(self) -> str:
        """Return the limits in their notation: `cpu=50, hours=22:00-07:00`."""
        return ", ".join(f"{name}={_given(value)}" for name, value in self.in_force().items()) or "none"

    def in_force(self) -> dict[str, Any]:
        """Return the limits that are set, keyed by name."""
        return self.model_dump(exclude_defaults=True)

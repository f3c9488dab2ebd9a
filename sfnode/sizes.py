"""Numbers of bytes, parts of wholes, times and rates, as people read them.

Imports nothing but the standard library, for commands that must start at once.
"""

from __future__ import annotations

import math

SPARE_BYTES = 64 << 20
"""Bytes that must stay free on a node's disk: its log goes on growing there."""


def size_text(count: float) -> str:
    """Format a number of bytes: 87 B, 1.2 kB, 3.4 GB."""
    units = iter(("B", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while abs(count) >= 999.5 and unit != "TB":
        count, unit = count / 1000, next(units)
    return f"{count:.0f} {unit}" if unit == "B" or count >= 99.5 else f"{count:.1f} {unit}"


def part_of(part: int, whole: int) -> str:
    """Format how much there is of what was asked for: `454 of 1,000`; what exceeds it is told as such: `1,000
    and 46 more`."""
    return f"{part:,} of {whole:,}" if part <= whole else f"{whole:,} and {part - whole:,} more"


def span(seconds: float | None) -> str:
    """Format a duration: `0:41`, `12:10`, `3 h 05`, `4 d 7 h`; `?` if it is unknown."""
    if seconds is None or not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02}"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02}" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def rate(number: float | None) -> str:
    """Format a rate per second; `?` if it is unknown."""
    if number is None:
        return "?"
    return f"{number:.1f}" if number < 99.95 else f"{number:,.0f}"


def pace(number: float | None) -> str:
    """Format a rate of updates: `123/s`, `1.5/s`, `10/min` below one a second; `?` if it is unknown."""
    if number is None or number >= 1:
        return "?" if number is None else f"{rate(number)}/s"
    return f"{60 * number:.{0 if 60 * number >= 0.95 or not number else 1}f}/min"

"""Numbers of bytes, and parts of wholes, as people read them.

Imports nothing, for commands that must start at once.
"""

from __future__ import annotations

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

"""The rules of a good guest: from limits and what is seen of the machine to whether the next step may begin.

Pure: no clock, no sensors, no model. Two kinds of rules. Some limits name a condition, and while it does not
hold the node pauses. The others name a rate (CPU seconds, busy seconds, joules or bytes per second), and what
was spent too fast is made up for by a rest; one Allowance keeps each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from datetime import time
from typing import NamedTuple

from sfnode.limits import Hours, Limits

COOL_DOWN = 3.0
"""Degrees below its limit at which a hot device may go on: else it would switch by the second."""

MEMORY_MARGIN = 0.95
"""Of its limit, below which the process may go on that has grown beyond it; for the same reason."""

CREDIT = 0.25
"""Seconds of its rate that an allowance saves up: enough that no time between two steps is lost, too little
to be noticed as a burst."""

MEGABYTE = 1_000_000


class Seen(NamedTuple):
    """What was seen of the machine at one moment; what no limit asks for may be anything."""

    moment: time
    """Of the day, local."""
    idle: float
    """Seconds since somebody was at the machine."""
    mains: bool
    """On mains power."""
    programs: frozenset[str]
    """Names of running programs, as `program` has them."""
    celsius: float
    resident: int
    """Bytes."""
    free: float
    """Cores that this process may use and that nobody else keeps busy."""
    moved: int = 0
    """Bytes that the network daemon has read and written since the node began."""
    day_bytes: int = 0
    """Sent and received today; no sensor tells."""


class Pause(NamedTuple):
    """One reason not to compute."""

    limit: str
    """Which limit asks for it."""
    why: str


def pauses(limits: Limits, seen: Seen, before: Collection[str]) -> tuple[Pause, ...]:
    """What keeps the node from computing now; `before`: the limits that did until now."""
    return tuple(
        Pause(limit, why) for limit, rule in _RULES.items() if (why := rule(limits, seen, limit in before))
    )


def _hours(limits: Limits, seen: Seen, _: bool) -> str:
    outside = limits.hours is not None and seen.moment not in Hours(limits.hours)
    return f"hours: only {limits.hours}" if outside else ""


def _idle(limits: Limits, seen: Seen, _: bool) -> str:
    in_use = limits.idle is not None and seen.idle < limits.idle * 60
    return f"idle: in use within the last {limits.idle:g} min" if in_use else ""


def _mains(limits: Limits, seen: Seen, _: bool) -> str:
    return "battery" if limits.mains and not seen.mains else ""


def program(name: str) -> str:
    """What a program is compared by, however it is written, and on whatever system."""
    return name.lower().removesuffix(".exe")


def _programs(limits: Limits, seen: Seen, _: bool) -> str:
    running = [name for name in limits.not_while if program(name) in seen.programs]
    return f"program: {running[0]} is running" if running else ""


def _celsius(limits: Limits, seen: Seen, before: bool) -> str:
    if limits.celsius is None:
        return ""
    hot = seen.celsius > limits.celsius - (COOL_DOWN if before else 0)
    return f"temperature: {seen.celsius:.0f} °C, limit {limits.celsius:g}" if hot else ""


def _memory(limits: Limits, seen: Seen, before: bool) -> str:
    if limits.memory is None:
        return ""
    full = seen.resident > limits.memory * (MEMORY_MARGIN if before else 1)
    return f"memory: {seen.resident / 1e6:.0f} MB, limit {limits.memory / 1e6:.0f}" if full else ""


def _traffic(limits: Limits, seen: Seen, _: bool) -> str:
    if limits.mb_per_day is None:
        return ""
    spent = seen.day_bytes >= limits.mb_per_day * MEGABYTE
    return f"traffic: {seen.day_bytes / MEGABYTE:.1f} MB today, limit {limits.mb_per_day:g}" if spent else ""


_RULES: dict[str, Callable[[Limits, Seen, bool], str]] = {
    "hours": _hours,
    "idle": _idle,
    "mains": _mains,
    "not_while": _programs,
    "celsius": _celsius,
    "memory": _memory,
    "mb_per_day": _traffic,
}
"""Why a limit asks for a pause, or nothing. The last argument: it has done so until now."""


def spare_cores(free: float, before: int | None) -> int:
    """On how many cores threads find room: one that waits for its core holds up all others, for what threads
    share out in a model takes milliseconds. Half of a core is worth a thread; `before`: what this was until
    now, so that it does not change with every look.
    """
    most, least = (max(1, math.floor(free + margin)) for margin in (0.5, 0.25))
    return most if before is None else min(max(before, least), most)


class Allowance:
    """So much per second, spent in pieces of any size: what is too much is a debt, and a debt means rest.

    `now` is in seconds and never decreases.
    """

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._most = self._left = CREDIT * rate
        self._at = now

    def spend(self, amount: float, now: float) -> None:
        """So much was spent since the last time that this or `rest` was called."""
        self._left = min(self._most, self._left + self._rate * (now - self._at) - amount)
        self._at = now

    def rest(self, now: float, saved: float = 0.0) -> float:
        """Seconds until the debt is paid, and this part of what can be saved up has been."""
        self.spend(0, now)
        return max(0.0, (saved * self._most - self._left) / self._rate)


class Spent(NamedTuple):
    """What computing has taken since the process began."""

    cpu: float
    """CPU seconds."""
    busy: float
    """Seconds in which a step ran."""
    joules: float


class Pace:
    """The rest that the limits on CPU, GPU and power ask for."""

    def __init__(self, limits: Limits, cores: float, spent: Spent, now: float) -> None:
        rates = (_share(limits.cpu, cores), _share(limits.gpu, 1), limits.watts)
        self._allowances = [Allowance(rate, now) if rate else None for rate in rates]
        self._spent = spent

    @property
    def limited(self) -> bool:
        """Whether there is anything to keep."""
        return any(self._allowances)

    def rest(self, spent: Spent, now: float) -> float:
        """Seconds until the next step may begin, given what has been spent in all by now."""
        rests = [0.0]
        for allowance, total, before in zip(self._allowances, spent, self._spent, strict=True):
            if allowance:
                allowance.spend(total - before, now)
                rests.append(allowance.rest(now))
        self._spent = spent
        return max(rests)


def _share(percent: float | None, whole: float) -> float | None:
    return percent and percent / 100 * whole

"""Rules for pauses of training (on battery, outside hours, while a game runs, when hot) and for rests between
steps.

Input: the owner's limits and the readings of the sensors. Output: reasons to pause and seconds to rest. Some
limits set a condition for training. The node pauses while the condition does not hold. Other limits set a
rate (CPU seconds, busy seconds or joules per second). The node rests when the rate was exceeded. This module
uses no clock, no sensors and no model.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from datetime import time
from typing import NamedTuple

from sfnode.limits import MEGABYTE, Hours, Limits
from sfprotocol.rate_limit import Bucket

BURST = 0.25
"""Size of a token bucket, in seconds of its rate: large enough to lose no time between two steps, too small
for a noticeable burst."""

COOL_DOWN = 3.0
"""Number of degrees below the limit to which a hot device must cool before the node continues. Without this
margin the node would pause and resume every second."""

MEMORY_MARGIN = 0.95
"""Share of the memory limit below which a process that exceeded the limit may continue. Without this margin
the process would pause and resume every second."""


class Readings(NamedTuple):
    """Readings of the sensors at one moment. A reading that no limit uses may have any value."""

    moment: time
    """Local time of day."""
    idle: float
    """Seconds since a person last used the machine."""
    mains: bool
    """Whether the machine is on mains power."""
    programs: frozenset[str]
    """Names of the running programs, as `normalised_program` returns them."""
    celsius: float
    resident: int
    """Resident memory of this process in bytes."""
    free: float
    """Cores that this process may use and that other programs leave free."""
    moved: int = 0
    """Bytes that the network daemon has read and written since the node started."""
    day_bytes: int = 0
    """Bytes sent and received today. The limiter fills them in, as no sensor knows them."""


class PauseReason(NamedTuple):
    """One reason not to compute."""

    limit: str | None
    """Name of the limit that requires the pause (or DISK or ROOM of the limiter); None if the owner asked for
    the pause."""
    text: str
    """The reason as text for people."""


def pause_reasons(limits: Limits, readings: Readings, before: Collection[str | None]) -> list[PauseReason]:
    """Return the reasons to pause now. `before` has the names of the limits that have required the pause
    until now."""
    return [PauseReason(name, text) for name, holds, text in _rules(limits, readings, before) if holds]


def _rules(limits: Limits, now: Readings, before: Collection[str | None]) -> Iterator[tuple[str, bool, str]]:
    """Yield, for each limit that is set, its name, whether it requires a pause, and the reason as text."""
    if limits.hours is not None:
        yield "hours", now.moment not in Hours(limits.hours), f"hours: only {limits.hours}"
    if limits.idle is not None:
        in_use = f"idle: in use within the last {limits.idle:g} min"
        yield "idle", now.idle < limits.idle * 60, in_use
    yield "mains", limits.mains and not now.mains, "battery"
    for name in [one for one in limits.not_while if normalised_program(one) in now.programs][:1]:
        yield "not_while", True, f"program: {name} is running"
    if limits.celsius is not None:
        hot = now.celsius > limits.celsius - (COOL_DOWN if "celsius" in before else 0)
        yield "celsius", hot, f"temperature: {now.celsius:.0f} °C, limit {limits.celsius:g}"
    if limits.memory is not None:
        full = now.resident > limits.memory * (MEMORY_MARGIN if "memory" in before else 1)
        yield "memory", full, f"memory: {now.resident / 1e6:.0f} MB, limit {limits.memory / 1e6:.0f}"
    if limits.mb_per_day is not None:
        today = now.day_bytes / MEGABYTE
        said = f"traffic: {today:.1f} MB today, limit {limits.mb_per_day:g}"
        yield "mb_per_day", now.day_bytes >= limits.mb_per_day * MEGABYTE, said


def normalised_program(name: str) -> str:
    """Return the form in which names of programs are compared: lower case, without `.exe`."""
    return name.lower().removesuffix(".exe")


def spare_cores(free: float, before: int | None) -> int:
    """Return the number of cores for threads of the engine.

    Threads share computations that take milliseconds, so a thread without a core delays all others. Half a
    free core counts as a core. `before` is the last result. It keeps the number from changing with each small
    change of the load.
    """
    most, least = (max(1, math.floor(free + margin)) for margin in (0.5, 0.25))
    return most if before is None else min(max(before, least), most)


class ComputeUsage(NamedTuple):
    """Resources used for computing since the process started."""

    cpu: float
    """CPU seconds."""
    busy: float
    """Seconds during which a step ran."""
    joules: float


class ComputeRate:
    """The rests between steps that the limits on CPU, GPU and power require."""

    def __init__(self, limits: Limits, cores: float, usage: ComputeUsage, now: float) -> None:
        rates = (_share(limits.cpu, cores), _share(limits.gpu, 1), limits.watts)
        self._buckets = [(rate, Bucket(BURST * rate, now)) if rate else None for rate in rates]
        self._usage = usage

    @property
    def limited(self) -> bool:
        """Whether any of these limits is set."""
        return any(self._buckets)

    def rest(self, usage: ComputeUsage, now: float) -> float:
        """Return the seconds until the next step may begin, after a total `usage`."""
        rests = [0.0]
        for bucket, total, before in zip(self._buckets, usage, self._usage, strict=True):
            if bucket:
                rate, level = bucket
                level.spend(total - before, now, rate=rate, burst=BURST * rate)
                rests.append(level.wait(0.0, now, rate=rate))
        self._usage = usage
        return max(rests)


def _share(percent: float | None, whole: float) -> float | None:
    return percent and percent / 100 * whole

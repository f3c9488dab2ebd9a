"""Number of cores that cgroups allow this process: what `docker run --cpus` and systemd's `CPUQuota=` set.

Such a limit hides no cores. Threads on all of them would use up what is allowed in the first part of each
tenth of a second and stand still for the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
"""File of lines `number:controllers:path`; cgroups version 2 leaves the controllers empty (cgroups(7))."""


def allowed_cores() -> float:
    """Return the smallest limit on this process or on a group around it; infinity if there is none."""
    with suppress(OSError):
        lines = MEMBERSHIP.read_text().splitlines()
        return min((limit for line in lines for limit in _limits(line)), default=math.inf)
    return math.inf


def _limits(line: str) -> Iterator[float]:
    _, controllers, path = line.split(":", 2)
    if controllers and "cpu" not in controllers.split(","):
        return
    root = GROUPS / controllers
    group = root / path.lstrip("/")
    # A container may see its own group as the root, and be given a path that exists only outside.
    for level in (group, *group.parents):
        with suppress(OSError, ValueError):
            yield _limit(level)
        if level == root:
            return


def _limit(group: Path) -> float:
    if (both := group / "cpu.max").exists():
        quota, period = both.read_text().split()
    else:
        quota, period = ((group / f"cpu.cfs_{what}_us").read_text().strip() for what in ("quota", "period"))
    return math.inf if quota in ("max", "-1") else int(quota) / int(period)

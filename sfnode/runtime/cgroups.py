"""How many cores the kernel lets this process have at a time: what `docker run --cpus` and `CPUQuota=` set.

Such a limit hides nothing: the machine's cores are all to be seen, and threads on all of them would spend
what is allowed in the first part of each tenth of a second and stand still for the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
"""Lines `number:controllers:path`; version 2 of cgroups has no controllers there (cgroups(7))."""


def allowed_cores() -> float:
    """The smallest limit on this process or on a group around it; infinite if there is none."""
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
    # A container may see its own group as the root, and be told a path that is there only outside.
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

"""Limits on CPU time of containers and services, from the files of both versions of cgroups."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sfnode.resources import sensors
from sfnode.resources.sensors import allowed_cores


@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        ("0::/", {"cpu.max": "max 100000"}, math.inf),
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/a/b", {"a/cpu.max": "50000 100000", "a/b/cpu.max": "200000 100000"}, 0.5),
        ("0::/docker/12ab", {"cpu.max": "200000 100000"}, 2.0),  # seen from within a container
        ("0::/", {}, math.inf),
        (
            "1:cpu,cpuacct:/",
            {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "1"},
            math.inf,
        ),
        ("1:cpu:/a", {"cpu/a/cpu.cfs_quota_us": "300000", "cpu/a/cpu.cfs_period_us": "100000"}, 3.0),
        ("2:cpuset:/\n1:cpu:/docker/12", {"cpu/cpu.cfs_quota_us": "5", "cpu/cpu.cfs_period_us": "10"}, 0.5),
        ("2:memory:/", {"memory/cpu.cfs_quota_us": "5", "memory/cpu.cfs_period_us": "10"}, math.inf),
    ],
)
def test_the_smallest_limit_around_a_process_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, membership: str, files: dict[str, str], cores: float
) -> None:
    monkeypatch.setattr(sensors, "GROUPS", tmp_path)
    monkeypatch.setattr(sensors, "MEMBERSHIP", tmp_path / "membership")
    for name, content in {"membership": membership, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{content}\n")
    assert allowed_cores() == cores


def test_a_system_without_cgroups_limits_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensors, "MEMBERSHIP", tmp_path / "none")
    assert allowed_cores() == math.inf


@pytest.fixture
def group() -> Iterator[Path]:
    """A real cgroup for CPU time, in whichever version this system has."""
    old, new = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    made = (old if old.exists() else new) / f"sfnode-test-{os.getpid()}"
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"no group can be made here: {error.strerror}")
    yield made
    made.rmdir()


def test_a_process_in_a_limited_group_sees_its_limit(group: Path) -> None:
    try:
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text("70000 100000")
        else:
            (group / "cpu.cfs_quota_us").write_text("70000")
    except OSError as error:
        pytest.skip(f"no limit can be set here: {error.strerror}")
    code = (
        f"import os, pathlib; pathlib.Path({str(group / 'cgroup.procs')!r}).write_text(str(os.getpid()))\n"
        "from sfnode.resources.sensors import allowed_cores; print(allowed_cores())"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(ended.stdout) == 0.7

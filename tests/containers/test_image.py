"""The image: its size, its user, its health check, and how its containers end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable

import pytest

from tests.containers.docker import Bases, run
from tests.containers.swarm import (
    IMAGE,
    PATIENCE,
    Swarm,
    execute,
    inspect,
    of_origin,
    own,
    status,
    until,
    until_status,
)

pytestmark = [pytest.mark.containers, pytest.mark.timeout(3600)]

STOP_LIMIT = 5.0
"""Seconds in which `docker stop` returns."""

USER = 10001

SLOW = 0.15
"""Share of a CPU on which a node needs more than two seconds to load its libraries."""


def users(container: str) -> list[int]:
    """Return the user of every process in a container."""
    _, *lines = run("docker", "top", container, "-eo", "uid,pid").splitlines()
    return [int(line.split()[0]) for line in lines]


def stopped_in(container: str) -> float:
    """Return the seconds that `docker stop` takes."""
    started = time.monotonic()
    run("docker", "stop", container)
    return time.monotonic() - started


def test_the_sizes_are_known(
    swarm: Swarm, images: Bases, record_property: Callable[[str, object], None]
) -> None:
    for image in (IMAGE, images.base):
        size = int(run("docker", "image", "inspect", "--format", "{{.Size}}", image))
        print(f"image {image}: {size / 1e6:.0f} MB")
        record_property(f"size of {image}", size)


def test_torch_is_the_build_for_cpus_and_there_is_no_compiler(swarm: Swarm) -> None:
    shell = ("docker", "run", "--rm", "--entrypoint", "sh", IMAGE, "-c")
    installed = run(*shell, "ls /opt/sfnode/lib/python3*/site-packages; command -v gcc; true")
    assert re.search(r"^torch-.*\+cpu\.dist-info$", installed, re.MULTILINE)
    of_nvidia = [name for name in installed.splitlines() if name.startswith("nvidia")]
    assert [name.partition("-")[0] for name in of_nvidia] == ["nvidia_ml_py"]  # reads sensors; 100 kB
    assert "gcc" not in installed.splitlines()


def test_nothing_runs_as_root(swarm: Swarm, trainers: list[str]) -> None:
    assert (
        run("docker", "image", "inspect", "--format", "{{.Config.User}}", IMAGE).strip() == f"{USER}:{USER}"
    )
    for container in swarm.nodes():
        assert set(users(container)) == {USER}


def test_a_node_reports_that_it_is_healthy_without_loading_torch(trainers: list[str]) -> None:
    said = execute(trainers[0], "sh", "-c", "python -X importtime -m sfnode status 2>&1")
    assert "click" in said
    assert "with the same model" in said
    assert "torch" not in said
    until(
        "it is healthy",
        lambda: inspect(trainers[0], "{{.State.Health.Status}}") == "healthy",
        lambda: inspect(trainers[0], "{{json .State.Health}}"),
    )


def test_a_container_stops_at_once_and_loses_nothing(trainers: list[str]) -> None:
    stopped, other, *_ = trainers
    before = until_status("it trains", stopped, lambda status: status["own_updates"] > 0)
    origin = before["origin"]
    took = stopped_in(stopped)
    print(f"docker stop: {took:.1f} s")
    assert inspect(stopped, "{{.State.ExitCode}}") == "0"
    assert took < STOP_LIMIT
    heard = until_status("it answers", other, bool)
    offline = ("docker", "run", "--rm", "--volumes-from", stopped, IMAGE, "verify", "--json")
    assert json.loads(run(*offline, deadline=PATIENCE))["updates"] >= before["known"]
    run("docker", "start", stopped)
    back = until_status("it trains again", stopped, lambda status: status["own_updates"] > 0)
    assert (back["origin"], back["incarnation"]) == (origin, before["incarnation"])
    assert own(back) >= max(own(before), of_origin(heard, origin))
    until_status("the other has all of it", other, lambda status: of_origin(status, origin) >= own(back))


def test_a_container_that_left_is_not_restarted(trainers: list[str]) -> None:
    """`sfnode leave` ends the container, which is restarted after errors only."""
    leaving = trainers[-1]
    # killed with the container that it runs in, more often than not
    subprocess.run(
        ["docker", "exec", leaving, "sfnode", "leave"], capture_output=True, timeout=PATIENCE, check=False
    )
    until("it is gone", lambda: inspect(leaving, "{{.State.Status}}") == "exited", lambda: status(leaving))
    assert inspect(leaving, "{{.State.ExitCode}} {{.RestartCount}}") == "0 0"


def test_a_container_that_has_just_started_stops_at_once(trainers: list[str]) -> None:
    started = trainers[-1]
    run("docker", "start", started)
    until("process 1 has started another", lambda: len(users(started)) > 1)
    assert stopped_in(started) < STOP_LIMIT


def test_a_container_that_still_loads_libraries_stops_at_once(trainers: list[str]) -> None:
    """A container ends in time on a CPU so slow that loading takes longer than `docker stop` waits."""
    slow = trainers[-1]
    loading = ["docker", "exec", slow, "sh", "-c", "grep -q libtorch_cpu /proc/[0-9]*/maps"]
    run("docker", "update", "--cpus", SLOW, slow)
    run("docker", "start", slow)
    until("it loads torch", lambda: subprocess.run(loading, capture_output=True, check=False).returncode == 0)
    assert stopped_in(slow) < STOP_LIMIT
    run("docker", "update", "--cpus", os.cpu_count(), slow)
    run("docker", "start", slow)

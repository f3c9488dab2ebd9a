"""The image and the swarm of deploy/compose.yaml on a real engine: five trainers, faults, equal digests."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from engine_helpers import BUILD_DEADLINE, ROOT, bases, build_environment, compose_command, engine, run

pytestmark = [pytest.mark.containers, pytest.mark.timeout(3600)]

PROJECT, IMAGE = "sfnode-test", "sfnode-test"

TRAINERS = 5

BUDGET = 30_000
"""Updates of the run: more than five trainers make on two cores, free or busy, while the faults happen."""

AHEAD = 500
"""Updates that the others make while a node is cut off."""

PATIENCE = 1200.0
"""Seconds after which something counts as not happening: six nodes may share two cores with others."""

STOP_LIMIT = 5.0
"""Seconds in which `docker stop` returns."""


class Swarm:
    """The swarm as a user has it: `docker compose` and `docker`."""

    def __init__(self, compose: list[str], environment: dict[str, str]) -> None:
        self._compose = [*compose, "--project-name", PROJECT, "--file", str(ROOT / "deploy" / "compose.yaml")]
        self._environment = os.environ | environment

    def compose(self, *arguments: object, deadline: float = PATIENCE) -> str:
        return run(*self._compose, *arguments, deadline=deadline, env=self._environment)

    def containers(self, service: str) -> list[str]:
        return sorted(self.compose("ps", "--quiet", service).split())

    def status(self, container: str) -> dict[str, Any] | None:
        """What `sfnode status --json` says in there, None while nothing answers."""
        ended = subprocess.run(
            ["docker", "exec", container, "sfnode", "status", "--json"],
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        return json.loads(ended.stdout) if ended.returncode == 0 else None

    def until(
        self, what: str, container: str, condition: Callable[[dict[str, Any]], object]
    ) -> dict[str, Any]:
        """Its first status of which `condition` is true."""
        last: dict[str, Any] | None = None
        give_up = time.monotonic() + PATIENCE
        while not ((last := self.status(container)) and condition(last)):
            assert time.monotonic() < give_up, (
                f"{what}: waited in vain; it is {last} and said {logs(container)}"
            )
            time.sleep(0.5)
        return last


def logs(container: str) -> str:
    ended = subprocess.run(
        ["docker", "logs", "--tail", "30", container], capture_output=True, text=True, check=False
    )
    return ended.stdout + ended.stderr


def inspect(container: str, what: str) -> str:
    return run("docker", "inspect", "--format", what, container).strip()


def own(status: dict[str, Any]) -> int:
    """Updates of this node in its log."""
    return sum(feed["updates"] for feed in status["feeds"] if feed["origin"] == status["origin"])


def of_others(status: dict[str, Any]) -> int:
    """Updates of all other nodes in its log."""
    return int(status["known"]) - own(status)


def agreed(swarm: Swarm, containers: list[str]) -> str:
    """The digest that all of them have when the run is complete."""
    give_up = time.monotonic() + PATIENCE
    while True:
        ends = [
            swarm.until("the run is complete", one, lambda status: status["known"] >= BUDGET)
            for one in containers
        ]
        digests = {end["digest"] for end in ends}
        if len(digests) == 1:
            return digests.pop()
        assert time.monotonic() < give_up, f"they differ: {ends}"


def stopped_in(container: str) -> float:
    """Seconds that `docker stop` takes."""
    started = time.monotonic()
    run("docker", "stop", container)
    return time.monotonic() - started


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    """The image is built and the relay and the trainers have been told to start; all is gone at the end."""
    scratch = tmp_path_factory.mktemp("engine")
    with engine(scratch):
        made = bases(scratch)
        manifest = scratch / "run.toml"
        swarm = Swarm(
            compose_command(),
            build_environment()
            | {
                "SFNODE_IMAGE": IMAGE,
                "SFNODE_BASE": made.base,
                "SFNODE_BUILD_BASE": made.build_base,
                "SFNODE_BUILD_NETWORK": made.network,
                "SFNODE_MANIFEST": str(manifest),
                "HF_HUB_OFFLINE": "1",
            },
        )
        manifest.touch()
        swarm.compose("build", deadline=BUILD_DEADLINE)
        manifest.write_text(described_run())
        swarm.compose("down", "--volumes")  # of a test that was killed
        try:
            swarm.compose("up", "--detach", "--no-build", "--scale", f"trainer={TRAINERS}")
            yield swarm
        finally:
            swarm.compose("down", "--volumes")


def described_run() -> str:
    """The manifest of the built-in run with another budget, by the image itself."""
    script = f"sfnode init /tmp/run.toml --update-budget {BUDGET} > /dev/null && cat /tmp/run.toml"
    return run("docker", "run", "--rm", "--entrypoint", "sh", IMAGE, "-c", script)


@pytest.fixture(scope="module")
def trainers(swarm: Swarm) -> list[str]:
    """Containers of trainers that all make updates."""
    containers = swarm.containers("trainer")
    assert len(containers) == TRAINERS
    for container in containers:
        swarm.until("it trains", container, lambda status: status["own_updates"] > 0)
    return containers


def test_a_node_that_is_killed_and_one_that_is_cut_off_come_back_and_lack_nothing(
    swarm: Swarm,
) -> None:
    (relay,) = swarm.containers("relay")
    _, killed, cut_off, *_ = swarm.containers("trainer")
    swarm.until("it trains", cut_off, lambda status: status["own_updates"] > 0)
    network = f"{PROJECT}_default"
    for container in (killed, relay):
        run("docker", "kill", "--signal", "KILL", container)
    run("docker", "network", "disconnect", network, cut_off)
    for container in (killed, relay):
        run("docker", "start", container)
    alone = swarm.until("it answers", cut_off, lambda status: status["state"] == "training")
    ahead = alone["known"] + AHEAD
    there = swarm.until("the others go on", killed, lambda status: status["known"] > ahead)
    still = swarm.until("it goes on by itself", cut_off, lambda status: own(status) > own(alone))
    assert of_others(still) == of_others(alone)
    run("docker", "network", "connect", network, cut_off)
    swarm.until("it catches up", cut_off, lambda status: of_others(status) > of_others(alone))
    swarm.until("it is heard", killed, lambda status: status["known"] > there["known"])


def test_the_sizes_are_known(swarm: Swarm, record_property: Callable[[str, object], None]) -> None:
    for image in (IMAGE, swarm._environment["SFNODE_BASE"]):
        size = int(run("docker", "image", "inspect", "--format", "{{.Size}}", image))
        print(f"image {image}: {size / 1e6:.0f} MB")
        record_property(f"size of {image}", size)
    assert "/usr/bin/gcc" not in run(
        "docker", "run", "--rm", "--entrypoint", "sh", IMAGE, "-c", "command -v gcc; true"
    )


def test_nothing_runs_as_root(swarm: Swarm, trainers: list[str]) -> None:
    for container in [*swarm.containers("relay"), *trainers]:
        users = run("docker", "exec", container, "sh", "-c", "stat -c %u /proc/[0-9]*").split()
        assert users, container
        assert set(users) == {"10001"}


def test_a_node_reports_that_it_is_healthy_without_loading_torch(swarm: Swarm, trainers: list[str]) -> None:
    command = "python -X importtime -m sfnode status 2>&1"
    said = run("docker", "exec", trainers[0], "sh", "-c", command, deadline=PATIENCE)
    assert "click" in said
    assert "digest" in said
    assert "torch" not in said
    give_up = time.monotonic() + PATIENCE
    while inspect(trainers[0], "{{.State.Health.Status}}") != "healthy":
        assert time.monotonic() < give_up, inspect(trainers[0], "{{json .State.Health}}")
        time.sleep(1)


def test_a_container_is_stopped_in_a_moment_and_has_lost_nothing(swarm: Swarm, trainers: list[str]) -> None:
    stopped = trainers[0]
    before = swarm.until("it trains", stopped, lambda status: status["own_updates"] > 0)
    took = stopped_in(stopped)
    print(f"docker stop: {took:.1f} s")
    assert inspect(stopped, "{{.State.ExitCode}}") == "0"
    assert took < STOP_LIMIT
    run("docker", "start", stopped)
    after = swarm.until("it is back", stopped, lambda status: status["known"] >= before["known"])
    assert after["origin"] == before["origin"]
    assert own(after) >= own(before)


def test_a_container_that_has_hardly_started_is_stopped_in_a_moment_too(
    swarm: Swarm, trainers: list[str]
) -> None:
    run("docker", "stop", trainers[-1])
    run("docker", "start", trainers[-1])
    assert stopped_in(trainers[-1]) < STOP_LIMIT
    run("docker", "start", trainers[-1])


def test_in_the_end_all_have_the_same_digest(swarm: Swarm, trainers: list[str]) -> None:
    everybody = [*swarm.containers("relay"), *trainers]
    assert len(everybody) == TRAINERS + 1
    digest = agreed(swarm, everybody)
    for container in trainers[:2]:
        verified = json.loads(
            run("docker", "exec", container, "sfnode", "verify", "--json", deadline=PATIENCE)
        )
        assert verified["digest"] == digest

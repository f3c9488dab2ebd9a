"""The swarm of deploy/compose.yaml as a user runs it: `docker compose`, `docker` and `sfnode status`."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from tests.containers.docker import ROOT, run

T = TypeVar("T")

PROJECT, IMAGE = "sfnode-test", "sfnode-test"

TRAINERS = 4
"""Trainers besides the one that organises."""

BUDGET = 10_000_000
"""Update budget of the run: more than any machine makes during the tests."""

CPU = 10
"""Percent of all cores for each trainer: five of them leave room for the test's own commands."""

PATIENCE = 1200.0
"""Seconds after which something counts as failed: six nodes may share two cores with others."""


class Swarm:
    """One project of `docker compose`."""

    def __init__(
        self, compose: list[str], environment: dict[str, str], project: str = PROJECT, *more: str
    ) -> None:
        """`more` names files of deploy/ that extend compose.yaml."""
        files = [word for name in ("compose.yaml", *more) for word in ("--file", str(ROOT / "deploy" / name))]
        self._compose = [*compose, "--project-name", project, *files]
        self.environment = environment

    def compose(self, *arguments: object, deadline: float = PATIENCE) -> str:
        return run(*self._compose, *arguments, deadline=deadline, env=os.environ | self.environment)

    @contextmanager
    def running(self, trainers: int, profile: str) -> Iterator[Swarm]:
        """Make an organised run and start its nodes; remove all at the end, those of `profile`, too."""
        remove = "--profile", profile, "down", "--volumes"
        self.compose(*remove)  # left by a killed test
        try:
            made = f"sfnode init --task reviews --out /shared/run.toml --set training.update_budget={BUDGET}"
            self.compose("run", "--rm", "-T", "init", made)
            self.compose("up", "--detach", "--no-build", "--scale", f"trainer={trainers}")
            yield self
        finally:
            self.compose(*remove)

    def containers(self, service: str) -> list[str]:
        return sorted(self.compose("--profile", "views", "ps", "--quiet", service).split())

    def nodes(self) -> list[str]:
        return [node for kind in ("relay", "organiser", "trainer") for node in self.containers(kind)]


def status(container: str) -> dict[str, Any] | None:
    """Return the output of `sfnode status --json --feeds` in a container; None while nothing answers."""
    ended = subprocess.run(
        ["docker", "exec", container, "sfnode", "status", "--json", "--feeds"],
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    return json.loads(ended.stdout) if ended.returncode == 0 else None


def until(what: str, look: Callable[[], T | None], explain: Callable[[], object] = str) -> T:
    """Return the result of `look` as soon as it is true."""
    give_up = time.monotonic() + PATIENCE
    while not (seen := look()):
        assert time.monotonic() < give_up, f"{what}: waited in vain. {explain()}"
        time.sleep(0.5)
    return seen


def until_status(what: str, container: str, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Wait for a status of which `condition` is true, and return it."""
    last: dict[str, Any] | None = None

    def look() -> dict[str, Any] | None:
        nonlocal last
        last = status(container)
        return last if last and condition(last) else None

    return until(what, look, lambda: f"It is {last} and said {logs(container)}")


def logs(container: str, lines: int | str = 30) -> str:
    ended = subprocess.run(
        ["docker", "logs", "--tail", str(lines), container], capture_output=True, text=True, check=False
    )
    return ended.stdout + ended.stderr


def settled(nodes: Sequence[str], trainers: Sequence[str]) -> str:
    """Pause all trainers. Return the digest that all nodes have in the end."""
    for container in trainers:
        execute(container, "sfnode", "pause")
    last: list[dict[str, Any] | None] = []

    def same() -> str | None:
        last[:] = [status(container) for container in nodes]
        digests = {one["digest"] for one in last if one}
        quiet = all(one and one["state"] in ("paused", "idle") for one in last)
        return digests.pop() if quiet and len(digests) == 1 else None

    return until("all have the same digest", same, lambda: last)


def execute(container: str, *command: str) -> str:
    """Return the output of a command in a container; it must succeed."""
    return run("docker", "exec", container, *command, deadline=PATIENCE)


def inspect(container: str, what: str) -> str:
    return run("docker", "inspect", "--format", what, container).strip()


def organised(container: str) -> dict[str, Any] | None:
    """Return the output of `sfnode organise status --json` in a container; None while nothing answers."""
    command = ["docker", "exec", container, "sfnode", "organise", "status", "--json"]
    ended = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)
    return json.loads(ended.stdout) if ended.returncode == 0 else None


def until_sealed(what: str, container: str, epochs: int) -> dict[str, Any]:
    """Wait until a node knows so many sealed epochs."""
    last: dict[str, Any] | None = None

    def look() -> dict[str, Any] | None:
        nonlocal last
        last = organised(container)
        return last if last and last["sealed"] >= epochs else None

    return until(what, look, lambda: f"It is {last} and said {logs(container)}")


def own(status: dict[str, Any]) -> int:
    """Return the number of updates of this node in its log."""
    return of_origin(status, status["origin"])


def of_origin(status: dict[str, Any], origin: str) -> int:
    """Return the number of updates of an origin in this node's log."""
    return sum(feed["updates"] for feed in status["feeds"] if feed["origin"] == origin)


def without(status: dict[str, Any], origin: str) -> int:
    """Return the number of updates of all origins but one in this node's log."""
    return sum(feed["updates"] for feed in status["feeds"] if feed["origin"] != origin)


def of_others(status: dict[str, Any]) -> int:
    """Return the number of updates of all other nodes in its log."""
    return without(status, status["origin"])

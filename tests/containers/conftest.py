"""Container tests: they build an image and take many minutes; only `pytest -m containers` runs them.

One swarm serves all of them, in the order of their files: the last ends it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.docker import (
    BUILD_DEADLINE,
    Bases,
    bases,
    build_environment,
    compose_command,
    engine,
    timed,
)
from tests.containers.prometheus import prometheus_image
from tests.containers.swarm import CPU, IMAGE, TRAINERS, Swarm, until_status
from tests.processes.prometheus import Prometheus


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "containers" not in config.getoption("markexpr"):
        items[:] = [item for item in items if not item.get_closest_marker("containers")]


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine")


@pytest.fixture(scope="session")
def images(scratch: Path) -> Iterator[Bases]:
    """The base images, with an engine that answers."""
    with engine(scratch):
        yield bases(scratch)


@pytest.fixture(scope="session")
def environment(images: Bases) -> dict[str, str]:
    """Build the image; return what compose is told of it."""
    environment = build_environment() | {
        "SFNODE_IMAGE": IMAGE,
        "SFNODE_BASE": images.base,
        "SFNODE_BUILD_BASE": images.build_base,
        "SFNODE_BUILD_NETWORK": images.network,
        "HF_HUB_OFFLINE": "1",
        "LIMIT_CPU": str(CPU),
        "PROMETHEUS_PORT": "0",
    }
    with timed("image"):
        Swarm(compose_command(), environment).compose("build", "relay", deadline=BUILD_DEADLINE)
    return environment


@pytest.fixture(scope="session")
def swarm(environment: dict[str, str]) -> Iterator[Swarm]:
    with Swarm(compose_command(), environment.copy()).running(TRAINERS, "views") as swarm:
        yield swarm


@pytest.fixture(scope="session")
def trainers(swarm: Swarm) -> list[str]:
    """Containers of trainers, other than the organiser's, that all make updates."""
    containers = swarm.containers("trainer")
    assert len(containers) == TRAINERS
    with timed("until all train"):
        for container in containers:
            until_status("it trains", container, lambda status: status["own_updates"] > 0)
    return containers


@pytest.fixture(scope="session")
def prometheus(swarm: Swarm, images: Bases, scratch: Path) -> Prometheus:
    """Prometheus of the same compose file."""
    swarm.environment["PROMETHEUS_IMAGE"] = prometheus_image(images.base, scratch)
    swarm.compose("--profile", "views", "up", "--detach", "--no-build", "--no-deps", "prometheus")
    (container,) = swarm.containers("prometheus")
    address = swarm.compose("--profile", "views", "port", "prometheus", 9090).strip()
    return Prometheus(address, container)

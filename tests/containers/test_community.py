"""A public run survives its organiser (deploy/community): another machine continues it from the backup."""

from __future__ import annotations

import os
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.docker import compose_command, run, timed
from tests.containers.swarm import IMAGE, Swarm, logs, organised, settled, until, until_sealed

pytestmark = [pytest.mark.containers, pytest.mark.timeout(3600)]

PROJECT = "sfnode-community"

VOLUNTEERS = 3
"""Number of volunteers' nodes. With the relay, the organiser and the successor there are six nodes."""

SECONDS = float(os.environ.get("SFNODE_DRILL", "60"))
"""Seconds that the run lasts before and after the disaster. SFNODE_DRILL=300 makes ten minutes in all."""


@pytest.fixture(scope="module")
def community(environment: dict[str, str], scratch: Path) -> Iterator[Swarm]:
    """A public run with its page and its backups, with a first seal."""
    backup = scratch / "backup"
    backup.mkdir()
    backup.chmod(0o777)  # the containers' user has no name here
    own = {"BACKUP": str(backup), "EVERY": "10s", "PAGE_PORT": "0", "PUBLIC_PORT": "0"}
    swarm = Swarm(compose_command(), environment | own, PROJECT, "community/compose.yaml")
    with swarm.running(VOLUNTEERS, "recovery"):
        yield swarm


def test_the_page_is_published_and_keys_and_run_are_backed_up(community: Swarm) -> None:
    (relay,) = community.containers("relay")
    until_sealed("it seals", relay, 2)
    address = community.compose("port", "web", 8080).strip()

    def page() -> str | None:
        try:
            with urllib.request.urlopen(f"http://{address}/run.json", timeout=10) as answer:
                return answer.read().decode()
        except OSError:
            return None

    until("there is a page", page)
    backup = Path(community.environment["BACKUP"])
    until("there is a backup", (backup / "run.archive").exists)
    assert len(list((backup / "keys").iterdir())) == 2


def test_the_run_goes_on_when_the_organiser_is_lost_for_good(community: Swarm) -> None:
    volunteers = community.containers("trainer")
    time.sleep(SECONDS)
    (lost,) = community.containers("organiser")
    run("docker", "rm", "--force", "--volumes", lost)
    for volume in ("organiser", "keys"):
        run("docker", "run", "--rm", "--user", "0", "--volume", f"{PROJECT}_{volume}:/lost",
            "--entrypoint", "sh", IMAGE, "-c", "rm -rf /lost/*")  # fmt: skip
    (relay,) = community.containers("relay")
    before = organised(relay)
    assert before
    with timed("until the run goes on"):
        community.compose("--profile", "recovery", "up", "--detach", "--no-build", "--no-deps", "successor")
        until_sealed("another seals", relay, before["sealed"] + 2)
    time.sleep(SECONDS)
    for volunteer in volunteers:
        said = logs(volunteer, "all")
        assert said.count("another organiser goes on with this run") == 1
        assert "ERROR" not in said
    successors = community.containers("successor")
    settled([*volunteers, relay, *successors], [*volunteers, *successors])

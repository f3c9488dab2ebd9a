"""The swarm of deploy/compose.yaml under faults: containers killed, one disconnected, equal digests.

The last test pauses all trainers.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.containers.docker import run
from tests.containers.swarm import (
    PROJECT,
    Swarm,
    execute,
    of_origin,
    of_others,
    own,
    status,
    until,
    until_status,
    without,
)

pytestmark = [pytest.mark.containers, pytest.mark.timeout(3600)]

AHEAD = 500
"""Updates that the others make while a node is disconnected."""


def test_a_killed_node_and_a_disconnected_one_come_back_and_lack_nothing(
    swarm: Swarm, trainers: list[str]
) -> None:
    (relay,) = swarm.containers("relay")
    witness, killed, cut_off, *_ = trainers
    for container in (killed, cut_off):
        until_status("it trains", container, lambda status: status["own_updates"] > 0)
    for container in (killed, relay):
        run("docker", "kill", "--signal", "KILL", container)
    network = f"{PROJECT}_default"
    run("docker", "network", "disconnect", network, cut_off)
    heard = until_status("it answers", witness, bool)
    for container in (killed, relay):
        run("docker", "start", container)
    alone = until_status("it answers", cut_off, lambda status: status["state"] == "training")
    ahead = alone["known"] + AHEAD
    there = until_status("the others go on", killed, lambda status: status["known"] > ahead)
    assert own(there) >= of_origin(heard, there["origin"]), "what it had said before it was killed"
    still = until_status("it goes on by itself", cut_off, lambda status: own(status) > own(alone))
    assert of_others(still) == of_others(alone)
    caught_up = without(there, still["origin"])
    run("docker", "network", "connect", "--alias", "trainer", network, cut_off)
    until_status("it catches up", cut_off, lambda status: of_others(status) >= caught_up)
    until_status("it is heard", killed, lambda status: of_origin(status, still["origin"]) >= own(still))


def test_all_nodes_end_with_the_same_digest(swarm: Swarm, trainers: list[str]) -> None:
    """Compared once all trainers pause and their last updates have arrived."""
    for container in trainers:
        until_status("it trains", container, lambda status: status["own_updates"] > 0)
        execute(container, "sfnode", "pause")
    last: list[dict[str, Any] | None] = []

    def same() -> str | None:
        last[:] = [status(container) for container in swarm.nodes()]
        digests = {one["digest"] for one in last if one}
        quiet = all(one and one["state"] in ("paused", "idle") for one in last)
        return digests.pop() if quiet and len(digests) == 1 else None

    digest = until("all have the same digest", same, lambda: last)
    for container in trainers[:2]:
        verified = json.loads(execute(container, "sfnode", "verify", "--json"))
        assert verified["digest"] == digest
    print(f"digest of {len(last)} nodes: {digest}, {verified['updates']} updates")

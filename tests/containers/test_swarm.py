"""The swarm of deploy/compose.yaml under faults: containers killed, one disconnected, equal digests.

The last test pauses all trainers.
"""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.containers.docker import run
from tests.containers.swarm import (
    IMAGE,
    PATIENCE,
    PROJECT,
    Swarm,
    execute,
    of_origin,
    of_others,
    own,
    settled,
    until_sealed,
    until_status,
    without,
)

pytestmark = [pytest.mark.containers, pytest.mark.timeout(3600)]

AHEAD = 500
"""Updates that the others make while a node is disconnected."""


def test_a_killed_node_and_a_disconnected_one_come_back_and_lack_nothing(
    swarm: Swarm, trainers: list[str]
) -> None:
    (relay,), (organiser,) = swarm.containers("relay"), swarm.containers("organiser")
    witness, killed, cut_off, *_ = trainers
    for container in (killed, cut_off):
        until_status("it trains", container, lambda status: status["own_updates"] > 0)
    sealed = until_sealed("epochs are sealed", witness, 1)["sealed"]
    for container in (killed, relay, organiser):
        run("docker", "kill", "--signal", "KILL", container)
    network = f"{PROJECT}_default"
    run("docker", "network", "disconnect", network, cut_off)
    # before its quota for an epoch that nobody closes there is used up, half a minute later
    alone = until_status("it trains alone", cut_off, lambda status: status["state"] == "training")
    heard = until_status("it answers", witness, bool)
    for container in (killed, relay, organiser):
        run("docker", "start", container)
    ahead = alone["known"] + AHEAD
    there = until_status("the others go on", killed, lambda status: status["known"] > ahead)
    assert own(there) >= of_origin(heard, there["origin"]), "what it had said before it was killed"
    still = until_status("it goes on by itself", cut_off, lambda status: own(status) > own(alone))
    assert of_others(still) == of_others(alone)
    caught_up = without(there, still["origin"])
    run("docker", "network", "connect", "--alias", "trainer", network, cut_off)
    until_status("it catches up", cut_off, lambda status: of_others(status) >= caught_up)
    until_status("it is heard", killed, lambda status: of_origin(status, still["origin"]) >= own(still))
    until_sealed("the organiser signs again", cut_off, sealed + 2)


def test_a_second_container_with_the_organisers_key_does_not_sign(swarm: Swarm, trainers: list[str]) -> None:
    (organiser,) = swarm.containers("organiser")
    second = ("docker", "run", "--rm", "--network", "none", "--volumes-from", organiser, IMAGE, "join")
    options = ("--data-dir", "/tmp/second", "--run", "/shared/run.toml", "--organise", "--keys-dir", "/keys")
    ended = subprocess.run([*second, *options], capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert ended.returncode == 1
    assert "sfnode: SF048: " in ended.stderr


def test_a_swarm_that_was_switched_off_as_a_whole_goes_on(swarm: Swarm, trainers: list[str]) -> None:
    sealed = until_sealed("epochs are sealed", trainers[0], 1)["sealed"]
    nodes = swarm.nodes()
    run("docker", "stop", *nodes)
    run("docker", "start", *reversed(nodes))
    until_sealed("the organiser signs again", trainers[0], sealed + 2)


def test_all_nodes_end_with_the_same_digest(swarm: Swarm, trainers: list[str]) -> None:
    """Compared once all trainers pause and their last updates have arrived."""
    for container in trainers:
        until_status("it trains", container, lambda status: status["own_updates"] > 0)
    nodes = swarm.nodes()
    digest = settled(nodes, [*trainers, *swarm.containers("organiser")])
    for container in trainers[:2]:
        verified = json.loads(execute(container, "sfnode", "verify", "--json"))
        assert verified["digest"] == digest
    print(f"digest of {len(nodes)} nodes: {digest}, {verified['updates']} updates")

"""Whole nodes: what they promise to each other, to their users and to their logs."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from runtime_helpers import Node, SmallEngine, Swarm, manifest

from sfnode.errors import Code, UserError
from sfnode.runtime.audit import audit
from sfnode.transport.memory import Faults

SwarmOf = Callable[..., Swarm]


async def completed(nodes: list[Node]) -> None:
    """Until no node has anything more to say and all have the same updates."""
    for node in nodes:
        await node.until(lambda node=node: node.node.status().state == "complete")  # type: ignore[misc]
    for node in nodes:
        await node.until(lambda: len({node.digest for node in nodes}) == 1)


async def test_a_node_alone_makes_exactly_the_updates_of_the_budget(swarm_of: SwarmOf) -> None:
    swarm = swarm_of(manifest(update_budget=333, epoch_updates=100))
    node = await swarm.first(queries=4)
    await node.until(lambda: node.node.status().state == "complete")
    assert node.known == node.node.training.made == 333
    assert node.engine.epochs == sorted(node.engine.epochs)
    assert 0 < node.engine.epochs[-1] <= 3


async def test_five_nodes_on_a_lossy_network_end_with_the_same_bits(swarm_of: SwarmOf) -> None:
    faults = Faults(loss=0.02, duplication=0.02, delay=(0.0, 0.02))
    swarm = swarm_of(manifest(update_budget=3000, epoch_updates=700), faults)
    nodes = [await swarm.first()]
    nodes += [await swarm.join(name) for name in "bcde"]
    await completed(nodes)
    answers = [await node.client.digest() for node in nodes]
    assert len({(answer.digest, answer.core_digest, answer.known) for answer in answers}) == 1
    assert answers[0].known < 3000 + 5 * 400
    assert bytes.fromhex(answers[0].core_digest) == swarm.core_of_log("e")
    with swarm.log("d") as log:
        proof = audit(swarm.run, log)
    assert (proof.digest, proof.core_digest) == (answers[0].digest, answers[0].core_digest)

"""A node can return after an absence: its silence is no fault (SPEC L7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from sflab.simulator.world.computer import Computer
from sflab.simulator.world.world import World

TIMES = 4
"""Number of absences of one node. Growing refusals showed only after several."""

SOON = 30.0
"""Seconds after its return within which another node must have its next update."""


@pytest.fixture
def world() -> Iterator[World]:
    """World of four linked nodes, of which "n3" will be absent."""
    with closing(World(1, managed=True)) as world:
        nodes = [world.add(f"n{number}") for number in range(4)]
        for node in nodes:
            for other in nodes:
                if other is not node:
                    world.want(node, other, both=False)
        for node in nodes:
            world.do(node.start)
        train(world, nodes, 30)
        yield world


def train(world: World, nodes: list[Computer], seconds: float) -> None:
    """Let each of these nodes make an update every five seconds."""
    end = world.now + seconds
    while world.now < end:
        for node in nodes:
            world.do(node.compute, 1)
        world.run_until(min(end, world.now + 5))


def cut_off(world: World, seconds: float) -> None:
    world["n3"].island, world.network.deaf = 1, {(0, 1), (1, 0)}
    train(world, world.living(), seconds)
    world["n3"].island, world.network.deaf = 0, set()


def stopped(world: World, seconds: float) -> None:
    node = world["n3"]
    world.do(node.freeze, seconds, seconds)
    train(world, [other for other in world.living() if other is not node], seconds)


@pytest.mark.parametrize("away", [cut_off, stopped])
def test_the_next_update_of_a_node_that_was_away_arrives_soon(
    world: World, away: Callable[[World, float], None]
) -> None:
    node = world["n3"]
    others = [other for other in world.living() if other is not node]
    for number in range(TIMES):
        away(world, 70 + 20 * number / (TIMES - 1))
        before, back, own = node.said, world.now, node.machine.own
        while not any(other.machine.frontier.next(own) > before for other in others):
            assert world.now - back < SOON, f"absence {number + 1}"
            if node.said <= before:
                world.do(node.compute, 1)
            world.run_until(world.now + 0.25)
        train(world, world.living(), 20)

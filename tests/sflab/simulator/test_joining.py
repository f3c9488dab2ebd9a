"""Nodes of simulated networks sign several of their updates together, as shipped nodes do (SPEC I4)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from benchmarks.joining import network, world_of
from sflab.simulator import invariants
from sflab.simulator.world.world import World

TARGET = 10.0
"""Maximum bytes per update if a node makes twenty updates while they may wait."""


@pytest.fixture
def waiting() -> Iterator[World]:
    """World of three nodes that make an update a second. They have signed segments of 1, 2 and 4; the others
    wait."""
    with closing(world_of(3, 1.0, epoch_updates=100_000)) as world:
        world.run_until(12.5)
        assert world.oracle.updates == 3 * 7
        assert invariants.equal(world)
        yield world


def test_twenty_updates_in_the_time_cost_ten_bytes_each() -> None:
    """A tenth of the epoch is twenty updates of each of four nodes, and takes twenty seconds."""
    on_a_link, in_all = network(4, 1.0, 200 * 4, joined=True)
    assert on_a_link <= TARGET
    assert in_all <= 2 * TARGET


def test_nodes_that_pause_say_everything_and_become_equal(waiting: World) -> None:
    for node in waiting.living():
        waiting.do(node.running.model.scheduler.flush)
    waiting.run_until(waiting.now + 0.4)
    assert waiting.oracle.updates >= 3 * 9
    assert invariants.equal(waiting)
    assert invariants.complete(waiting) == ""


def test_a_killed_node_loses_what_waits_and_makes_the_same_steps_again_without_a_fork(waiting: World) -> None:
    node = waiting["n0"]
    own = node.machine.own
    signed = node.disk.stop(own)
    node.crash()
    waiting.do(node.start)
    while not node.up:
        waiting.run_until(waiting.now + 0.01)
    assert node.machine.frontier.next(own) == signed
    waiting.run_until(waiting.now + 70)
    assert node.machine.own == own
    assert node.disk.stop(own) > signed + 20
    assert not any(story.forked for story in waiting.oracle.stories.values())

"""Own updates are signed together in the simulator as they are in a node (SPEC I4)."""

from __future__ import annotations

from sflab.sim.checks import invariants
from sflab.sim.world.world import World
from tests.bench.joining import network, world_of

TARGET = 10.0
"""Bytes an update where a node makes twenty in the time for which they may wait."""


def waiting_world() -> World:
    """Three nodes that make an update a second and have signed 1, 2 and 4; the others wait."""
    world = world_of(3, 1.0, epoch_updates=100_000)
    world.agenda.run_until(12.5)
    assert world.oracle.updates == 3 * 7
    assert invariants.equal(world)
    return world


def test_twenty_updates_in_the_time_cost_ten_bytes_each() -> None:
    """A tenth of the epoch is twenty updates of each of ten nodes, and takes twenty seconds."""
    on_a_link, in_all = network(10, 1.0, 200 * 10, joined=True)
    assert on_a_link <= TARGET
    assert in_all <= 2 * TARGET


def test_nodes_that_pause_say_everything_and_become_equal() -> None:
    world = waiting_world()
    for node in world.living():
        node.flush()
    world.agenda.run_until(world.now + 0.4)
    assert world.oracle.updates >= 3 * 9
    assert invariants.equal(world)
    assert invariants.complete(world) == ""


def test_a_killed_node_loses_what_waits_and_makes_the_same_steps_again_without_a_fork() -> None:
    world = waiting_world()
    node = world["n0"]
    own = node.machine.own
    assert own is not None
    signed = node.disk.stop(own)
    node.crash()
    node.start()
    assert node.machine.frontier.next(own) == signed
    for one, other in (("n0", "n1"), ("n0", "n2")):
        world.keeper.want(world[one], world[other])
    world.agenda.run_until(world.now + 70)
    assert node.machine.own == own
    assert node.disk.stop(own) > signed + 20
    assert not any(story.forked for story in world.oracle.stories.values())

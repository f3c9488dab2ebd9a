"""The simulator's faults happen as described. Otherwise they could hide errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from random import Random

import pytest

from sflab.simulator.world.computer import Computer
from sflab.simulator.world.oracle import Oracle, Violation
from sflab.simulator.world.runs import OPEN_RUN, TOPOLOGIES, origin_of, signing_key
from sflab.simulator.world.world import World
from sfprotocol.frontier import Frontier
from sfprotocol.messages import EpochScalars, Feed, Segment
from sfprotocol.signing import genesis

FEED = Feed(origin_of(signing_key(0, "ann")), 1)


def test_the_oracle_objects_to_an_honest_origin_that_forks() -> None:
    run = OPEN_RUN.parameters()
    oracle = Oracle(run)
    oracle.honest.add(FEED.origin)
    start = genesis(run.run_id, FEED)
    key = Frontier(run).state(FEED).key
    oracle.made(FEED, start, Segment(key, 0, (EpochScalars(0, (1, 2)),), b""), 0.0, "ann")
    with pytest.raises(Violation) as found:
        oracle.made(FEED, start, Segment(key, 0, (EpochScalars(0, (1, 3)),), b""), 0.0, "ann")
    assert found.value.checker == "fork"
    assert oracle.story(FEED).common == 1


@pytest.fixture
def node() -> Iterator[Computer]:
    """A node that is up, alone in its world."""
    with closing(World(0)) as world:
        node = world.add("n0")
        world.do(node.start)
        world.run_until(3.0)
        assert node.up
        yield node


def start_again(node: Computer) -> None:
    node.world.do(node.start)
    node.world.run_until(node.world.now + 3)
    assert node.up


def test_a_node_makes_as_many_updates_as_it_is_told(node: Computer) -> None:
    node.world.do(node.compute, 7)
    node.world.run_until(node.world.now + 1)
    assert node.said == 7


@pytest.mark.parametrize("power_cut", [False, True])
def test_what_is_on_disk_is_there_after_any_end(node: Computer, power_cut: bool) -> None:
    node.world.do(node.compute, 3)
    node.world.run_until(node.world.now + 1)
    node.crash(power_cut=power_cut)
    start_again(node)
    assert node.machine.frontier.known == 3


def test_what_was_written_and_not_synced_is_lost_with_the_power_alone(node: Computer) -> None:
    for power_cut, kept in ((False, 3), (True, 3)):
        node.log._writer.execute("PRAGMA synchronous = OFF")
        node.world.do(node.compute, 3)
        node.world.run_until(node.world.now + 1)
        node.crash(power_cut=power_cut)
        start_again(node)
        assert node.machine.frontier.known == kept


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("count", [2, 5, 24])
def test_every_topology_is_in_one_piece(name: str, count: int) -> None:
    names = [f"n{index}" for index in range(count)]
    pairs = TOPOLOGIES[name](names, Random(1))
    reached = {names[0]}
    for _ in names:
        reached |= {node for pair in pairs for node in pair if reached & set(pair)}
    assert reached == set(names)
    assert all(one != other for one, other in pairs)


def test_a_clock_that_leaps_never_goes_back(node: Computer) -> None:
    readings = []
    for leap in (5.0, -30.0, 0.0, 100.0, -1.0):
        node.leap(leap)
        node.world.run_until(node.world.now + 1)
        readings.append(node.clock())
    assert readings == sorted(readings)
    assert readings[1] == readings[2], "it stands still as long as it was set back"

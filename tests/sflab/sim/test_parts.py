"""The parts of the simulator: a fault that is not simulated as described would hide what it should show."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from sflab.sim.world.clock import Agenda
from sflab.sim.world.conditions import Conditions, Hardware, Latency
from sflab.sim.world.disk import Disk
from sflab.sim.world.keys import origin_of, signing_key
from sflab.sim.world.network import End, Network
from sflab.sim.world.node import Node
from sflab.sim.world.oracle import Oracle
from sflab.sim.world.topology import TOPOLOGIES
from sflab.sim.world.trace import Trace
from sflab.sim.world.violation import Violation
from sflab.sim.world.world import RUN, World, organised
from sfprotocol.events import Action, Admit, Event, Received
from sfprotocol.frontier import Frontier
from sfprotocol.host import MAX_UNHANDLED, Commit
from sfprotocol.messages import EpochScalars, Feed, Segment
from sfprotocol.signing import extend, genesis

FEED = Feed(origin_of(signing_key(0, "ann")), 1)


class Ear:
    """An endpoint that records what it receives."""

    hostile = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.island = 0
        self.up = True
        self.ends: dict[int, End] = {}
        self.bytes_in = self.bytes_out = 0
        self.heard: list[bytes] = []
        self.times: list[float] = []
        self.told = 0
        self.agenda = Agenda()

    def linked(self, end: End) -> None: ...

    def unlinked(self, end: End) -> None: ...

    def received(self, end: End, frame: bytes) -> None:
        self.heard.append(frame)
        self.times.append(self.agenda.now)

    def written(self, end: End) -> None:
        self.told += 1


def line(conditions: Conditions) -> tuple[Network, Ear, Ear, End]:
    agenda = Agenda()
    network = Network(agenda, Random(1), Trace(), conditions)
    one, other = Ear("one"), Ear("other")
    other.agenda = agenda
    end = network.connect(one, other)
    assert end
    return network, one, other, end


def frames(count: int) -> list[bytes]:
    return [number.to_bytes(2, "big") for number in range(count)]


def test_a_calm_link_is_in_order_and_takes_half_a_round_trip() -> None:
    network, _, other, end = line(Conditions())
    for frame in frames(9):
        network.send(end, frame)
    network.agenda.run_until(1)
    assert other.heard == frames(9)
    assert set(other.times) == {0.05}


def test_loss_duplication_and_replay_are_as_frequent_as_said() -> None:
    network, _, other, end = line(Conditions(loss=0.3, duplication=0.5, replay=0.5, reorder=True))
    for frame in frames(4000):
        network.send(end, frame)
    network.agenda.run_until(10)
    times = Counter(Counter(other.heard).values())
    assert 0.28 < 1 - sum(times.values()) / 4000 < 0.32
    assert times[3] == pytest.approx(4000 * 0.7 / 4, rel=0.1)
    assert network.traffic.balanced


def test_frames_overtake_each_other_only_where_that_is_said() -> None:
    wild = Latency("lognormal", 0.1, 1.0)
    for reorder in (False, True):
        network, _, other, end = line(Conditions(wild, reorder=reorder))
        for frame in frames(200):
            network.send(end, frame)
        network.agenda.run_until(20)
        assert (other.heard == frames(200)) is not reorder
        assert sorted(other.heard) == frames(200)


def test_a_narrow_line_takes_as_long_as_its_bytes() -> None:
    network, one, other, end = line(Conditions(bandwidth=1000))
    for _ in range(10):
        network.send(end, bytes(97))
    network.watch(end)
    network.agenda.run_until(0.99)
    assert one.told == 0
    network.agenda.run_until(2)
    assert one.told == 1
    assert other.times[-1] == pytest.approx(1.05)


def test_a_partition_can_be_deaf_on_one_side_only() -> None:
    network, one, other, end = line(Conditions())
    one.island = 1
    network.deaf = {(1, 0)}
    network.send(end, b"lost")
    network.send(end.far, b"heard")
    network.agenda.run_until(1)
    assert (other.heard, one.heard) == ([], [b"heard"])


def test_a_stalled_link_delivers_when_it_goes_on() -> None:
    network, one, other, end = line(Conditions())
    network.stall(end)
    network.send(end, b"x")
    network.watch(end)
    network.agenda.run_until(5)
    assert (other.heard, one.told) == ([], 0)
    network.resume(end)
    network.agenda.run_until(6)
    assert (other.heard, one.told) == ([b"x"], 1)


# -- the disk --------------------------------------------------------------------------------------------


def admitted(first: int, count: int, before: bytes) -> Admit:
    parts = (EpochScalars(0, tuple(range(first, first + count))),)
    state = Frontier(RUN).state(FEED)
    return Admit(FEED, Segment(state.key, first, parts, bytes(64)), extend(before, parts), count)


def filled() -> Disk:
    disk, chain = Disk(RUN, FEED), genesis(RUN.run_id, FEED)
    for first, count in ((0, 3), (3, 1), (4, 5)):
        admit = admitted(first, count, chain)
        chain = admit.chain
        disk.append(Commit((admit,)))
    return disk


@pytest.mark.parametrize(("first", "checker"), [(8, "once"), (10, "gap")])
def test_a_disk_takes_a_feed_without_gaps_and_repetitions(first: int, checker: str) -> None:
    disk = filled()
    with pytest.raises(Violation) as found:
        disk.append(Commit((admitted(first, 1, bytes(32)),)))
    assert found.value.checker == checker


def test_a_disk_serves_from_any_step_and_knows_every_chain_head() -> None:
    disk, chain = filled(), genesis(RUN.run_id, FEED)
    for step in range(9):
        assert disk.head(FEED, step) == chain
        segment = disk.read(FEED, step)
        assert segment
        assert [scalar for part in segment.parts for scalar in part.scalars] == list(range(step, 9))
        chain = extend(chain, (EpochScalars(0, (step,)),))
    assert disk.read(FEED, 9) is None
    assert disk.frontier().state(FEED).chain == chain


def test_in_an_organised_run_a_segment_takes_the_place_of_another_history() -> None:
    disk = Disk(organised(0), FEED)
    disk.append(Commit((admitted(0, 9, genesis(RUN.run_id, FEED)),)))
    chain = disk.head(FEED, 4)
    other = Segment(disk.past(FEED, 4)[1].feed_key, 4, (EpochScalars(1, (7, 7)),), bytes(64))
    disk.append(Commit((Admit(FEED, other, extend(chain, other.parts), 2),)))
    segment = disk.read(FEED, 0)
    assert segment
    assert segment.parts == (EpochScalars(0, (0, 1, 2, 3)), *other.parts)
    assert disk.head(FEED, 6) == extend(chain, other.parts)
    assert [disk.label(FEED, step) for step in (0, 4, 6)] == [(0, 0), (0, 4), (1, 2)]


def test_a_backup_does_not_grow_with_the_original() -> None:
    disk = filled()
    backup = disk.copy()
    disk.append(Commit((admitted(9, 1, disk.head(FEED, 9)),)))
    assert (backup.stop(FEED), disk.stop(FEED)) == (9, 10)


# -- the oracle and the rest -----------------------------------------------------------------------------


def test_the_oracle_objects_to_an_honest_origin_that_forks() -> None:
    oracle = Oracle(RUN)
    oracle.honest.add(FEED.origin)
    start = genesis(RUN.run_id, FEED)
    key = Frontier(RUN).state(FEED).key
    oracle.made(FEED, start, Segment(key, 0, (EpochScalars(0, (1, 2)),), b""), 0.0, "ann")
    with pytest.raises(Violation) as found:
        oracle.made(FEED, start, Segment(key, 0, (EpochScalars(0, (1, 3)),), b""), 0.0, "ann")
    assert found.value.checker == "fork"
    assert oracle.story(FEED).common == 1


def test_a_busy_host_leaves_further_frames_of_a_link_unread_and_takes_them_in_order() -> None:
    world = World(0, hardware=Hardware(work=0.01))
    node, peer = world.add("n0"), Ear("peer")
    node.start()
    end = world.network.connect(peer, node)
    assert end
    heard: list[bytes] = []
    handle = node.machine.handle

    def listening(event: Event, now: float) -> list[Action]:
        heard.extend([event.frame] if isinstance(event, Received) else [])
        return [] if isinstance(event, Received) else handle(event, now)

    node.machine.handle = listening  # type: ignore[method-assign]
    for frame in frames(100):
        node.received(end.far, frame)
    assert node.host.busy
    assert node.host.waiting == MAX_UNHANDLED
    world.agenda.run_until(5)
    assert heard == frames(100)
    assert node.quiet


def busy_node() -> tuple[World, Node, Feed]:
    """A node that has decided to admit an update and has not yet written it."""
    world = World(0)
    node = world.add("n0")
    node.start()
    node.compute(3)
    assert not node.synced
    assert node.disk.own
    return world, node, node.disk.own


def test_a_commit_under_way_is_lost_with_the_power() -> None:
    world, node, feed = busy_node()
    node.crash(power_cut=True)
    world.agenda.run_until(1)
    assert node.disk.stop(feed) == 0
    node.start()
    assert node.machine.frontier.known == 0


def test_a_commit_under_way_survives_the_end_of_its_process() -> None:
    world, node, feed = busy_node()
    node.crash()
    world.agenda.run_until(1)
    assert node.disk.stop(feed) == 3
    node.start()
    assert node.machine.frontier.known == 3


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


def test_a_clock_that_leaps_never_goes_back() -> None:
    world = World(0)
    node = world.add("n0")
    node.start()
    readings = []
    for leap in (5.0, -30.0, 0.0, 100.0, -1.0):
        node.leap(leap)
        world.agenda.run_until(world.now + 1)
        readings.append(node.clock())
    assert readings == sorted(readings)
    assert readings[1] == readings[2], "it stands still as long as it was set back"

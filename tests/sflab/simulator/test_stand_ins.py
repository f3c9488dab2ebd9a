"""Keys of stand-ins after a restart, after a copy of the folder, and after the loss of the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from sflab.simulator.world import runs
from sflab.simulator.world.computer import Computer
from sflab.simulator.world.disk import copy
from sflab.simulator.world.world import World


@pytest.fixture
def node() -> Iterator[Computer]:
    """A node that is up and alone, in a run whose organiser is elsewhere."""
    manifest = runs.with_stand_ins(runs.manifest(0))
    with closing(World(0, manifest=manifest, policy=runs.POLICY)) as world:
        node = world.add("n0")
        start(node)
        yield node


def start(node: Computer) -> bytes:
    """Start it, and return the key with which it would stand in."""
    node.world.do(node.start)
    node.world.run_until(node.world.now + 3)
    assert node.up
    return stands_in_with(node)


def stands_in_with(node: Computer) -> bytes:
    return node.organised.control.key


def test_a_node_stands_in_with_the_same_key_after_a_restart(node: Computer) -> None:
    key = stands_in_with(node)
    node.crash()
    assert start(node) == key


def test_whoever_has_lost_its_log_or_has_a_copy_stands_in_with_another_key(node: Computer) -> None:
    """The promises of the key were lost with the log. A restart does not make the node forget that."""
    keys = [stands_in_with(node)]
    twin = node.world.add("n0-twin", files=copy(node.layout))
    keys.append(start(twin))
    node.crash()
    node.layout.log.rename(node.layout.path / "lost")
    keys += [start(node)]
    assert len(set(keys)) == 3
    node.crash()
    assert start(node) == keys[-1]

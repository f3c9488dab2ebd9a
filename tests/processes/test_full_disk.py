"""A node whose disk fills up waits, says so, and continues by itself."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sfnode.preparing.manifest import build
from sfnode.schema.status import Status
from tests.processes.helpers import ENDING, LOOPBACK, Node, nodes, sfnode

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux limits another process"),
]

ROOM = 1 << 16
"""Maximum size of a file, in bytes. The node's log is larger, and its output is smaller."""


def fill(node: Node) -> None:
    """Prevent the node from writing beyond the first ROOM bytes of any file."""
    resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (ROOM, resource.RLIM_INFINITY))


def make_room(node: Node) -> None:
    resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def is_full(status: Status) -> bool:
    return "SF041" in [alarm.code for alarm in status.alarms] and status.paused_by == ["disk"]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    """A trainer and its neighbour, a relay."""
    (tmp_path / "run.toml").write_text(build({"update_budget": 10_000_000, "epoch_updates": 1000}).to_toml())
    with nodes(tmp_path) as make:
        relay = make("relay", "--run", "run.toml", "--role", "relay", *LOOPBACK).start()
        node = make("trainer", "--peers", relay.address(), *LOOPBACK).start()
        node.until("it trains", lambda status: status.own_updates > 0 and status.links)
        yield node, relay


def test_a_node_continues_by_itself_once_there_is_room(pair: tuple[Node, Node]) -> None:
    node, relay = pair
    fill(node)
    full = node.until("it says that the disk is full", is_full)
    assert full.state == "paused"
    time.sleep(5.0)  # the node tries again meanwhile
    still = node.until("it still does", is_full)
    assert (still.known, still.own_updates) == (full.known, full.own_updates)
    assert [link.peer for link in still.links] == [link.peer for link in full.links] != []
    assert relay.until("it runs", lambda status: status).known <= full.known
    make_room(node)
    begun = time.monotonic()
    relay.until("the next update has come", lambda status: status.known > full.known)
    assert time.monotonic() - begun < 20
    assert not node.until("it trains", lambda status: status.state == "training").alarms
    assert node.output().count("SF041: ") <= 1, "it is said once"
    assert len(node.feeds()) == 1
    fill(node)
    node.until("the disk is full again", is_full)
    begun = time.monotonic()
    assert sfnode(node.folder.parent, "leave", "--data-dir", node.folder).returncode == 0
    assert node.wait() == 0
    assert time.monotonic() - begun < ENDING
    assert "leaving without what could not be written" in node.output()
    assert "Traceback" not in node.output()
    node.start().until("it goes on", lambda status: status.own_updates > 0)
    assert node.end() == 0
    said = json.loads(sfnode(node.folder.parent, "verify", "--json", "--data-dir", node.folder).stdout)
    assert said["updates"] >= relay.until("it runs", lambda status: status).known
    assert said["feeds"] == 1

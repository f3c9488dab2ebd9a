"""Nodes that cannot find each other at first: late or moved peers, and a run that starts partitioned."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hivemind.p2p import PeerID

from sfnode.node.startup import remember_peers, remembered_peers
from sfnode.peers.address_book import BACKOFF_MOST
from sfnode.schema.status import Status
from sfnode.store.data_folder import Layout
from sfnode.store.log import UpdateLog
from sfnode.transport.libp2p.keys import ensure_key
from tests.network.swarm import alive, finish, linked, meets, no_tracebacks, seconds_until, trains, write_run
from tests.processes.helpers import LOOPBACK, Node, nodes, until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

LONG = bool(os.environ.get("SFNODE_LONG"))

FOUND_WITHIN = 1.2 * BACKOFF_MOST + 10
"""Seconds from when a peer can be reached until there is a link. A node waits twice as long after every
attempt, give or take a fifth, so where starts take seconds this takes seconds."""


def free_port() -> tuple[str, str]:
    """Return an option that has a node listen on a port which is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return ("--host-maddrs", f"/ip4/127.0.0.1/tcp/{probe.getsockname()[1]}")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_run(tmp_path)
    return tmp_path


@pytest.fixture
def make(home: Path) -> Iterator[Callable[..., Node]]:
    with nodes(home) as make:
        yield make


@pytest.mark.skipif(not LONG, reason="takes a minute or two of waiting: set SFNODE_LONG=1")
def test_a_restarted_node_finds_a_peer_that_comes_late_and_one_that_moves(
    home: Path, make: Callable[..., Node]
) -> None:
    first, second = free_port(), free_port()
    relay = make("relay", "--run", "run.toml", "--role", "relay", *first).start()
    node = make("node", "--peers", relay.address(), *free_port()).start()
    before = trains(node)
    peer = linked(node, relay).links[0].peer
    assert relay.end() == node.end() == 0
    forget_peers(relay, before)  # so that it is the node that finds the relay

    alone = node.start().until("it runs although nobody answers", lambda s: s.uptime > 4)
    assert not alone.links
    alive(relay.start())
    late = seconds_until("the late peer is found", lambda: meets(node, relay), FOUND_WITHIN)
    trains(node)
    address = alive(node).addresses[0]
    until("the relay remembers where the node is", lambda: address in remembered(relay, before))

    assert relay.end() == 0
    moved = make("relay", "--role", "relay", *second).start()
    alive(moved)
    found = seconds_until("the peer that moved is found", lambda: meets(node, moved), FOUND_WITHIN)
    assert alive(moved).addresses == [f"{second[1]}/p2p/{peer}"]
    assert alive(node).origin == before.origin
    print(f"a late peer was found after {late:.0f} s, one that moved after {found:.0f} s")
    finish(home, moved, [moved, node])
    no_tracebacks([moved, node])


def remembered(node: Node, status: Status) -> list[str]:
    """Return the addresses that a running node keeps for its next start."""
    with UpdateLog.open(Layout(node.folder).log, bytes.fromhex(status.run_id), read_only=True) as log:
        return remembered_peers(log)


def forget_peers(node: Node, status: Status) -> None:
    """Make the folder that of a node that has met no peer."""
    with UpdateLog.open(Layout(node.folder).log, bytes.fromhex(status.run_id)) as log:
        remember_peers(log, [])


def test_two_partitions_of_a_run_merge_when_a_common_peer_starts(
    home: Path, make: Callable[..., Node]
) -> None:
    hosts = free_port()
    common = address_to_be(home / "common", hosts[1])
    sides = []
    for side in ("west", "east"):
        relay = make(f"{side}-relay", "--run", "run.toml", "--role", "relay", *LOOPBACK).start()
        peers = ("--peers", relay.address(), "--peers", common)
        sides.append((relay, make(side, *peers, *LOOPBACK).start()))
    apart = [trains(node) for _, node in sides]
    assert all(status.feed_count == 1 for status in apart)

    bridge = make("common", "--run", "run.toml", "--role", "relay", *hosts).start()
    assert alive(bridge).addresses == [common]
    everyone = [bridge, *(node for side in sides for node in side)]

    def one_run() -> bool:
        return all(alive(node).feed_count == 2 for node in everyone)

    merged = seconds_until("all know both feeds", one_run, FOUND_WITHIN)
    print(f"two swarms were one after {merged:.0f} s")
    finish(home, bridge, everyone)
    no_tracebacks(everyone)


def address_to_be(folder: Path, host: str) -> str:
    """Return the address of a node that is yet to be started in this folder; it gets its key now."""
    key = Layout(folder).libp2p_identity
    folder.mkdir()
    ensure_key(key)
    return f"{host}/p2p/{PeerID.from_identity(key.read_bytes())}"

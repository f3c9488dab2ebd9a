"""A run that starts partitioned: two swarms that know nothing of each other."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hivemind.p2p import PeerID

from sfnode.peers.address_book import BACKOFF_MOST
from sfnode.store.data_folder import Layout
from sfnode.transport.libp2p.keys import ensure_key
from tests.network.swarm import alive, finish, no_tracebacks, seconds_until, trains, write_run
from tests.processes.helpers import LOOPBACK, Node, nodes

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

FOUND_WITHIN = 1.2 * BACKOFF_MOST + 10
"""Maximum seconds from the start of a peer until there is a link. The wait of a node doubles after every
attempt, up to BACKOFF_MOST, and varies by a fifth."""


def free_port() -> tuple[str, str]:
    """Return the option with which a node listens on a port that is free now."""
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
    """Return the address that a node will have when it is started in this folder. Its key is made now."""
    key = Layout(folder).libp2p_identity
    folder.mkdir()
    ensure_key(key)
    return f"{host}/p2p/{PeerID.from_identity(key.read_bytes())}"

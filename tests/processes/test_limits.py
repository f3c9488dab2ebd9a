"""A real node with limits: it uses no more of the machine than its owner allows, and leaves when told to."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator

import psutil
import pytest

from sfnode.control.client import Client
from sfnode.limits import Limits
from sfnode.preparing.manifest import build
from sfnode.store.data_folder import Layout
from tests.processes.helpers import LOOPBACK, Node, nodes, sfnode, until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

SHARE = 20
"""CPU limit, in percent of all cores."""

SPAN = 3.0
"""Seconds over which the use of the CPU is measured."""


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A trainer with a CPU limit, beside a relay."""
    home = tmp_path_factory.mktemp("limited")
    (home / "run.toml").write_text(build({"update_budget": 10_000_000, "epoch_updates": 1000}).to_toml())
    with nodes(home) as make:
        relay = make("relay", "--run", "run.toml", "--role", "relay", *LOOPBACK).start()
        peers = ("--peers", relay.address())
        node = make("limited", *peers, *LOOPBACK, "--limit", f"cpu={SHARE}", "--threads", 1).start()
        node.until("it trains", lambda status: status.own_updates > 0 and status.links)
        yield node


def run(node: Node, *arguments: object) -> str:
    """Run a command for the node. Return its output."""
    ended = sfnode(node.folder.parent, *arguments, "--data-dir", node.folder)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def client(node: Node) -> Client:
    return Client(Layout(node.folder).control_socket)


def cpu_share(node: Node, span: float) -> float:
    """Return the percentage of all cores that the node's process uses, over `span` seconds."""
    process = psutil.Process(node.pid)
    times, begun = process.cpu_times(), time.monotonic()
    until("the time is over", lambda: time.monotonic() - begun > span)
    now = process.cpu_times()
    used = now.user + now.system - times.user - times.system
    return 100 * used / (time.monotonic() - begun) / len(process.cpu_affinity())


def unchanged(node: Node) -> int | None:
    """Return the number of updates that the node has made; None if it makes more within a second."""
    before = node.until("it runs", lambda status: status).own_updates
    time.sleep(1.0)
    after = node.until("it runs", lambda status: status).own_updates
    return after if after == before else None


def test_a_node_uses_no_more_cpu_than_its_limit(limited: Node) -> None:
    before = limited.until("it runs", lambda status: status)
    assert before.limits == Limits(cpu=SHARE, threads=1)
    assert cpu_share(limited, SPAN) <= SHARE + 5
    limited.until("it has gone on", lambda status: status.own_updates > before.own_updates)


def test_a_pause_takes_effect_within_a_step_and_frees_the_cpu(limited: Node) -> None:
    status = asyncio.run(client(limited).pause())
    assert (status.state, status.pauses) == ("paused", ["asked for"])
    own = until("its last step is done", lambda: unchanged(limited))
    assert own <= status.own_updates + 64  # finished, but not in the log yet
    assert cpu_share(limited, 1.0) < SHARE / 2
    assert limited.until("it runs", lambda status: status).own_updates == own
    assert run(limited, "resume") == "resumed\n"
    limited.until("it goes on", lambda status: status.own_updates > own)


def test_a_node_that_finishes_hands_over_all_its_updates(limited: Node) -> None:
    relay = Layout(limited.folder.parent / "relay").control_socket
    status = limited.until("it trains", lambda status: status.state == "training")
    assert run(limited, "leave", "--finish") == "finished\n"
    assert limited.wait() == 0
    said = sfnode(limited.folder.parent, "verify", "--json", "--data-dir", limited.folder)
    updates = json.loads(said.stdout)["updates"]
    assert updates >= status.known
    assert asyncio.run(Client(relay).status()).known == updates

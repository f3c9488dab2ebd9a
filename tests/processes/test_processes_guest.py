"""A real node as a guest: what it takes of the machine is what its owner allows, and it goes when told to."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator

import psutil
import pytest
from process_helpers import LOOPBACK, Node, nodes, sfnode, until

from sfnode.cli.draft import build
from sfnode.client import Client
from sfnode.limits import Limits
from sfnode.store.datadir import Layout

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

SHARE = 20
"""Percent of all cores."""

SPAN = 3.0
"""Seconds over which a share is measured."""


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A trainer beside a relay, and its owner is careful."""
    home = tmp_path_factory.mktemp("guest")
    (home / "run.toml").write_text(build({"update_budget": 10_000_000, "epoch_updates": 1000}).to_toml())
    with nodes(home) as make:
        relay = make("relay", "--run", "run.toml", "--role", "relay", *LOOPBACK).start()
        peers = ("--peers", relay.address())
        node = make("guest", *peers, *LOOPBACK, "--limit-cpu", SHARE, "--threads", 1).start()
        node.until("it trains", lambda status: status.own_updates > 0 and status.links)
        yield node


def tell(node: Node, *arguments: object) -> str:
    """What a command of its owner prints."""
    ended = sfnode(node.folder.parent, *arguments, "--data-dir", node.folder)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def client(node: Node) -> Client:
    return Client(Layout(node.folder).control_socket)


def cpu_share(node: Node, span: float) -> float:
    """Percent of all cores that its process takes."""
    process = psutil.Process(node.pid)
    times, begun = process.cpu_times(), time.monotonic()
    until("the time is over", lambda: time.monotonic() - begun > span)
    now = process.cpu_times()
    used = now.user + now.system - times.user - times.system
    return 100 * used / (time.monotonic() - begun) / len(process.cpu_affinity())


def test_a_node_takes_no_more_of_the_processor_than_it_may(guest: Node) -> None:
    before = guest.until("it runs", lambda status: status)
    assert before.limits == Limits(cpu=SHARE, threads=1)
    share = cpu_share(guest, SPAN)
    after = guest.until("it runs", lambda status: status)
    assert share <= SHARE + 5
    assert after.own_updates > before.own_updates


def test_a_pause_takes_effect_within_a_step_and_the_processor_is_idle(guest: Node) -> None:
    asked = time.monotonic()
    status = asyncio.run(client(guest).pause())
    assert time.monotonic() - asked < 5
    assert (status.state, status.pauses) == ("paused", ["asked for"])
    own = guest.until("its last step is done", lambda status: not status.updates_per_second).own_updates
    assert own <= status.own_updates + 64  # what was finished and on its way into the log
    assert cpu_share(guest, 1.0) < SHARE / 2
    assert guest.until("it runs", lambda status: status).own_updates == own
    assert tell(guest, "resume") == "resumed\n"
    guest.until("it goes on", lambda status: status.own_updates > own)


def test_a_pause_has_an_end(guest: Node) -> None:
    assert tell(guest, "pause", "2h").startswith("paused: asked for, until ")
    assert guest.until("it pauses", lambda status: status.pauses).state == "paused"
    tell(guest, "pause", "1s")
    guest.until("it goes on", lambda status: status.state == "training")


def test_limits_change_while_a_node_runs(guest: Node) -> None:
    now = time.localtime()
    other = f"{(now.tm_hour + 2) % 24:02}:00-{(now.tm_hour + 3) % 24:02}:00"
    assert f"hours         {other}" in tell(guest, "limit", f"hours={other}", "cpu=50")
    assert guest.until("it pauses", lambda status: status.pauses).pauses == [f"hours: only {other}"]
    assert f"paused   hours: only {other}" in tell(guest, "status")
    refused = sfnode(guest.folder.parent, "limit", "hours=none", "watts=5", "--data-dir", guest.folder)
    assert refused.returncode == 1
    assert refused.stderr.startswith("sfnode: SF015: ")
    assert guest.until("it pauses", lambda status: status).limits.hours == other
    tell(guest, "limit", "hours=none", f"cpu={SHARE}")
    guest.until("it goes on", lambda status: status.state == "training")


def test_what_it_sends_over_real_connections_is_no_more_than_it_may(guest: Node) -> None:
    tell(guest, "limit", "upload_rate=1000", "cpu=none")
    before, begun = guest.until("it runs", lambda status: status), time.monotonic()
    until("some time is over", lambda: time.monotonic() - begun > SPAN)
    after = guest.until("it runs", lambda status: status)
    assert after.bytes_sent - before.bytes_sent <= 1000 * (time.monotonic() - begun + 1) + 1000
    tell(guest, "limit", "upload_rate=none", f"cpu={SHARE}")


def test_a_node_that_finishes_hands_over_all_that_it_has_made(guest: Node) -> None:
    relay = Layout(guest.folder.parent / "relay").control_socket
    status = guest.until("it trains", lambda status: status.state == "training")
    assert tell(guest, "finish") == "finished\n"
    assert guest.wait() == 0
    said = sfnode(guest.folder.parent, "verify", "--json", "--data-dir", guest.folder)
    updates = json.loads(said.stdout)["updates"]
    assert updates >= status.known
    assert asyncio.run(Client(relay).status()).known == updates

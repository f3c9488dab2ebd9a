"""The network daemon p2pd dies or hangs in the middle of training: noticed, replaced, and nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from signal import SIGKILL, SIGSTOP, Signals
from typing import NamedTuple

import psutil
import pytest
from network_swarm import alive, composed, finish, linked, said_since, trained_on, trains, write_run
from process_helpers import LOOPBACK, Node, nodes, p2pd_of, until

from sfnode.runtime.status import Status

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

NOTICED_WITHIN = 2.0
RESTARTED_WITHIN = 10.0
"""Seconds: what docs/reliability.md promises."""

NOTICE = "network daemon .*restarting it"


class Outage(NamedTuple):
    """What was seen of one."""

    before: Status
    after: Status
    noticed: float
    """Seconds from the blow."""
    restarted: float
    """Seconds from the blow until there was another p2pd with a link."""
    trained: int
    """Updates made from the blow until a link was back."""


class Town(NamedTuple):
    """A relay and two trainers, which have lost their daemons, one after the other."""

    everyone: list[Node]
    outages: dict[Signals, Outage]
    final: list[Status]


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    home = tmp_path_factory.mktemp("daemon")
    write_run(home)
    with nodes(home) as make:
        relay = make("relay", "--run", "run.toml", "--role", "relay", *LOOPBACK).start()
        trainers = [make(name, "--peers", relay.address(), *LOOPBACK).start() for name in ("first", "second")]
        for node in trainers:
            trains(node)
            linked(relay, node)
        first, second = trainers
        outages = {SIGKILL: outage(first, SIGKILL, [relay]), SIGSTOP: outage(second, SIGSTOP, [relay])}
        everyone = [relay, *trainers]
        yield Town(everyone, outages, finish(home, relay, everyone))


def outage(node: Node, blow: Signals, neighbours: list[Node]) -> Outage:
    """Strike the daemon of `node` and wait until it is linked again."""
    before, said = alive(node), len(node.output())
    old = until("a daemon", lambda: p2pd_of(node))
    struck = time.monotonic()
    old.send_signal(blow)
    until("it is noticed", lambda: said_since(node, said, NOTICE), 30.0)
    noticed = time.monotonic() - struck
    until("there is another", lambda: (new := p2pd_of(node)) and new.pid != old.pid and new)
    after = node.until("it has a link", lambda status: status.links and status.peer == before.peer)
    restarted = time.monotonic() - struck
    for neighbour in neighbours:
        linked(node, neighbour)
    trained_on(node, after)
    assert not psutil.pid_exists(old.pid)
    return Outage(before, after, noticed, restarted, after.own_updates - before.own_updates)


@pytest.mark.parametrize("blow", [SIGKILL, SIGSTOP])
def test_a_daemon_that_is_killed_or_hangs_is_noticed_within_two_seconds(town: Town, blow: Signals) -> None:
    assert town.outages[blow].noticed < NOTICED_WITHIN, town.outages[blow]


@pytest.mark.parametrize("blow", [SIGKILL, SIGSTOP])
def test_the_node_is_back_within_ten_seconds_as_the_same_peer_at_the_same_address(
    town: Town, blow: Signals
) -> None:
    outage = town.outages[blow]
    assert outage.restarted < RESTARTED_WITHIN, outage
    assert outage.after.peer == outage.before.peer
    assert outage.after.addresses == outage.before.addresses


@pytest.mark.parametrize("blow", [SIGKILL, SIGSTOP])
def test_training_goes_on_while_there_is_no_network(town: Town, blow: Signals) -> None:
    outage = town.outages[blow]
    rate = outage.before.updates_per_second
    assert outage.trained > 0.3 * rate * outage.restarted > 0, outage


def test_all_end_with_the_same_digest_and_no_node_has_lost_its_composure(town: Town) -> None:
    assert len({status.digest for status in town.final}) == 1
    composed(town.everyone)

"""The network daemon p2pd dies or hangs during training: noticed, replaced, and nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from signal import SIGKILL, SIGSTOP, Signals
from typing import NamedTuple

import psutil
import pytest

from sfnode.schema.status import Status
from tests.network.swarm import (
    alive,
    finish,
    linked,
    logged_since,
    no_tracebacks,
    trained_on,
    trains,
    write_run,
)
from tests.processes.helpers import LOOPBACK, Node, nodes, p2pd_of, until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

NOTICED_WITHIN = 2.0
"""Seconds, as docs/reliability.md promises."""

RESTARTED_WITHIN = 10.0
"""Seconds, likewise."""

NOTICE = "network daemon .*restarting it"


class Outage(NamedTuple):
    """What was measured of one outage."""

    before: Status
    after: Status
    noticed: float
    """Seconds from the signal."""
    restarted: float
    """Seconds from the signal until there was another p2pd with a link."""
    trained: int
    """Updates that were admitted from the signal until the first one after a link was back: what a node makes
    is signed in lumps (SPEC I4)."""
    seconds: float
    """Seconds that this took."""


class Observed(NamedTuple):
    """A relay and two trainers, which have lost their daemons, one after the other."""

    everyone: list[Node]
    outages: dict[Signals, Outage]
    final: list[Status]


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
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
        yield Observed(everyone, outages, finish(home, relay, everyone))


def outage(node: Node, signal: Signals, neighbours: list[Node]) -> Outage:
    """Send the daemon of `node` a signal and wait until the node is linked again."""
    before, logged = alive(node), len(node.output())
    old = until("a daemon", lambda: p2pd_of(node))
    sent_at = time.monotonic()
    old.send_signal(signal)
    until("it is noticed", lambda: logged_since(node, logged, NOTICE), 30.0)
    noticed = time.monotonic() - sent_at
    until("there is another", lambda: (new := p2pd_of(node)) and new.pid != old.pid and new)
    after = node.until("it has a link", lambda status: status.links and status.peer == before.peer)
    restarted = time.monotonic() - sent_at
    for neighbour in neighbours:
        linked(node, neighbour)
    trained_on(node, after)
    assert not psutil.pid_exists(old.pid)
    trained = node.status().own_updates - before.own_updates
    return Outage(before, after, noticed, restarted, trained, time.monotonic() - sent_at)


@pytest.mark.parametrize("signal", [SIGKILL, SIGSTOP])
def test_a_dead_or_hanging_daemon_is_noticed_within_two_seconds(observed: Observed, signal: Signals) -> None:
    assert observed.outages[signal].noticed < NOTICED_WITHIN, observed.outages[signal]


@pytest.mark.parametrize("signal", [SIGKILL, SIGSTOP])
def test_the_node_is_back_within_ten_seconds_as_the_same_peer_at_the_same_address(
    observed: Observed, signal: Signals
) -> None:
    outage = observed.outages[signal]
    assert outage.restarted < RESTARTED_WITHIN, outage
    assert outage.after.peer == outage.before.peer
    assert outage.after.addresses == outage.before.addresses


@pytest.mark.parametrize("signal", [SIGKILL, SIGSTOP])
def test_training_goes_on_while_there_is_no_network(observed: Observed, signal: Signals) -> None:
    outage = observed.outages[signal]
    rate = outage.before.updates_per_second
    assert outage.trained > 0.3 * rate * outage.seconds > 0, outage


def test_all_end_with_the_same_digest_and_no_node_logs_a_traceback(observed: Observed) -> None:
    assert len({status.digest for status in observed.final}) == 1
    no_tracebacks(observed.everyone)

"""A network that is partitioned, heals, and becomes slow: real nodes in network namespaces, one of them 100
ms away.

One swarm serves all tests, because starting it takes longer than a fault. It has a relay, two trainers that
are cut off from it at the same time in two different ways, and a distant relay behind a delay. After the
partition all lines become slow and lossy until the run is complete.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from sfnode.schema.status import Status
from sfnode.schema.views import FeedStatus
from tests.network.namespaces import Place, world
from tests.network.swarm import (
    alive,
    finish,
    linked,
    no_tracebacks,
    seconds_until,
    trained_on,
    trains,
    write_run,
)
from tests.processes.helpers import Node, nodes

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.usefixtures("namespaces")]

PORT = 4001
ANYWHERE = ("--host-maddrs", f"/ip4/0.0.0.0/tcp/{PORT}")

DELAY = 0.1
"""Seconds of delay to the distant relay, in each direction."""

PARTITION = 120.0 if os.environ.get("SFNODE_LONG") else 15.0
"""Duration of the partition, in seconds. At its end TCP retries rarely, and nodes have missed many
Summaries."""

HEALED_WITHIN = 40.0
"""Maximum seconds after the partition until all nodes have all updates. TCP may wait as long as the partition
lasted."""

LOSS, RATE = 0.05, "1mbit"

SLOW_UPDATES = 100
"""Minimum number of updates that each trainer makes over the slow network. With fewer, the cost of an update
would be a matter of chance."""

MAX_BYTES = 500
"""Maximum bytes per update, over all three links of the slow network: on each link a segment of two or three
new updates, and a Summary per second."""


class Cost(NamedTuple):
    """Number of updates made over the slow network, and bytes sent meanwhile."""

    updates: int
    bytes: int

    @property
    def bytes_per_update(self) -> float:
        return self.bytes / self.updates


class Observed(NamedTuple):
    """Results of the test run."""

    everyone: list[Node]
    during_partition: dict[str, int]
    """Number of updates that each trainer made during the partition."""
    apart: set[str]
    healed: float
    """Seconds from the end of the partition until all nodes had all updates made in it."""
    slow: Cost
    final: list[Status]


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    home = tmp_path_factory.mktemp("slow")
    write_run(home)
    with world() as internet, nodes(home) as make:
        places = {
            name: internet.place(name, f"5.{n}.0.1") for n, name in enumerate(("hub", "east", "west"), 1)
        }
        relay = ("--role", "relay", *ANYWHERE)
        hub = make("hub", "--run", "run.toml", *relay, namespace=places["hub"].name).start()
        trainers = {}
        for name in ("east", "west"):
            joining = ("--peers", hub.address(), *ANYWHERE)
            trainers[name] = make(name, *joining, namespace=places[name].name).start()
        distant = internet.far_away("distant", places["hub"], PORT, DELAY)
        through_proxy = hub.address().replace(places["hub"].address, "9.9.0.1")
        far = make("far", "--peers", through_proxy, *relay, namespace=distant.name).start()
        for node in trainers.values():
            trains(node)
        linked(hub, far, *trainers.values())
        during_partition, apart, healed = partition_and_heal(hub, far, trainers, places)
        slow = train_over_slow_network([hub, far], trainers, places)
        everyone = [hub, far, *trainers.values()]
        final = finish(home, hub, everyone, places["hub"].entered())
        yield Observed(everyone, during_partition, apart, healed, slow, final)


def partition_and_heal(
    hub: Node, far: Node, trainers: dict[str, Node], places: dict[str, Place]
) -> tuple[dict[str, int], set[str], float]:
    """Separate both trainers for PARTITION seconds: unplug one, and drop all packets of the other. Return the
    updates made meanwhile, the digests at the end of the partition, and the seconds until all nodes had all
    updates."""
    before = {name: alive(node) for name, node in trainers.items()}
    places["east"].unplug()
    places["west"].rule("deaf")  # both directions; dropping outgoing packets would return errors
    places["hub"].rule("deaf", places["west"].address)
    since = time.monotonic()
    for name, node in trainers.items():
        trained_on(node, before[name])
    seconds_until("the partition lasts", lambda: time.monotonic() - since > PARTITION)
    after = {name: alive(node) for name, node in trainers.items()}
    apart = {status.digest for status in (alive(hub), *after.values())}
    places["east"].plug()
    for name in ("west", "hub"):
        places[name].rule("none")
    made = {feed(status): status.own_updates for status in after.values()}

    def all_know() -> bool:
        return all(behind(node, made) == 0 for node in (hub, far, *trainers.values()))

    healed = seconds_until("all know the updates of the partition", all_know)
    return {name: after[name].own_updates - before[name].own_updates for name in trainers}, apart, healed


def feed(named: Status | FeedStatus) -> str:
    return f"{named.origin}/{named.incarnation}"


def behind(node: Node, made: dict[str, int]) -> int:
    """Return how many of the updates `made` the node lacks."""
    known = {feed(one): one.updates for one in node.feeds()}
    return sum(max(0, count - known.get(name, 0)) for name, count in made.items())


def train_over_slow_network(relays: list[Node], trainers: dict[str, Node], places: dict[str, Place]) -> Cost:
    """Make all lines slow and lossy. Return the cost of at least SLOW_UPDATES updates per trainer."""
    for name in trainers:
        places[name].limit_rate(RATE)
        places[name].rule("loss", LOSS)
    everyone = [*relays, *trainers.values()]
    before = [alive(node) for node in everyone]
    for node, status in zip(everyone, before, strict=True):
        if node in trainers.values():
            trained_on(node, status, SLOW_UPDATES)
    after = [alive(node) for node in everyone]
    sent = sum(b.bytes_sent - a.bytes_sent for a, b in zip(before, after, strict=True))
    return Cost(sum(b.own_updates - a.own_updates for a, b in zip(before, after, strict=True)), sent)


def test_both_sides_of_a_partition_go_on_training(observed: Observed) -> None:
    assert all(made > 0 for made in observed.during_partition.values()), observed.during_partition
    assert len(observed.apart) == 3


def test_updates_made_in_a_partition_arrive_soon_after_it(observed: Observed) -> None:
    assert observed.healed < HEALED_WITHIN


def test_an_update_costs_little_over_a_slow_and_lossy_line(observed: Observed) -> None:
    slow = observed.slow
    print(
        f"{slow.updates} updates at {slow.bytes_per_update:.0f} bytes each; healed in {observed.healed:.1f} s"
    )
    assert observed.slow.bytes_per_update < MAX_BYTES, observed.slow


def test_all_end_with_the_same_digest_and_no_node_logs_a_traceback(observed: Observed) -> None:
    assert len({status.digest for status in observed.final}) == 1
    no_tracebacks(observed.everyone)

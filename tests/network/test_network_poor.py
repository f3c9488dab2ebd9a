"""A network that is cut, heals, and is poor: real nodes in network namespaces, one of them 100 ms away.

One swarm for all of it, because a start costs more than a fault: a relay, two trainers that are cut off from
it in two ways at the same time, and a relay that reaches it through a slow line. When the cuts have healed
everything becomes narrow and lossy, and so the run ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from network_swarm import alive, composed, finish, linked, seconds_until, trained_on, trains, write_run
from network_world import Place, world
from process_helpers import Node, nodes

from sfnode.runtime.status import Status
from sfnode.runtime.viewed import FeedStatus

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.usefixtures("namespaces")]

PORT = 4001
ANYWHERE = ("--host-maddrs", f"/ip4/0.0.0.0/tcp/{PORT}")

DELAY = 0.1
"""Seconds each way, to the relay that is far away."""

CUT = 120.0 if os.environ.get("SFNODE_LONG") else 15.0
"""Seconds: TCP no longer tries again soon by then, and every node has missed its neighbours' Summaries."""

HEALED_WITHIN = 40.0
"""Seconds after the cut for all to know everything: TCP itself may wait for as long as the cut has lasted."""

LOSS, RATE = 0.05, "1mbit"

POOR_UPDATES = 100
"""Updates of each trainer over a poor network; with fewer the cost of one could be chance."""

MOST_BYTES = 500
"""Bytes that one update may cost the whole swarm over a poor network, all three links counted: a segment of
two or three new updates on each link, and a Summary a second on each."""


class Poor(NamedTuple):
    """What a stretch of training over a poor network has cost."""

    updates: int
    bytes: int

    @property
    def each(self) -> float:
        return self.bytes / self.updates


class Country(NamedTuple):
    """What was seen."""

    everyone: list[Node]
    in_the_cut: dict[str, int]
    """Updates that each side made while it was alone."""
    known_apart: set[int]
    healed: float
    """Seconds from the end of the cut until everybody knew what all had made in it."""
    poor: Poor
    final: list[Status]


@pytest.fixture(scope="module")
def country(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Country]:
    home = tmp_path_factory.mktemp("poor")
    write_run(home)
    with world() as internet, nodes(home) as make:
        places = {
            name: internet.place(name, f"5.{n}.0.1") for n, name in enumerate(("hub", "east", "west"), 1)
        }
        relay = ("--role", "relay", *ANYWHERE)
        hub = make("hub", "--run", "run.toml", *relay, inside=places["hub"].inside).start()
        trainers = {}
        for name in ("east", "west"):
            joining = ("--peers", hub.address(), *ANYWHERE)
            trainers[name] = make(name, *joining, inside=places[name].inside).start()
        cabin = internet.far_away("cabin", places["hub"], PORT, DELAY)
        ferry = hub.address().replace(places["hub"].address, "9.9.0.1")
        far = make("far", "--peers", ferry, *relay, inside=cabin.inside).start()
        for node in trainers.values():
            trains(node)
        linked(hub, far, *trainers.values())
        in_the_cut, known, healed = cut_and_heal(hub, far, trainers, places)
        poor = train_over_poor_network([hub, far], trainers, places)
        everyone = [hub, far, *trainers.values()]
        final = finish(home, hub, everyone, places["hub"].entered())
        yield Country(everyone, in_the_cut, known, healed, poor, final)


def cut_and_heal(
    hub: Node, far: Node, trainers: dict[str, Node], places: dict[str, Place]
) -> tuple[dict[str, int], set[int], float]:
    """One trainer loses its cable, the other one every packet, for CUT seconds."""
    before = {name: alive(node) for name, node in trainers.items()}
    places["east"].unplug()
    places["west"].rule("deaf")  # both ways, and no sender is told as it is where it drops its own packets
    places["hub"].rule("deaf", places["west"].address)
    since = time.monotonic()
    for name, node in trainers.items():
        trained_on(node, before[name])
    seconds_until("the cut lasts", lambda: time.monotonic() - since > CUT)
    after = {name: alive(node) for name, node in trainers.items()}
    apart = {status.known for status in (alive(hub), *after.values())}
    places["east"].plug()
    for name in ("west", "hub"):
        places[name].rule("none")
    made = {feed(status): status.own_updates for status in after.values()}

    def all_told() -> bool:
        return all(behind(node, made) == 0 for node in (hub, far, *trainers.values()))

    healed = seconds_until("all know what was made in the cut", all_told)
    return {name: after[name].own_updates - before[name].own_updates for name in trainers}, apart, healed


def feed(named: Status | FeedStatus) -> str:
    return f"{named.origin}/{named.incarnation}"


def behind(node: Node, made: dict[str, int]) -> int:
    """Updates that others had made, and this node lacks."""
    known = {feed(one): one.updates for one in node.feeds()}
    return sum(max(0, count - known.get(name, 0)) for name, count in made.items())


def train_over_poor_network(relays: list[Node], trainers: dict[str, Node], places: dict[str, Place]) -> Poor:
    """Narrow and lossy lines from here on; what some updates cost over them."""
    for name in trainers:
        places[name].throttle(RATE)
        places[name].rule("loss", LOSS)
    everyone = [*relays, *trainers.values()]
    before = [alive(node) for node in everyone]
    for node, status in zip(everyone, before, strict=True):
        if node in trainers.values():
            trained_on(node, status, POOR_UPDATES)
    after = [alive(node) for node in everyone]
    sent = sum(b.bytes_sent - a.bytes_sent for a, b in zip(before, after, strict=True))
    return Poor(sum(b.own_updates - a.own_updates for a, b in zip(before, after, strict=True)), sent)


def test_both_sides_of_a_cut_train_on_and_part(country: Country) -> None:
    assert all(made > 0 for made in country.in_the_cut.values()), country.in_the_cut
    assert len(country.known_apart) == 3


def test_all_that_was_made_in_the_cut_arrives_soon_after_it(country: Country) -> None:
    assert country.healed < HEALED_WITHIN


def test_an_update_costs_little_over_a_slow_and_lossy_line(country: Country) -> None:
    poor = country.poor
    print(f"{poor.updates} updates at {poor.each:.0f} bytes each; healed in {country.healed:.1f} s")
    assert country.poor.each < MOST_BYTES, country.poor


def test_all_end_with_the_same_digest_and_no_node_has_lost_its_composure(country: Country) -> None:
    assert len({status.digest for status in country.final}) == 1
    composed(country.everyone)

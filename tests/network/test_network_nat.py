"""Two nodes behind routers that masquerade, and a public one: they train together, and reach each other."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import pytest
from network_swarm import composed, finish, linked, meets, seconds_until, trains, write_run
from network_world import world
from process_helpers import Node, nodes, p2pd_of, until

from sfnode.runtime.status import Status

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.usefixtures("namespaces")]

ANYWHERE = ("--host-maddrs", "/ip4/0.0.0.0/tcp/4001")

PUBLIC = "5.1.0.1"
ESTABLISHED = "01"
"""In /proc/net/tcp."""

RELAYED_WITHIN = 90.0
"""Seconds: libp2p asks another peer after 15 s whether it is reachable, and believes the third answer."""


class Homes(NamedTuple):
    """What was seen."""

    everyone: list[Node]
    relayed: float
    """Seconds from when both trained until they had a link with each other."""
    connections: dict[str, set[str]]
    """Where their daemons have TCP connections to."""
    final: list[Status]


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Homes]:
    home = tmp_path_factory.mktemp("nat")
    write_run(home)
    with world() as internet, nodes(home) as make:
        square = internet.place("square", PUBLIC)
        public = make(
            "public", "--run", "run.toml", "--role", "relay", *ANYWHERE, inside=square.inside
        ).start()
        private = {}
        for number, name in enumerate(("left", "right"), 2):
            flat = internet.behind_nat(name, f"5.{number}.0.1")
            joining = ("--peers", public.address(), "--auto-relay", *ANYWHERE)
            private[name] = make(name, *joining, inside=flat.inside).start()
        for node in private.values():
            trains(node)
        left, right = private.values()
        relayed = seconds_until("they have a link", lambda: meets(left, right), RELAYED_WITHIN)
        seen = {name: connections(node) for name, node in private.items()}
        everyone = [public, left, right]
        linked(public, left, right)
        yield Homes(everyone, relayed, seen, finish(home, public, everyone, square.entered()))


def connections(node: Node) -> set[str]:
    """The other ends of all TCP connections in the node's namespace, as the kernel shows them."""
    daemon = until("a daemon", lambda: p2pd_of(node))
    lines = Path(f"/proc/{daemon.pid}/net/tcp").read_text().splitlines()[1:]
    remote = [(fields[2].partition(":")[0], fields[3]) for fields in map(str.split, lines)]
    return {str(ip_address(bytes.fromhex(host)[::-1])) for host, state in remote if state == ESTABLISHED}


def test_they_have_no_connection_but_the_one_to_the_public_node(homes: Homes) -> None:
    """So what they say to each other goes through it, as one circuit or flooded."""
    assert homes.connections == {"left": {PUBLIC}, "right": {PUBLIC}}


def test_they_have_a_link_with_each_other_through_the_public_node(homes: Homes) -> None:
    print(f"a link through the relay after {homes.relayed:.0f} s")
    assert homes.relayed < RELAYED_WITHIN


def test_all_end_with_the_same_digest_and_no_node_has_lost_its_composure(homes: Homes) -> None:
    assert len({status.digest for status in homes.final}) == 1
    composed(homes.everyone)

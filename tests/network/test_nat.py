"""Two nodes behind NAT and a public one: they train together, and get a link through a relay."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import pytest

from sfnode.schema.status import Status
from tests.network.namespaces import world
from tests.network.swarm import finish, linked, meets, no_tracebacks, seconds_until, trains, write_run
from tests.processes.helpers import Node, nodes, p2pd_of, until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.usefixtures("namespaces")]

ANYWHERE = ("--host-maddrs", "/ip4/0.0.0.0/tcp/4001")

PUBLIC = "5.1.0.1"
ESTABLISHED = "01"
"""State of a TCP connection in /proc/net/tcp."""

RELAYED_WITHIN = 90.0
"""Maximum seconds until a link through a relay. libp2p asks another peer after 15 s whether it can be
reached, and trusts the third answer."""


class Observed(NamedTuple):
    """Results of the test run."""

    everyone: list[Node]
    relayed: float
    """Seconds from the time at which both nodes trained until they had a link with each other."""
    connections: dict[str, set[str]]
    """Hosts with which each node has TCP connections, keyed by node."""
    final: list[Status]


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    home = tmp_path_factory.mktemp("nat")
    write_run(home)
    with world() as internet, nodes(home) as make:
        square = internet.place("square", PUBLIC)
        public = make(
            "public", "--run", "run.toml", "--role", "relay", *ANYWHERE, namespace=square.name
        ).start()
        private = {}
        for number, name in enumerate(("left", "right"), 2):
            flat = internet.behind_nat(name, f"5.{number}.0.1")
            joining = ("--peers", public.address(), "--auto-relay", *ANYWHERE)
            private[name] = make(name, *joining, namespace=flat.name).start()
        for node in private.values():
            trains(node)
        left, right = private.values()
        relayed = seconds_until("they have a link", lambda: meets(left, right), RELAYED_WITHIN)
        seen = {name: connections(node) for name, node in private.items()}
        everyone = [public, left, right]
        linked(public, left, right)
        yield Observed(everyone, relayed, seen, finish(home, public, everyone, square.entered()))


def connections(node: Node) -> set[str]:
    """Return the remote hosts of all TCP connections in the node's namespace."""
    daemon = until("a daemon", lambda: p2pd_of(node))
    lines = Path(f"/proc/{daemon.pid}/net/tcp").read_text().splitlines()[1:]
    remote = [(fields[2].partition(":")[0], fields[3]) for fields in map(str.split, lines)]
    return {str(ip_address(bytes.fromhex(host)[::-1])) for host, state in remote if state == ESTABLISHED}


def test_their_only_connection_is_the_one_to_the_public_node(observed: Observed) -> None:
    """So all that they exchange goes through it, over a circuit or flooded."""
    assert observed.connections == {"left": {PUBLIC}, "right": {PUBLIC}}


def test_they_have_a_link_with_each_other_through_the_public_node(observed: Observed) -> None:
    print(f"a link through the relay after {observed.relayed:.0f} s")
    assert observed.relayed < RELAYED_WITHIN


def test_all_end_with_the_same_digest_and_no_node_logs_a_traceback(observed: Observed) -> None:
    assert len({status.digest for status in observed.final}) == 1
    no_tracebacks(observed.everyone)

"""Faults of a volunteer's network, with real nodes in namespaces, and the seconds until its updates arrive
again.

Each scene is a function of a `Field`. It returns its figures, keyed by name. It raises AssertionError if a
node has ended, if a node has a second feed, or if its neighbours do not accept it again. Tests run the short
scenes. `benchmarks.field` runs all scenes, with the real waits.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sfnode.schema.status import Status
from tests.network.namespaces import Place, World, sh, world
from tests.network.swarm import alive, linked, trains, write_run
from tests.processes.helpers import Node, nodes, p2pd_of, until

PORT = 4001
ANYWHERE = ("--host-maddrs", f"/ip4/0.0.0.0/tcp/{PORT}")

BUDGET = 1_000_000
"""Update budget, larger than the number of updates made in an hour."""

LOOK = 0.1
"""Seconds between two checks of a node, and so the resolution of the measured times."""

Figures = dict[str, float]


class Field:
    """A run whose nodes are in places of one internet."""

    def __init__(
        self, home: Path, internet: World, make: Callable[..., Node], cpu: int, *, forked: bool
    ) -> None:
        self.home, self.internet = home, internet
        self.nodes: dict[str, Node] = {}
        self._make, self._forked = make, forked
        self._options = ("--set", "node.samples=0", "--limit", f"cpu={cpu}")
        write_run(home, BUDGET)

    def start(self, name: str, place: Place, *words: object, own_files: bool = False) -> Node:
        """Start a node in a place. With `own_files`, the node sees the files of /etc/netns for that place."""
        alone = own_files or not self._forked
        where = {"inside": place.inside} if alone else {"namespace": place.name}
        self.nodes[name] = self._make(name, *words, *self._options, **where).start()
        return self.nodes[name]

    def trio(self, listen: tuple[str, ...] = ANYWHERE) -> tuple[Node, Node, Place]:
        """Start a relay, a witness and the node under test. Return the node, the witness and the node's
        place."""
        places = [
            self.internet.place(name, f"5.{n}.0.1") for n, name in enumerate(("hub", "witness", "node"), 1)
        ]
        hub = self.start("hub", places[0], "--run", "run.toml", "--role", "relay", *listen)
        for name, place in zip(("witness", "node"), places[1:], strict=True):
            self.start(name, place, "--peers", hub.address(), *listen)
        node, witness = self.nodes["node"], self.nodes["witness"]
        for each in (node, witness):
            trains(each)
        linked(node, hub, witness)
        arrives(node, witness)
        return node, witness, places[2]


@contextmanager
def field(home: Path, cpu: int = 10, *, forked: bool) -> Iterator[Field]:
    """Yield a field. With `forked`, its nodes start faster and have shorter waits
    (`tests.processes.forked`)."""
    with ExitStack() as stack:
        internet = stack.enter_context(world())
        yield Field(home, internet, stack.enter_context(nodes(home)), cpu, forked=forked)


def arrives(node: Node, witness: Node, patience: float = 600.0) -> float:
    """Return the seconds until the witness has the next update that the node makes."""
    before, since = alive(node), time.monotonic()
    until(f"its next update arrives; {before}", lambda: known(witness, before) > before.own_updates, patience)
    return time.monotonic() - since


def known(witness: Node, of: Status) -> int:
    """Return how many updates of a node the witness has. Raises AssertionError if the node has a second
    feed."""
    feeds = [feed for feed in witness.feeds() if feed.origin == of.origin]
    assert len(feeds) <= 1, f"the node has several feeds: {feeds}"
    return feeds[0].updates if feeds else 0


def returns(node: Node, witness: Node) -> Figures:
    """Return the seconds until an update of the node arrives, and until it is a neighbour again."""
    since = time.monotonic()
    figures = {"update": arrives(node, witness)}
    linked(witness, node)
    return figures | {"neighbour": time.monotonic() - since}


# -- one node ------------------------------------------------------------------------------------------


def moves(made: Field, gap: float) -> Figures:
    """Change the node's address. For `gap` seconds in between it has no address."""
    node, witness, place = made.trio()
    place.sh("ip address del 5.3.0.1/8 dev net0")
    time.sleep(gap)
    place.sh("ip address add 5.3.0.77/8 dev net0")
    return returns(node, witness)


def away(made: Field, seconds: float) -> Figures:
    """Unplug the node's cable for `seconds`."""
    node, witness, place = made.trio()
    place.unplug()
    time.sleep(seconds)
    place.plug()
    return returns(node, witness)


def stopped(made: Field, seconds: float, *, daemon: bool, times: int = 1) -> Figures:
    """Stop the node's process, and its network daemon if `daemon`, for `seconds`. Repeat this `times` times,
    and return the figures of the last time."""
    node, witness, _ = made.trio()
    figures: Figures = {}
    for _ in range(times):
        network = p2pd_of(node) if daemon else None
        node.send(signal.SIGSTOP)
        if network:
            network.suspend()
        time.sleep(seconds)
        node.send(signal.SIGCONT)
        if network:
            network.resume()
        figures = returns(node, witness)
        time.sleep(5)
    return figures


# -- two nodes behind routers --------------------------------------------------------------------------


def relay_dies(made: Field, *, later: bool, named: bool) -> Figures:
    """Kill the relay through which two nodes are linked. A second relay runs from the beginning or, if
    `later`, is started after they are linked. The nodes are given its address if `named`; otherwise they find
    it in the roster."""
    places = [made.internet.place(name, f"5.{n}.0.1") for n, name in enumerate(("first", "second"), 1)]
    first = made.start("first", places[0], "--run", "run.toml", "--role", "relay", *ANYWHERE)
    joining = ("--peers", first.address())

    def second() -> Node:
        return made.start("second", places[1], *joining, "--role", "relay", *ANYWHERE)

    other = None if later else second()
    if named and other:
        joining += ("--peers", other.address())
    for number, name in enumerate(("left", "right"), 3):
        place = made.internet.behind_nat(name, f"5.{number}.0.1")
        made.start(name, place, *joining, "--auto-relay", *ANYWHERE)
    left, right = made.nodes["left"], made.nodes["right"]
    trains(left)
    trains(right)
    since = time.monotonic()
    linked(left, right)
    figures = {"relayed": time.monotonic() - since}
    other = other or second()
    linked(other, left, right)
    first.send(signal.SIGKILL)
    since = time.monotonic()
    figures["update"] = max(arrives(left, right), arrives(right, left))
    until("they have a link again", lambda: relayed(left, right, through=other), 300)
    return figures | {"neighbour": time.monotonic() - since}


def relayed(node: Node, other: Node, through: Node) -> bool:
    """Return whether both nodes announce addresses through the relay `through`, and have a link."""
    first, second, relay = alive(node), alive(other), alive(through).peer
    both = all(any(f"{relay}/p2p-circuit" in a for a in status.addresses) for status in (first, second))
    return both and second.peer in {link.peer for link in first.links}


# -- names, families of addresses, routers -------------------------------------------------------------


@contextmanager
def named(place: Place, address: str, delay: float) -> Iterator[None]:
    """Run a name server in this place that answers `address` for every name, after `delay` seconds."""
    folder = Path("/etc/netns", place.name)
    folder.mkdir(parents=True)
    (folder / "resolv.conf").write_text("nameserver 127.0.0.53\n")
    server = [*place.inside, sys.executable, "-I", "-S", str(Path(__file__).with_name("name_server.py"))]
    try:
        with subprocess.Popen([*server, address, str(delay)], stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline(), "the name server did not start"
                yield
            finally:
                process.kill()
    finally:
        (folder / "resolv.conf").unlink()
        folder.rmdir()


def slow_names(made: Field, delay: float, cut: float) -> Figures:
    """Start a node that has its peer's address as a name, where name servers answer after `delay` seconds.
    Then unplug the peer for `cut` seconds."""
    hub_place, place = made.internet.place("hub", "5.1.0.1"), made.internet.place("node", "5.2.0.1")
    hub = made.start("hub", hub_place, "--run", "run.toml", *ANYWHERE)
    address = hub.address().replace("/ip4/5.1.0.1/", "/dns4/hub.example.org/")
    with named(place, "5.1.0.1", delay):
        node = made.start("node", place, "--peers", address, *ANYWHERE, own_files=True)
        since = time.monotonic()
        linked(node, hub)
        figures = {"neighbour": time.monotonic() - since}
        trains(node)
        hub_place.unplug()
        time.sleep(cut)
        hub_place.plug()
        return figures | returns(node, hub)


def sixth(made: Field) -> Figures:
    """Start nodes with default options in a network without IPv4."""
    places = [made.internet.place(name, f"2a0{n}:1::1") for n, name in enumerate(("hub", "node"), 1)]
    hub = made.start("hub", places[0], "--run", "run.toml")
    node = made.start("node", places[1], "--peers", hub.address())
    since = time.monotonic()
    linked(node, hub)
    return {"neighbour": time.monotonic() - since, "update": arrives(node, hub)}


def forgotten(made: Field, idle: float, seconds: float) -> Figures:
    """Put a node behind a router that forgets connections after `idle` seconds without a packet. Return the
    longest time until an update arrived."""
    hub_place, place = made.internet.place("hub", "5.1.0.1"), made.internet.behind_nat("node", "5.2.0.1")
    hub = made.start("hub", hub_place, "--run", "run.toml", *ANYWHERE)
    router = place.name + "-router"
    sh(f"ip netns exec {router} sysctl -q -w net.netfilter.nf_conntrack_tcp_timeout_established={idle:.0f}")
    sh(f"ip netns exec {router} sysctl -q -w net.netfilter.nf_conntrack_tcp_loose=0")
    node = made.start("node", place, "--peers", hub.address(), *ANYWHERE)
    trains(node)
    linked(hub, node)
    longest, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        longest = max(longest, arrives(node, hub))
    return {"update": longest}

"""One simulated run: clock, network, nodes and oracle, with all chance from one seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import TextIO

from sflab.sim.world.clock import Agenda
from sflab.sim.world.conditions import CALM, ORDINARY, Conditions, Hardware
from sflab.sim.world.disk import Disk
from sflab.sim.world.fixed_links import Keeper
from sflab.sim.world.keys import origin_of, remembering, signing_key
from sflab.sim.world.network import Endpoint, Network
from sflab.sim.world.node import Node
from sflab.sim.world.oracle import Oracle
from sflab.sim.world.peering import Managed
from sflab.sim.world.trace import Trace
from sflab.sim.world.violation import Violation
from sfprotocol import control_feed
from sfprotocol.events import Admit
from sfprotocol.host import Host, Store
from sfprotocol.machine import Machine
from sfprotocol.messages import Authority, RunParameters

RUN = RunParameters(
    bytes(range(32)), epoch_updates=256, update_budget=1 << 20, scalar_bytes=2, scalar_limit=1000
)

ORGANISER, SUCCESSOR = "organiser", "successor"
"""Names of the keys that sign decisions: at first, and after a succession."""

DEPUTIES = ("deputy-1", "deputy-2", "deputy-3")

VOTES = 2


def organised(seed: int) -> RunParameters:
    """Return the parameters of an organised run with keys of this seed."""
    deputies = tuple(origin_of(signing_key(seed, name)) for name in DEPUTIES)
    authority = Authority(RUN.run_id, origin_of(signing_key(seed, ORGANISER)), deputies, VOTES)
    return replace(RUN, organised=authority, rate=1 << 22, subspace_epochs=4)


class World:
    """One run."""

    def __init__(
        self,
        seed: int,
        *,
        conditions: Conditions = CALM,
        hardware: Hardware = ORDINARY,
        run: RunParameters = RUN,
        trace_file: TextIO | None = None,
        managed: bool = False,
        judged: bool = False,
        machine: Callable[..., Machine] = Machine,
        host: Callable[[Machine, Store], Host] = Host,
    ) -> None:
        """Let the nodes find their neighbours themselves if `managed`; let seals say whatever a seal may say
        if `judged`. `machine` and `host` make those of the nodes: the real ones or, in tests of the checkers,
        broken ones."""
        self.seed = seed
        self.run = run
        self.hardware = hardware
        self.judged = judged
        self.make_machine = machine
        self.make_host = host
        self.agenda = Agenda()
        self.trace = Trace(trace_file)
        self.network = Network(self.agenda, Random(f"{seed}/network"), self.trace, conditions)
        self.keeper = Managed(self.network, seed) if managed else Keeper(self.network)
        self.oracle = Oracle(run)
        self.verify = remembering()
        self.random = Random(f"{seed}/troubles")  # the label is part of every course
        self.nodes: dict[str, Node] = {}
        """All honest nodes, those that are away or have left included."""
        self.names: dict[bytes, set[str]] = {}
        """Display names of each honest origin; twins have different ones."""
        self.left: set[str] = set()
        """Names of nodes that will not come back."""
        self.faults_middle = float("inf")
        """Time at which half of the time with faults is over."""
        self.faults_end = float("inf")
        """Time at which the faults end; no updates are made after it."""
        self.signed: dict[tuple[int, int], bytes] = {}
        """Chain heads after decisions that are on some disk, by term and position."""
        self.undone: set[bytes] = set()
        """Origins of which the organiser has taken something back."""
        self.may_fork: set[int] = set()
        """Terms whose key is in use twice."""
        self.others: dict[str, Endpoint] = {}
        """Adversaries that are not nodes, by name."""

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    @property
    def now(self) -> float:
        return self.agenda.now

    # -- who is there ------------------------------------------------------------------------------

    def add(self, name: str, *, disk: Disk | None = None, key_of: str = "", told: bool = False) -> Node:
        """Add a node that is not up yet; with a copied disk and the key of another, a twin."""
        node = Node(self, name, signing_key(self.seed, key_of or name), self.hardware)
        if disk:
            node.disk, node.met, node.copied = disk, True, told
        else:
            self.oracle.honest.add(origin_of(node.key))
        self.nodes[name] = node
        self.names.setdefault(origin_of(node.key), set()).add(name)
        return node

    def living(self) -> Iterator[Node]:
        """Return the nodes that are up, in the order in which they were added."""
        return (node for node in self.nodes.values() if node.up)

    def staying(self) -> Iterator[Node]:
        """Return all nodes but those that have left for good."""
        return (node for node in self.nodes.values() if node.name not in self.left)

    def pick(self) -> Node | None:
        """Return a random node that is up, if there is one."""
        living = list(self.living())
        return self.random.choice(living) if living else None

    def endpoint(self, name: str) -> Endpoint:
        return self.nodes[name] if name in self.nodes else self.others[name]

    # -- what the oracle sees ----------------------------------------------------------------------

    def became_durable(self, node: Node, admit: Admit, since: float | None) -> None:
        """Note that `node` has this on disk: its own updates, signed at `since`, or another's. Raises
        Violation."""
        feed, segment = admit.feed, admit.segment
        if since is not None:
            self.oracle.made(feed, node.disk.head(feed, segment.first), segment, since, node.name)
            return
        if not self.oracle.knows(feed, segment.stop, admit.chain):
            self.oracle.admitted(feed, segment, node.disk.head(feed, segment.first), self.now, node.name)
        if not node.hostile:
            self._delivered(node, admit)

    def decided(self, node: Node) -> None:
        """Note that `node` has these decisions on disk. Raises Violation where another has others of the same
        term, unless that was meant to be."""
        chain = control_feed.genesis(self.run.run_id)
        for position, entry in enumerate(node.disk.decided):
            chain = control_feed.extend(chain, entry.term, entry.record)
            known = self.signed.setdefault((entry.term, position), chain)
            if known != chain and entry.term not in self.may_fork:
                said = f"decision {position} of term {entry.term} was signed twice"
                raise Violation("organiser", said, (node.name,))

    def _delivered(self, node: Node, admit: Admit) -> None:
        traffic, now, there = self.network.traffic, self.now, node.up_since
        traffic.deliveries += admit.counted
        made_at = self.oracle.story(admit.feed).made_at
        first = admit.segment.first
        for since in made_at[first : first + admit.counted]:
            if since >= there:
                traffic.latencies.append(now - since)

"""Bytes of the flood in rounds against those of the protocol's own machines, with the same updates.

    python benchmarks/rounds.py

The machines are those of nodes in the simulator (`sflab.simulator`), without faults and with time enough for
a round to end before the next. Both count the frames of segments. A machine knows less of its neighbours than
the rounds do, and sends some segments twice at first; then duplicates show it which links are redundant, and
it sends less.
"""

from __future__ import annotations

import math
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sflab.baselines.clients import EdgeTraffic
from sflab.experiments.cell import CellNetwork
from sflab.experiments.feeds import ClientFeed
from sflab.experiments.flooding import Conditions, Flood
from sflab.simulator.runner import Run
from sflab.simulator.scenarios import SCENARIOS
from sflab.simulator.world.runs import OPEN_RUN
from sfprotocol.joining import Joining
from sfprotocol.messages import RunParameters

UPDATES = 5
"""Updates of a client in a round."""

SECONDS = 5.0
"""Virtual seconds of a round: longer than an update takes to anybody here."""


class Bytes(NamedTuple):
    """Bytes of segments over all links."""

    rounds: int
    machines: int

    @property
    def ratio(self) -> float:
        return self.machines / self.rounds


def compare(topology: str, clients: int, rounds: int) -> Bytes:
    """Flood the same number of updates in both ways, over the same links."""
    conditions = Conditions(CellNetwork(topology=topology, clients=clients), 3)  # type: ignore[arg-type]
    whole = patch.object(Joining, "deadline", lambda _: math.inf)  # a round is signed at once, in both
    with whole, Run(SCENARIOS["calm"], 3, nodes=clients, topology="line", seconds=0) as run:
        sent = _over_links(run, conditions, rounds)
    return Bytes(flooded(conditions, run.world.run, rounds).total, sent)


def _over_links(run: Run, conditions: Conditions, rounds: int) -> int:
    """Return the bytes of segments over these links."""
    world = run.world
    names = [f"n{number:0{len(str(run.nodes - 1))}}" for number in range(run.nodes)]
    for name in names:
        world.agenda.at(0.1, world.add(name).start)
    for one, other in conditions.links(0):
        world.want(world[names[one]], world[names[other]])
    run._run(SECONDS)
    before = world.traffic.bytes["Segment"]
    for _ in range(rounds):
        for name in names:
            world.do(world[name].compute, UPDATES)
        run._run(SECONDS)
    assert {node.machine.frontier.known for node in world.nodes.values()} == {run.nodes * rounds * UPDATES}
    return world.traffic.bytes["Segment"] - before


def flooded(conditions: Conditions, run: RunParameters, rounds: int, segment_updates: int = 0) -> EdgeTraffic:
    """Return the traffic of so many rounds, with UPDATES of each client in each."""
    clients, traffic = conditions.network.clients, EdgeTraffic()
    secrets = [number.to_bytes(32, "big") for number in range(1, clients + 1)]
    feeds = [ClientFeed(run, Ed25519PrivateKey.from_private_bytes(one), segment_updates) for one in secrets]
    flood = Flood(conditions, clients, lambda origin, *steps: feeds[origin].size(*steps), traffic)
    for number in range(rounds):
        for feed in feeds:
            for _ in range(UPDATES):
                feed.add(0, 7)
            feed.publish(everything=number == rounds - 1)
        np.fill_diagonal(flood.known, [feed.published for feed in feeds])
        flood.round(number)
    return traffic


def main() -> None:
    """Print the bytes of both, for several networks, and those of the paper's number of updates."""
    print(f"{'topology':10} {'clients':>8} {'rounds':>12} {'machines':>12} {'ratio':>6}")
    for topology, clients in (("ring", 16), ("grid", 16), ("random", 16), ("complete", 16), ("ring", 32)):
        found = compare(topology, clients, 10)
        print(f"{topology:10} {clients:8} {found.rounds:12,} {found.machines:12,} {found.ratio:6.2f}")
    print("\nbytes per edge of 16 clients with 5,000 updates each, as the codec writes them:")
    for segment_updates in (0, 32):
        sent = flooded(
            Conditions(CellNetwork(clients=16), 3), OPEN_RUN.parameters(), 1000, segment_updates
        ).per_edge
        print(f"segments of {segment_updates or UPDATES:2} updates: {sent:12,.0f}")


if __name__ == "__main__":
    main()

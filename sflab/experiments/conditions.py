"""The network of a cell: who is linked with whom in which round, who is away, how fast everybody is.

Everything follows from the cell's seed and the number of the round. This module knows neither methods nor
messages; what travels over the links is the concern of nodes and baselines.
"""

from __future__ import annotations

from itertools import combinations
from random import Random

import numpy as np
from numpy.typing import NDArray

from sflab.experiments.cell import CellNetwork
from sflab.simulator.world.topology import TOPOLOGIES

Pair = tuple[int, int]


class Conditions:
    """A cell's network, round by round."""

    def __init__(self, network: CellNetwork, seed: int) -> None:
        self.network = network
        self._seed = seed
        self._fixed = None if network.topology == "changing" else self._pairs(0)

    def links(self, number: int) -> list[Pair]:
        """Return the links of round `number`, those of clients that are away among them."""
        return self._pairs(number) if self._fixed is None else self._fixed

    def edges(self, number: int) -> list[Pair]:
        """Return the links of round `number` between clients that are there."""
        there = self.present(number)
        return [(a, b) for a, b in self.links(number) if there[a] and there[b]]

    def present(self, number: int) -> NDArray[np.bool_]:
        """Return which clients are there in round `number`, (clients,)."""
        random = Random(f"{self._seed}/away/{number}")
        return np.array([random.random() >= self.network.churn for _ in range(self.network.clients)])

    def steps_by(self, number: int) -> NDArray[np.int64]:
        """Return how many steps each client makes, (clients,), while the slowest one makes its step
        `number`; speeds lie evenly between those of the slowest and the fastest client."""
        speeds = np.linspace(1.0, self.network.speeds, self.network.clients)
        made: NDArray[np.int64] = np.floor((number + 1) * speeds).astype(np.int64)
        return made - np.floor(number * speeds).astype(np.int64)

    def _pairs(self, number: int) -> list[Pair]:
        clients, topology = self.network.clients, self.network.topology
        if topology == "complete":
            return list(combinations(range(clients), 2))
        names = [str(client) for client in range(clients)]
        draw = TOPOLOGIES["random" if topology == "changing" else topology]
        pairs = draw(names, Random(f"{self._seed}/{topology}/{number}"))
        found = {(min(a, b), max(a, b)): None for a, b in ((int(a), int(b)) for a, b in pairs)}
        return [pair for pair in found if pair[0] != pair[1]]

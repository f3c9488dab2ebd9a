"""Flooding in synchronous rounds, on exact frontiers.

In every hop each client sends every neighbour what that one lacks of what it had when the hop began. The
protocol's own flood knows less about its neighbours and sends some things twice or announces them first;
`benchmarks/rounds.py` holds the two against each other. Frontiers are one matrix, clients by origins, so
that a round costs about the same for 16 clients as for hundreds. This module knows neither models nor what is
in a segment.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from random import Random

import numpy as np
from numpy.typing import NDArray

from sflab.baselines.clients import EdgeTraffic
from sflab.experiments import cell
from sflab.simulator.world.topology import TOPOLOGIES
from sfprotocol.seeds import derive_key, stream

# The network of a cell: who is linked with whom in which round, who is away, how fast everybody is.
#
# Everything follows from the cell's seed and the number of the round. This module knows neither methods nor
# messages; what travels over the links is `flooding`'s and the baselines' own concern.


Pair = tuple[int, int]


class Conditions:
    """A cell's network, round by round."""

    def __init__(self, network: cell.CellNetwork, seed: int) -> None:
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
        return self._chances("churn", number, self.network.clients) >= self.network.churn

    def lost(self, number: int, count: int) -> NDArray[np.bool_]:
        """Return which of `count` transmissions of round `number` are lost, (count,)."""
        if not self.network.loss:
            return np.zeros(count, np.bool_)
        return self._chances("loss", number, count) < self.network.loss

    def steps_by(self, number: int) -> NDArray[np.int64]:
        """Return how many steps each client makes, (clients,), while the slowest one makes its step
        `number`; speeds lie evenly between those of the slowest and the fastest client."""
        speeds = np.linspace(1.0, self.network.speeds, self.network.clients)
        made: NDArray[np.int64] = np.floor((number + 1) * speeds).astype(np.int64)
        return made - np.floor(number * speeds).astype(np.int64)

    def _chances(self, what: str, number: int, count: int) -> NDArray[np.float64]:
        """Return uniform numbers from 0 to 1, (count,)."""
        key = derive_key(
            b"sfnode simulated ", what.encode(), *(n.to_bytes(8, "big") for n in (self._seed, number))
        )
        return (stream(key, 0, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def _pairs(self, number: int) -> list[Pair]:
        clients, topology = self.network.clients, self.network.topology
        if topology == "complete":
            return list(combinations(range(clients), 2))
        names = [str(client) for client in range(clients)]
        draw = TOPOLOGIES["random" if topology == "changing" else topology]
        pairs = draw(names, Random(f"{self._seed}/{topology}/{number}"))
        found = {(min(a, b), max(a, b)): None for a, b in ((int(a), int(b)) for a, b in pairs)}
        return [pair for pair in found if pair[0] != pair[1]]


Size = Callable[[int, int, int], int]
"""Bytes in which steps `first .. stop - 1` of an origin travel: size(origin, first, stop)."""

CHUNK = 1 << 22
"""Pairs of an edge and an origin that are looked at together: 32 MiB for each of some arrays."""


class Flood:
    """State of the flood: how much every client has of every origin."""

    def __init__(self, conditions: Conditions, origins: int, size: Size, traffic: EdgeTraffic) -> None:
        """`origins` may be more than the clients: of those that are none, somebody has what `round` is
        told."""
        self.known = np.zeros((conditions.network.clients, origins), np.int64)
        """Steps of each origin that each client has, (clients, origins)."""
        self._conditions = conditions
        self._size = size
        self._traffic = traffic

    def round(self, number: int, *, everywhere: bool = False) -> None:
        """Let clients send what they have, over as many hops as the network's settings say; `everywhere`:
        until nobody lacks anything that can reach it."""
        links = np.array(self._conditions.edges(number), np.int64).reshape(-1, 2)  # (links, 2)
        edges = np.concatenate([links, links[:, ::-1]])
        edges = edges[np.argsort(edges[:, 1], kind="stable")]  # by receiver
        if not len(edges):
            return
        open_ = ~self._conditions.lost(number, len(edges) * self.known.shape[1]).reshape(len(edges), -1)
        tried = np.zeros_like(open_)
        hops = 0 if everywhere else self._conditions.network.hops
        sent = np.zeros(len(edges), np.int64)
        hop = 0
        while (not hops or hop < hops) and self._hop(edges, open_, tried, sent):
            hop += 1
        for (sender, receiver), size in zip(edges.tolist(), sent.tolist(), strict=True):
            if size:
                self._traffic.add((sender, receiver), size)

    def _hop(
        self,
        edges: NDArray[np.int64],
        open_: NDArray[np.bool_],
        tried: NDArray[np.bool_],
        sent: NDArray[np.int64],
    ) -> bool:
        """Carry out one hop; return whether anything was sent. What was lost is tried again next round."""
        before, any_sent = self.known.copy(), False
        step = max(1, CHUNK // self.known.shape[1])
        for start in range(0, len(edges), step):
            part = slice(start, start + step)
            senders, receivers = edges[part].T
            has = before[senders]  # (edges, origins)
            lacks = has > before[receivers]
            lacks &= open_[part] | ~tried[part]
            tried[part] |= lacks & ~open_[part]
            self._count(lacks, has, before[receivers], sent[part])
            arrived = np.where(lacks & open_[part], has, 0)
            found, firsts = np.unique(receivers, return_index=True)
            self.known[found] = np.maximum(self.known[found], np.maximum.reduceat(arrived, firsts))
            any_sent = any_sent or bool(lacks.any())
        return any_sent

    def _count(
        self,
        lacks: NDArray[np.bool_],
        has: NDArray[np.int64],
        had: NDArray[np.int64],
        sent: NDArray[np.int64],
    ) -> None:
        edge, origin = np.nonzero(lacks)
        told = np.stack([origin, had[lacks], has[lacks]])  # (3, transmissions)
        if not told.shape[1]:
            return
        each, which = np.unique(told, axis=1, return_inverse=True)
        sizes = np.array([self._size(*one) for one in each.T.tolist()], np.int64)
        np.add.at(sent, edge, sizes[which.reshape(-1)])

"""Flooding in synchronous rounds, on exact frontiers.

In every hop each client sends every neighbour what that one lacks of what it had when the hop began. The
protocol's own flood knows less about its neighbours and sends some things twice or announces them first;
`tests/bench/rounds.py` holds the two against each other. Frontiers are one matrix, clients by origins, so
that a round costs about the same for 16 clients as for hundreds. This module knows neither models nor what is
in a segment.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sflab.baselines.method import Traffic
from sflab.experiments.network import Conditions

Size = Callable[[int, int, int], int]
"""Bytes in which steps `first .. stop - 1` of an origin travel: size(origin, first, stop)."""

CHUNK = 1 << 22
"""Pairs of an edge and an origin that are looked at together: 32 MiB for each of some arrays."""


class Flood:
    """State of the flood: how much every client has of every origin."""

    def __init__(self, conditions: Conditions, origins: int, size: Size, traffic: Traffic) -> None:
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

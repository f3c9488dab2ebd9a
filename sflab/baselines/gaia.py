"""Gaia's significance filter (Hsieh et al., NSDI 2017; for gradient descent as in Hsieh et al. 2020, "The
non-IID data quagmire", without momentum).

Every client adds up what its own steps have changed and not sent yet. In a round it sends everybody the
entries whose change is large beside the weight, |v / x| > T / sqrt(round), and all add them to their weights.
Updates are added, not averaged: the learning rate is per update, and N clients go N times as far.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sflab.baselines import encodings
from sflab.baselines.clients import Clients
from sflab.baselines.setup import Setup
from sflab.baselines.vectors import Kept


class Gaia(Clients):
    """Clients that tell everybody their significant updates. Option: threshold, T.

    What is sent to a client that is away reaches it when it is back.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.unsent = torch.zeros_like(self.x)
        """v, (N, P)."""

    def local_step(self, client: int, number: int) -> float:
        """Take one client's step of SGD, and note it."""
        loss, gradient = self.gradient(client, client, number)
        for changed in (self.x, self.unsent):
            changed[client].add_(gradient, alpha=-self.setup.learning_rate)
        return loss

    def communicate(self, number: int) -> None:
        """Send significant updates to everybody."""
        round_number = self.setup.round(number)
        threshold = self.setup.options["threshold"] / math.sqrt(round_number + 1)
        total = torch.zeros_like(self.x[0])
        for sender in self.setup.present(round_number):
            update = self._significant(sender, threshold)
            total.index_add_(0, update.indices, update.values)
            self.x[sender].index_add_(0, update.indices, update.values, alpha=-1)  # comes back with the total
            size = min(encodings.sparse(len(update.indices)), encodings.dense(self.problem.size))
            for receiver in range(self.setup.clients):
                if receiver != sender and size:
                    self.traffic.add((sender, receiver), size)
        self.x.add_(total)

    def tensors(self) -> dict[str, Tensor]:
        """Return the vectors and what is not sent yet."""
        return super().tensors() | {"unsent": self.unsent}

    def _significant(self, client: int, threshold: float) -> Kept:
        """Take a client's significant updates from what it has not sent."""
        unsent = self.unsent[client]
        indices = (unsent.abs() > threshold * self.x[client].abs()).nonzero().flatten()
        found = Kept(indices, unsent[indices])
        unsent[indices] = 0
        return found

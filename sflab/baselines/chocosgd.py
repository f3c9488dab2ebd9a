"""ChocoSGD: gossip with compressed differences (Koloskova, Stich, Jaggi 2019, Algorithm 2) and top-k.

Every client keeps a public copy x_hat of each neighbour's vector and of its own. In a round i sends q_i, the
largest entries of x_i - x_hat_i, and x_hat_i += q_i for all who keep it. Then
x_i += gamma * sum_j w_ij (x_hat_j - x_hat_i). What was not sent stays in the difference: error feedback.

Copies begin as the base model, which everybody has, instead of 0. They are equal with all who keep them, so
one of each is stored; where links change, a new neighbour is taken to have the copy already.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sflab.baselines import encodings, vectors
from sflab.baselines.clients import Clients, LocalStep, gradient_step
from sflab.baselines.setup import Setup


class ChocoSgd(Clients):
    """Clients that send their neighbours the largest entries of what has changed. Options: keep, the share of
    entries sent; gamma, the consensus step."""

    def __init__(self, setup: Setup, local: LocalStep = gradient_step) -> None:
        super().__init__(setup)
        self._local = local
        self._gamma = setup.options["gamma"]
        self._kept = encodings.kept(self.problem.size, setup.options["keep"])
        self.public = self.x.clone()
        """x_hat, (N, P)."""

    def local_step(self, client: int, number: int) -> float:
        """Take one client's step of SGD, or whatever takes its place."""
        return self._local(self, client, number)

    def communicate(self, number: int) -> None:
        """Update the public copies by compressed differences, and move towards those of neighbours."""
        round_number = self.setup.round(number)
        links = self.setup.links(round_number)
        for client in self.setup.present(round_number):
            sent = vectors.largest(self.x[client] - self.public[client], self._kept)
            self.public[client].index_add_(0, sent.indices, sent.values)
        weights = vectors.metropolis(self.setup.clients, links)
        pull = (weights - torch.eye(len(weights))).to(self.x.device)  # rows add up to 0
        self.x.addmm_(pull, self.public, alpha=self._gamma)
        for i, j in links:
            self.traffic.add((i, j), encodings.sparse(self._kept))
            self.traffic.add((j, i), encodings.sparse(self._kept))

    def tensors(self) -> dict[str, Tensor]:
        """Return the vectors and their public copies."""
        return super().tensors() | {"public": self.public}

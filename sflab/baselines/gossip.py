"""Methods whose clients gossip: decentralised SGD, ChocoSGD, Gaia."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sflab.baselines import vectors
from sflab.baselines.clients import Clients, LocalStep, Setup, gradient_step

# Decentralised SGD: local steps, then averaging with neighbours (Lian et al. 2017; local steps: Koloskova et
# al. 2020). With a two-point estimate for the gradient it is the SeedFlood paper's DZSGD.


class Dsgd(Clients):
    """Clients that send their neighbours their whole vector and take a Metropolis-Hastings average."""

    def __init__(self, setup: Setup, local: LocalStep = gradient_step) -> None:
        super().__init__(setup)
        self._local = local

    def local_step(self, client: int, number: int) -> float:
        """Take one client's step of SGD, or whatever takes its place."""
        return self._local(self, client, number)

    def communicate(self, number: int) -> None:
        """Average with neighbours: x_i <- sum_j w_ij x_j."""
        links = self.setup.links(self.setup.round(number))
        vectors.mix(self.x, vectors.metropolis(self.setup.clients, links).to(self.x.device))
        self.exchange(links, vectors.dense(self.problem.size))

    def exchange(self, links: list[tuple[int, int]], size: int) -> None:
        """Count a message of so many bytes each way over every link."""
        for i, j in links:
            self.traffic.add((i, j), size)
            self.traffic.add((j, i), size)


# ChocoSGD: gossip with compressed differences (Koloskova, Stich, Jaggi 2019, Algorithm 2) and top-k.
#
# Every client keeps a public copy x_hat of each neighbour's vector and of its own. In a round i sends q_i,
# the largest entries of x_i - x_hat_i, and x_hat_i += q_i for all who keep it. Then x_i += gamma * sum_j
# w_ij (x_hat_j - x_hat_i). What was not sent stays in the difference: error feedback.
#
# Copies begin as the base model, which everybody has, instead of 0. They are equal with all who keep them,
# so one of each is stored; where links change, a new neighbour is taken to have the copy already.


class ChocoSgd(Dsgd):
    """Clients that send their neighbours the largest entries of what has changed. Options: keep, the share of
    entries sent; gamma, the consensus step."""

    def __init__(self, setup: Setup, local: LocalStep = gradient_step) -> None:
        super().__init__(setup, local)
        self._gamma = setup.options["gamma"]
        self._kept = vectors.kept(self.problem.size, setup.options["keep"])
        self.public = self.x.clone()
        """x_hat, (N, P)."""

    def communicate(self, number: int) -> None:
        """Update the public copies by compressed differences, and move towards those of neighbours."""
        round_number = self.setup.round(number)
        links = self.setup.links(round_number)
        for client in self.setup.present(round_number):
            sent = vectors.largest(self.x[client] - self.public[client], self._kept)
            self.public[client].index_add_(0, *sent)
        weights = vectors.metropolis(self.setup.clients, links)
        pull = (weights - torch.eye(len(weights))).to(self.x.device)  # rows add up to 0
        self.x.addmm_(pull, self.public, alpha=self._gamma)
        self.exchange(links, vectors.sparse(self._kept))

    def tensors(self) -> dict[str, Tensor]:
        """Return the vectors and their public copies."""
        return super().tensors() | {"public": self.public}


# Gaia's significance filter (Hsieh et al., NSDI 2017; for gradient descent as in Hsieh et al. 2020, "The
# non-IID data quagmire", without momentum).
#
# Every client adds up what its own steps have changed and not sent yet. In a round it sends everybody the
# entries whose change is large beside the weight, |v / x| > T / sqrt(round), and all add them to their
# weights. Updates are added, not averaged: the learning rate is per update, and N clients go N times as
# far.


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
            indices, values = self._significant(sender, threshold)
            total.index_add_(0, indices, values)
            self.x[sender].index_add_(0, indices, values, alpha=-1)  # comes back with the total
            size = min(vectors.sparse(len(indices)), vectors.dense(self.problem.size))
            for receiver in range(self.setup.clients):
                if receiver != sender and size:
                    self.traffic.add((sender, receiver), size)
        self.x.add_(total)

    def tensors(self) -> dict[str, Tensor]:
        """Return the vectors and what is not sent yet."""
        return super().tensors() | {"unsent": self.unsent}

    def _significant(self, client: int, threshold: float) -> tuple[Tensor, Tensor]:
        """Take a client's significant updates from what it has not sent."""
        unsent = self.unsent[client]
        indices = (unsent.abs() > threshold * self.x[client].abs()).nonzero().flatten()
        values = unsent[indices]
        unsent[indices] = 0
        return indices, values

"""Methods whose clients gossip: decentralised SGD and ChocoSGD."""

from __future__ import annotations

import torch
from torch import Tensor

from sflab.baselines import vectors
from sflab.baselines.clients import Clients, LocalStep, Setup, gradient_step


class Dsgd(Clients):
    """Decentralised SGD (Lian et al. 2017; with local steps: Koloskova et al. 2020).

    Clients take local steps, send their neighbours their whole vector, and take a Metropolis-Hastings
    average. With a two-point estimate in place of the gradient, this is the SeedFlood paper's DZSGD.
    """

    def __init__(self, setup: Setup, local: LocalStep = gradient_step) -> None:
        super().__init__(setup)
        self._local = local

    def local_step(self, client: int, number: int) -> float:
        """Take one client's local step with the function given at construction: by default a step of SGD."""
        return self._local(self, client, number)

    def communicate(self, number: int) -> None:
        """Average with neighbours: x_i <- sum_j w_ij x_j."""
        links = self.setup.links(self.setup.round(number))
        vectors.mix(self.x, vectors.metropolis(self.setup.clients, links).to(self.x.device))
        self.exchange(links, vectors.dense(self.problem.size))

    def exchange(self, links: list[tuple[int, int]], size: int) -> None:
        """Count a message of `size` bytes in each direction of every link."""
        for i, j in links:
            self.traffic.add((i, j), size)
            self.traffic.add((j, i), size)


class ChocoSgd(Dsgd):
    """ChocoSGD (Koloskova, Stich, Jaggi 2019, Algorithm 2): gossip with compressed differences and top-k.

    Every client keeps a public copy x_hat of its own vector and of each neighbour's vector. In a round client
    i sends q_i, the largest entries of x_i - x_hat_i, and every client with a copy of x_hat_i adds q_i to it.
    Then x_i += gamma * sum_j w_ij (x_hat_j - x_hat_i). Entries that were not sent stay in the difference:
    error feedback.

    Public copies start as the base model, which every client has, instead of 0. All copies of one vector are
    equal, so only one is stored. A new neighbour is assumed to have the copies already.

    Options: `keep`, the share of entries sent; `gamma`, the consensus step.
    """

    def __init__(self, setup: Setup, local: LocalStep = gradient_step) -> None:
        super().__init__(setup, local)
        self._gamma = setup.options["gamma"]
        self._kept = vectors.kept(self.problem.size, setup.options["keep"])
        self.public = self.x.clone()
        """x_hat, (N, P)."""

    def communicate(self, number: int) -> None:
        """Add the compressed differences to the public copies, and step towards the neighbours' copies."""
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

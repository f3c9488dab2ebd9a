"""Decentralised SGD: local steps, then averaging with neighbours (Lian et al. 2017; local steps: Koloskova et
al. 2020). With a two-point estimate for the gradient it is the SeedFlood paper's DZSGD.
"""

from __future__ import annotations

from sflab.baselines import encodings, vectors
from sflab.baselines.clients import Clients, LocalStep, gradient_step
from sflab.baselines.setup import Setup


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
        for i, j in links:
            self.traffic.add((i, j), encodings.dense(self.problem.size))
            self.traffic.add((j, i), encodings.dense(self.problem.size))

"""N clients, each with a vector of its own: what all baselines have in common.

A method says how a client takes a local step and what is exchanged in a round. This module knows neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from sflab.baselines import vectors
from sflab.baselines.method import Traffic
from sflab.baselines.setup import Setup
from sfnode.schema.evaluation import Evaluation

FORWARDS_PER_GRADIENT = 3
"""Example-forwards of a gradient: a backward pass costs about twice its forward pass."""


class Clients:
    """Base of all methods (`method.Method`)."""

    def __init__(self, setup: Setup, models: int | None = None) -> None:
        """Give every client, or `models` of them, a copy of the start."""
        self.setup = setup
        self.problem = setup.problem
        self.traffic = Traffic()
        self.example_forwards = 0
        start = self.problem.start()
        self.x = start.repeat(setup.clients if models is None else models, 1)
        """(N, P) float32."""
        self.z = torch.empty(0, device=start.device)
        """(P,) direction of the last two-point estimate; empty before the first."""
        self._point = self.z

    def step(self, number: int) -> float:
        """Take local step `number` of every client that is there; return their mean loss (NaN of none)."""
        present = self.setup.present(self.setup.round(number))
        losses = [self.local_step(client, number) for client in present]
        return math.fsum(losses) / len(losses) if losses else math.nan

    def local_step(self, client: int, number: int) -> float:
        """Take one client's local step; return the loss of its mini-batch."""
        raise NotImplementedError

    def communicate(self, number: int) -> None:
        """Exchange what the method exchanges after local step `number`."""
        raise NotImplementedError

    def consensus(self) -> float:
        """Return the mean of ||x_i - mean x||^2 over clients."""
        return vectors.spread(self.x)

    def evaluate(self, which: str) -> Evaluation:
        """Measure the average of all clients' vectors."""
        return self.problem.evaluate(vectors.mean(self.x), which)

    def state(self) -> Mapping[str, Any]:
        """Return all that a restart needs: the tensors in use, to be stored before the next step."""
        sent = [[*edge, size] for edge, size in self.traffic.sent.items()]
        counts = {"sent": torch.tensor(sent, dtype=torch.int64), "example_forwards": self.example_forwards}
        return counts | self.tensors()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from such a state."""
        self.traffic.sent.clear()
        for sender, receiver, size in state["sent"].tolist():
            self.traffic.add((sender, receiver), size)
        self.example_forwards = state["example_forwards"]
        for name, tensor in self.tensors().items():
            tensor.copy_(state[name])

    def tensors(self) -> dict[str, Tensor]:
        """Return by name the tensors that steps change, all of them together the method's state."""
        return {"x": self.x}

    def gradient(self, model: int, client: int, number: int) -> tuple[float, Tensor]:
        """Return loss and gradient (P,) of a client's mini-batch at row `model` of x."""
        self.example_forwards += FORWARDS_PER_GRADIENT * self.problem.batch_size
        return self.problem.gradient(self.x[model], client, number)

    def loss(self, x: Tensor, client: int, number: int) -> float:
        """Return the loss of a client's mini-batch at x (P,)."""
        self.example_forwards += self.problem.batch_size
        return self.problem.loss(x, client, number)

    def two_point(self, client: int, number: int, seed: int) -> tuple[float, float]:
        """Return (L+ - L-) / (2 eps) along the direction of `seed`, which is then in `z`, and the mean loss.

        Both points are computed from the client's vector, which is not touched, so that nothing drifts.
        """
        if not len(self.z):
            self.z, self._point = torch.empty_like(self.x[0]), torch.empty_like(self.x[0])
        vectors.fill_normal(self.z, seed)
        epsilon = self.setup.epsilon
        torch.add(self.x[client], self.z, alpha=epsilon, out=self._point)
        plus = self.loss(self._point, client, number)
        torch.add(self.x[client], self.z, alpha=-epsilon, out=self._point)
        minus = self.loss(self._point, client, number)
        return (plus - minus) / (2 * epsilon), (plus + minus) / 2


LocalStep = Callable[[Clients, int, int], float]
"""A local step of a client, given clients, its number and that of the step; returns the loss."""


def gradient_step(clients: Clients, client: int, number: int) -> float:
    """Take a step of SGD."""
    loss, gradient = clients.gradient(client, client, number)
    clients.x[client].add_(gradient, alpha=-clients.setup.learning_rate)
    return loss


def two_point_step(clients: Clients, client: int, number: int) -> float:
    """Take a step of zeroth-order SGD along a direction of the client's own (Malladi et al. 2023)."""
    seed = vectors.key(b"direction", clients.setup.seed, client, number)
    scalar, loss = clients.two_point(client, number, seed)
    clients.x[client].add_(clients.z, alpha=-clients.setup.learning_rate * scalar)
    return loss

"""Base of all baselines: N clients, each with its own vector.

A method adds a client's local step and the messages of a round.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from sflab.baselines import vectors
from sfnode.schema.measurements import Evaluation


@dataclass(frozen=True)
class Setup:
    """Problem, network and hyperparameters of one run of one method."""

    problem: VectorProblem
    clients: int
    edges: Callable[[int], Sequence[tuple[int, int]]]
    """Function from the number of a communication round to its undirected links. A client without links is
    absent: it neither trains nor communicates in that round. If there is only one client, it always
    trains."""
    seed: int
    """Seed of all random choices of the method."""
    learning_rate: float
    epsilon: float = 1e-3
    """Scale of the standard normal perturbation in a zeroth-order estimate (as in MeZO)."""
    local_steps: int = 5
    """Number of local steps between two rounds of communication."""
    options: Mapping[str, float] = field(default_factory=dict)
    """Hyperparameters that only this method has (`registry`)."""

    def round(self, step: int) -> int:
        """Return the round of communication that local step `step` belongs to."""
        return step // self.local_steps

    def links(self, number: int) -> list[tuple[int, int]]:
        """Return the links of round `number`, sorted, each once and with the lower client first."""
        return sorted({(min(link), max(link)) for link in self.edges(number) if link[0] != link[1]})

    def present(self, number: int) -> list[int]:
        """Return the clients that take part in round `number`."""
        if self.clients == 1:
            return [0]
        return sorted({client for link in self.links(number) for client in link})


Edge = tuple[int, int]
"""Numbers of the sending and the receiving client."""


@dataclass
class EdgeTraffic:
    """Bytes sent over each edge, in the method's encoding, without headers of the transport."""

    sent: Counter[Edge] = field(default_factory=Counter)

    def add(self, edge: Edge, size: int) -> None:
        """Count a message of `size` bytes."""
        self.sent[edge] += size

    @property
    def total(self) -> int:
        """Bytes over all edges."""
        return self.sent.total()

    @property
    def per_edge(self) -> float:
        """Mean bytes of a link that was used, in both directions together."""
        links = {frozenset(edge) for edge in self.sent}
        return self.total / len(links) if links else 0.0


class VectorProblem(Protocol):
    """Problem that a baseline minimises: a function of a vector of `size` float32 entries.

    Methods use models and data only through this interface. `ModelProblem` implements it with a language
    model.
    """

    size: int
    batch_size: int
    """Number of examples of a mini-batch."""

    def start(self) -> Tensor:
        """Return a copy of the vector that every client starts from, (P,) float32, on the problem's
        device."""
        ...

    def loss(self, x: Tensor, client: int, step: int) -> float:
        """Return the mean loss at `x` of the mini-batch that a client draws from its shard in step `step`."""
        ...

    def gradient(self, x: Tensor, client: int, step: int) -> tuple[float, Tensor]:
        """Return the mean loss of the mini-batch that `loss` uses, and its gradient, (P,) float32. The
        gradient is valid until the next call."""
        ...

    def evaluate(self, x: Tensor, which: str) -> Evaluation:
        """Measure the model with the weights `x` on the rows `which`: `validation` or `test`."""
        ...


FORWARDS_PER_GRADIENT = 3
"""Cost of a gradient in example-forwards: 1 for the forward pass, and about 2 for the backward pass."""


class Clients:
    """Base of all methods: N clients that step and communicate in lock step.

    The caller calls `step` for every local step, counted from 0, and `communicate` after the last step of a
    round. The random choices of a step depend only on the seed and the step's number.
    """

    def __init__(self, setup: Setup) -> None:
        """Give every client a copy of the starting vector."""
        self.setup = setup
        self.problem = setup.problem
        self.traffic = EdgeTraffic()
        self.example_forwards = 0
        """Example-forwards so far: 1 for the forward pass of an example, and 2 for its backward pass.
        Evaluations do not count."""
        start = self.problem.start()
        self.x = start.repeat(setup.clients, 1)
        """Vectors of all clients, (N, P) float32."""
        self.z = torch.empty(0, device=start.device)
        """(P,) direction of the last two-point estimate; empty before the first estimate."""
        self._point = self.z

    def step(self, number: int) -> float:
        """Take local step `number` of every client that is present. Return the clients' mean loss; NaN if no
        client is present."""
        present = self.setup.present(self.setup.round(number))
        losses = [self.local_step(client, number) for client in present]
        return math.fsum(losses) / len(losses) if losses else math.nan

    def local_step(self, client: int, number: int) -> float:
        """Take one client's local step. Return the loss of its mini-batch."""
        raise NotImplementedError

    def communicate(self, number: int) -> None:
        """Exchange the messages of the round that ends with local step `number`."""
        raise NotImplementedError

    def consensus(self) -> float:
        """Return the mean of ||x_i - mean x||^2 over clients."""
        return vectors.spread(self.x)

    def evaluate(self, which: str) -> Evaluation:
        """Measure the average of all clients' vectors."""
        return self.problem.evaluate(vectors.mean(self.x), which)

    def updates(self) -> Mapping[str, int]:
        """Return an empty mapping: only SeedFlood distinguishes made and counted updates."""
        return {}

    def state(self) -> Mapping[str, Any]:
        """Return everything that a restart needs. The tensors are not copied, so store them before the next
        step."""
        sent = [[*edge, size] for edge, size in self.traffic.sent.items()]
        counts = {"sent": torch.tensor(sent, dtype=torch.int64), "example_forwards": self.example_forwards}
        return counts | self.tensors()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a stored `state`."""
        self.traffic.sent.clear()
        for sender, receiver, size in state["sent"].tolist():
            self.traffic.add((sender, receiver), size)
        self.example_forwards = state["example_forwards"]
        for name, tensor in self.tensors().items():
            tensor.copy_(state[name])

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors that steps change, keyed by name."""
        return {"x": self.x}

    def gradient(self, client: int, number: int) -> tuple[float, Tensor]:
        """Return loss and gradient (P,) of a client's mini-batch at its own vector."""
        self.example_forwards += FORWARDS_PER_GRADIENT * self.problem.batch_size
        return self.problem.gradient(self.x[client], client, number)

    def loss(self, x: Tensor, client: int, number: int) -> float:
        """Return the loss of a client's mini-batch at x (P,)."""
        self.example_forwards += self.problem.batch_size
        return self.problem.loss(x, client, number)

    def two_point(self, client: int, number: int, seed: int) -> tuple[float, float]:
        """Return (L+ - L-) / (2 eps) along the direction of `seed`, and the mean loss. Leave the direction in
        `z`.

        Both points are computed from the client's vector, which stays unchanged, so no rounding errors
        accumulate.
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
"""Function that takes a local step of a client, given the clients, the client's number and the step's number.
Returns the loss."""


def gradient_step(clients: Clients, client: int, number: int) -> float:
    """Take a step of SGD."""
    loss, gradient = clients.gradient(client, number)
    clients.x[client].add_(gradient, alpha=-clients.setup.learning_rate)
    return loss


def two_point_step(clients: Clients, client: int, number: int) -> float:
    """Take a step of zeroth-order SGD along the client's own direction (Malladi et al. 2023)."""
    seed = vectors.key(b"direction", clients.setup.seed, client, number)
    scalar, loss = clients.two_point(client, number, seed)
    clients.x[client].add_(clients.z, alpha=-clients.setup.learning_rate * scalar)
    return loss

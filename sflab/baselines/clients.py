"""N clients, each with a vector of its own: what all baselines have in common.

A method says how a client takes a local step and what is exchanged in a round. This module knows neither.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from sflab.baselines import vectors
from sfnode.schema.evaluation import Evaluation

# The setup of a baseline: the problem, the clients, who is linked with whom, and its numbers.


@dataclass(frozen=True)
class Setup:
    """Circumstances of one run of one method."""

    problem: VectorProblem
    clients: int
    edges: Callable[[int], Sequence[tuple[int, int]]]
    """Undirected links of communication round n. A client without any is away: it neither trains nor
    communicates in that round (unless it is the only client there is)."""
    seed: int
    """All chance of the method follows from it."""
    learning_rate: float
    epsilon: float = 1e-3
    """Distance of the two points of a zeroth-order estimate, in units of a normal vector, as MeZO's."""
    rank: int = 8
    """Rank of the factors that PowerSGD sends."""
    local_steps: int = 5
    """Local steps between two rounds of communication."""
    options: Mapping[str, float] = field(default_factory=dict)
    """Numbers that only this method has (`registry`)."""

    def round(self, step: int) -> int:
        """Return the round of communication that local step `step` belongs to."""
        return step // self.local_steps

    def links(self, number: int) -> list[tuple[int, int]]:
        """Return the links of round `number`, each once, the lower client first, in order."""
        return sorted({(min(link), max(link)) for link in self.edges(number) if link[0] != link[1]})

    def present(self, number: int) -> list[int]:
        """Return the clients that take part in round `number`."""
        if self.clients == 1:
            return [0]
        return sorted({client for link in self.links(number) for client in link})


# What the clients of a method have sent.


Edge = tuple[int, int]
"""Sender and receiver, numbers of clients; the number of clients itself stands for a server."""


@dataclass
class EdgeTraffic:
    """Bytes that were sent over each edge, as the method encodes them, without headers of the transport."""

    sent: Counter[Edge] = field(default_factory=Counter)

    def add(self, edge: Edge, size: int) -> None:
        """Count a message of `size` bytes."""
        self.sent[edge] += size

    def add_all_reduce(self, peers: Sequence[int], entries: int, entry: int) -> None:
        """Count an all-reduce of `entries` numbers of `entry` bytes, done as hivemind does it (butterfly).

        The vector is cut into as many parts as there are peers; each peer averages one: it gets that part
        from everybody else and sends everybody the result.
        """
        parts = [entries // len(peers) + (place < entries % len(peers)) for place in range(len(peers))]
        for sender, reduced in zip(peers, parts, strict=True):
            for receiver, wanted in zip(peers, parts, strict=True):
                if sender != receiver:
                    self.add((sender, receiver), (wanted + reduced) * entry)

    @property
    def total(self) -> int:
        """Bytes over all edges."""
        return self.sent.total()

    @property
    def per_edge(self) -> float:
        """Mean over the links that were used, of the bytes in both directions together."""
        links = {frozenset(edge) for edge in self.sent}
        return self.total / len(links) if links else 0.0


# The problem that a baseline minimises: a function of one vector, with mini-batches that clients draw.
#
# Methods know nothing else of models and data. `model_problem` makes a language model such a function.


class VectorPart(NamedTuple):
    """A parameter of the model: a run of entries of the vector."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)


class VectorProblem(Protocol):
    """Interface of a function of a vector of `size` float32 entries."""

    size: int
    batch_size: int
    """Examples of a mini-batch."""
    parts: Sequence[VectorPart]
    """The vector's parts in order, together `size` entries."""

    def start(self) -> Tensor:
        """Return the vector that every client begins with, (P,) float32: a copy, on the problem's device."""
        ...

    def loss(self, x: Tensor, client: int, step: int) -> float:
        """Return the mean loss of the mini-batch that a client draws in this step out of its shard."""
        ...

    def gradient(self, x: Tensor, client: int, step: int) -> tuple[float, Tensor]:
        """Return that loss and its gradient, (P,) float32, which is valid until the next call."""
        ...

    def evaluate(self, x: Tensor, which: str) -> Evaluation:
        """Measure the model of this vector on the `validation` or the `test` rows."""
        ...


FORWARDS_PER_GRADIENT = 3
"""Example-forwards of a gradient: a backward pass costs about twice its forward pass."""


class Clients:
    """Base of all methods: N clients that step and communicate in lock step.

    Whoever drives a method calls `step` for every local step, counted from 0, and `communicate` after every
    few of them. What a step draws follows from the seed and its number alone.
    """

    def __init__(self, setup: Setup, models: int | None = None) -> None:
        """Give every client, or `models` of them, a copy of the start."""
        self.setup = setup
        self.problem = setup.problem
        self.traffic = EdgeTraffic()
        self.example_forwards = 0
        """A forward of one example counts 1 and its backward 2, evaluations nothing."""
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

    def updates(self) -> Mapping[str, int]:
        """Return numbers of updates by name, where some may not count: of none of these."""
        return {}

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

    def close(self) -> None:
        """Do nothing: there is nothing to end."""

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

"""A problem with a closed form: each client has half the weighted squared distance from its own point."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sflab.baselines import registry, vectors
from sflab.baselines.clients import Clients, Setup
from sfnode.schema.measurements import Evaluation

Edges = Callable[[int], Sequence[tuple[int, int]]]


class Quadratic:
    """f_i(x) = sum_p curvature_p (x_p - centre_ip)^2 / 2, the centre moved by `noise` in every step."""

    batch_size = 4
    size = 68

    def __init__(self, clients: int, *, noise: float = 0.0, even: bool = False) -> None:
        made = torch.Generator().manual_seed(5)
        self.centres = 1 + torch.randn(clients, self.size, generator=made) / 10
        self.curvature = torch.ones(self.size) if even else torch.linspace(0.5, 1.5, self.size)
        self._noise = noise

    def start(self) -> Tensor:
        return torch.linspace(-1, 0, self.size)

    def centre(self, client: int, step: int) -> Tensor:
        moved = vectors.fill_normal(torch.empty(self.size), vectors.key(b"noise", client, step))
        return self.centres[client] + self._noise * moved

    def loss(self, x: Tensor, client: int, step: int) -> float:
        away = (x - self.centre(client, step)).double()
        return float((self.curvature * away.square()).sum()) / 2

    def gradient(self, x: Tensor, client: int, step: int) -> tuple[float, Tensor]:
        return self.loss(x, client, step), self.curvature * (x - self.centre(client, step))

    def evaluate(self, x: Tensor, which: str) -> Evaluation:
        loss = sum(self.loss(x, client, 0) for client in range(len(self.centres))) / len(self.centres)
        return Evaluation(metric="accuracy", value=0, low=0, high=0, loss=loss, count=1)


def ring(clients: int) -> Edges:
    links = [(client, (client + 1) % clients) for client in range(clients)]
    return lambda number: links


def complete(clients: int) -> Edges:
    links = [(i, j) for i in range(clients) for j in range(i)]
    return lambda number: links


def setup(clients: int = 4, edges: Edges | None = None, **given: Any) -> Setup:
    problem = given.pop("problem", None) or Quadratic(clients)
    numbers = {"seed": 3, "learning_rate": 0.1, "local_steps": 2} | given
    return Setup(problem, clients, edges or ring(clients), **numbers)


def made(name: str, *arguments: Any, **given: Any) -> Any:
    """Return a method by its name, for tests of its attributes."""
    return registry.make(name, setup(*arguments, **given))


def run(method: Clients, first: int, last: int, local_steps: int = 2) -> list[float]:
    """Take steps `first` to `last` - 1 with their rounds; return the losses."""
    losses = []
    for number in range(first, last):
        losses.append(method.step(number))
        if (number + 1) % local_steps == 0:
            method.communicate(number)
    return losses


def stored(state: Mapping[str, Any]) -> Any:
    """Return the state after it was saved and loaded."""
    file = io.BytesIO()
    torch.save(dict(state), file)
    file.seek(0)
    return torch.load(file, weights_only=True)

"""Training in one place: one model, and every step sees the mini-batches of all clients.

That is what the decentralised methods would be if communication cost nothing, with the same computation: with
one client it is the ordinary method. Nothing is sent.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sflab.baselines import vectors
from sflab.baselines.adamw import AdamW
from sflab.baselines.clients import Clients
from sflab.baselines.mezo import mezo_step
from sflab.baselines.setup import Setup


class Centralised(Clients):
    """One model, x (1, P)."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, models=1)

    def communicate(self, number: int) -> None:
        """Exchange nothing."""

    def present(self, number: int) -> list[int]:
        """Return the clients whose mini-batches step `number` sees."""
        return self.setup.present(self.setup.round(number))


class CentralSgd(Centralised):
    """SGD without momentum on the mean gradient."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._sum = torch.zeros_like(self.x[0])

    def step(self, number: int) -> float:
        """Take a step along the mean gradient of all mini-batches; return their mean loss."""
        present = self.present(number)
        if not present:
            return math.nan
        self._sum.zero_()
        losses = []
        for client in present:
            loss, gradient = self.gradient(0, client, number)
            losses.append(loss)
            self._sum.add_(gradient)
        self.descend(self._sum.div_(len(present)))
        return math.fsum(losses) / len(losses)

    def descend(self, gradient: Tensor) -> None:
        """Move the model against a gradient (P,)."""
        self.x[0].add_(gradient, alpha=-self.setup.learning_rate)


class CentralAdamW(CentralSgd):
    """AdamW (Loshchilov and Hutter 2019) on the mean gradient. Option: weight_decay."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._adam = AdamW(self.x, setup.learning_rate, setup.options["weight_decay"])

    def descend(self, gradient: Tensor) -> None:
        """Move the model as AdamW does."""
        self._adam.step(0, gradient)

    def tensors(self) -> dict[str, Tensor]:
        """Return the model and its moments."""
        return super().tensors() | self._adam.tensors()


class Mezo(Centralised):
    """MeZO (Malladi et al. 2023, Algorithm 1), in place; one direction for all mini-batches of a step."""

    def step(self, number: int) -> float:
        """Take MeZO's step; return the mean loss at its two points."""
        present = self.present(number)
        if not present:
            return math.nan

        def loss() -> float:
            return math.fsum(self.loss(self.x[0], client, number) for client in present) / len(present)

        seed = vectors.key(b"central direction", self.setup.seed, number)
        return mezo_step(
            [self.x[0]],
            loss,
            seed=seed,
            epsilon=self.setup.epsilon,
            learning_rate=self.setup.learning_rate,
        ).loss

"""Training in one place: one model, and every step sees the mini-batches of all clients.

That is what the decentralised methods would be if communication cost nothing, with the same computation: with
one client it is the ordinary method. Nothing is sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from sflab.baselines import vectors
from sflab.baselines.clients import Clients, Setup

# AdamW on the rows of a matrix, by torch's own function for it.


class AdamW:
    """Moments of Adam for every row of x (N, P), with torch's usual betas and epsilon."""

    def __init__(self, x: Tensor, learning_rate: float, weight_decay: float) -> None:
        self._x = x
        self._rate, self._decay = learning_rate, weight_decay
        self.first = torch.zeros_like(x)
        self.second = torch.zeros_like(x)
        self.steps = torch.zeros(len(x))

    def step(self, row: int, gradient: Tensor) -> None:
        """Take a step of one row against its gradient (P,)."""
        adamw(
            [self._x[row]],
            [gradient],
            [self.first[row]],
            [self.second[row]],
            [],
            [self.steps[row]],
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self._rate,
            weight_decay=self._decay,
            eps=1e-8,
            maximize=False,
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return by name the tensors that steps change."""
        return {"first": self.first, "second": self.second, "steps": self.steps}


# MeZO's in-place step (Malladi et al. 2023, Algorithm 1), the reference for comparison.
#
# Every trained parameter is perturbed where it lies by a generator that is reset to the same seed each time,
# so the direction needs no memory; the price is that all weights are written four times per step. It knows
# parameters and a loss function, and nothing of sfnode's subspaces.


def mezo_step(
    parameters: Sequence[Tensor],
    loss: Callable[[], float],
    *,
    seed: int,
    epsilon: float,
    learning_rate: float,
) -> tuple[float, float]:
    """Take one step on `parameters`, in place; `loss` evaluates the mini-batch at their current values.

    Return the projected gradient (L+ - L-) / (2 eps), and the mean of both losses.
    """
    with torch.no_grad():
        _add_noise(parameters, seed, epsilon)
        plus = loss()
        _add_noise(parameters, seed, -2 * epsilon)
        minus = loss()
        _add_noise(parameters, seed, epsilon)
        gradient = (plus - minus) / (2 * epsilon)
        _add_noise(parameters, seed, -learning_rate * gradient)
    return gradient, (plus + minus) / 2


def _add_noise(parameters: Sequence[Tensor], seed: int, scale: float) -> None:
    """Add `scale * z` to every parameter, z standard normal and the same for the same seed."""
    generator = torch.Generator(parameters[0].device).manual_seed(seed)
    for parameter in parameters:
        z = torch.randn(parameter.shape, generator=generator, device=parameter.device, dtype=parameter.dtype)
        parameter.add_(z, alpha=scale)


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
        numbers = {"epsilon": self.setup.epsilon, "learning_rate": self.setup.learning_rate}
        return mezo_step([self.x[0]], loss, seed=seed, **numbers)[1]

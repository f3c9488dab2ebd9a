"""MeZO's in-place step (Malladi et al. 2023, Algorithm 1), the reference for comparison.

Every trained parameter is perturbed where it lies by a generator that is reset to the same seed each time,
so the direction needs no memory; the price is that all weights are written four times per step. It knows
parameters and a loss function, and nothing of sfnode's subspaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class MezoStep(NamedTuple):
    """Outcome of one step."""

    gradient: float
    """The projected gradient (L+ - L-) / (2 eps)."""
    loss: float
    """The mean of both losses."""


def mezo_step(
    parameters: Sequence[Tensor],
    loss: Callable[[], float],
    *,
    seed: int,
    epsilon: float,
    learning_rate: float,
) -> MezoStep:
    """Take one step on `parameters`, in place; `loss` evaluates the mini-batch at their current values."""
    with torch.no_grad():
        _add_noise(parameters, seed, epsilon)
        plus = loss()
        _add_noise(parameters, seed, -2 * epsilon)
        minus = loss()
        _add_noise(parameters, seed, epsilon)
        gradient = (plus - minus) / (2 * epsilon)
        _add_noise(parameters, seed, -learning_rate * gradient)
    return MezoStep(gradient, (plus + minus) / 2)


def _add_noise(parameters: Sequence[Tensor], seed: int, scale: float) -> None:
    """Add `scale * z` to every parameter, z standard normal and the same for the same seed."""
    generator = torch.Generator(parameters[0].device).manual_seed(seed)
    for parameter in parameters:
        z = torch.randn(parameter.shape, generator=generator, device=parameter.device, dtype=parameter.dtype)
        parameter.add_(z, alpha=scale)


def replay(parameters: Sequence[Tensor], history: Iterable[tuple[int, float]], learning_rate: float) -> None:
    """Apply past steps, (seed, gradient) each, in place: every one writes all parameters once."""
    with torch.no_grad():
        for seed, gradient in history:
            _add_noise(parameters, seed, -learning_rate * gradient)

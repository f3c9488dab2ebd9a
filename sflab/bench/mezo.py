"""MeZO's in-place step (Malladi et al. 2023, Algorithm 1), with which the time of sfnode's step is compared.

Every parameter is perturbed in place. The noise comes from a generator that is reset to the same seed each
time. So the direction needs no memory, and all weights are written four times in a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def mezo_step(
    parameters: Sequence[Tensor],
    loss: Callable[[], float],
    *,
    seed: int,
    epsilon: float,
    learning_rate: float,
) -> tuple[float, float]:
    """Take one step on `parameters`, in place. `loss` evaluates the mini-batch at their current values.

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
    """Add `scale * z` to every parameter. z is standard normal and depends only on `seed`."""
    generator = torch.Generator(parameters[0].device).manual_seed(seed)
    for parameter in parameters:
        z = torch.randn(parameter.shape, generator=generator, device=parameter.device, dtype=parameter.dtype)
        parameter.add_(z, alpha=scale)

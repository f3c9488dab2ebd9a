"""MeZO's reference step does what its paper says."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sflab.bench.mezo import mezo_step


def setting() -> tuple[list[Tensor], list[Tensor]]:
    """Parameters, and the gradient of a linear loss in them."""
    made = torch.Generator().manual_seed(1)
    parameters = [torch.randn(5, 3, generator=made), torch.randn(7, generator=made)]
    return parameters, [torch.ones(5, 3), torch.arange(7.0)]


def step(parameters: list[Tensor], slope: list[Tensor], learning_rate: float) -> float:
    def loss() -> float:
        return float(sum((p.double() * g).sum() for p, g in zip(parameters, slope, strict=True)))

    return mezo_step(parameters, loss, seed=4, epsilon=1e-2, learning_rate=learning_rate)[0]


def noise(parameters: list[Tensor]) -> list[Tensor]:
    made = torch.Generator().manual_seed(4)
    return [torch.randn(p.shape, generator=made) for p in parameters]


def test_its_gradient_is_that_along_one_normal_direction_of_all_parameters() -> None:
    parameters, slope = setting()
    along = sum(float((z * g).sum()) for z, g in zip(noise(parameters), slope, strict=True))
    assert step(parameters, slope, 0.0) == pytest.approx(along, rel=1e-4)


def test_it_moves_the_parameters_in_place_against_that_direction_and_nowhere_else() -> None:
    parameters, slope = setting()
    before = [p.clone() for p in parameters]
    gradient = step(parameters, slope, 0.1)
    for old, new, z in zip(before, parameters, noise(parameters), strict=True):
        torch.testing.assert_close(new, old - 0.1 * gradient * z, rtol=1e-5, atol=1e-5)

"""First-order updates: gradients by all cells, as autograd has them for explicit cores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sfnode.engine import forward
from sfnode.engine.core import UpdateBatch
from sfnode.engine.gradients import quantised
from sfnode.engine.trainer import Trainer
from sfnode.models import loader
from sfprotocol.decisions import RATE_ONE, RateFrom
from sfprotocol.seeds import update_seeds
from tests.engine.helpers import data_file, held_weights, trainer
from tests.engine.published import first_order

SEEDS = update_seeds(1, 0, 3).tolist()


def explicit(run: Trainer, seed: int) -> np.ndarray:
    """The gradient by every entry of X where weights are W + U X V^T, by autograd through whole matrices."""
    batch, total = run.mini_batch(seed), []
    wholes = []
    for site in run.loaded.sites:
        weight = getattr(site.module, site.parameter)
        wholes.append(weight.requires_grad_())
    try:
        with torch.enable_grad():
            found = torch.autograd.grad(forward.mean_loss(run.loaded, batch), wholes)
    finally:
        for weight in wholes:
            weight.requires_grad_(False)
    for number, (site, part) in enumerate(zip(run.loaded.sites, found, strict=True)):
        u, v = (side.double() for side in run.space.matrices(0, number))
        gradient = loader.view(part, site.form).double()
        total.append((u.t() @ gradient @ v * run.space.unit(number)).flatten().numpy())
    return np.concatenate(total)


@pytest.mark.parametrize("family", ["opt", "llama", "gpt2"])
def test_a_gradient_is_that_of_explicit_cores(family: str, tmp_path: Path) -> None:
    run = first_order(family, tmp_path)
    with trainer(run, data_file(tmp_path), bases=tmp_path) as node:
        for seed, found in zip(SEEDS, node.gradients(SEEDS, 0), strict=True):
            assert found.cells == pytest.approx(explicit(node, seed), rel=1e-3, abs=1e-6)
            assert np.abs(found.cells).max() > 1e-3

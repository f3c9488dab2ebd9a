"""Numbers that suit a run which trains a linear head, from the states of some rows, without a trial.

What such a run needs to know is how large its features are. In units in which each has a spread of 1, the
same numbers suit every model and task (docs/research-log.md, on a linear head).
"""

from __future__ import annotations

import math
from collections.abc import Container

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfnode.engine import forward
from sfnode.engine.losses import EVALUATION_BATCH
from sfnode.engine.scalar_limit import Advance
from sfnode.engine.trainer import Trainer
from sfnode.manifest import Manifest
from sfnode.manifest.training import PUBLISHED_UNIT, features_text
from sfnode.models.loader import LoadedModel
from sfnode.tasks import dataset, encoding
from sfprotocol.decisions import RATE_ONE
from sfprotocol.seeds import BIAS, MOST_ENTRY

ROWS = 512
"""Rows of which the states are looked at: means and spreads are then known to a twentieth."""

SLOPES = 256
"""Directions along which slopes are measured, to set the limit of scalars; they cost no pass."""

SCALE = 24
"""Scale of a typical feature: five times as large a spread still has one of 5, a fifth of it one of 120."""

BIAS_FEATURES = 3
"""The mean row gives along a direction what a feature gives that is always so many of its spreads: a bias,
which reviews gain 0.03 of accuracy by."""

RATE = 1e-4
"""Rate an update, where features have a spread of 1. A multiple that suits one node alone would be unstable
where updates are measured while hundreds of others' are under way."""

DISTANCE = 5e-3
"""Distance of the points, in the same units; along it outputs move by an eighth of a nat."""

DELTA = 2.0**-9
"""Unit of scalars, in the same units: the largest, of some 15, fill 13 bits."""

CHOSEN = ("basis", "features", "learning_rate", "epsilon", "scalar_delta")
"""Numbers that are found, unless they are given."""


def fitted(trainer: Trainer, given: Container[str], advance: Advance) -> Trainer:
    """Return a trainer on ROWS of the same rows, with the features of its head and with numbers for them.

    Raises UserError as `forward.states`.
    """
    loaded, manifest = trainer.loaded, trainer.manifest
    rows = dataset.select(list(trainer.run_rows.some()), ROWS)
    found = _numbers(_states(loaded, manifest, rows, advance).double().numpy(force=True))
    numbers = manifest.training.model_dump() | {
        name: value for name, value in found.items() if name not in given
    }
    fit = manifest.model_copy(update={"training": type(manifest.training)(**numbers)})
    return Trainer(fit, loaded, rows, data=trainer.run_rows.folder)


def _states(loaded: LoadedModel, manifest: Manifest, rows: list[dataset.Row], advance: Advance) -> Tensor:
    batches = list(encoding.batches(manifest.task, loaded.tokenizer, rows, EVALUATION_BATCH))
    found = []
    for number, batch in enumerate(batches):
        found.append(forward.states(loaded, batch))
        advance(number + 1, len(batches))
    return torch.cat(found)


def _numbers(states: NDArray[np.float64]) -> dict[str, object]:
    """Return the numbers by name, from states (rows, features)."""
    means, spreads = states.mean(0), states.std(0)
    typical = max(float(np.median(spreads)), 1e-6)
    scales = np.clip(np.rint(SCALE * typical / np.maximum(spreads, 1e-9)), 1, MOST_ENTRY)
    size = SCALE * typical * PUBLISHED_UNIT  # of what a feature of spread 1 gives along a direction
    limit = np.iinfo(np.int16).max
    levels = np.clip(np.rint(means * BIAS / (BIAS_FEATURES * SCALE * typical)), -limit, limit)
    return {
        "basis": "features",
        "features": features_text(np.stack([scales, levels], 1).astype(int).tolist()),
        "learning_rate": math.ceil(RATE / size**2 * RATE_ONE) / RATE_ONE,
        "epsilon": DISTANCE / size,
        "scalar_delta": DELTA * 2.0 ** round(math.log2(size)),
    }

"""Numbers that suit a run which trains a linear head, from the states of some rows, without a trial.

What such a run needs to know is how large its features are. In units in which each has a spread of 1, the
same numbers suit every model and task (docs/research-log.md, on a linear head).
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfnode.engine import forward, pilot
from sfnode.engine.devices import usable_device
from sfnode.engine.head import trains_head
from sfnode.engine.loading import load_model
from sfnode.engine.losses import EVALUATION_BATCH
from sfnode.engine.pilot import Advance, Pilot
from sfnode.engine.run_rows import RunRows
from sfnode.engine.trainer import Trainer
from sfnode.manifest import Manifest
from sfnode.manifest.training import PUBLISHED_UNIT, features_text
from sfnode.models.loader import LoadedModel
from sfnode.tasks import dataset, encoding
from sfprotocol.decisions import RATE_ONE
from sfprotocol.seeds import BIAS, MOST_ENTRY

ROWS = 512
"""Rows of which the states are looked at: means and spreads are then known to a twentieth."""

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

CHOSEN = ("learning_rate", "epsilon", "scalar_delta")
"""Numbers that are found, unless they are given."""


def prepare(
    manifest: Manifest, *, device: str, dtype: str, bases: Path | None, advance: Advance
) -> tuple[Manifest, Pilot] | None:
    """Return a manifest with the features of its head and with numbers for them, and the slopes there.

    `bases` is the folder with files of the run's data. None where it has no rows within reach, or trains
    something else. Raises UserError as `Trainer.load`.
    """
    data = manifest.data if manifest.data.train else manifest.data.testing_as_training()
    public = manifest.model_copy(update={"data": data})
    rows = dataset.select(list(RunRows(public, bases).some_if_any()), ROWS)
    loaded = load_model(manifest, None, usable_device(device), dtype)
    if not rows or not trains_head(loaded, manifest):
        return None
    states = _states(loaded, manifest, rows, advance)
    training = manifest.training.model_copy(update=_numbers(states.double().cpu().numpy(), manifest))
    manifest = manifest.model_copy(update={"training": type(training)(**training.model_dump())})
    with Trainer(manifest, loaded, rows) as trainer:
        slopes = pilot.slopes_of(trainer, manifest.training.epsilon, pilot.SLOPES, lambda done: None)
    return manifest, Pilot(slopes, 0.0)


def _states(loaded: LoadedModel, manifest: Manifest, rows: list[dataset.Row], advance: Advance) -> Tensor:
    batches = list(encoding.batches(manifest.task, loaded.tokenizer, rows, EVALUATION_BATCH))
    found = []
    for number, batch in enumerate(batches):
        found.append(forward.states(loaded, batch))
        advance(number + 1, len(batches))
    return torch.cat(found)


def _numbers(states: NDArray[np.float64], manifest: Manifest) -> dict[str, object]:
    """Return the numbers by name, from states (rows, features)."""
    means, spreads = states.mean(0), states.std(0)
    typical = max(float(np.median(spreads)), 1e-6)
    scales = np.clip(np.rint(SCALE * typical / np.maximum(spreads, 1e-9)), 1, MOST_ENTRY)
    size = SCALE * typical * PUBLISHED_UNIT  # of what a feature of spread 1 gives along a direction
    limit = np.iinfo(np.int16).max
    bias = BIAS / (BIAS_FEATURES * SCALE * typical)
    return {
        "basis": "features",
        "features": features_text(scales, np.clip(np.rint(means * bias), -limit, limit)),
        "learning_rate": math.ceil(RATE / size**2 * RATE_ONE) / RATE_ONE,
        "epsilon": DISTANCE / size,
        "scalar_delta": DELTA * 2.0 ** round(math.log2(size)),
    }

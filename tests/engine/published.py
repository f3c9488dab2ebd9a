"""Runs on tiny models with published bases of random entries of every size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sfnode.manifest import Manifest
from sfnode.manifest.sections import Target
from sfnode.models import bases
from tests.engine.helpers import manifest


def pairs(targets: tuple[Target, ...], rank: int, seed: int = 0) -> list[tuple[bases.I8, bases.I8]]:
    """U and V of every target, the ends of the range among them."""
    draw = np.random.default_rng(seed)
    found = [
        tuple(draw.integers(-127, 128, (rows, rank), np.int8) for rows in (one.out_features, one.in_features))
        for one in targets
    ]
    for u, v in found:
        u[0, 0], v[0, 0], v[-1, -1] = 127, -127, 127
    return [(u, v) for u, v in found]


def published(family: str, folder: Path, *, seed: int = 0, **training: Any) -> Manifest:
    """A run whose bases are in `folder`."""
    plain = manifest(family, **training)
    digest = bases.write(folder, pairs(plain.model.parsed_targets(), plain.training.rank, seed))
    return manifest(family, **training, basis="published", bases=digest)

"""Runs on tiny models with published bases of random entries of every size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from sfnode.engine.making_bases import quantised
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Target
from sfnode.manifest.task import Task
from sfnode.manifest.training import Training, units_of
from sfnode.models import bases
from tests.engine.helpers import manifest
from tests.manifest.fields import ORGANISER


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


def orthonormal(run: Training, targets: tuple[Target, ...]) -> list[tuple[bases.I8, bases.I8]]:
    """U and V of a first-order run, with columns of length 1 in its units."""
    draw, found = torch.Generator().manual_seed(0), []
    for target in targets:
        sizes, units = (target.out_features, target.in_features), units_of(run, target)
        sides = [
            quantised(torch.linalg.qr(torch.randn(size, columns, generator=draw)).Q, unit * size**0.5)
            for size, columns, unit in zip(sizes, target.core_shape(run.rank), units, strict=True)
        ]
        found.append((sides[0], sides[1]))
    return found


def first_order(family: str | Manifest, folder: Path, task: Task | None = None, **training: Any) -> Manifest:
    """An organised run whose updates are gradients, on a tiny model or like another run, with bases in
    `folder`."""
    numbers = {
        "estimator": "first-order",
        "basis": "published",
        "bases": "0" * 64,
        "features": "",
        "learning_rate": 0.5,
        "scalar_bits": 8,
        "scalar_limit": 127,
        "scalar_delta": 2.0**-6,
        "norm_limit": 1000,
    } | training
    plain = manifest(family) if isinstance(family, str) else family
    fields = plain.model_copy(update={"task": task} if task else {}).model_dump() | {
        "protocol": 4,
        "admission": "organised",
        "organised": {"organiser": ORGANISER.hex(), "quota": 100},
    }
    fields["training"] |= numbers
    said = Manifest.model_validate(fields)
    digest = bases.write(folder, orthonormal(said.training, said.model.parsed_targets()))
    fields["training"]["bases"] = digest
    return Manifest.model_validate(fields)

"""Loads what a trainer works with: the base model and a node's rows."""

from __future__ import annotations

from pathlib import Path

import torch

from sfnode.engine import target_check
from sfnode.manifest import Manifest
from sfnode.models import loader
from sfnode.tasks import dataset


def load_model(
    manifest: Manifest, override: Path | None, device: torch.device, dtype: str
) -> loader.LoadedModel:
    """Load the manifest's base model and check that all targets can be perturbed.

    Raises UserError as `models.loader.load` does.
    """
    loaded = loader.load(manifest, override=override, device=device, dtype=dtype)
    problem = loader.with_user_errors(loaded.folder, lambda: target_check.problem(loaded))
    if problem:
        raise loader.unsupported(loaded.folder, problem)
    return loaded


def training_rows(
    manifest: Manifest,
    override: Path | None,
    shard: tuple[int, int] | None,
    data: Path | None,
    *,
    skip_bad: bool = False,
) -> tuple[list[dataset.Row], list[dataset.Row] | None]:
    """Return the rows that this node draws its mini-batches from, and the public ones if they were read."""
    if override is None:
        public = rows = dataset.training_rows(manifest.data, manifest.task, data)
    else:
        public = None
        least = manifest.data.train_min_words
        rows = dataset.load_rows(str(override), manifest.task, min_words=least, skip_bad=skip_bad)
    return dataset.shard(rows, *shard) if shard else rows, public

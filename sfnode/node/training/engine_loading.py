"""Loads the engine of a node; the only module of the package that loads torch."""

from __future__ import annotations

from secrets import token_bytes
from threading import Lock
from typing import TYPE_CHECKING

from sfnode.manifest import Manifest
from sfnode.node import accounting
from sfnode.settings import Settings
from sfnode.store.data_folder import Layout
from sfnode.store.named_files import places_of

if TYPE_CHECKING:
    from sfnode.engine.trainer import ReplicatedTrainer as Engine

SECRET_BYTES = 16
"""Bytes of the secret that hides which of its own rows a node draws: new at every start, as nobody has to
draw them again."""

_loading = Lock()
"""transformers cannot load two models at the same time in one process, which may run several nodes."""


def clip_of(settings: Settings, manifest: Manifest) -> float:
    """Return the largest slope that a node with noise tells of, or the length of a row's gradient: unless it
    says so the run's largest."""
    numbers = manifest.training
    return settings.noise_clip or (numbers.norm_limit or numbers.scalar_limit) * numbers.scalar_delta


def load_trainer(settings: Settings, manifest: Manifest) -> Engine:
    """Load the base model and the training rows. Takes seconds: call it on the engine's thread.

    Raises UserError MODEL_*, DATA_* or DEVICE.
    """
    import torch

    from sfnode.engine.estimator import LocalNoise
    from sfnode.engine.trainer import ReplicatedTrainer

    layout = Layout(settings.data_dir)
    noise = LocalNoise(settings.noise, clip_of(settings, manifest)) if settings.noisy else None
    if settings.limits.threads:
        torch.set_num_threads(settings.limits.threads)
    with _loading:
        engine = ReplicatedTrainer.load_on(
            settings.devices,
            manifest,
            batch=settings.queries_of(manifest.training) * manifest.training.batch_updates,
            model_override=settings.model,
            data_override=settings.data,
            skip_bad_rows=settings.skip_bad_rows,
            shard=settings.shard,
            dtype=settings.dtype,
            bases=layout.bases,
            places=places_of(layout),
            secret=token_bytes(SECRET_BYTES) if settings.data else b"",
            noise=noise,
        )
    if noise:
        noise.multiplier = accounting.multiplier_of(settings, manifest, engine.odds)
    return engine

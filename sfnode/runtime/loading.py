"""From a run and the settings of a node to its engine; the place where the runtime meets torch."""

from __future__ import annotations

from sfnode.config import Manifest, NodeSettings
from sfnode.runtime.worker import Engine


def load_trainer(settings: NodeSettings, manifest: Manifest) -> Engine:
    """The base model and the training rows, loaded. Takes seconds: call it on the engine's thread.

    Raises UserError MODEL_*, DATA_* or DEVICE.
    """
    import torch

    from sfnode.engine.trainer import Trainer

    if settings.limits.threads:
        torch.set_num_threads(settings.limits.threads)
    return Trainer.load(
        manifest,
        model_override=settings.model,
        data_override=settings.data,
        shard=settings.shard,
        device=settings.device,
        dtype=settings.dtype,
    )

"""A run on each of the tiny random models, and updates to feed it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfnode.engine import forward
from sfnode.engine.core import UpdateBatch
from sfnode.engine.trainer import Trainer
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data, Model
from sfnode.manifest.task import Task
from sfnode.manifest.training import Training
from sfnode.models import loader, model_files
from sfnode.models.quantized import Int8Linear
from sfnode.models.targets import DEFAULT, Selection, view
from sfnode.tasks.public_files import typed
from sfprotocol.seeds import update_seeds
from tests.models.families import ENCODERS, FAMILIES, WORDS, model_folder, random_model

__all__ = ["ENCODERS", "FAMILIES", "WORDS", "model_folder", "random_model"]

DEVICE = os.environ.get("SFNODE_DEVICE", "cpu")
"""Where models run: `pytest --device`."""

SHARED = Path(__file__).parents[3] / "shared"
ROWS = [
    {"sentence": "the film was bright .", "label": "1"},
    {"sentence": "a dull story", "label": "0"},
    {"sentence": "the story was good . the film was slow", "label": "1"},
    {"sentence": "bad .", "label": "0"},
    {"sentence": "a slow dull film is a bad film", "label": "0"},
]
TASK = Task(kind="classification", template="{sentence} It was", verbalizer={"0": "terrible", "1": "great ."})

EVERYTHING = Selection(embeddings=True, biases=True, norms=True)

HEADED_TASK = Task(
    kind="sequence-classification", template="{sentence}", verbalizer={"0": "negative", "1": "positive"}
)
"""For the encoders."""


def manifest(
    family: str, test: str = "", selection: Selection = DEFAULT, name: str = "run", **training: Any
) -> Manifest:
    """A run on a tiny model; `training` as in the manifest. No path enters it, so its run id never varies.

    Directions follow from the id, and so from the `name`: with some, a few updates say less than is asked.
    """
    numbers = {"rank": 4, "batch_size": 3, "epoch_updates": 50, "update_budget": 500} | training
    task = HEADED_TASK if family in ENCODERS else TASK
    return Manifest(
        name=name,
        model=described(family, selection, len(task.verbalizer) if family in ENCODERS else 0),
        task=task,
        data=Data(test=test),
        training=Training(**numbers),
    )


@cache
def described(family: str, selection: Selection, labels: int) -> Model:
    """What a manifest says of a tiny model."""
    found = loader.describe(str(model_folder(family)), "", selection, labels)
    return found.model_copy(update={"source": f"tiny/{family}"})


def data_file(folder: Path) -> Path:
    """ROWS as a TSV."""
    lines = ["sentence\tlabel", *(f"{row['sentence']}\t{row['label']}" for row in ROWS)]
    path = folder / "rows.tsv"
    path.write_text("\n".join(lines) + "\n")
    return path


def trainer(run: Manifest, rows: Path | None = None, **options: Any) -> Trainer:
    """A trainer of a run on a tiny model; it can make steps if it is given training rows."""
    given: dict[str, Any] = {"device": DEVICE, "places": typed(run.data)} | options
    if "model_override" not in given:
        given["model_override"] = model_folder(run.model.source.removeprefix("tiny/"))
    return Trainer.load(run, data_override=rows, training=rows is not None, **given)


def in_float64(run: Trainer) -> Trainer:
    """The same run at the same point, computed in float64: on the weights just as `run` holds them."""
    other = trainer(run.manifest, device=str(run.loaded.device))
    other.loaded.model.double()
    held = dict(run.loaded.model.named_parameters())
    for name, parameter in other.loaded.model.named_parameters():
        if name in held:
            parameter.data.copy_(held[name])
    for site, weight in zip(other.loaded.sites, held_weights(run), strict=True):
        loader.matrix(site).copy_(weight)
    return Trainer(run.manifest, replace(other.loaded, dtype=torch.float64), [])


def held_weights(run: Trainer) -> list[torch.Tensor]:
    """The targets as W (out, in), just as they are held; float64."""
    return [
        site.module.entries.double() * site.module.scales.double()
        if isinstance(site.module, Int8Linear)
        else loader.matrix(site).double()
        for site in run.loaded.sites
    ]


def updates(count: int, epochs: Iterable[int] = (0,), key: int = 1) -> UpdateBatch:
    """`count` updates whose epochs go round through `epochs`, with scalars of every size up to 300."""
    cycle = np.resize(np.array(list(epochs), np.int64), count)
    scalars = (np.arange(count, dtype=np.int64) * 7919 + key) % 601 - 300
    return UpdateBatch(cycle, update_seeds(key, 0, count), scalars)


def part(batch: UpdateBatch, rows: Any) -> UpdateBatch:
    """The updates at these indices."""
    return UpdateBatch(batch.epochs[rows], batch.seeds[rows], batch.scalars[rows])


def negated(batch: UpdateBatch) -> UpdateBatch:
    return batch._replace(scalars=-batch.scalars)


def own_states(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Begin without states of other tests; models that were examined need not be so again. Returns the
    folder with the folders of states."""
    own = folder / "cache" / "sfnode"
    own.mkdir(parents=True)
    examined = model_files.cache() / "examined"
    examined.mkdir(parents=True, exist_ok=True)
    (own / "examined").symlink_to(examined)
    monkeypatch.setenv("XDG_CACHE_HOME", str(own.parent))
    return own / "states"


def weights(run: Trainer) -> list[torch.Tensor]:
    """A copy of every tensor of the live model."""
    return [tensor.to("cpu", copy=True) for tensor in run.loaded.model.state_dict().values()]


def live(run: Trainer) -> list[torch.Tensor]:
    """The targets as W (out, in), sharing the model's memory."""
    return [loader.matrix(site) for site in run.loaded.sites]


def same(one: Iterable[torch.Tensor], other: Iterable[torch.Tensor]) -> bool:
    """Whether tensors are equal to the bit."""
    return all(torch.equal(*both) for both in zip(one, other, strict=True))


def whole_gradients(run: Trainer, loss: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    """Those of a loss by every target (out, in), by backpropagation through the weights themselves."""
    parameters = [getattr(site.module, site.parameter).requires_grad_() for site in run.loaded.sites]
    try:
        with torch.enable_grad():
            found = torch.autograd.grad(loss(), parameters)
    finally:
        for parameter in parameters:
            parameter.requires_grad_(False)
    return [view(part, site.form).cpu() for part, site in zip(found, run.loaded.sites, strict=True)]


def passes_seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return a list to which every pass through a model adds its rows and tokens."""
    seen: list[tuple[int, int]] = []
    plain = forward._outputs

    def outputs(loaded: Any, this: Any, **cached: Any) -> Any:
        seen.append(tuple(this.input_ids.shape))
        return plain(loaded, this, **cached)

    monkeypatch.setattr(forward, "_outputs", outputs)
    return seen

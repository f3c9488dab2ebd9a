"""Measures a first-order step: its memory relative to inference, and the cosine of its gradient with
float32's.

    python -m benchmarks.gradients [--model FOLDER] [--model shape:opt-1.3b] [--dtype int8] [--task agnews]

The run trains answers in words. Its bases are made from the mean gradient of the last blocks as in `sfnode
init`, but from few mini-batches. *Inference* scores the longest row, as a node does. *Step* makes an update
from the eight longest rows, none of which the model has seen before. Both figures are the peak of the
resident memory (on a CPU), each in its own process. The figure of a step is the largest of three steps, the
first one included. The cosine compares the gradient in a format with the gradient in float32, both with the
weights that the format represents. A shape's texts are encoded with scripts/real_model.py's tokenizer. CPU
seconds are measured for a step on rows that the model has not seen, and for a step on the same rows again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, cast

import click
import numpy as np
import torch

from benchmarks import real
from scripts import real_model
from sfnode.engine import forward, making_bases
from sfnode.engine.trainer import Trainer
from sfnode.manifest import Manifest
from sfnode.models import bases, loader, model_files, shapes
from sfnode.models.quantized import QuantisedLinear
from sfnode.preparing.manifest import build
from sfnode.resources import memory
from sfnode.store.run_keys import RunKeys
from sfnode.tasks.encoding import encode
from sfnode.tasks.mini_batches import Shard
from sfprotocol.seeds import update_seeds

CPU = torch.device("cpu")
DTYPES = ("float32", "bfloat16", "int8", "nf4")
BATCH, BATCHES_OF_BASES = 8, 4


class Subject(NamedTuple):
    """Folders of a model and of a run that trains it."""

    model: Path
    task: str
    run: Manifest
    bases: Path

    def rows(self) -> list[Any]:
        """Return training rows, the longest ones first."""
        return sorted(_texts(self.task, self.model).train, key=lambda row: -len(row["sentence"]))

    def load(self, dtype: str) -> loader.LoadedModel:
        return loader.load(self.run, override=self.model, device=CPU, dtype=dtype)

    def trainer(self, dtype: str, rows: Sequence[Any]) -> Trainer:
        return Trainer(self.run, self.load(dtype), rows, bases=self.bases)


def _texts(task: str, folder: Path) -> real.Subject:
    return real.subject(task, 1024, 1, folder)


def begun(model: Path, task: str, folder: Path) -> Subject:
    """Make the run and its bases."""
    of, keys = _texts(task, model), RunKeys.generate()
    options = of.words.model_dump(include={"kind", "template", "verbalizer", "max_tokens"})
    given = options | keys.options() | {"model": str(model), "estimator": "first-order", "loss": "plain"}
    plain = build(given)
    loaded = loader.load(plain, override=model, device=CPU)
    shard = Shard(plain.task, loaded.tokenizer, of.train, BATCH)
    batches = [shard.mini_batch(seed) for seed in update_seeds(2, 0, BATCHES_OF_BASES).tolist()]
    made = making_bases.gradients(loaded, batches, plain.training)
    told = {"bases": bases.write(folder, made.pairs), "norm_limit": 1, "scalar_limit": 127}
    fields = plain.model_dump() | {"training": plain.training.model_dump() | told}
    return Subject(model, task, Manifest.model_validate(fields), folder)


def inference(of: Subject, dtype: str) -> int:
    """Return the peak memory, in bytes, of scoring a row."""
    loaded = of.load(dtype)
    row = encode(of.run.task, loaded.tokenizer, of.rows()[:1])
    return memory.peak(lambda: forward.score_in_passes(loaded, row), CPU) or 0


def step(of: Subject, dtype: str) -> tuple[int, float, float]:
    """Return the peak memory of a step in bytes, and the CPU seconds of its first and second time on the same
    rows."""
    rows = of.rows()[: BATCH * memory.RUNS]
    with of.trainer(dtype, rows) as node:
        turn = iter(range(memory.RUNS))
        taken: list[float] = []
        peaks: list[int] = []

        def act() -> None:
            place = next(turn) * BATCH
            batch = encode(of.run.task, node.loaded.tokenizer, rows[place : place + BATCH])
            node.mini_batches = cast(Any, _Same(batch))
            for _ in range(2):
                start = time.process_time()
                node.step([0], 0)
                taken.append(time.process_time() - start)
            peaks.append(memory.most(CPU) or 0)

        memory.peak(act, CPU)
        return max(peaks), min(taken[::2]), min(taken[1::2])


class _Same:
    """Mini-batches that are always the same."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def take(self, seeds: Sequence[int]) -> list[Any]:
        return [self.batch for _ in seeds]


def alone(do: Callable[..., Any], *given: Any) -> Any:
    """Call a function in a process of its own, and return its result."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(do, *given).result()


def cosine(of: Subject, dtype: str) -> float:
    """Return the cosine of a mini-batch's gradients in a format and in float32, with the format's weights."""
    rows = of.rows()[:256]
    with of.trainer(dtype, rows) as node:
        (found,) = node.gradients([1], 0)
        held = node.loaded.model
    with of.trainer("float32", rows) as exact:
        for name, module in exact.loaded.model.named_modules():
            for part, parameter in module.named_parameters(recurse=False):
                other: Any = held.get_submodule(name)
                whole = isinstance(other, QuantisedLinear) and part == "weight"
                parameter.copy_(other.dense() if whole else getattr(other, part))
        (wanted,) = exact.gradients([1], 0)
    norms = np.linalg.norm(found.cells) * np.linalg.norm(wanted.cells)
    return float(found.cells @ wanted.cells / norms)


def written(name: str, folder: Path) -> Path:
    """Return the folder of a model. A shape is written to `folder` first."""
    if not name.startswith(shapes.PREFIX):
        return Path(name)
    if not (folder / model_files.CONFIG).exists():
        shapes.write(shapes.describe(name), folder)
    for file in real_model.FOLDER.glob("*token*"):
        shutil.copy(file, folder)
    return folder


@click.command()
@click.option("--model", "names", multiple=True, default=(str(real_model.FOLDER), "shape:opt-1.3b"))
@click.option("--dtype", "dtypes", multiple=True, default=DTYPES)
@click.option("--task", default="sst2")
@click.option("--no-cosine", is_flag=True)
def main(names: Sequence[str], dtypes: Sequence[str], task: str, no_cosine: bool) -> None:
    for name in names:
        with tempfile.TemporaryDirectory(prefix="sfnode-gradients-") as scratch:
            os.environ["XDG_CACHE_HOME"] = str(Path(scratch) / "cache")
            of = alone(begun, written(name, Path(scratch) / "model"), task, Path(scratch) / "bases")
            print(f"{name}, {task}", flush=True)
            for dtype in dtypes:
                less, (more, first, again) = alone(inference, of, dtype), alone(step, of, dtype)
                said = "" if no_cosine else f"{alone(cosine, of, dtype):.4f}"
                sizes = f"{less / 1e9:.3f} | {more / 1e9:.3f} | {more / less:.3f}"
                print(f"| {dtype} | {sizes} | {said} | {first:.2f} | {again:.2f} |", flush=True)


if __name__ == "__main__":
    main()

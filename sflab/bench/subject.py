"""The subject of a benchmark: a model, loaded as a node loads it, and mini-batches for it.

The model is one that a node could train, or a shape with random weights. The mini-batches are those of a run,
or sentences of random tokens: time and memory do not depend on the tokens.
"""

from __future__ import annotations

import dataclasses
import gc
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from pydantic import ValidationError

from sfnode.engine import loading
from sfnode.engine.loading import usable_device
from sfnode.engine.trainer import Trainer
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data
from sfnode.manifest.task import Task
from sfnode.manifest.training import Training
from sfnode.models import loader, model_files, shapes
from sfnode.resources import memory
from sfnode.store.named_files import NamedFiles
from sfnode.tasks import dataset, presets
from sfnode.tasks.encoding import Encoded, encode
from sfnode.tasks.public_files import NOWHERE, beside
from sfprotocol.seeds import batch_rows

SENTENCES = 256
"""Number of random sentences, from which mini-batches are drawn."""

FIRST_ORDINARY = 8
"""Smallest token number of random sentences. Many models use smaller numbers for special tokens."""

HEADED: Final = "sequence-classification"
"""Kind of an encoder's task."""

LEAST_ROOM = 8
"""Minimum max_tokens of a task."""

STANDSTILL = 1e-12
"""Learning rate of a benchmark. Thousands of meaningless updates must not change the weights noticeably."""


class SubjectSpec(NamedTuple):
    """Model to measure, and the devices to measure it on."""

    source: str = ""
    """Model as in `sfnode init`, `shape:NAME`, or a folder with only config.json; "": the run's model."""
    run: Manifest | None = None
    tokens: int = 32
    """Length of a random sentence."""
    device: str = "cpu"
    """Device, or several devices that share the work, separated by commas."""
    dtype: str = loader.AUTO
    rank: int = 0
    """Rank of the subspace; 0: the run's rank, or the default."""
    group: int | None = None
    """Number of updates that share a mini-batch; None: as in the run, or the default."""
    folder: Path | None = None
    """Folder of the run's manifest."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices. The first device is also measured alone."""
        return tuple(self.device.split(","))


class BenchSubject(NamedTuple):
    """A model and the data for it."""

    name: str
    manifest: Manifest
    loaded: loader.LoadedModel
    rows: Sequence[dataset.Row]
    device: torch.device
    dtype: str
    """Dtype of the weights."""
    parameters: int
    before: memory.Room
    """Free memory of the device, and its memory in use by this process, before the model was loaded."""

    def mini_batch(self, seeds: Sequence[int], size: int, times: int = 1) -> Encoded:
        """Encode one batch: `size` rows drawn by each of `seeds`, and all of these rows repeated `times`
        times."""
        drawn = [self.rows[row] for seed in seeds for row in batch_rows(seed, size, len(self.rows)).tolist()]
        return encode(self.manifest.task, self.loaded.tokenizer, drawn * times)

    def trainer(self) -> Trainer:
        """Make the trainer of a node that trains this model."""
        return Trainer(self.manifest, self.loaded, self.rows)


@contextmanager
def load_subject(wanted: SubjectSpec) -> Iterator[BenchSubject]:
    """Load the subject. Raises UserError BAD_OPTION, MODEL_*, DATA_*, DEVICE or OUT_OF_MEMORY."""
    device, *_ = (usable_device(name) for name in wanted.devices)
    with tempfile.TemporaryDirectory(prefix="sfnode-bench-") as scratch:
        named = wanted.source or (wanted.run.model.source if wanted.run else presets.DEFAULT_MODEL)
        source = named
        dtype = loader.named_dtype(wanted.dtype, device)
        if shapes.is_shape(named):
            source = _made(named, Path(scratch), dtype, device)
        manifest = _manifest(wanted, source)
        home = _home(wanted, source)
        settings = shapes.describe(str(home))
        parameters = shapes.parameters(settings)
        for name in dict.fromkeys(wanted.devices):
            on = torch.device(name)
            replicas = wanted.devices.count(name)
            check_room(named, parameters, loader.named_dtype(wanted.dtype, on), on, replicas)
        before = memory.room(device)
        loaded = loading.load_model(manifest, home, device, dtype)
        if wanted.run is None:
            numbers = shapes.token_numbers(settings.get_text_config(decoder=True).vocab_size)
            loaded = dataclasses.replace(loaded, tokenizer=numbers)
        rows = _rows(wanted, manifest, settings)
        with _settled():
            yield BenchSubject(named, manifest, loaded, rows, device, dtype, parameters, before)


@contextmanager
def _settled() -> Iterator[None]:
    """Exempt all present objects from garbage collection within the block: a scan of them takes 0.2 s."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def check_room(name: str, parameters: int, dtype: str, device: torch.device, replicas: int = 1) -> None:
    """Raise UserError OUT_OF_MEMORY if the weights of all replicas alone exceed the free memory."""
    needed, free = replicas * memory.weights(parameters, dtype), memory.free(device)
    if free is not None and needed > free:
        raise UserError(
            Code.OUT_OF_MEMORY,
            f"{name} has {parameters / 1e9:.2f} billion parameters, {needed / 1e9:.1f} GB in {dtype}"
            f"{f' for {replicas} replicas' if replicas > 1 else ''}; "
            f"{free / 1e9:.1f} GB are free on {device}",
            "Take a narrower --dtype, a smaller model, or another --device.",
        )


def _made(source: str, scratch: Path, dtype: str, device: torch.device) -> str:
    """Write a model of the shape `source` to `scratch`, and return its folder."""
    settings = shapes.describe(source)
    parameters = shapes.parameters(settings)
    check_room(source, parameters, dtype, device)
    check_room(source, parameters, "bfloat16", torch.device("cpu"))  # made on the CPU, in bfloat16
    shapes.write(settings, scratch)
    return str(scratch)


def _manifest(wanted: SubjectSpec, source: str) -> Manifest:
    """Return the manifest to measure with: the given one, or one for random sentences."""
    run = wanted.run
    if run is not None:
        labels = len(run.task.verbalizer) if run.task.kind == HEADED else 0
        described = loader.describe(source, "", classifier_labels=labels) if wanted.source else run.model
        return run.model_copy(update={"model": described, "training": _training(run.training, wanted)})
    classes = _classes(source)
    described = loader.describe(source, "", classifier_labels=classes)
    return Manifest(
        name="bench",
        model=described,
        task=_synthetic(wanted.tokens, classes),
        data=Data(),
        training=_training(Training(), wanted),
    )


def _training(numbers: Training, wanted: SubjectSpec) -> Training:
    fields = numbers.with_random_bases().model_dump() | {
        "learning_rate": STANDSTILL,
        "rank": wanted.rank or numbers.rank,
        "group": numbers.group if wanted.group is None else wanted.group,
    }
    try:
        return Training(**fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        flag, reason = first["loc"][0], first["msg"].removeprefix("Value error, ")
        raise UserError(
            Code.BAD_OPTION,
            f"--{flag} {fields[str(flag)]}: {reason}",
            "The usual rank is 32, and groups have 0 or 2 to 64 updates.",
        ) from error


def _synthetic(tokens: int, classes: int) -> Task:
    """Return a task for rows whose text is a list of token numbers. The task has two answers of one token
    each or, for an encoder, `classes` classes."""
    room = max(tokens + 1, LEAST_ROOM)
    if classes:
        names = {str(label): str(label) for label in range(classes)}
        return Task(kind=HEADED, template="{text}", verbalizer=names, max_tokens=room)
    return Task(
        kind="classification",
        template="{text}",
        verbalizer={"0": str(FIRST_ORDINARY), "1": str(FIRST_ORDINARY + 1)},
        max_tokens=room,
    )


def _rows(wanted: SubjectSpec, manifest: Manifest, settings: Any) -> list[dataset.Row]:
    if wanted.run is None:
        return _random_rows(wanted.tokens, settings)
    if not manifest.data.train:
        raise UserError(
            Code.DATA_NEEDED,
            "the run names no training data to measure with",
            "Leave --run out to measure with random tokens.",
        )
    places = beside(manifest.data, wanted.folder) if wanted.folder else NOWHERE
    return dataset.training_rows(manifest.data, manifest.task, places)


def _random_rows(tokens: int, settings: Any) -> list[dataset.Row]:
    text = settings.get_text_config(decoder=True)
    most = getattr(text, "max_position_embeddings", None)
    if most is not None and tokens > most:
        raise UserError(
            Code.BAD_OPTION, f"--tokens {tokens}: the model takes {most} at most", "Take fewer tokens."
        )
    known = min(text.vocab_size, shapes.WORDS)
    ids = np.random.default_rng(0).integers(FIRST_ORDINARY, known, (SENTENCES, tokens))
    return [{"text": " ".join(map(str, line)), "label": n % 2} for n, line in enumerate(ids.tolist())]


def _classes(source: str) -> int:
    """Return the number of classes of an encoder's head; 0 for a language model."""
    settings = shapes.describe(str(model_files.located(source)))
    classes = int(settings.num_labels) if shapes.has_head(settings) else 0
    if classes == 1:
        raise UserError(
            Code.MODEL_UNSUPPORTED,
            "the model cannot be trained: its head has one output, a score, and tells no classes apart",
            "Take a model whose head has two classes or more, or one without a head, which gets a new one.",
        )
    return classes


def _home(wanted: SubjectSpec, source: str) -> Path:
    """Return the folder of the named model, or of the run's model."""
    if wanted.source or not wanted.run:
        return model_files.located(source)
    base = wanted.run.model
    here = NamedFiles().and_beside(wanted.run, wanted.folder).model if wanted.folder else None
    return model_files.resolve(base.source, base.revision, here)

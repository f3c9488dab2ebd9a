"""What a benchmark measures: a model, ready as a node has it, and mini-batches for it.

The model may be any that a node could train, or a shape with random weights. The mini-batches are those of a
run, or sentences of random tokens: time and memory do not depend on which tokens they are. This module knows
how to come by both, and nothing about what is measured.
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
from transformers import AutoConfig

from sfnode import config
from sfnode.baselines import memory
from sfnode.engine import data, model, presets, shapes, tasks, trainer
from sfnode.errors import Code, UserError
from sfprotocol.seeds import batch_rows

SENTENCES = 256
"""Random sentences to draw mini-batches from."""

FIRST_ORDINARY = 8
"""Smaller token numbers are left out of random sentences: many models keep them for special tokens."""

HEADED: Final = "sequence-classification"
"""The kind of task of an encoder."""

LEAST_ROOM = 8
"""A task's max_tokens is no less."""

STANDSTILL = 1e-12
"""Learning rate of a benchmark: thousands of updates of no meaning must not carry the weights away."""


class Wanted(NamedTuple):
    """What is to be measured."""

    source: str = ""
    """A model as `sfnode init` takes it, `shape:NAME`, or a folder with config.json alone; else the run's."""
    run: config.Manifest | None = None
    tokens: int = 32
    """Of a random sentence."""
    device: str = "cpu"
    dtype: str = model.AUTO
    rank: int = 0
    """0: the run's, or the usual one."""


class Subject(NamedTuple):
    """A model and the data for it."""

    name: str
    manifest: config.Manifest
    loaded: model.LoadedModel
    rows: Sequence[data.Row]
    device: torch.device
    dtype: str
    """Of the weights."""
    parameters: int
    before: memory.Room
    """The device before the model was loaded."""

    def mini_batch(self, seeds: Sequence[int], size: int, times: int = 1) -> tasks.Encoded:
        """The rows that these seeds draw, `size` each, all in one batch and that `times` over."""
        drawn = [self.rows[row] for seed in seeds for row in batch_rows(seed, size, len(self.rows)).tolist()]
        return tasks.encode(self.manifest.task, self.loaded.tokenizer, drawn * times)

    def trainer(self) -> trainer.Trainer:
        """The engine of a node that trains this model."""
        return trainer.Trainer(self.manifest, self.loaded, self.rows)


@contextmanager
def prepared(wanted: Wanted) -> Iterator[Subject]:
    """The subject, loaded. Raises UserError BAD_OPTION, MODEL_*, DATA_*, DEVICE or OUT_OF_MEMORY."""
    device = trainer.usable_device(wanted.device)
    with tempfile.TemporaryDirectory(prefix="sfnode-bench-") as scratch:
        named = wanted.source or (wanted.run.model.source if wanted.run else presets.DEFAULT_MODEL)
        source = named
        dtype = model.named_dtype(wanted.dtype, device)
        if shapes.is_shape(named):
            source = _made(named, Path(scratch), dtype, device)
        manifest = _manifest(wanted, source)
        settings = _settings(manifest.model.source, manifest.model.revision)
        parameters = shapes.parameters(settings)
        check_room(named, parameters, dtype, device)
        before = memory.room(device)
        loaded = trainer.load_model(manifest, None, device, dtype)
        if wanted.run is None:
            numbers = shapes.token_numbers(settings.get_text_config(decoder=True).vocab_size)
            loaded = dataclasses.replace(loaded, tokenizer=numbers)
        rows = _rows(wanted, manifest, settings)
        with _settled():
            yield Subject(named, manifest, loaded, rows, device, dtype, parameters, before)


@contextmanager
def _settled() -> Iterator[None]:
    """Within the block garbage is looked for only in what is made there: the rest takes 0.2 s each time."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def check_room(name: str, parameters: int, dtype: str, device: torch.device) -> None:
    """Raise UserError OUT_OF_MEMORY when the weights alone are more than what is free."""
    needed, free = memory.weights(parameters, dtype), memory.free(device)
    if free is not None and needed > free:
        raise UserError(
            Code.OUT_OF_MEMORY,
            f"{name} has {parameters / 1e9:.2f} billion parameters, {needed / 1e9:.1f} GB in {dtype}; "
            f"{free / 1e9:.1f} GB are free on {device}",
            "Take a narrower --dtype, a smaller model, or another --device.",
        )


def _made(source: str, scratch: Path, dtype: str, device: torch.device) -> str:
    """A folder with a model of that shape."""
    settings = shapes.describe(source)
    parameters = shapes.parameters(settings)
    check_room(source, parameters, dtype, device)
    check_room(source, parameters, "bfloat16", torch.device("cpu"))  # it is made there, in that format
    shapes.write(settings, scratch)
    return str(scratch)


def _manifest(wanted: Wanted, source: str) -> config.Manifest:
    """The run to measure: the one that was given, or one over random sentences."""
    run = wanted.run
    if run is not None:
        labels = len(run.task.verbalizer) if run.task.kind == HEADED else 0
        described = model.describe(source, "", classifier_labels=labels) if wanted.source else run.model
        return run.model_copy(update={"model": described, "training": _training(run.training, wanted.rank)})
    classes = _classes(source)
    described = model.describe(source, "", classifier_labels=classes)
    return config.Manifest(
        name="bench",
        model=described,
        task=_synthetic(wanted.tokens, classes),
        data=config.Data(),
        training=_training(config.Training(), wanted.rank),
    )


def _training(numbers: config.Training, rank: int) -> config.Training:
    fields = numbers.model_dump() | {"learning_rate": STANDSTILL, "rank": rank or numbers.rank}
    try:
        return config.Training(**fields)
    except ValidationError as error:
        reason = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise UserError(Code.BAD_OPTION, f"--rank {rank}: {reason}", "The usual rank is 32.") from error


def _synthetic(tokens: int, classes: int) -> config.Task:
    """Two answers of one token each after a text of token numbers; for an encoder its own classes."""
    room = max(tokens + 1, LEAST_ROOM)
    if classes:
        names = {str(label): str(label) for label in range(classes)}
        return config.Task(kind=HEADED, template="{text}", verbalizer=names, max_tokens=room)
    return config.Task(
        kind="classification",
        template="{text}",
        verbalizer={"0": str(FIRST_ORDINARY), "1": str(FIRST_ORDINARY + 1)},
        max_tokens=room,
    )


def _rows(wanted: Wanted, manifest: config.Manifest, settings: Any) -> list[data.Row]:
    if wanted.run is None:
        return _random_rows(wanted.tokens, settings)
    public = manifest.data
    if not public.train:
        raise UserError(
            Code.DATA_NEEDED,
            "the run names no training data to measure with",
            "Leave --run out to measure with random tokens.",
        )
    return data.load_rows(
        public.train, manifest.task, limit=public.train_limit, min_words=public.train_min_words
    )


def _random_rows(tokens: int, settings: Any) -> list[data.Row]:
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
    """How many classes the head of an encoder tells apart; 0 for a model that writes."""
    settings = _settings(source, "")
    classes = int(settings.num_labels) if shapes.has_head(settings) else 0
    if classes == 1:
        raise UserError(
            Code.MODEL_UNSUPPORTED,
            "the model cannot be trained: its head has one output, a score, and tells no classes apart",
            "Take a model whose head has two classes or more, or one without a head, which gets a new one.",
        )
    return classes


def _settings(source: str, revision: str) -> Any:
    """The configuration of a model with weights."""
    folder = model.resolve(source, revision, None)
    return model.understood(
        folder, lambda: AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    )

"""One node's training: takes in updates, makes the next one, measures the model (DESIGN 6).

Synchronous, and used from one thread. It knows nothing of peers: what arrives through `apply` may be
anybody's, and what `step` returns changes nothing here until it comes back through `apply`, after the log
has it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from sfnode.config import Manifest
from sfnode.engine import data, forward, model, probe, tasks
from sfnode.engine.basis import RandomBasis
from sfnode.engine.core import Core, UpdateBatch
from sfnode.engine.estimator import quantise, two_point
from sfnode.engine.folding import LiveWeights
from sfnode.engine.generate import generate
from sfnode.engine.subspace import Subspace
from sfnode.errors import Code, UserError
from sfprotocol.seeds import batch_rows

EVALUATION_BATCH = 32
"""Rows of an evaluation that are tokenised, and cut into passes, together."""

THREADS = torch.get_num_threads()
"""Before anybody has asked for another number."""

Wanted = Callable[[], bool]
"""Whether something that takes long is to be gone on with."""

PREPARED_STEPS = 4
"""Mini-batches that are kept ready; those of steps that are never taken make room."""


class StepResult(NamedTuple):
    """What one step measured."""

    scalars: tuple[int, ...]
    """One quantised directional derivative per seed."""
    loss: float
    """Mean loss of the step's mini-batches."""


def always() -> bool:
    """`Wanted`, whatever happens."""
    return True


class Trainer:
    """A base model, the updates so far, and the data that new ones are measured on."""

    def __init__(self, manifest: Manifest, loaded: model.LoadedModel, rows: Sequence[data.Row]) -> None:
        numbers = manifest.training
        targets = manifest.model.parsed_targets()
        device = loaded.device
        basis = RandomBasis(manifest.run_id, targets, numbers.rank, device)
        self.manifest = manifest
        self.loaded = loaded
        self.core = Core(len(targets), numbers.rank)
        self.space = Subspace(basis, targets, numbers.rank, device, loaded.dtype, rides=not loaded.exact)
        self.live = LiveWeights(loaded, self.space, self.core, self.scale, time.monotonic)
        self._parked = False
        self._rows = rows
        self._tests: dict[int, list[data.Row]] = {}
        self._ahead = ThreadPoolExecutor(2, "ahead")
        self._prepared: OrderedDict[tuple[int, ...], Future[list[tasks.Encoded]]] = OrderedDict()

    @classmethod
    def load(
        cls,
        manifest: Manifest,
        *,
        model_override: Path | None = None,
        data_override: Path | None = None,
        shard: tuple[int, int] | None = None,
        device: str = "cpu",
        dtype: str = "float32",
        training: bool = True,
    ) -> Trainer:
        """Load model and training data.

        `model_override` and `data_override` replace the manifest's sources (the manifest's limit on rows is
        not for a node's own data); `shard` (k, n) keeps every n-th training row from row k on; without
        `training` no training rows are read and `step` must not be called. `dtype` as for `model.load`.
        Raises UserError MODEL_*, DATA_* or DEVICE.
        """
        where = usable_device(device)
        rows = _training_rows(manifest, data_override, shard) if training else []
        return cls(manifest, load_model(manifest, model_override, where, dtype), rows)

    def scale(self, epoch: int) -> float:
        """How far one unit of an epoch's core moves a weight: learning rate times scalar_delta.

        The rate is rounded to float32, since the last bits of a cosine differ between machines.
        """
        numbers = self.manifest.training
        return float(np.float32(numbers.rate(epoch))) * numbers.scalar_delta

    def apply(self, batch: UpdateBatch) -> None:
        """Take in new updates, own ones too: the core at once and exactly, the weights soon."""
        self.live.take(batch)

    def prepare(self, seeds: Sequence[int]) -> None:
        """Have the mini-batches of a coming step tokenised meanwhile, in a thread of its own."""
        self._prepared[tuple(seeds)] = self._ahead.submit(self._mini_batches, tuple(seeds))
        while len(self._prepared) > PREPARED_STEPS:
            self._prepared.popitem(last=False)

    def step(self, seeds: Sequence[int], epoch: int) -> StepResult:
        """Measure one update per seed in the subspace of `epoch`, each on the mini-batch its seed draws."""
        numbers = self.manifest.training
        self.unpark()
        self.live.follow()
        directions = self.space.directions(seeds, epoch)
        self.space.expect(min(epoch + 1, numbers.epochs - 1), self._ahead)
        ahead = self._prepared.pop(tuple(seeds), None)
        batches = self._mini_batches(seeds) if ahead is None else ahead.result()
        estimates = two_point(self.loaded, directions, batches, numbers.epsilon)
        scalars = tuple(
            quantise(estimate.alpha, numbers.scalar_delta, numbers.scalar_limit) for estimate in estimates
        )
        return StepResult(scalars, sum(estimate.loss for estimate in estimates) / len(estimates))

    def park(self) -> None:
        """Give back the device's memory until the model is needed again, which brings it back by itself."""
        if not self._parked:
            self._parked = True
            self._put_aside()

    def unpark(self) -> None:
        """Bring the model back to its device, every bit as it was.

        Raises UserError OUT_OF_MEMORY, and the model is put aside as before, if there is no room for it.
        """
        if self._parked:
            try:
                self._move(self.loaded.device)
            except torch.OutOfMemoryError as error:
                self._put_aside()
                raise _no_room(self.loaded.device) from error
            self._parked = False

    def use_threads(self, count: int | None, most: int | None) -> None:
        """Compute with so many CPU threads from now on; None: as many as there were at first, or `most`."""
        torch.set_num_threads(count or min(THREADS, most or THREADS))

    def _put_aside(self) -> None:
        self._move(torch.device("cpu"))
        _give_back(self.loaded.device)

    def _move(self, device: torch.device) -> None:
        self.loaded.model.to(device)
        self.space.move(device)

    def evaluate(self, limit: int = 0, wanted: Wanted = always) -> tasks.Evaluation:
        """Measure the model as of now, refolded, on `limit` test rows (0: as many as the manifest says).

        Raises UserError PAUSED as soon as it is no longer `wanted`, which is asked between two batches.
        """
        self.unpark()
        self.live.refold()
        return self._evaluate(limit, wanted)

    def evaluate_base(self, limit: int = 0, wanted: Wanted = always) -> tasks.Evaluation:
        """The same measurement of the base model."""
        self.unpark()
        with self.live.at_base():
            return self._evaluate(limit, wanted)

    def generate(self, prompt: str, tokens: int) -> tuple[str, str]:
        """What the base model and the model as of now write after `prompt`. Raises UserError BAD_OPTION."""
        self.unpark()
        with self.live.at_base():
            base = generate(self.loaded, prompt, tokens)
        return base, generate(self.loaded, prompt, tokens)

    def _mini_batches(self, seeds: Sequence[int]) -> list[tasks.Encoded]:
        return [self._mini_batch(seed) for seed in seeds]

    def _mini_batch(self, seed: int) -> tasks.Encoded:
        chosen = batch_rows(seed, self.manifest.training.batch_size, len(self._rows)).tolist()
        return tasks.encode(self.manifest.task, self.loaded.tokenizer, [self._rows[row] for row in chosen])

    def _evaluate(self, limit: int, wanted: Wanted) -> tasks.Evaluation:
        count = limit or self.manifest.data.test_limit
        if count not in self._tests:
            self._tests[count] = _test_rows(self.manifest, count)

        def score(encoded: tasks.Encoded) -> tasks.Scored:
            if not wanted():
                raise UserError(
                    Code.PAUSED,
                    "the node was paused while it measured the model",
                    "Ask again; a node that is paused already measures all the same.",
                )
            return forward.score_in_passes(self.loaded, encoded)

        task, tokenizer = self.manifest.task, self.loaded.tokenizer
        return tasks.evaluate(task, tokenizer, self._tests[count], score, EVALUATION_BATCH)


def _give_back(device: torch.device) -> None:
    """What torch keeps of a device's memory for later, others may have."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def _no_room(device: torch.device) -> UserError:
    return UserError(
        Code.OUT_OF_MEMORY,
        f"there is no room for the model on {str(device)!r} any more",
        "See what else uses its memory. A node that was to go on after a pause tries again by itself.",
    )


def load_model(
    manifest: Manifest, override: Path | None, device: torch.device, dtype: str
) -> model.LoadedModel:
    """`model.load`, and a probe whether all targets can be moved. Raises UserError as that does."""
    loaded = model.load(manifest, override=override, device=device, dtype=dtype)
    wrong = model.understood(loaded.folder, lambda: probe.complaint(loaded))
    if wrong:
        raise model.unsupported(loaded.folder, wrong)
    return loaded


def _training_rows(
    manifest: Manifest, override: Path | None, shard: tuple[int, int] | None
) -> list[data.Row]:
    """The rows that this node draws its mini-batches from."""
    public = manifest.data
    source, limit = (public.train, public.train_limit) if override is None else (str(override), 0)
    if not source:
        raise UserError(
            Code.DATA_NEEDED,
            "the run has no public training data: every trainer brings its own",
            "Give yours with --data FILE.",
        )
    rows = data.load_rows(source, manifest.task, limit=limit, min_words=public.train_min_words)
    return data.shard(rows, *shard) if shard else rows


def _test_rows(manifest: Manifest, limit: int) -> list[data.Row]:
    """The rows that every node measures the model on."""
    source = manifest.data.test
    if not source:
        raise UserError(
            Code.DATA_NEEDED,
            "the run names no test data, so the model cannot be evaluated",
            "Export the model with `sfnode export` and evaluate it on data of your own.",
        )
    return data.load_rows(source, manifest.task, limit=limit)


def usable_device(name: str) -> torch.device:
    """The device of that name, tried out. Raises UserError DEVICE."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).add_(1).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            Code.DEVICE,
            f"the device {name!r} cannot be used here: {reason}",
            "Use --device cpu, or install a torch build that supports the device.",
        ) from error
    return device

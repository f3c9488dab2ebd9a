"""Training without a network: applies updates, measures the next ones, evaluates and exports (DESIGN 6).

Synchronous, and for one thread but for `mini_batches`. It knows nothing of peers: what comes through `apply`
may be anybody's, and what `step` returns changes nothing here until it is applied.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from sfnode.engine import forward, line, target_check
from sfnode.engine.basis import RandomBasis
from sfnode.engine.core import Core, UpdateBatch
from sfnode.engine.estimator import Estimate, quantise, two_point
from sfnode.engine.export import export_lora, export_model
from sfnode.engine.merging import MergedWeights
from sfnode.engine.mini_batches import MiniBatches
from sfnode.engine.subspace import Subspace
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest, Task
from sfnode.models import loader
from sfnode.models.generation import generate
from sfnode.schema.evaluation import Evaluation
from sfnode.tasks import calibration, dataset
from sfnode.tasks.encoding import Encoded, Forward, Prior, Scored, encode, evaluate
from sfprotocol.decisions import RATE_ONE
from sfprotocol.seeds import I64, batch_rows, derive_key, stream

EVALUATION_BATCH = 32
"""Rows of an evaluation that are tokenised and cut into passes together."""

THREADS = torch.get_num_threads()
"""CPU threads that torch uses unless told otherwise."""

GoOn = Callable[[], bool]
"""Asked now and then whether a long measurement should go on."""


class LineSearch(Protocol):
    """Whoever looks for a place on a line (`organising.line_search`)."""

    @property
    def amounts(self) -> Sequence[float]:
        """The c at which losses are wanted."""
        ...

    @property
    def wanted(self) -> range:
        """Numbers of the rows that are wanted next; none at the end."""
        ...

    def take(self, losses: NDArray[np.float64]) -> None:
        """Take the losses of these rows, (rows, amounts)."""
        ...


class StepResult(NamedTuple):
    """Outcome of one step."""

    scalars: tuple[int, ...]
    """One quantised directional derivative per seed."""
    loss: float
    """Mean loss of the step's mini-batches, but for those whose measurement failed; NaN if all did."""
    failed: int
    """Measurements that gave no finite number; their scalars are 0."""


def always() -> bool:
    """Go on whatever happens."""
    return True


class Trainer:
    """A base model, the updates so far, and the rows that new ones are measured on.

    Use `load` to make one from a manifest, and `close` or a `with` block to end its threads.
    """

    def __init__(self, manifest: Manifest, loaded: loader.LoadedModel, rows: Sequence[dataset.Row]) -> None:
        numbers = manifest.training
        targets = manifest.model.parsed_targets()
        device = loaded.device
        basis = RandomBasis(manifest.run_id, targets, numbers.rank, device)
        self.manifest = manifest
        self.run = manifest.parameters()
        self.loaded = loaded
        self.core = Core(len(targets), numbers.rank)
        self.space = Subspace(basis, targets, numbers.rank, device, loaded.dtype, live_core=not loaded.exact)
        self.scale = scale_of(manifest)
        self.weights = MergedWeights(loaded, self.space, self.core, self.scale, time.monotonic)
        self._offloaded = False
        self._rows = rows
        self._held_out: dict[tuple[dataset.HeldOut, int], list[dataset.Row]] = {}
        """Rows that were measured on, by the number asked for."""
        self._ahead = ThreadPoolExecutor(2, "ahead")  # starts a thread only when there is work for it
        self.mini_batches = MiniBatches(self._mini_batch, self._ahead)
        """Mini-batches of coming steps; any thread may prepare them."""

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
        """Load the base model and the training rows of a run.

        `model_override` and `data_override` replace the manifest's sources (the manifest's limit on rows does
        not apply to a node's own data); `shard` (k, n) keeps every n-th training row from row k on; without
        `training` no training rows are read and `step` must not be called. `dtype` as for
        `models.loader.load`. Raises UserError MODEL_*, DATA_* or DEVICE.
        """
        where = usable_device(device)
        rows = _training_rows(manifest, data_override, shard) if training else []
        return cls(manifest, load_model(manifest, model_override, where, dtype), rows)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads; no step may follow."""
        self._ahead.shutdown(cancel_futures=True)

    def begin(self, cores: Mapping[int, I64]) -> None:
        """Begin with the cores of a checkpoint, in place of the updates that it stands for; before anything
        else."""
        self.weights.begin(cores)

    def apply(self, batch: UpdateBatch) -> None:
        """Add updates, own ones too: to the core at once and exactly, to the weights soon.

        None of them may come twice. Updates with negated scalars subtract what was added.
        """
        self.weights.add(batch)

    def step(self, seeds: Sequence[int], epoch: int) -> StepResult:
        """Measure one update per seed, labelled `epoch`, each on the mini-batch that its seed draws.

        Raises as `estimate` does.
        """
        numbers = self.manifest.training
        estimates = self.estimate(seeds, epoch, numbers.epsilon)
        scalars = tuple(
            quantise(estimate.alpha, numbers.scalar_delta, numbers.scalar_limit) for estimate in estimates
        )
        losses = [estimate.loss for estimate in estimates if not estimate.failed]
        loss = sum(losses) / len(losses) if losses else math.nan
        return StepResult(scalars, loss, len(estimates) - len(losses))

    def estimate(self, seeds: Sequence[int], epoch: int, distance: float) -> list[Estimate]:
        """Return what the losses at `distance` to both sides along the direction of each seed say.

        The two-point estimate of Malladi et al. 2023 in all targets at once (DESIGN 3). Raises UserError
        OUT_OF_MEMORY when an offloaded model finds no room, DATA_MALFORMED for a row that does not fit.
        """
        self.restore()
        subspace = self.run.subspace_of(epoch)
        self.weights.follow(subspace)
        directions = self.space.directions(seeds, subspace)
        coming = epoch + 1 if self.run.organised else min(epoch + 1, self.run.last_epoch)
        self.space.expect(self.run.subspace_of(coming), self._ahead)
        return two_point(self.loaded, directions, self.mini_batches.take(seeds), distance)

    def offload(self) -> None:
        """Move the model to main memory until it is needed again, which restores it by itself."""
        if not self._offloaded:
            self._offloaded = True
            self._move_away()

    def restore(self) -> None:
        """Move the model back to its device, every bit as it was.

        Raises UserError OUT_OF_MEMORY, and the model stays offloaded, if there is no room for it.
        """
        if self._offloaded:
            try:
                self._move(self.loaded.device)
            except torch.OutOfMemoryError as error:
                self._move_away()
                raise _no_room(self.loaded.device) from error
            self._offloaded = False

    def use_threads(self, count: int | None, most: int | None) -> None:
        """Compute with `count` CPU threads from now on; None: with torch's usual number, or `most` if
        less."""
        torch.set_num_threads(count or min(THREADS, most or THREADS))

    def _move_away(self) -> None:
        self._move(torch.device("cpu"))
        _give_back(self.loaded.device)

    def _move(self, device: torch.device) -> None:
        self.loaded.model.to(device)
        self.space.move(device)

    def prior(self, count: int = calibration.CALIBRATION_ROWS, go_on: GoOn = always) -> Prior:
        """Return the base model's prior over the task's answers: from `count` (0: all) of the run's public
        training rows, whose labels are not looked at.

        Raises UserError BAD_OPTION if the task has no fixed answers, DATA_* without such rows, PAUSED.
        """
        rows = dataset.select(dataset.training_rows(self.manifest.data, self.manifest.task), count)
        self.restore()
        with self.weights.at_base():
            task, tokenizer = self.manifest.task, self.loaded.tokenizer
            return calibration.prior(task, tokenizer, rows, self._forward(go_on), EVALUATION_BATCH)

    def evaluate(self, limit: int = 0, go_on: GoOn = always, rows: dataset.HeldOut = "test") -> Evaluation:
        """Measure the rebuilt model as of now on `limit` of these rows (0: as many as the manifest says).

        Raises UserError DATA_*, and PAUSED when `go_on`, asked between two batches, says no.
        """
        self.restore()
        self.weights.rebuild()
        return self._evaluate(limit, go_on, rows)

    def evaluate_base(
        self,
        limit: int = 0,
        go_on: GoOn = always,
        rows: dataset.HeldOut = "test",
        prior: Prior | None = None,
    ) -> Evaluation:
        """Measure the base model like `evaluate`; with its `prior` it is the calibrated, untrained model."""
        self.restore()
        with self.weights.at_base():
            return self._evaluate(limit, go_on, rows, prior)

    def cores(self) -> dict[int, I64]:
        """Return a copy of the cores of all subspaces, (layers, rank, rank) each."""
        return {subspace: core.copy() for subspace, core in self.core.cores().items()}

    def search(self, after: Mapping[int, I64], search: LineSearch, go_on: GoOn = always) -> int:
        """Let a line search look from the weights as of now towards those with the cores `after`, on
        validation rows; return how many example-forwards it took.

        Raises UserError DATA_*, and PAUSED when `go_on`, asked before each part, says no.
        """
        step = self._line_to(after)
        rows = line_rows(self.manifest.task, self._held_out_rows("validation", 0))
        taken = 0
        while wanted := search.wanted:
            if not go_on():
                raise _paused()
            encoded = line_batches(self.manifest, self.loaded.tokenizer, rows[wanted.start : wanted.stop])
            search.take(step.losses(encoded, search.amounts))
            taken += len(wanted) * len(search.amounts)
        return taken

    def evaluate_towards(
        self, after: Mapping[int, I64], amount: float, go_on: GoOn = always, rows: dataset.HeldOut = "test"
    ) -> Evaluation:
        """Measure the model at `amount` of the way to the cores `after` like `evaluate`."""
        with self._line_to(after).at(amount) as perturb:
            return self._evaluate(0, go_on, rows, perturb=perturb)

    def _line_to(self, after: Mapping[int, I64]) -> line.Line:
        self.restore()
        self.weights.rebuild()
        return line.Line(self.loaded, self.space, self.scale, line.difference(after, self.core.cores()))

    def generate(self, prompt: str, tokens: int) -> tuple[str, str]:
        """Return what the base model and the model as of now write after `prompt`, in at most `tokens`
        tokens.

        Raises UserError BAD_OPTION for a model that classifies.
        """
        self.restore()
        with self.weights.at_base():
            base = generate(self.loaded, prompt, tokens)
        return base, generate(self.loaded, prompt, tokens)

    def export(self, out: Path, form: Literal["hf", "lora"] = "hf") -> None:
        """Write the model as of now to the new folder `out`.

        `hf` is a whole Hugging Face model, `lora` a PEFT adapter of what training changed. Raises UserError
        BAD_OPTION or DISK_FULL (`engine.export`).
        """
        self.restore()
        (export_model if form == "hf" else export_lora)(self, out)

    def _mini_batch(self, seed: int) -> Encoded:
        chosen = batch_rows(seed, self.manifest.training.batch_size, len(self._rows)).tolist()
        return encode(self.manifest.task, self.loaded.tokenizer, [self._rows[row] for row in chosen])

    def _evaluate(
        self,
        limit: int,
        go_on: GoOn,
        which: dataset.HeldOut,
        prior: Prior | None = None,
        perturb: forward.Perturb | None = None,
    ) -> Evaluation:
        task, tokenizer = self.manifest.task, self.loaded.tokenizer
        rows = self._held_out_rows(which, limit)
        return evaluate(task, tokenizer, rows, self._forward(go_on, perturb), EVALUATION_BATCH, prior)

    def _held_out_rows(self, which: dataset.HeldOut, limit: int) -> list[dataset.Row]:
        if (which, limit) not in self._held_out:
            found = dataset.held_out_rows(self.manifest.data, self.manifest.task, which, limit)
            self._held_out[which, limit] = found
        return self._held_out[which, limit]

    def _forward(self, go_on: GoOn, perturb: forward.Perturb | None = None) -> Forward:
        """Return what scores a batch with the model as it is; it raises UserError PAUSED."""

        def score(encoded: Encoded) -> Scored:
            if not go_on():
                raise _paused()
            return forward.score_in_passes(self.loaded, encoded, perturb)

        return score


def scale_of(manifest: Manifest) -> Callable[[int], float]:
    """Return the function that says by how much one unit of a subspace's core changes a weight.

    In an open run, where every epoch has a subspace, that is its learning rate times scalar_delta. The rate
    is rounded to float32, since the last bits of a cosine differ between machines. In an organised run the
    rates are in the core already, in units of 2^-32 (SPEC O8).
    """
    numbers = manifest.training
    if manifest.parameters().organised:
        return lambda subspace: numbers.scalar_delta / RATE_ONE
    return lambda epoch: float(np.float32(numbers.rate(epoch))) * numbers.scalar_delta


def line_rows(task: Task, rows: Sequence[dataset.Row]) -> list[dataset.Row]:
    """Return rows in the order in which a line search takes them, which is the same for everybody: shuffled,
    as files are often sorted, and the classes of a labelled task by turns, as long as each has rows."""
    order = np.argsort(stream(derive_key(b"sfnode line search"), 0, len(rows)))
    chosen = [rows[place] for place in order]
    if not task.labelled:
        return chosen
    labels = [str(row.get(task.label_field)) for row in chosen]
    seen: Counter[str] = Counter()
    turns = []
    for label in labels:
        turns.append(seen[label])
        seen[label] += 1
    return [chosen[place] for place in np.argsort(turns, kind="stable")]


def line_batches(manifest: Manifest, tokenizer: Any, rows: Sequence[dataset.Row]) -> list[Encoded]:
    """Return rows as batches of which a line search measures losses, the same ones for every c: all in their
    order, EVALUATION_BATCH at a time."""
    return [
        encode(manifest.task, tokenizer, rows[start : start + EVALUATION_BATCH])
        for start in range(0, len(rows), EVALUATION_BATCH)
    ]


def _paused() -> UserError:
    return UserError(
        Code.PAUSED,
        "the node was paused while it measured the model",
        "Ask again; a node that is paused already measures all the same.",
    )


def _give_back(device: torch.device) -> None:
    """Return to the system what torch keeps of a device's memory for later."""
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
) -> loader.LoadedModel:
    """Load the manifest's base model and check that all targets can be perturbed.

    Raises UserError as `models.loader.load` does.
    """
    loaded = loader.load(manifest, override=override, device=device, dtype=dtype)
    problem = loader.with_user_errors(loaded.folder, lambda: target_check.problem(loaded))
    if problem:
        raise loader.unsupported(loaded.folder, problem)
    return loaded


def _training_rows(
    manifest: Manifest, override: Path | None, shard: tuple[int, int] | None
) -> list[dataset.Row]:
    """Return the rows that this node draws its mini-batches from."""
    if override is None:
        rows = dataset.training_rows(manifest.data, manifest.task)
    else:
        rows = dataset.load_rows(str(override), manifest.task, min_words=manifest.data.train_min_words)
    return dataset.shard(rows, *shard) if shard else rows


def usable_device(name: str) -> torch.device:
    """Return the device of that name after trying it out. Raises UserError DEVICE."""
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

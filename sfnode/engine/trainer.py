"""Training without a network: applies updates, measures the next ones, evaluates and exports (DESIGN 6).

Synchronous, and for one thread but for `mini_batches`. It knows nothing of peers: what comes through `apply`
may be anybody's, and what `step` returns changes nothing here until it is applied.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray

from sfnode.engine import drift, forward, line, making_bases, samples, slopes, step_size, target_check
from sfnode.engine.adapter import Fit
from sfnode.engine.basis import PublishedBasis, basis_of
from sfnode.engine.core import Core, UpdateBatch
from sfnode.engine.decay import Decay
from sfnode.engine.estimator import Estimate, estimates, quantise
from sfnode.engine.export import export_lora, export_model
from sfnode.engine.generation import complete
from sfnode.engine.merging import MergedWeights
from sfnode.engine.mini_batches import MiniBatches
from sfnode.engine.noise import LocalNoise
from sfnode.engine.subspace import Subspace
from sfnode.errors import Code, UserError
from sfnode.manifest import PRIOR_ONE, Manifest, Task
from sfnode.models import bases as published_bases
from sfnode.models import loader
from sfnode.schema.evaluation import Evaluation, LayeredDrift
from sfnode.schema.provenance import Provenance
from sfnode.tasks import calibration, dataset
from sfnode.tasks.encoding import (
    Encoded,
    Forward,
    Prior,
    Scored,
    ScoredBatch,
    encode,
    measure,
    scored_batches,
)
from sfnode.tasks.shard import CENTRED, Shard
from sfprotocol.decisions import RATE_ONE, Bases
from sfprotocol.seeds import I64, derive_key, stream

EVALUATION_BATCH = 32
"""Rows of an evaluation that are tokenised and cut into passes together."""

THREADS = torch.get_num_threads()
"""CPU threads that torch uses unless told otherwise."""

BASE = b"base"
"""Stands for the digest of the base model's cores."""

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

    def __init__(
        self,
        manifest: Manifest,
        loaded: loader.LoadedModel,
        rows: Sequence[dataset.Row],
        public: Sequence[dataset.Row] | None = None,
        bases: Path | None = None,
        secret: bytes = b"",
        noise: LocalNoise | None = None,
        data: Path | None = None,
        core: Core | None = None,
    ) -> None:
        """`public`: the run's public training rows, if they were read already; `bases`: the folder with
        published bases, for a run that has them. `secret` hides which rows are drawn (`tasks.shard`), and
        `noise` what is measured on them. `data` is the folder with files of the run's data. `core` is that of
        the trainer of which this one is a replica (`engine.replicas`)."""
        numbers = manifest.training
        targets = manifest.model.parsed_targets()
        device = loaded.device
        self._basis = basis_of(manifest, bases, device)
        self.manifest = manifest
        self.run = manifest.parameters()
        self.loaded = loaded
        self.core = Core(len(targets), numbers.rank) if core is None else core
        self._meter = drift.Meter(self)
        self.space = Subspace(
            self._basis, targets, numbers.rank, device, loaded.dtype, live_core=not loaded.exact
        )
        self.scale = scale_of(manifest)
        self.decay = Decay(numbers.decay)
        self.weights = MergedWeights(loaded, self.space, self.core, self.scale, time.monotonic, self.decay)
        self._offloaded = False
        self._rows = rows
        self._data = data
        self._public = None if public is None else dataset.select(list(public), calibration.CALIBRATION_ROWS)
        """Public training rows for priors; None if they were not read yet."""
        self._held_out: dict[tuple[dataset.HeldOut, int], list[dataset.Row]] = {}
        """Rows that were measured on, by the number asked for."""
        self._base: dict[tuple[dataset.HeldOut, int, bool], Evaluation] = {}
        """Results of the base model, which do not change."""
        self._base_scored: dict[tuple[dataset.HeldOut, int], list[ScoredBatch]] = {}
        """Scores of the base model on rows of a labelled task, until they were calibrated, too."""
        self._priors: dict[bytes, Prior] = {}
        """Priors of the base model and of the last model asked about, by the digest of their cores."""
        self._ahead = ThreadPoolExecutor(2, "ahead")  # starts a thread only when there is work for it
        shard = Shard(
            manifest.task, loaded.tokenizer, rows, numbers.batch_size, self.calibration_rows, secret
        )
        self.odds = shard.odds if rows else (0, 0)
        """Rows that a mini-batch draws, and of how many."""
        self._noise = noise
        self.mini_batch = shard.mini_batch
        """Encodes the mini-batch that a seed draws."""
        self.mini_batches = MiniBatches(shard.mini_batch, self._ahead, numbers.batch_updates)
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
        bases: Path | None = None,
        secret: bytes = b"",
        noise: LocalNoise | None = None,
        data: Path | None = None,
    ) -> Self:
        """Load the base model and the training rows of a run.

        `model_override` and `data_override` replace the manifest's sources (the manifest's limit on rows does
        not apply to a node's own data); `shard` (k, n) keeps every n-th training row from row k on; without
        `training` no training rows are read and `step` must not be called. `dtype` as for
        `models.loader.load`; `bases` is the folder with published bases; `secret`, `noise` and `data` as in
        the constructor. Raises UserError MODEL_*, DATA_* or DEVICE.
        """
        where = usable_device(device)
        rows, public = _training_rows(manifest, data_override, shard, data) if training else ([], None)
        loaded = load_model(manifest, model_override, where, dtype)
        return cls(manifest, loaded, rows, public, bases, secret, noise, data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads; no step may follow."""
        self._ahead.shutdown(cancel_futures=True)

    @property
    def dtype(self) -> str:
        """Number format of the computation, such as `float32`."""
        return str(self.loaded.dtype).removeprefix("torch.")

    def begin(self, cores: Mapping[int, I64]) -> None:
        """Begin with the cores of a checkpoint, in place of the updates that it stands for; before anything
        else."""
        self.weights.begin(cores)

    def use_bases(self, published: Sequence[Bases]) -> None:
        """Take the published bases of each subspace from here from now on, ascending from subspace 0.

        To be called again when some have come: until then steps go on without the updates in them, and
        whatever needs the exact model raises UserError BASES_MISSING.
        """
        basis, subspaces = self._basis, self.core.touched()
        if isinstance(basis, PublishedBasis):
            before = [basis.digest(subspace) for subspace in subspaces]
            basis.follow(published)
            self.space.forget()
            if self.weights.incomplete or before != [basis.digest(subspace) for subspace in subspaces]:
                self.weights.renew()

    def apply(self, batch: UpdateBatch) -> None:
        """Add updates, own ones too: to the core at once and exactly, to the weights soon.

        None of them may come twice. Updates with negated scalars subtract what was added.
        """
        self.weights.add(batch)

    def step(self, seeds: Sequence[int], epoch: int) -> StepResult:
        """Measure one update per seed, labelled `epoch`, each on the mini-batch that its seed draws, or the
        first one of its group: in a run with groups seeds are those of whole groups.

        Raises as `estimate` does.
        """
        numbers = self.manifest.training
        found = self.estimate(seeds, epoch, numbers.epsilon)
        told = self._noise or float
        scalars = tuple(
            quantise(told(estimate.alpha), numbers.scalar_delta, numbers.scalar_limit) for estimate in found
        )
        losses = [estimate.loss for estimate in found if not estimate.failed]
        loss = sum(losses) / len(losses) if losses else math.nan
        return StepResult(scalars, loss, len(found) - len(losses))

    def recompute(self, seeds: Sequence[int], epoch: int) -> StepResult:
        """Measure updates as `step` does, with exactly the updates applied that there are: to audit them.

        Raises as `estimate` does, and BASES_MISSING.
        """
        self.restore()
        self.weights.rebuild()
        return self.step(seeds, epoch)

    def estimate(self, seeds: Sequence[int], epoch: int, distance: float) -> list[Estimate]:
        """Return what the losses at `distance` along the directions of these seeds say, of whole groups in a
        run that has them (`engine.estimator`).

        All targets move at once (DESIGN 3). Raises UserError OUT_OF_MEMORY when an offloaded model finds no
        room, DATA_MALFORMED for a row that does not fit.
        """
        if len(seeds) % self.manifest.training.batch_updates:
            raise ValueError(f"{len(seeds)} seeds are not those of whole groups")
        self.restore()
        subspace = self.run.subspace_of(epoch)
        self.weights.follow(subspace)
        directions = self.space.directions(seeds, subspace)
        coming = epoch + 1 if self.run.organised else min(epoch + 1, self.run.last_epoch)
        self.space.expect(self.run.subspace_of(coming), self._ahead)
        group, batches = self.manifest.training.group, self.mini_batches.take(seeds)
        return estimates(self.loaded, directions, batches, distance, group)

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

    def prior(self, go_on: GoOn = always) -> Prior:
        """Return the prior over the task's answers of the model as of now, (K,).

        From CALIBRATION_ROWS of the run's public training rows, whose labels are not looked at; where they
        are not within reach it is the manifest's, which is the base model's. Raises UserError BAD_OPTION if
        the task has no fixed answers, DATA_* if there are neither rows nor a prior in the manifest, PAUSED.
        """
        self.restore()
        self.weights.rebuild()
        return self._prior(self.core.digest(), go_on)

    def named_prior(self) -> dict[str, float]:
        """Return the prior of the model as of now by answer, with 0 for the likeliest. Raises as `prior`
        does."""
        parts = (part / PRIOR_ONE for part in calibration.for_manifest(self.prior()))
        return dict(zip(self.manifest.task.verbalizer.values(), parts, strict=True))

    def base_prior(self, go_on: GoOn = always) -> Prior:
        """Return the same of the base model. Raises as `prior` does."""
        self.restore()
        with self.weights.at_base():
            return self._prior(BASE, go_on)

    def evaluate(self, limit: int = 0, go_on: GoOn = always, rows: dataset.HeldOut = "test") -> Evaluation:
        """Measure the rebuilt model as of now on `limit` of these rows (0: as many as the manifest says).

        Where the run's loss is centred it is calibrated by the prior that it has now. Raises UserError
        DATA_*, and PAUSED when `go_on`, asked between two batches, says no.
        """
        prior = self.prior(go_on) if self.manifest.task.loss == CENTRED else None
        self.restore()
        self.weights.rebuild()
        return self._evaluate(limit, go_on, rows, prior)

    def evaluate_base(
        self,
        limit: int = 0,
        go_on: GoOn = always,
        rows: dataset.HeldOut = "test",
        *,
        calibrated: bool = False,
    ) -> Evaluation:
        """Measure the base model like `evaluate`, once; `calibrated`: less its own prior.

        Raises as `evaluate` does, and with `calibrated` as `prior`.
        """
        key = rows, limit, calibrated
        if key not in self._base:
            prior = self.base_prior(go_on) if calibrated else None
            found = self._base_scored.pop((rows, limit), None) or self._score_base(limit, go_on, rows)
            if self.manifest.task.labelled and not calibrated:
                self._base_scored[rows, limit] = found
            self._base[key] = measure(self.manifest.task, found, prior)
        return self._base[key]

    def drift(self, text: str = "") -> LayeredDrift:
        """Return how far the model as of now is from the base model, also by its answers on a neutral text,
        or on another one. Raises as `engine.drift.Meter.measure`."""
        return self._meter.measure(text)

    def _score_base(self, limit: int, go_on: GoOn, which: dataset.HeldOut) -> list[ScoredBatch]:
        self.restore()
        with self.weights.at_base():
            return list(self._score(limit, go_on, which))

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

    def shares(
        self,
        after: Mapping[int, I64],
        updates: Sequence[slopes.Updates],
        rows: int,
        turn: int,
        go_on: GoOn = always,
    ) -> tuple[list[slopes.Share], int]:
        """Return the share of each of these `updates` in what leads from the weights as of now to those with
        the cores `after`, on so many validation rows, and the example-forwards that it took.

        Others of the rows with every `turn`. Raises UserError DATA_*, PAUSED, and as `slopes.measure`.
        """
        self.restore()
        self.weights.rebuild(max(after, default=0))
        task, held_out = self.manifest.task, self._held_out_rows("validation", 0)
        batches = slopes.batches_of(task, self.loaded.tokenizer, line_rows(task, held_out), rows, turn)
        step, delta = line.difference(after, self.core.cores()), self.manifest.training.scalar_delta
        scale = self.weights.scale
        found = slopes.shares(self.loaded, self.space, scale, step, updates, batches, delta, go_on)
        if found is None:
            raise _paused()
        return found

    def suitable_rate(self, epoch: int) -> float | None:
        """Return the rate that suits the subspace of an epoch at the weights as of now, by `step_size`; None
        where that cannot be told, and without training rows. Raises as `estimate` does."""
        if not self._rows:
            return None
        self.restore()
        self.weights.rebuild()
        subspace, epsilon = self.run.subspace_of(epoch), self.manifest.training.epsilon
        found, _ = step_size.measure(
            self.loaded, self.space, subspace, self.mini_batch, epsilon, self.run.run_id
        )
        return found.rate if found else None

    def make_bases(self, folder: Path) -> str:
        """Make bases from gradients at the weights as of now, write them to a folder, and return their
        digest, in hex. Raises UserError as `making_bases.make`, OSError."""
        return published_bases.write(folder, making_bases.make(self, "gradients").pairs)

    def evaluate_towards(
        self, after: Mapping[int, I64], amount: float, go_on: GoOn = always, rows: dataset.HeldOut = "test"
    ) -> Evaluation:
        """Measure the model at `amount` of the way to the cores `after` like `evaluate`."""
        if not amount:  # what does not count makes nothing older
            return self.evaluate(0, go_on, rows)
        with self._line_to(after).at(amount) as perturb:
            centred = self.manifest.task.loss == CENTRED
            prior = self._measured_prior(go_on, perturb) if centred else None
            return self._evaluate(0, go_on, rows, prior, perturb)

    def _line_to(self, after: Mapping[int, I64]) -> line.Line:
        self.restore()
        self.weights.rebuild(max(after, default=0))
        step = line.difference(after, self.core.cores())
        return line.Line(self.loaded, self.space, self.weights.scale, step)

    def generate(self, prompt: str, tokens: int) -> tuple[str, str]:
        """Return what the base model and the model as of now write after `prompt`, in at most `tokens`
        tokens.

        Raises UserError BAD_OPTION for a model that classifies.
        """
        self.restore()
        with self.weights.at_base():
            (base,) = complete(self.loaded, [prompt], tokens)
        (now,) = complete(self.loaded, [prompt], tokens)
        return base, now

    def read_test_rows(self) -> None:
        """Read the test rows, so that questions about them read no file. Any thread may call this: it touches
        nothing that training uses. Raises UserError DATA_*."""
        self._held_out_rows("test", 0)

    def answer(self, rows: int, *, base: bool) -> list[samples.Answered]:
        """Return how the model as of now, or the base model, answers `rows` test rows, for everybody the same
        ones: by turns of each class. In a run with a centred loss scores are less the model's prior.

        Raises UserError DATA_*, and as `prior` does.
        """
        task = self.manifest.task
        chosen = line_rows(task, self._held_out_rows("test", 0))[:rows]
        prior = None
        if task.loss == CENTRED:
            prior = self.base_prior() if base else self.prior()
        self.restore()
        if base:
            with self.weights.at_base():
                return samples.answer(self.loaded, task, chosen, self._forward(always), prior)
        self.weights.rebuild()
        return samples.answer(self.loaded, task, chosen, self._forward(always), prior)

    def export(
        self,
        out: Path,
        form: Literal["hf", "lora"] = "hf",
        about: Provenance | None = None,
        rank: int | None = None,
    ) -> Fit | None:
        """Write the model as of now to the new folder `out`.

        `hf` is a whole Hugging Face model, `lora` a PEFT adapter of what training changed, of this rank at
        most; of that, return how well it gives it. `about` is for the model's card. Raises UserError
        BAD_OPTION or DISK_FULL (`engine.export`).
        """
        self.restore()
        if form == "lora":
            return export_lora(self, out, about, rank)
        export_model(self, out, about)
        return None

    def _prior(self, of: bytes, go_on: GoOn) -> Prior:
        """Return the prior of the weights as they are, which are those `of` this digest."""
        if of not in self._priors:
            found = self._measured_prior(go_on)
            self._priors = {kept: self._priors[kept] for kept in self._priors if kept == BASE} | {of: found}
        return self._priors[of]

    def _measured_prior(self, go_on: GoOn, perturb: forward.Perturb | None = None) -> Prior:
        task, tokenizer = self.manifest.task, self.loaded.tokenizer
        if task.prior and not self.calibration_rows():
            return calibration.from_manifest(task)
        rows = self._public_rows() if task.labelled else []
        return calibration.prior(task, tokenizer, rows, self._forward(go_on, perturb), EVALUATION_BATCH)

    def calibration_rows(self) -> list[dataset.Row]:
        """Return up to CALIBRATION_ROWS of the public training rows; none if they are not within reach.

        Raises UserError DATA_MALFORMED and the like.
        """
        try:
            return self._public_rows()
        except UserError as error:
            if error.code not in (Code.DATA_NEEDED, Code.DATA_NOT_FOUND, Code.DATA_DIFFERS):
                raise
            return []

    def _public_rows(self) -> list[dataset.Row]:
        if self._public is None:
            self._public = dataset.select(self.training_rows(), calibration.CALIBRATION_ROWS)
        return self._public

    def training_rows(self) -> list[dataset.Row]:
        """Return the run's public training rows. Raises UserError as `dataset.training_rows`."""
        return dataset.training_rows(self.manifest.data, self.manifest.task, self._data)

    def _evaluate(
        self,
        limit: int,
        go_on: GoOn,
        which: dataset.HeldOut,
        prior: Prior | None,
        perturb: forward.Perturb | None = None,
    ) -> Evaluation:
        return measure(self.manifest.task, self._score(limit, go_on, which, perturb), prior)

    def _score(
        self, limit: int, go_on: GoOn, which: dataset.HeldOut, perturb: forward.Perturb | None = None
    ) -> Iterator[ScoredBatch]:
        """Run the model as it is on held-out rows."""
        task, tokenizer, rows = self.manifest.task, self.loaded.tokenizer, self._held_out_rows(which, limit)
        return scored_batches(task, tokenizer, rows, self._forward(go_on, perturb), EVALUATION_BATCH)

    def _held_out_rows(self, which: dataset.HeldOut, limit: int) -> list[dataset.Row]:
        if (which, limit) not in self._held_out:
            data, task = self.manifest.data, self.manifest.task
            found = dataset.held_out_rows(data, task, which, limit, self._data)
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
    """Return the function that says by how much one unit of a subspace's core changes a weight, where entries
    of the bases are 1.

    In an open run, where every epoch has a subspace, that is its learning rate times scalar_delta. The rate
    is rounded to float32, since the last bits of a cosine differ between machines. In an organised run the
    rates are in the core already, in units of 2^-32 (SPEC O8). The basis's unit is in it, twice: a power of
    two (SPEC R10).
    """
    numbers = manifest.training
    unit = numbers.unit**2
    if manifest.parameters().organised:
        return lambda subspace: numbers.scalar_delta / RATE_ONE * unit
    return lambda epoch: float(np.float32(numbers.rate(epoch))) * numbers.scalar_delta * unit


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
    manifest: Manifest, override: Path | None, shard: tuple[int, int] | None, data: Path | None
) -> tuple[list[dataset.Row], list[dataset.Row] | None]:
    """Return the rows that this node draws its mini-batches from, and the public ones if they were read."""
    if override is None:
        public = rows = dataset.training_rows(manifest.data, manifest.task, data)
    else:
        public = None
        rows = dataset.load_rows(str(override), manifest.task, min_words=manifest.data.train_min_words)
    return dataset.shard(rows, *shard) if shard else rows, public


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


def prior_of(manifest: Manifest, *, device: str, dtype: str, folder: Path | None = None) -> tuple[int, ...]:
    """Return the base model's prior as the manifest has it; () if no rows to measure it on are within reach.

    Of public training rows, or else of test rows, without their labels; `folder` has the files of the run's
    data. Raises UserError as `Trainer.load`.
    """
    data = manifest.data
    if not data.train:
        manifest = manifest.model_copy(update={"data": data.testing_as_training()})
    with Trainer.load(manifest, device=device, dtype=dtype, training=False, data=folder) as trainer:
        return calibration.for_manifest(trainer.base_prior()) if trainer.calibration_rows() else ()

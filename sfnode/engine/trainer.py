"""Training without a network: applies updates, measures the next ones, evaluates and exports (DESIGN 6).

Synchronous, and for one thread but for `mini_batches`. It knows nothing of peers: what comes through `apply`
may be anybody's, and what `step` returns changes nothing here until it is applied.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray

from sfnode.engine import drift, line, making_bases, probe, samples, slopes, step_size
from sfnode.engine.adapter import Fit
from sfnode.engine.basis import PublishedBasis, basis_of
from sfnode.engine.core import Core, UpdateBatch
from sfnode.engine.decay import Decay
from sfnode.engine.devices import usable_device
from sfnode.engine.estimator import Estimate, quantise
from sfnode.engine.export import export_lora, export_model
from sfnode.engine.generation import complete
from sfnode.engine.head import HeadLosses, takes_features
from sfnode.engine.loading import load_model, training_rows
from sfnode.engine.losses import Losses, Priors, line_batches, line_rows
from sfnode.engine.merging import MergedWeights
from sfnode.engine.mini_batches import MiniBatches
from sfnode.engine.noise import LocalNoise
from sfnode.engine.objective import BASE, OWN, GoOn, Objective, always, paused
from sfnode.engine.offloading import Offloading
from sfnode.engine.reward_objective import Rewards
from sfnode.engine.run_rows import RunRows
from sfnode.engine.subspace import Subspace
from sfnode.manifest import Manifest
from sfnode.manifest.task import PRIOR_ONE
from sfnode.models import bases as published_bases
from sfnode.models import loader
from sfnode.schema.evaluation import (
    Evaluation,
    EvaluationOfRows,
    LayeredDrift,
    PassAt,
    ProbeEvaluation,
    StepShare,
)
from sfnode.schema.provenance import Provenance
from sfnode.tasks import calibration, dataset, verifying
from sfnode.tasks.encoding import Prior
from sfprotocol.decisions import RATE_ONE, Bases
from sfprotocol.seeds import I64

THREADS = torch.get_num_threads()
"""CPU threads that torch uses unless told otherwise."""


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
        self._offloading = Offloading(loaded, self.space)
        self._ahead = ThreadPoolExecutor(2, "ahead")  # starts a thread only when there is work for it
        self._noise = noise
        self._rows = rows
        self.run_rows = RunRows(manifest, data, public)
        """Public rows of the run."""
        self.priors = Priors(manifest.task, loaded, self.run_rows)
        losses = HeadLosses if loaded.kept and takes_features(manifest) else Losses
        self.objective: Objective = (
            losses(manifest, loaded, rows, self.run_rows, self.priors, secret)
            if manifest.task.has_slopes
            else Rewards(manifest, loaded, rows, secret)
        )
        """Says what updates measure, and evaluates models."""
        self._base: dict[tuple[dataset.HeldOut, int, bool], Evaluation] = {}
        """Results of the base model, which do not change."""
        self.odds = self.objective.odds if rows else (0, 0)
        """Rows that a mini-batch draws, and of how many."""
        self.mini_batch: Callable[[int], Any] = self.objective.mini_batch
        """Encodes the mini-batch that a seed draws."""
        self.mini_batches = MiniBatches(self.mini_batch, self._ahead, numbers.batch_updates)
        """Mini-batches of coming steps; any thread may prepare them."""

    @classmethod
    def load(
        cls,
        manifest: Manifest,
        *,
        model_override: Path | None = None,
        data_override: Path | None = None,
        skip_bad_rows: bool = False,
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
        not apply to a node's own data, and `skip_bad_rows` to nothing else); `shard` (k, n) keeps every n-th
        training row from row k on; without `training` no training rows are read and `step` must not be
        called. `dtype` as for `models.loader.load`; `bases` is the folder with published bases; `secret`,
        `noise` and `data` as in the constructor. Raises UserError MODEL_*, DATA_* or DEVICE.
        """
        where = usable_device(device)
        rows, public = (
            training_rows(manifest, data_override, shard, data, skip_bad=skip_bad_rows)
            if training
            else ([], None)
        )
        loaded = load_model(manifest, model_override, where, dtype)
        return cls(manifest, loaded, rows, public, bases, secret, noise, data)

    def like(self, manifest: Manifest, bases: Path | None) -> Trainer:
        """Return a trainer on the same model and rows for a manifest with other numbers, or bases."""
        return Trainer(manifest, self.loaded, self._rows, bases=bases, data=self.run_rows.folder)

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

    @property
    def epsilon(self) -> float:
        """Distance of an update's points in this number format."""
        return self.manifest.training.epsilon_in(self.dtype)

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
        found = self.estimate(seeds, epoch, self.epsilon)
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
        return self.objective.estimates(directions, seeds, self.mini_batches.take(seeds), distance)

    def offload(self) -> None:
        """Move the model to main memory until it is needed again, which restores it by itself."""
        self._offloading.offload()

    def restore(self) -> None:
        """Move the model back to its device, every bit as it was. Raises as `Offloading.restore`."""
        self._offloading.restore()

    def use_threads(self, count: int | None, most: int | None) -> None:
        """Compute with `count` CPU threads from now on; None: with torch's usual number, or `most` if
        less."""
        torch.set_num_threads(count or min(THREADS, most or THREADS))

    def prior(self, go_on: GoOn = always) -> Prior:
        """Return the prior over the task's answers of the model as of now, (K,). Raises as `Priors.of`."""
        self.restore()
        self.weights.rebuild()
        return self.priors.of(self.core.digest(), go_on)

    def named_prior(self) -> dict[str, float]:
        """Return the prior of the model as of now by answer, with 0 for the likeliest. Raises as `prior`
        does."""
        parts = (part / PRIOR_ONE for part in calibration.for_manifest(self.prior()))
        return dict(zip(self.manifest.task.verbalizer.values(), parts, strict=True))

    def base_prior(self, go_on: GoOn = always) -> Prior:
        """Return the same of the base model. Raises as `prior` does."""
        self.restore()
        with self.weights.at_base():
            return self.priors.of(BASE, go_on)

    def evaluate(self, limit: int = 0, go_on: GoOn = always, rows: dataset.HeldOut = "test") -> Evaluation:
        """Measure the rebuilt model as of now on `limit` of these rows (0: as many as the manifest says).

        Raises UserError DATA_*, and PAUSED when `go_on`, asked now and then, says no.
        """
        self.restore()
        self.weights.rebuild()
        return self.objective.evaluate(self.run_rows.held_out(rows, limit), self.core.digest(), go_on)

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
            held = self.run_rows.held_out(rows, limit)
            self.restore()
            with self.weights.at_base():
                self._base[key] = self.objective.evaluate_base(held, go_on, calibrated=calibrated)
        return self._base[key]

    def probe(self, limit: int = 0) -> ProbeEvaluation | None:
        """Return the linear probe of training rows whose states are kept, beside the model as of now on
        `limit` test rows: the rows of this trainer, and the run's public ones. None where no linear head
        alone is trained with the plain loss, and where too few states are kept. Raises as `evaluate`."""
        if not isinstance(self.objective, HeadLosses):
            return None
        most = probe.MOST_ROWS
        rows = [*self._rows[:most], *dataset.select(self.run_rows.training_if_any(), most)]
        model, held = self.evaluate(limit), self.run_rows.held_out("test", limit).rows
        assert isinstance(model, EvaluationOfRows)
        return probe.beside(model, self.loaded, self.manifest.task, rows, held)

    def drift(self, text: str = "") -> LayeredDrift:
        """Return how far the model as of now is from the base model, also by its answers on a neutral text,
        or on another one. Raises as `engine.drift.Meter.measure`."""
        return self._meter.measure(text)

    def pass_at(self, limit: int, k: int, count: int, *, base: bool = False) -> PassAt:
        """Return how often one of `k` answers to a test row is right, by `count` to each of `limit` rows.

        Raises UserError BAD_OPTION in a run without rewards, and as `evaluate`.
        """
        verifying.require_rewards(self.manifest.task)
        assert isinstance(self.objective, Rewards)
        held = self.run_rows.held_out("test", limit)
        self.restore()
        if base:
            with self.weights.at_base():
                return self.objective.pass_at(held, k, count)
        self.weights.rebuild()
        return self.objective.pass_at(held, k, count)

    def cores(self) -> dict[int, I64]:
        """Return a copy of the cores of all subspaces, (layers, rank, rank) each."""
        return {subspace: core.copy() for subspace, core in self.core.cores().items()}

    def search(self, after: Mapping[int, I64], search: LineSearch, go_on: GoOn = always) -> int:
        """Let a line search look from the weights as of now towards those with the cores `after`, on
        validation rows; return how many example-forwards it took.

        Raises UserError DATA_*, PAUSED when `go_on`, asked before each part, says no, and as
        `verifying.require_slopes`.
        """
        verifying.require_slopes(self.manifest.task)
        step = self._line_to(after)
        rows = line_rows(self.manifest.task, self.run_rows.held_out("validation").rows)
        taken = 0
        while wanted := search.wanted:
            if not go_on():
                raise paused()
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
    ) -> tuple[list[StepShare], int]:
        """Return the share of each of these `updates` in what leads from the weights as of now to those with
        the cores `after`, on so many validation rows, and the example-forwards that it took.

        Others of the rows with every `turn`. Raises UserError DATA_*, PAUSED, and as `slopes.measure` and
        `verifying.require_slopes`.
        """
        verifying.require_slopes(self.manifest.task)
        self.restore()
        self.weights.rebuild(max(after, default=0))
        task, held_out = self.manifest.task, self.run_rows.held_out("validation").rows
        batches = slopes.batches_of(task, self.loaded.tokenizer, line_rows(task, held_out), rows, turn)
        step, delta = line.difference(after, self.core.cores()), self.manifest.training.scalar_delta
        scale = self.weights.scale
        found = slopes.shares(self.loaded, self.space, scale, step, updates, batches, delta, go_on)
        if found is None:
            raise paused()
        return found

    def suitable_rate(self, epoch: int) -> float | None:
        """Return the rate that suits the subspace of an epoch at the weights as of now, by `step_size`; None
        where that cannot be told, and without training rows. Raises as `estimate` does, and as
        `verifying.require_slopes`."""
        verifying.require_slopes(self.manifest.task)
        if not self._rows:
            return None
        self.restore()
        self.weights.rebuild()
        assert isinstance(self.objective, Losses)
        subspace, rows = self.run.subspace_of(epoch), self.objective.shard.mini_batch
        found, _ = step_size.measure(self.loaded, self.space, subspace, rows, self.epsilon, self.run.run_id)
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
            return self.objective.evaluate(self.run_rows.held_out(rows), OWN, go_on, perturb)

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
        self.run_rows.held_out("test")

    def answer(self, rows: int, *, base: bool) -> list[samples.Answered]:
        """Return how the model as of now, or the base model, answers `rows` test rows, for everybody the same
        ones: by turns of each class. In a run with a centred loss scores are less the model's prior.

        Raises UserError DATA_*, and as `prior` does.
        """
        chosen = line_rows(self.manifest.task, self.run_rows.held_out("test").rows)[:rows]
        self.restore()
        if base:
            with self.weights.at_base():
                return self.objective.answer(chosen, BASE)
        self.weights.rebuild()
        return self.objective.answer(chosen, self.core.digest())

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

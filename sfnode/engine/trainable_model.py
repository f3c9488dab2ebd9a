"""A model with its core, trained without a network: applies updates and measures the next ones.

All methods are synchronous, and must be called from one thread, except those of `mini_batches`. The model
knows nothing of peers: updates given to `apply` may be anybody's, and results of `step` change nothing until
they are applied. Other operations on a model are functions that take it: `evaluation`, `line`, `probe`,
`drift`, `making_bases`, `export`.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from sfnode.engine.core import Core, UpdateBatch
from sfnode.engine.estimator import Estimate, LocalNoise, quantise
from sfnode.engine.gradients import Gradient, quantised
from sfnode.engine.head import HeadLosses, takes_features
from sfnode.engine.loading import give_back, load_model, no_room, training_rows, usable_device
from sfnode.engine.losses import Losses, Priors, RunRows
from sfnode.engine.merging import Decay, MergedWeights
from sfnode.engine.reward_objective import Rewards
from sfnode.engine.subspace import PublishedBasis, Subspace, basis_of
from sfnode.manifest import Manifest
from sfnode.models import loader
from sfnode.tasks import dataset
from sfnode.tasks.public_files import NOWHERE, Places
from sfprotocol.decisions import RATE_ONE, Bases, RateFrom
from sfprotocol.fields import Values
from sfprotocol.seeds import I64

PREPARED_STEPS = 4
"""Maximum number of steps whose mini-batches are kept ready. Beyond it the oldest mini-batches are dropped,
because some steps are never taken."""

Draw = Callable[[int], Any]
"""Function that encodes the mini-batch that a seed draws. Several threads call it."""


class MiniBatches:
    """Draws and encodes mini-batches, in advance if `prepare` has announced them. Any thread may call it."""

    def __init__(self, draw: Draw, executor: Executor, together: int = 1) -> None:
        """`together` consecutive seeds of a step share the mini-batch that the first of them draws."""
        self._draw = draw
        self._together = together
        self._executor = executor
        self._lock = Lock()
        self._prepared: OrderedDict[int, Future[Any]] = OrderedDict()
        """Mini-batches that are prepared or in preparation, keyed by the seed that draws each. They are not
        kept by step, because a step may be taken in pieces."""
        self._largest = 0
        """Number of mini-batches of the largest step that was prepared."""

    def prepare(self, seeds: Sequence[int]) -> None:
        """Encode the mini-batches of a coming step in the background, without waiting for them."""
        drawing = seeds[:: self._together]
        with self._lock:
            self._largest = max(self._largest, len(drawing))
            for seed in drawing:
                self._prepared[seed] = self._executor.submit(self._draw, seed)
            while len(self._prepared) > PREPARED_STEPS * self._largest:
                self._prepared.popitem(last=False)

    def take(self, seeds: Sequence[int]) -> list[Any]:
        """Return the mini-batch of each seed; wait for those that are being prepared."""
        drawing = seeds[:: self._together]
        with self._lock:
            prepared = [self._prepared.pop(seed, None) for seed in drawing]
        drawn = [
            self._draw(seed) if coming is None else coming.result()
            for seed, coming in zip(drawing, prepared, strict=True)
        ]
        return [batch for batch in drawn for _ in range(self._together)]


THREADS = torch.get_num_threads()
"""Number of CPU threads that torch uses unless told otherwise."""


class StepResult(NamedTuple):
    """Outcome of one step."""

    scalars: tuple[Values, ...]
    """One quantised directional derivative for each seed. In a first-order run: for each seed one scalar for
    every cell."""
    loss: float
    """Mean loss of the step's mini-batches, without failed measurements; NaN if all failed."""
    failed: int
    """Number of measurements without a finite result; their scalars are 0."""


class TrainableModel:
    """A base model, its updates so far, and the rows on which new updates are measured.

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
        places: Places = NOWHERE,
        core: Core | None = None,
    ) -> None:
        """`public`: the run's public training rows, if they were read already. `bases`: the folder with
        published bases, for a run that has them. `secret` hides which rows are drawn (`tasks.mini_batches`),
        and `noise` hides what was measured on them. `places`: where the run's data may be. `core`: the core
        of the first trainer, if this one is a replica (`engine.trainer`)."""
        numbers = manifest.training
        targets = manifest.model.parsed_targets()
        device = loaded.device
        self._basis = basis_of(manifest, bases, device)
        self.manifest = manifest
        self.run = manifest.parameters()
        self.loaded = loaded
        self.core = Core(*manifest.core_shape) if core is None else core
        prompt = numbers.is_first_order
        live = prompt or not loaded.exact
        self.space = Subspace(
            self._basis, targets, manifest.basis_columns, device, loaded.dtype, live_core=live
        )
        self.scale = scale_of(manifest)
        self.decay = Decay(numbers.decay)
        self.weights = MergedWeights(
            loaded, self.space, self.core, self.scale, time.monotonic, self.decay, prompt=prompt
        )
        self._offloaded = False
        self._ahead = ThreadPoolExecutor(2, "ahead")  # starts a thread only when there is work for it
        self._noise = noise
        self.rows = rows
        self.run_rows = RunRows(manifest, loaded.tokenizer, places, public)
        """Public rows of the run."""
        self.priors = Priors(manifest.task, loaded, self.run_rows)
        losses = HeadLosses if loaded.kept and takes_features(manifest) else Losses
        self.objective: Losses | Rewards = (
            Rewards(manifest, loaded, rows, secret)
            if manifest.task.is_rewarded
            else losses(manifest, loaded, rows, self.run_rows, self.priors, secret, noisy=noise is not None)
        )
        """The objective, which measures updates and evaluates the model."""
        self.of_base: dict[Hashable, Any] = {}
        """Measurements of the base model, which does not change."""
        self.judged: dict[int, NDArray[np.float64]] = {}
        """Weighted sum of the gradients on validation rows by which updates were judged, keyed by subspace
        (`line.Slopes.added_to`)."""
        self.odds = self.objective.odds if rows else (0, 0)
        """Number of rows that a mini-batch draws, and number of rows that it draws from; (0, 0) without
        rows."""
        self.mini_batch: Callable[[int], Any] = self.objective.mini_batch
        """Function that encodes the mini-batch that a seed draws."""
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
        places: Places = NOWHERE,
    ) -> Self:
        """Load the base model and the training rows of a run.

        `model_override` and `data_override` replace the manifest's sources. The manifest's limit on the
        number of rows does not apply to `data_override`, a node's own data; `skip_bad_rows` applies to
        nothing else. `shard` (k, n) keeps every n-th training row from row k on. Without `training` no
        training rows are read, and `step` must not be called. `dtype` is as for `models.loader.load`. `bases`
        is the folder with published bases. `secret`, `noise` and `places` are as in the constructor. Raises
        UserError MODEL_*, DATA_* or DEVICE.
        """
        where = usable_device(device)
        rows, public = (
            training_rows(manifest, data_override, shard, places, skip_bad=skip_bad_rows)
            if training
            else ([], None)
        )
        loaded = load_model(manifest, model_override, where, dtype)
        return cls(manifest, loaded, rows, public, bases, secret, noise, places)

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
        """Distance of an update's points from the weights, as the manifest sets it for this node's number
        format."""
        return self.manifest.training.epsilon_in(self.dtype)

    def begin(self, cores: Mapping[int, I64]) -> None:
        """Begin with the cores of a checkpoint in place of its updates. Call this method before any other."""
        self.weights.begin(cores)

    def use_bases(self, published: Sequence[Bases]) -> None:
        """Set which bases are published for which subspaces, in ascending order from subspace 0.

        Call this method again when more bases are stored. Until then steps continue without the updates whose
        bases are missing, and operations that need the exact model raise UserError BASES_MISSING.
        """
        basis, subspaces = self._basis, self.core.touched()
        if isinstance(basis, PublishedBasis):
            before = [basis.digest(subspace) for subspace in subspaces]
            basis.follow(published)
            self.space.forget()
            if self.weights.incomplete or before != [basis.digest(subspace) for subspace in subspaces]:
                self.weights.renew()

    def apply(self, batch: UpdateBatch) -> None:
        """Add updates, this node's own included. The core changes at once, and exactly. The weights follow in
        later steps.

        No update may be added twice. Updates with negated scalars subtract earlier ones.
        """
        self.weights.add(batch)

    def step(self, seeds: Sequence[int], epoch: int, rate: RateFrom | None = None) -> StepResult:
        """Measure one update per seed, labelled `epoch`, on the mini-batch that the seed draws. In a run with
        groups, pass the seeds of whole groups; the first seed of a group draws its mini-batch.

        `rate` is the rate of updates labelled `epoch`. It gives a first-order update its unit and limit.
        None: the manifest's rate. Raises as `estimate` and `gradients` do.
        """
        numbers, found, scalars = self.manifest.training, list[Estimate | Gradient](), list[Values]()
        delta, limit = numbers.scalar_delta, numbers.scalar_limit
        if numbers.is_first_order:
            rate = rate or RateFrom(0, self.run.rate, limit=numbers.norm_limit)
            for gradient in self.gradients(seeds, epoch):
                found.append(gradient)
                scalars.append(quantised(gradient.cells, delta, rate, limit))
        else:
            disclosed = self._noise or float
            for estimate in self.estimate(seeds, epoch, self.epsilon):
                found.append(estimate)
                scalars.append(quantise(disclosed(estimate.alpha), delta, limit))
        losses = [one.loss for one in found if not one.failed]
        loss = sum(losses) / len(losses) if losses else math.nan
        return StepResult(tuple(scalars), loss, len(found) - len(losses))

    def gradients(self, seeds: Sequence[int], epoch: int) -> list[Gradient]:
        """Return the gradient of each seed's mini-batch with respect to all cells of the subspace of `epoch`.
        If the node has noise, gradients are clipped and get noise.

        Raises UserError OUT_OF_MEMORY, DATA_MALFORMED as `estimate`.
        """
        subspace, noise, found = self._follow(epoch), self._noise, list[Gradient]()
        for seed, batch in zip(seeds, self.mini_batches.take(seeds), strict=True):
            longest = noise.clip if noise else math.inf
            one = self.objective.gradient(self.space, subspace, seed, batch, longest)
            rows, _ = self.odds
            found.append(one._replace(cells=noise.of_gradient(one.cells, rows)) if noise else one)
        return found

    def recompute(self, seeds: Sequence[int], epoch: int, rate: RateFrom | None = None) -> StepResult:
        """Measure updates as `step` does, but rebuild the weights first, so that they contain exactly the
        current updates (SPEC U10).

        Raises as `step` does, and BASES_MISSING.
        """
        self.rebuild()
        return self.step(seeds, epoch, rate)

    def estimate(self, seeds: Sequence[int], epoch: int, distance: float) -> list[Estimate]:
        """Return estimates of the slopes along the directions of these seeds, from losses at `distance` along
        each direction, or in a reward run from gradients. In a run with groups, pass the seeds of whole
        groups (`engine.estimator`).

        All targets are perturbed at once (SPEC U2). Raises UserError OUT_OF_MEMORY when an offloaded model
        finds no room, DATA_MALFORMED for a row that does not fit.
        """
        if len(seeds) % self.manifest.training.batch_updates:
            raise ValueError(f"{len(seeds)} seeds are not those of whole groups")
        subspace = self._follow(epoch)
        batches = self.mini_batches.take(seeds)
        return self.objective.estimates(self.space, subspace, seeds, batches, distance)

    def _follow(self, epoch: int) -> int:
        """Prepare the model on its device for a step with this epoch as its label. Return the subspace of the
        step."""
        self.restore()
        subspace = self.run.subspace_of(epoch)
        self.weights.follow(subspace)
        coming = epoch + 1 if self.run.organised else min(epoch + 1, self.run.last_epoch)
        self.space.expect(self.run.subspace_of(coming), self._ahead)
        return subspace

    def offload(self) -> None:
        """Move the model, its bases and its rows to main memory, and return the device's memory to the system
        for other programs. The next use restores them."""
        if not self._offloaded:
            self._offloaded = True
            self._move_away()

    def restore(self) -> None:
        """Move the model back to its device if it was offloaded. No bit of it changes.

        Raises UserError OUT_OF_MEMORY if there is no room; the model then stays offloaded.
        """
        if self._offloaded:
            try:
                self._move(self.loaded.device)
            except torch.OutOfMemoryError as error:
                self._move_away()
                raise no_room(self.loaded.device) from error
            self._offloaded = False

    def _move_away(self) -> None:
        self._move(torch.device("cpu"))
        give_back(self.loaded.device)

    def _move(self, device: torch.device) -> None:
        self.loaded.model.to(device)
        self.space.move(device)
        if isinstance(self.objective, HeadLosses):
            self.objective.move(device)

    def rebuild(self, newest: int | None = None) -> None:
        """Move the model back to its device if necessary, and rebuild the current weights. Raises as
        `restore`, and as `MergedWeights.rebuild`, which takes `newest`."""
        self.restore()
        self.weights.rebuild(newest)

    def use_threads(self, count: int | None, most: int | None) -> None:
        """Compute with `count` CPU threads from now on. None: with torch's usual number of threads, or with
        `most` if that is less."""
        torch.set_num_threads(count or min(THREADS, most or THREADS))

    def cores(self) -> dict[int, I64]:
        """Return a copy of the cores of all subspaces, keyed by subspace, (layers, rank, rank) each."""
        return {subspace: core.copy() for subspace, core in self.core.cores().items()}


def scale_of(manifest: Manifest) -> Callable[[int], float]:
    """Return a function from a subspace to the change of weights along u v^T for one unit of its core, with
    the bases' units applied to u and v (`Subspace.unit`).

    In an open run, where every epoch has a subspace, that change is the epoch's learning rate times
    scalar_delta. The rate is rounded to float32, since the last bits of a cosine differ between machines. In
    an organised run the core contains the rates already, in units of 2^-32 (SPEC O8).
    """
    numbers = manifest.training
    if manifest.parameters().organised:
        return lambda subspace: numbers.scalar_delta / RATE_ONE
    return lambda epoch: float(np.float32(numbers.rate(epoch))) * numbers.scalar_delta

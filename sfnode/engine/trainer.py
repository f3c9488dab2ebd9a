"""The trainer that library users and nodes use: a model with its core, and the operations on it as methods.
Also a trainer with replicas on several devices of one machine, which measure one step together (data
parallelism).

A replica has its own weights and bases. It shares cores, rows and mini-batches with the first replica, which
also does everything except steps: evaluations, exports, searches. A step is cut into batches of consecutive
seeds. Each batch is measured in one batched forward pass on one device, so a scalar depends on its batch, and
not on how the batches are divided among the devices. Updates are applied between two steps, when no device
computes.

A device that has failed computes nothing until a pause has offloaded the model. The other devices measure its
share of the step and continue. If the first device fails, there are no evaluations either, and a step raises.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Self

import torch

from sfnode.engine import drift, evaluation, export, line, making_bases, probe
from sfnode.engine.core import UpdateBatch
from sfnode.engine.estimator import LocalNoise
from sfnode.engine.loading import load_model, usable_device
from sfnode.engine.trainable_model import THREADS, StepResult, TrainableModel
from sfnode.errors import Code, UserError
from sfnode.logging import log
from sfnode.manifest import Manifest
from sfprotocol.decisions import Bases, RateFrom
from sfprotocol.seeds import I64


class Trainer(TrainableModel):
    """Trains a model without any network. Use `load` to make one from a manifest, and `close` or a `with`
    block to end its threads."""

    evaluate = evaluation.evaluate
    evaluate_base = evaluation.evaluate_base
    evaluate_towards = evaluation.evaluate_towards
    prior = evaluation.prior
    named_prior = evaluation.named_prior
    answer = evaluation.answer
    generate = evaluation.generate
    read_test_rows = evaluation.read_test_rows
    search = line.search
    shares = line.shares_towards
    baselines = probe.baselines
    probe = probe.probe
    drift = drift.drift
    make_bases = making_bases.make_bases
    export = export.export

    def like(self, manifest: Manifest, bases: Path | None) -> Trainer:
        """Return a trainer on the same model and rows for a manifest with other hyperparameters or bases."""
        return Trainer(manifest, self.loaded, self.rows, bases=bases, places=self.run_rows.places)


MEMORY = 8
"""Approximate number of batches over which an update's time is averaged, since mini-batches differ in
length."""

FORGET = 256
"""Number of steps after which a slow device that got no batch counts as twice as fast, so that it is tried
again. A device that is 50 times as slow as another is tried every 768th step, which costs less than 1 % of
the time."""


@dataclass(slots=True)
class Replica:
    """A device that takes part in steps. Any thread may read it."""

    name: str
    """Name of the device, numbered if several have the same name."""
    trainer: Trainer
    thread: ThreadPoolExecutor | None
    """The one thread that computes on the device. None for the first device, on which the engine's thread
    computes."""
    updates: int = 0
    """Number of updates that the device has measured."""
    nanoseconds: int = 0
    """Average time of an update, in nanoseconds; 0 before the first one."""
    idle: int = 0
    """Number of steps since the device measured its last batch."""
    fault: UserError | None = None
    """Error because of which the device computes nothing now; None while it works. The first device never has
    one, because nothing continues without it."""

    @property
    def seconds(self) -> float | None:
        """Average time of an update, in seconds; None before the first one."""
        return self.nanoseconds / 1e9 or None

    def measure(
        self, batches: Mapping[int, Sequence[int]], epoch: int, rate: RateFrom | None
    ) -> dict[int, StepResult]:
        """Measure batches of seeds one after another, and return the results, keyed by the number of the
        batch. If the device fails, the results of the remaining batches are missing.

        Raises errors that are not the device's fault, and any fault of the first device.
        """
        found = {}
        for number, seeds in batches.items():
            begun = time.monotonic_ns()
            try:
                found[number] = Trainer.step(self.trainer, seeds, epoch, rate)
            except Exception as error:
                self._fail(error)
                break
            self.updates += len(seeds)
            taken = (time.monotonic_ns() - begun) // len(seeds)
            known = self.nanoseconds or taken
            self.nanoseconds = known + (taken - known) // MEMORY
        return found

    def _fail(self, error: Exception) -> None:
        """Stop using this device if the error is the device's fault. If it is not, or if this is the first
        device, raise an error instead."""
        fault = fault_of(self.name, error)
        if fault is None:
            raise error
        log.debug("a step on %s has failed", self.name, exc_info=error)
        if self.thread is None:
            raise fault from (None if fault is error else error)
        self.trainer.weights.renew()  # it may have failed in the middle of a change
        self.fault = fault


class ReplicatedTrainer(Trainer):
    """A trainer whose steps are measured on several devices. The trainer itself is the first of the replicas.

    `load_on` loads a trainer with its replicas; `spread` adds the replicas to a trainer that is loaded
    already.
    """

    devices: tuple[Replica, ...]
    _batch: int
    """Number of seeds that are measured in one batched forward pass, in whole groups."""

    @classmethod
    def load_on(cls, devices: Sequence[str], manifest: Manifest, *, batch: int, **options: Any) -> Self:
        """Load the base model on each of `devices`, and the training rows; `options` as for `Trainer.load`.

        `batch` as for `spread`. Raises UserError MODEL_*, DATA_* or DEVICE.
        """
        first, *_ = [usable_device(device) for device in devices]
        _make_current(first)
        trainer = cls.load(manifest, device=devices[0], **options)
        shared = {"model_override", "dtype", "bases", "noise"} & options.keys()
        trainer.spread(devices, batch, **{name: options[name] for name in shared})
        return trainer

    def spread(
        self,
        devices: Sequence[str],
        batch: int,
        model_override: Path | None = None,
        dtype: str = "float32",
        bases: Path | None = None,
        noise: LocalNoise | None = None,
    ) -> None:
        """Load the replicas of this trainer, which is on the first of these devices. Call it once.

        `batch` seeds, in whole groups, are measured in one batched forward pass. Raises UserError MODEL_* or
        DEVICE.
        """

        def replica(name: str, device: torch.device) -> Replica:
            thread = ThreadPoolExecutor(1, f"device {name}", _make_current, (device,))
            loaded = thread.submit(load_model, self.manifest, model_override, device, dtype).result()
            other = Trainer(self.manifest, loaded, [], bases=bases, noise=noise, core=self.core)
            other.mini_batches = self.mini_batches
            other.odds = other.objective.odds = self.odds
            return Replica(name, other, thread)

        own, *others = names(devices)
        on = [usable_device(device) for device in devices[1:]]
        self.devices = (Replica(own, self, None), *map(replica, others, on))
        self._batch = batch
        self.use_threads(torch.get_num_threads(), None)

    @property
    def _others(self) -> tuple[Replica, ...]:
        return self.devices[1:]

    def close(self) -> None:
        """End the threads; no step may follow."""
        super().close()
        for other in self._others:
            if other.thread:
                other.thread.shutdown()
            other.trainer.close()

    def begin(self, cores: Mapping[int, I64]) -> None:
        """Begin with the cores of a checkpoint, as `Trainer.begin`."""
        self.weights.begin(cores, *(other.trainer.weights for other in self._others))

    def use_bases(self, published: Sequence[Bases]) -> None:
        """Set the published bases, as `Trainer.use_bases`."""
        super().use_bases(published)
        for other in self._others:
            other.trainer.use_bases(published)

    def apply(self, batch: UpdateBatch) -> None:
        """Add updates, as `Trainer.apply`: to the core once, and to the weights of each replica."""
        self.weights.add(batch, *(other.trainer.weights for other in self._others))

    def step(self, seeds: Sequence[int], epoch: int, rate: RateFrom | None = None) -> StepResult:
        """Measure one update per seed, as `Trainer.step`, on all devices.

        Raises as `Trainer.step`, and UserError OUT_OF_MEMORY or DEVICE if the first device fails.
        """
        batches = self.cut(seeds)
        found: dict[int, StepResult] = {}
        while left := {number: batch for number, batch in batches.items() if number not in found}:
            found |= self._measured(left, epoch, rate)
        return _joined([found[number] for number in batches])

    def cut(self, seeds: Sequence[int]) -> dict[int, Sequence[int]]:
        """Return the batches of a step, keyed by number. A single device has one batch."""
        size = self._batch if self._others else len(seeds)
        return {
            number: seeds[start : start + size] for number, start in enumerate(range(0, len(seeds), size))
        }

    def recompute(self, seeds: Sequence[int], epoch: int, rate: RateFrom | None = None) -> StepResult:
        """Measure updates at weights that contain exactly the current updates, as `Trainer.recompute`."""
        for replica in self.devices:
            replica.trainer.restore()
            replica.trainer.weights.rebuild()
        return self.step(seeds, epoch, rate)

    def offload(self) -> None:
        """Move all replicas to main memory until their next step. Afterwards every device is tried again."""
        super().offload()
        for other in self._others:
            try:
                other.trainer.offload()
            except RuntimeError as error:  # also of a device that no longer works
                other.fault = fault_of(other.name, error)
            else:
                other.fault = None

    def use_threads(self, count: int | None, most: int | None) -> None:
        """Compute with `count` CPU threads in all, as `Trainer.use_threads`. If several replicas are on the
        CPU, they share these threads."""
        share = self.share(count or min(THREADS, most or THREADS))
        super().use_threads(share, None)
        for other in self._others:
            if other.thread:
                other.thread.submit(torch.set_num_threads, share).result()

    def share(self, threads: int) -> int:
        """Return the number of threads of each replica, out of `threads` in all."""
        on_cpu = sum(replica.trainer.loaded.device.type == "cpu" for replica in self.devices)
        return max(1, threads // max(1, on_cpu))

    def _measured(
        self, batches: Mapping[int, Sequence[int]], epoch: int, rate: RateFrom | None
    ) -> dict[int, StepResult]:
        """Measure batches on the working devices, and return the results, keyed by number. Results of a
        device that fails are missing.

        Returns when no device computes any more. Raises errors that are no device's fault.
        """
        working = [replica for replica in self.devices if replica.fault is None]
        own, *shares = _shares(batches, working)
        running = [
            replica.thread.submit(replica.measure, share, epoch, rate)
            for replica, share in zip(working[1:], shares, strict=True)
            if replica.thread and share
        ]
        try:
            found = self.devices[0].measure(own, epoch, rate)
        finally:
            wait(running)
        for one in running:
            found |= one.result()
        return found


def _make_current(device: torch.device) -> None:
    """Make a GPU the current device of this thread. Libraries for quantised weights launch their kernels on
    the current device."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def names(devices: Sequence[str]) -> list[str]:
    """Return unique names for devices: equal names are numbered from 1."""
    return [
        f"{device} {devices[: number + 1].count(device)}" if devices.count(device) > 1 else device
        for number, device in enumerate(devices)
    ]


def divide(batches: int, costs: Sequence[int]) -> list[int]:
    """Return how many of `batches` equal batches each device takes. `costs`: the time of a batch on each
    device; 0 if it is not known yet.

    Each batch in turn goes to the device that would finish it first, or to the first of several such devices.
    """
    usual = max(costs) or 1
    costs = [cost or usual for cost in costs]
    taken = [0] * len(costs)
    for _ in range(batches):
        first = min(range(len(costs)), key=lambda device: (taken[device] + 1) * costs[device])
        taken[first] += 1
    return taken


def _shares(
    batches: Mapping[int, Sequence[int]], working: Sequence[Replica]
) -> list[dict[int, Sequence[int]]]:
    """Return the batches that each device measures. The batches of a device are consecutive."""
    counts = divide(len(batches), [one.nanoseconds >> one.idle // FORGET for one in working])
    for replica, count in zip(working, counts, strict=True):
        replica.idle = 0 if count else replica.idle + 1
    inner = list(batches.items())
    return [dict(inner[start:stop]) for start, stop in pairwise(accumulate(counts, initial=0))]


def _joined(results: Sequence[StepResult]) -> StepResult:
    """Return the results of a step's batches as one."""
    scalars = tuple(scalar for result in results for scalar in result.scalars)
    failed = sum(result.failed for result in results)
    weights = [len(result.scalars) - result.failed for result in results]
    losses = [result.loss * weight for result, weight in zip(results, weights, strict=True) if weight]
    return StepResult(scalars, sum(losses) / sum(weights) if losses else math.nan, failed)


def fault_of(name: str, error: Exception) -> UserError | None:
    """Return the error for a device on which a step or another operation has failed; None if the device is
    not at fault."""
    if isinstance(error, UserError):
        return error if error.code is Code.OUT_OF_MEMORY else None
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error):
        return UserError(
            Code.OUT_OF_MEMORY,
            f"the device {name!r} has not enough memory",
            "Take fewer queries (`--set node.queries=COUNT`) or a narrower --dtype, or close other programs "
            "that use its memory; `sfnode pause` and `sfnode resume` try it again.",
        )
    if not isinstance(error, RuntimeError):
        return None
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return UserError(
        Code.DEVICE,
        f"the device {name!r} has failed: {reason}",
        "`sfnode pause` and `sfnode resume` try it again. If that does not help, start the node again, "
        "without this device, or restart the machine; with --log-level debug the log says where it failed.",
    )

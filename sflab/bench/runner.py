"""Takes the measurements of `sfnode lab bench` in order: memory first, while nothing else is loaded, then
time.

Inference is measured before the trainer exists, so that the memory of the trainer is attributed to training.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch

import sfnode
from sflab.bench import measure
from sflab.bench.measure import WARM_UPS, BenchCase, undisturbed
from sflab.bench.subject import BenchSubject, SubjectSpec, load_subject
from sfnode.engine.trainable_model import MiniBatches
from sfnode.engine.trainer import ReplicatedTrainer, Trainer
from sfnode.errors import Code, UserError
from sfnode.limits import Limits
from sfnode.node.training.step_scheduler import batches_of
from sfnode.resources import memory
from sfnode.resources.pauses import spare_cores
from sfnode.resources.sensors import Sensors
from sfnode.schema.results import BatchResult, BenchResult, IncomingResult, TogetherResult
from sfprotocol.seeds import update_seeds


def measure_together(
    spec: SubjectSpec, subject: BenchSubject, sizes: Sequence[int], queries: int, repetitions: int
) -> list[TogetherResult]:
    """Time steps of `queries` mini-batches, for each of `sizes`, on all devices together and on each device
    alone.

    All devices together and each device alone are the contestants. They take turns, and are timed by the wall
    clock. Every contestant measures the same batches as a node, with the same replicas. A device alone does
    the whole step. Replicas on a CPU share its threads, so the first replica is also timed with all threads.
    Raises UserError MODEL_* and DEVICE.
    """
    together = subject.manifest.training.batch_updates
    threads = torch.get_num_threads()
    with ReplicatedTrainer(subject.manifest, subject.loaded, subject.rows) as trainer:
        trainer.spread(spec.devices, queries * together, dtype=spec.dtype)
        try:
            return [
                result
                for size in sorted(set(sizes))
                for result in _of_size(trainer, subject, size, queries, threads, repetitions)
            ]
        finally:
            torch.set_num_threads(threads)


def _of_size(
    trainer: ReplicatedTrainer, subject: BenchSubject, size: int, queries: int, threads: int, repetitions: int
) -> list[TogetherResult]:
    numbers = subject.manifest.training
    seeds = update_seeds(1, 0, queries * numbers.batch_updates * batches_of(len(trainer.devices))).tolist()
    with ThreadPoolExecutor(1) as unused:
        drawn = MiniBatches(lambda seed: subject.mini_batch([seed], size), unused, numbers.batch_updates)
        for device in trainer.devices:
            device.trainer.mini_batches = drawn
        contestants = _contestants(trainer, threads)
        taken = _times({name: partial(steps, seeds) for name, steps in contestants.items()}, repetitions)
    whole, *_ = taken.values()
    return [
        TogetherResult(
            batch=size,
            devices=devices,
            threads=count,
            updates_per_hour=3600 * len(seeds) / statistics.median(turns),
            ratio=statistics.median(one / all_of_them for one, all_of_them in zip(turns, whole, strict=True)),
        )
        for (devices, count), turns in taken.items()
    ]


def _contestants(
    trainer: ReplicatedTrainer, threads: int
) -> dict[tuple[str, int], Callable[[Sequence[int]], object]]:
    """Return the actions to time, keyed by devices and threads. The action of all devices together comes
    first. Each action takes a step's seeds."""

    def step(seeds: Sequence[int]) -> object:
        trainer.use_threads(threads, None)
        return trainer.step(seeds, 0)

    def alone(number: int, count: int, seeds: Sequence[int]) -> object:
        torch.set_num_threads(count)
        return [
            Trainer.step(trainer.devices[number].trainer, batch, 0) for batch in trainer.cut(seeds).values()
        ]

    share = trainer.share(threads)
    found: dict[tuple[str, int], Callable[[Sequence[int]], object]]
    found = {(",".join(device.name for device in trainer.devices), share): step}
    kinds = [str(device.trainer.loaded.device) for device in trainer.devices]
    for kind in dict.fromkeys(kinds):
        for count in dict.fromkeys((share, threads) if kind == "cpu" else (share,)):
            found[f"{kind} alone", count] = partial(alone, kinds.index(kind), count)
    return found


def _times(
    actions: dict[tuple[str, int], Callable[[], object]], repetitions: int
) -> dict[tuple[str, int], list[float]]:
    """Return the seconds that each action takes, turn by turn."""
    taken: dict[tuple[str, int], list[float]] = {name: [] for name in actions}
    order = list(actions)
    with undisturbed():
        for turn in range(WARM_UPS + repetitions):
            for name in order if turn % 2 else order[::-1]:
                begun = time.perf_counter()
                actions[name]()
                taken[name].append(time.perf_counter() - begun)
    return {name: turns[WARM_UPS:] for name, turns in taken.items()}


INCOMING = (16, 128, 1024, 8192)
"""Numbers of others' updates that arrive during one step, for which costs are measured. A few nodes send the
smallest number, thousands of nodes the largest."""


class BenchPlan(NamedTuple):
    """Measurements to take."""

    batches: Sequence[int]
    queries: int
    mezo: bool
    repetitions: int
    threads: int
    """CPU threads; 0: as many as there are free cores."""


def run_benchmark(spec: SubjectSpec, plan: BenchPlan, say: Callable[[str], None]) -> BenchResult:
    """Take all measurements, and call `say` with the name of each. Raises UserError."""
    say("loading the model")
    sensors = Sensors(*spec.devices)
    with _out_of_memory_reported(spec), load_subject(spec) as subject:
        free = sensors.look(Limits()).free
        torch.set_num_threads(plan.threads or min(torch.get_num_threads(), spare_cores(free, None)))
        result = _measured(subject, plan, sensors.cores - free, say)
        if len(spec.devices) == 1:
            return result
        say("all devices together")
        found = measure_together(spec, subject, plan.batches, plan.queries, plan.repetitions)
        return result.model_copy(update={"together": found})


def _measured(subject: BenchSubject, plan: BenchPlan, busy: float, say: Callable[[str], None]) -> BenchResult:
    sizes = sorted(set(plan.batches))
    inference = []
    for size in sizes:
        say(f"memory of inference, batch {size}")
        inference.append(measure.inference_peak(subject, size, plan.queries))
    say("memory of training")
    trainer = subject.trainer()
    keeping = measure.keeping_peak(trainer)
    cases = [measure.case(subject, trainer, size, plan.queries) for size in sizes]
    training = [_larger(keeping, measure.step_peak(found)) for found in cases]
    batches = []
    for found, size, peak, training_peak in zip(cases, sizes, inference, training, strict=True):
        say(f"time, batch {size}")
        batches.append(_batch(found, size, peak, training_peak, subject, plan))
    say("others' updates")
    steps = {batch.batch: batch.step_seconds for batch in batches}
    incoming = measure.incoming(subject, cases[0], INCOMING, plan.repetitions, steps)
    return _result(subject, plan, batches, incoming, busy)


def _batch(
    found: BenchCase,
    size: int,
    inference: int | None,
    training: int | None,
    subject: BenchSubject,
    plan: BenchPlan,
) -> BatchResult:
    actions = measure.candidates(found, mezo=plan.mezo)
    taken = measure.times(actions, plan.repetitions, subject.device)
    median = {name: statistics.median(turns) for name, turns in taken.items()}
    by_step = {name: measure.ratio(taken, name, measure.STEP) for name in taken}
    step = median[measure.STEP]
    return BatchResult(
        batch=size,
        tokens=found.tokens,
        forwards_seconds=median[measure.FORWARDS],
        step_seconds=step,
        step_ratio=measure.ratio(taken, measure.STEP, measure.FORWARDS),
        tokens_per_second=found.forwards * found.tokens / step,
        updates_per_hour=3600 * len(found.seeds) / step,
        inference_peak_bytes=inference,
        training_peak_bytes=training,
        memory_ratio=_ratio(training, inference),
        mezo_matrices_seconds=median.get(measure.MEZO_MATRICES),
        mezo_matrices_ratio=by_step.get(measure.MEZO_MATRICES),
        mezo_all_seconds=median.get(measure.MEZO_ALL),
        mezo_all_ratio=by_step.get(measure.MEZO_ALL),
    )


def _result(
    subject: BenchSubject,
    plan: BenchPlan,
    batches: list[BatchResult],
    incoming: list[IncomingResult],
    busy: float,
) -> BenchResult:
    weights = measure.weight_bytes(subject.loaded, subject.dtype)
    peaks = [batch.training_peak_bytes for batch in batches if batch.training_peak_bytes is not None]
    before = subject.before
    overhead = max(0, max(peaks) - weights - before.resident) if peaks else None
    fits = [] if before.free is None or overhead is None else memory.largest(before.free, overhead)
    targets = subject.manifest.model.parsed_targets()
    return BenchResult(
        version=sfnode.__version__,
        model=subject.name,
        parameters=subject.parameters,
        trained_parameters=sum(target.out_features * target.in_features for target in targets),
        matrices=len(targets),
        device=str(subject.device),
        device_name=_device_name(subject.device),
        dtype=subject.dtype,
        threads=torch.get_num_threads(),
        busy_cores=busy,
        rank=subject.manifest.training.rank,
        queries=plan.queries,
        group=subject.manifest.training.group,
        repetitions=plan.repetitions,
        batches=batches,
        incoming=incoming,
        weight_bytes=weights,
        overhead_bytes=overhead,
        free_bytes=before.free,
        fits=fits,
        together=[],
    )


def _larger(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)


def _ratio(value: float | None, by: float | None) -> float | None:
    return None if value is None or by is None else value / by


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return platform.processor() or platform.machine()


@contextmanager
def _out_of_memory_reported(spec: SubjectSpec) -> Iterator[None]:
    """Raise UserError OUT_OF_MEMORY when torch runs out of memory within the block."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        raise UserError(
            Code.OUT_OF_MEMORY,
            f"{spec.source or 'the model'} needs more memory than {spec.device} has left",
            "Take smaller batches, a narrower --dtype, or a smaller model.",
        ) from error


def _out_of_memory(error: Exception) -> bool:
    """Return whether `error` means that memory was exhausted. On a CPU torch raises a plain RuntimeError."""
    return isinstance(error, MemoryError | torch.cuda.OutOfMemoryError) or "allocate memory" in str(error)

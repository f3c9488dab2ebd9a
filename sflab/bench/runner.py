"""Runs the measurements of `sfnode bench` in order: memory first, while nothing else is loaded, then time.

The order matters: inference is measured before there is a trainer, so that whatever training keeps in memory
besides the model is attributed to training.
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

import sfnode
from sflab.bench import measure, together
from sflab.bench.measure import Case
from sflab.bench.subject import Subject, SubjectSpec, load_subject
from sfnode.errors import Code, UserError
from sfnode.limits import Limits
from sfnode.resources import memory
from sfnode.resources.policy import spare_cores
from sfnode.resources.sensors import Sensors
from sfnode.schema.results import BatchResult, BenchResult, FitResult, IncomingResult

INCOMING = (16, 128, 1024, 8192)
"""Updates of others that arrive during one step: from a few nodes' to thousands'."""


class Plan(NamedTuple):
    """Choice of what to measure."""

    batches: Sequence[int]
    queries: int
    mezo: bool
    repetitions: int
    threads: int
    """CPU threads; 0: as many as find a core."""


class Peaks(NamedTuple):
    """Peaks of memory in bytes; None where they are unknown."""

    inference: int | None
    training: int | None


def run_benchmark(spec: SubjectSpec, plan: Plan, say: Callable[[str], None]) -> BenchResult:
    """Take all measurements; `say` is called with what is being done. Raises UserError."""
    say("loading the model")
    sensors = Sensors(*spec.devices)
    with _out_of_memory_reported(spec), load_subject(spec) as subject:
        free = sensors.look(Limits()).free
        torch.set_num_threads(plan.threads or min(torch.get_num_threads(), spare_cores(free, None)))
        result = _measured(subject, plan, sensors.cores - free, say)
        if len(spec.devices) == 1:
            return result
        say("all devices together")
        found = together.measure(spec, subject, plan.batches, plan.queries, plan.repetitions)
        return result.model_copy(update={"together": found})


def _measured(subject: Subject, plan: Plan, busy: float, say: Callable[[str], None]) -> BenchResult:
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
    for found, size, *peaks in zip(cases, sizes, inference, training, strict=True):
        say(f"time, batch {size}")
        batches.append(_batch(found, size, Peaks(*peaks), subject, plan))
    say("others' updates")
    costs = measure.incoming(subject, cases[0], INCOMING, plan.repetitions)
    incoming = [
        IncomingResult(
            updates=cost.updates,
            add_seconds=cost.add_seconds,
            fold_seconds=cost.merge_seconds,
            shares={batch.batch: cost.share(batch.step_seconds) for batch in batches},
        )
        for cost in costs
    ]
    return _result(subject, plan, batches, incoming, busy)


def _batch(found: Case, size: int, peaks: Peaks, subject: Subject, plan: Plan) -> BatchResult:
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
        inference_peak_bytes=peaks.inference,
        training_peak_bytes=peaks.training,
        memory_ratio=_ratio(peaks.training, peaks.inference),
        mezo_matrices_seconds=median.get(measure.MEZO_MATRICES),
        mezo_matrices_ratio=by_step.get(measure.MEZO_MATRICES),
        mezo_all_seconds=median.get(measure.MEZO_ALL),
        mezo_all_ratio=by_step.get(measure.MEZO_ALL),
    )


def _result(
    subject: Subject,
    plan: Plan,
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
        fits=[FitResult(**fit._asdict()) for fit in fits],
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
    """Return whether an error means that; on a CPU torch raises a plain RuntimeError."""
    return isinstance(error, MemoryError | torch.cuda.OutOfMemoryError) or "allocate memory" in str(error)

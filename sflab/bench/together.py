"""Measures what several devices do together, beside each of them alone, by the clock and by turns.

Every contestant measures the same batches as a node does. The replicas of the contestants are the same ones:
a device alone does the whole step. Of replicas on a CPU, which share its threads, the first is also measured
with all of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

from sflab.bench.measure import WARM_UPS, undisturbed
from sflab.bench.subject import Subject, SubjectSpec
from sfnode.engine.prefetching import MiniBatches
from sfnode.engine.replicas import ReplicatedTrainer
from sfnode.engine.trainer import Trainer
from sfnode.node.training.step_scheduler import batches_of
from sfnode.schema.results import TogetherResult
from sfprotocol.seeds import update_seeds


def measure(
    spec: SubjectSpec, subject: Subject, sizes: Sequence[int], queries: int, repetitions: int
) -> list[TogetherResult]:
    """Measure steps with mini-batches of these sizes, so many at a time. Raises UserError MODEL_*, DEVICE."""
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
    trainer: ReplicatedTrainer, subject: Subject, size: int, queries: int, threads: int, repetitions: int
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
    """Return what is timed by devices and threads: functions of a step's seeds, all devices first."""

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

"""Times three candidates: our step, plain forward passes with as many rows, and MeZO's step in place.

All candidates use the same model, the same mini-batch and the same output positions. They take turns in one
process, so a disturbance of the machine affects them alike. The order changes from turn to turn, so that no
candidate always follows the same other one. Medians are compared. On a CPU that other programs also use,
candidates have one thread and only its CPU seconds count: the times of threads that wait for each other would
mean nothing.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sflab.bench.mezo import mezo_step
from sflab.bench.subject import BenchSubject
from sfnode.engine.core import UpdateBatch
from sfnode.engine.estimator import estimates
from sfnode.engine.forward import score
from sfnode.engine.merging import MERGE_REST
from sfnode.engine.trainer import Trainer
from sfnode.models.loader import LoadedModel, matrix
from sfnode.models.quantized import QuantisedLinear
from sfnode.resources import memory
from sfnode.schema.results import IncomingResult
from sfnode.tasks.encoding import Encoded
from sfprotocol.seeds import update_seeds

FORWARDS = "forward passes"
STEP = "step"
MEZO_MATRICES = "MeZO, same matrices"
MEZO_ALL = "MeZO, all parameters"

WARM_UPS = 2
"""Number of turns that are discarded: the first allocates memory and compiles, the second warms the
caches."""

STRIDE = 7
"""Increment from turn to turn in the list of all orders of the candidates. As it is prime, every order has
its turn."""

RATE = 1e-9
"""MeZO's learning rate. The time of a step does not depend on it, and the weights should hardly change."""

PAST_UPDATES = 64
"""Number of updates that are applied while memory is measured."""


class BenchCase(NamedTuple):
    """A trainer and the mini-batches of one step."""

    trainer: Trainer
    seeds: Sequence[int]
    """Seeds, one for each update."""
    batches: Sequence[Encoded]
    """Mini-batches, one for each update. The updates of a group share a mini-batch."""
    together: Encoded
    """All mini-batches in one, for a plain forward pass."""

    @property
    def forwards(self) -> int:
        """Number of plain forward passes over all mini-batches that evaluate as many points as a step
        does."""
        numbers = self.trainer.manifest.training
        return numbers.points * numbers.batch_updates

    @property
    def tokens(self) -> int:
        """Tokens in the mini-batches, without padding."""
        together = self.trainer.manifest.training.batch_updates
        return sum(int(batch.attention_mask.sum()) for batch in self.batches[::together])


def share(add_seconds: float, fold_seconds: float, step_seconds: float) -> float:
    """Return the share of time that others' updates take in the long run, beside steps of `step_seconds`.

    Between two steps the updates are added to the core, in `add_seconds`. Then the core is merged into the
    weights, in `fold_seconds`, but at most once in MERGE_REST * `fold_seconds` seconds.
    """
    cost = add_seconds + min(fold_seconds, step_seconds / MERGE_REST)
    return cost / (step_seconds + cost)


def case(subject: BenchSubject, trainer: Trainer, size: int, queries: int) -> BenchCase:
    """Return the inputs of one step: `queries` mini-batches of `size` rows each. A mini-batch is for one
    update, or for a group of updates."""
    together = subject.manifest.training.batch_updates
    seeds = update_seeds(1, 0, queries * together).tolist()
    batches = [subject.mini_batch([seed], size) for seed in seeds[::together]]
    each = [batch for batch in batches for _ in range(together)]
    return BenchCase(trainer, seeds, each, subject.mini_batch(seeds[::together], size))


def candidates(found: BenchCase, *, mezo: bool) -> dict[str, Callable[[int], object]]:
    """Return the actions to time, keyed by name, with MeZO's steps if `mezo`. Each action takes the turn's
    number."""
    loaded = found.trainer.loaded
    actions: dict[str, Callable[[int], object]] = {
        FORWARDS: lambda _: [loss(loaded, found.together) for _ in range(found.forwards)],
        STEP: lambda turn: step(found, turn),
    }
    if mezo and not loaded.quantised:  # quantised weights cannot be perturbed in place
        actions[MEZO_MATRICES] = _mezo(found, matrices(loaded))
        actions[MEZO_ALL] = _mezo(found, [parameter.data for parameter in loaded.model.parameters()])
    return actions


def times(
    actions: Mapping[str, Callable[[int], object]], repetitions: int, device: torch.device
) -> dict[str, list[float]]:
    """Return the seconds that each action takes, turn by turn, keyed by the action's name."""
    orders = list(itertools.permutations(actions))
    taken: dict[str, list[float]] = {name: [] for name in actions}
    with undisturbed():
        for turn in range(WARM_UPS + repetitions):
            for name in orders[turn * STRIDE % len(orders)]:
                taken[name].append(seconds(partial(actions[name], turn), device))
    return {name: all_turns[WARM_UPS:] for name, all_turns in taken.items()}


def ratio(taken: Mapping[str, list[float]], name: str, by: str) -> float:
    """Return the time of action `name` relative to action `by`: the median of the ratios of all turns."""
    return statistics.median(one / other for one, other in zip(taken[name], taken[by], strict=True))


def incoming(
    subject: BenchSubject,
    found: BenchCase,
    counts: Sequence[int],
    repetitions: int,
    steps: Mapping[int, float],
) -> list[IncomingResult]:
    """Measure the cost of applying others' updates, for each of `counts` as the number of updates that arrive
    during a step.

    `steps` has the seconds of a step, keyed by the size of its mini-batches. Updates are added to the core at
    once, between two steps. They are merged into the weights at long intervals, so only one merge, of all of
    them, is timed.
    """
    found = found._replace(trainer=subject.trainer())  # a new trainer, whose first merge is due
    trainer, device = found.trainer, subject.device
    trainer.apply(updates(1, 0))
    trainer.weights.follow(0)  # sets all weights from the base, as when a node joins
    adding: dict[int, list[float]] = {count: [] for count in counts}
    with undisturbed():
        for turn in range(1, repetitions + 2):
            for count in counts:  # a step in between removes the core from the caches
                adding[count].append(seconds(partial(trainer.apply, updates(count, turn)), device))
                step(found, turn)
        merge = seconds(partial(trainer.weights.follow, 0), device)
    adds = {count: statistics.median(taken[1:]) for count, taken in adding.items()}
    return [
        IncomingResult(
            updates=count,
            add_seconds=add,
            fold_seconds=merge,
            shares={size: share(add, merge, step_seconds) for size, step_seconds in steps.items()},
        )
        for count, add in adds.items()
    ]


def inference_peak(subject: BenchSubject, size: int, queries: int) -> int | None:
    """Return the peak memory, in bytes, of a plain forward pass with as many rows as a step."""
    seeds, numbers = update_seeds(1, 0, queries).tolist(), subject.manifest.training
    rows = subject.mini_batch(seeds, size, times=numbers.points * numbers.batch_updates)
    return memory.peak(lambda: loss(subject.loaded, rows), subject.device)


def keeping_peak(trainer: Trainer) -> int | None:
    """Return the peak memory, in bytes, of applying updates and rebuilding all weights."""

    def keep() -> None:
        trainer.apply(updates(PAST_UPDATES, 0))
        trainer.weights.rebuild()

    return memory.peak(keep, trainer.loaded.device)


def step_peak(found: BenchCase) -> int | None:
    """Return the peak memory of a step, in bytes."""
    return memory.peak(lambda: step(found, 0), found.trainer.loaded.device)


def step(found: BenchCase, turn: int) -> object:
    """Take our step: derive directions from seeds, and estimate along them."""
    trainer, group = found.trainer, found.trainer.manifest.training.group
    directions = trainer.space.directions([seed ^ turn for seed in found.seeds], 0)
    return estimates(trainer.loaded, directions, found.batches, trainer.epsilon, group)


def loss(loaded: LoadedModel, encoded: Encoded) -> float:
    """Return the mean loss of a mini-batch, from one plain forward pass."""
    with torch.inference_mode():
        return float(encoded.losses(score(loaded, encoded).log_probs).mean())


def matrices(loaded: LoadedModel) -> list[Tensor]:
    """Return views of the targets' weights."""
    return [matrix(site) for site in loaded.sites]


def weight_bytes(loaded: LoadedModel, dtype: str) -> int:
    """Return the bytes of the model's weights. Quantised layers have no parameters: their bytes follow from
    shapes."""
    plain: int = sum(parameter.numel() * parameter.element_size() for parameter in loaded.model.parameters())
    modules: Iterator[nn.Module] = loaded.model.modules()
    layers = [module for module in modules if isinstance(module, QuantisedLinear)]
    quantised = sum(layer.out_features * layer.in_features for layer in layers)
    return plain + int(quantised * memory.BYTES_PER_PARAMETER[dtype])


def updates(count: int, turn: int) -> UpdateBatch:
    """Make `count` updates of another node in the first epoch. Every turn has different updates."""
    numbers = np.arange(count, dtype=np.int64)
    return UpdateBatch(numbers * 0, update_seeds(turn + 2, 0, count), numbers * 7919 % 2001 - 1000)


def seconds(action: Callable[[], object], device: torch.device) -> float:
    """Return the seconds that an action takes until its last result is ready.

    With a single thread on a CPU, only the process's own CPU time counts, so other programs do not matter.
    """
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    _finish(device)
    start = clock()
    action()
    _finish(device)
    return clock() - start


@contextmanager
def undisturbed() -> Iterator[None]:
    """Collect garbage before the block, and switch the collector off within it."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _mezo(found: BenchCase, parameters: Sequence[Tensor]) -> Callable[[int], object]:
    """Return a function that takes a step of MeZO on `parameters` for each mini-batch."""
    loaded, epsilon = replace(found.trainer.loaded, kept=None), found.trainer.epsilon

    def run(turn: int) -> None:
        for batch in found.batches:
            evaluate = partial(loss, loaded, batch)
            mezo_step(parameters, evaluate, seed=turn, epsilon=epsilon, learning_rate=RATE)

    return run


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

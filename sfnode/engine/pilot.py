"""A pilot: measures a run before it starts, to set the limit of its scalars and to judge its numbers.

A node can say any scalar up to the limit, by malice or by a fault, and everybody applies it. So the limit is
to be near what honest scalars reach, and no update at the limit may wreck the model. This module knows what
is measured and what follows from it; it prints nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sfnode.engine.estimator import quantise
from sfnode.engine.trainer import Trainer
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.training import Training
from sfnode.models.loader import LoadedModel
from sfnode.models.targets import Form
from sfnode.tasks import calibration
from sfprotocol.seeds import feed_key, update_seeds

SLOPES = 64
"""Directional derivatives that are measured. Between runs of the built-in model that differ only in their
directions, their root mean square was 34 to 64 units of scalar_delta."""

HEADROOM = 8
"""The limit is this many times the root mean square of the scalars, unless that is too much for the model:
one or two honest ones in a thousand reach it in a run of the built-in model (docs/benchmarks.md)."""

LEAST_HEADROOM = 2
"""The limit is no less than this many times the root mean square, also where a large learning rate asks for
it: at 2 a run still learns as well as without a limit."""

NEAR = 1.5
"""A limit that the run has already stays if it is at most this many times too large or too small: another
sample of SLOPES directions would say so, too. So the built-in run is the same for everybody who makes it."""

LARGEST_MOVE = 0.25
"""One update may move the weights by no more than this share of their root mean square. At this share it
costs a trained model an accuracy of 0.03 at worst, at twice as much 0.25, and at four times as much nearly
all that was learnt (docs/benchmarks.md)."""

Advance = Callable[[int, int], None]
"""Told how many slopes are measured, and of how many."""


class Pilot(NamedTuple):
    """The size of a run's slopes and of its weights, as measured."""

    slopes: NDArray[np.float64]
    """(n,), the directional derivatives; none if there were no rows to measure them on."""
    weight: float
    """Root mean square of the entries of a typical trained matrix."""
    reason: str = ""
    """The cause of there being no slopes; empty if there are some."""

    @property
    def spread(self) -> float:
        """Root mean square of the slopes, 0 if there are none."""
        return float(np.sqrt(np.mean(self.slopes**2))) if len(self.slopes) else 0.0


def measure(
    manifest: Manifest,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    advance: Advance = lambda done, total: None,
    bases: Path | None = None,
) -> Pilot:
    """Load the run's base model, and measure slopes on its training rows (or test rows, if it has no others).
    `bases` is the folder with published ones.

    Raises UserError as `Trainer.load` and `Trainer.estimate` do, but for data that are not within reach.
    """
    trainer, reason = any_trainer(manifest, device, dtype, bases)
    with trainer:
        weight = typical_weight(trainer.loaded)
        if reason:
            return Pilot(np.zeros(0), weight, reason)
        slopes = slopes_of(trainer, manifest.training.epsilon, SLOPES, lambda done: advance(done, SLOPES))
    if not slopes.any():
        return Pilot(np.zeros(0), weight, "the loss does not change along any direction")
    return Pilot(slopes, weight)


def seeds_of(trainer: Trainer, count: int) -> list[int]:
    """Return the seeds of `count` directions, or of a few more that complete a group."""
    together = trainer.manifest.training.batch_updates
    key = feed_key(trainer.manifest.run_id, bytes(32), 0)
    found: list[int] = update_seeds(key, 0, -(-count // together) * together).tolist()
    return found


def slopes_of(
    trainer: Trainer, distance: float, count: int, advance: Callable[[int], None]
) -> NDArray[np.float64]:
    """Return the slopes along the directions of `seeds_of`; 0 for one that gave no number."""
    seeds, together = seeds_of(trainer, count), trainer.manifest.training.batch_updates
    found: list[float] = []
    for start in range(0, len(seeds), together):
        part = seeds[start : start + together]
        found += [estimate.alpha for estimate in trainer.estimate(part, 0, distance)]
        advance(min(len(found), count))
    return np.nan_to_num(found, nan=0.0, posinf=0.0, neginf=0.0)


def with_limit(manifest: Manifest, found: Pilot) -> Manifest:
    """Return the manifest with the `scalar_limit` that the pilot asks for, or its own if that is NEAR it.

    Raises UserError as `check` does.
    """
    limit, present = suitable_limit(manifest.training, found), manifest.training.scalar_limit
    if limit / NEAR <= present <= NEAR * limit:
        limit = present
    training = manifest.training.model_copy(update={"scalar_limit": limit})
    check(training, found)
    return manifest.model_copy(update={"training": training})


def suitable_limit(training: Training, found: Pilot) -> int:
    """Return HEADROOM times the root mean square of the scalars, rounded up to two digits.

    Less if the scalar's bits, or the model (`harmless_limit`), bear no more, but never less than
    LEAST_HEADROOM times it. Without slopes it is the limit as it is.
    """
    if not found.spread:
        return training.scalar_limit
    usual = found.spread / training.scalar_delta
    least, wanted = (
        math.ceil(_in_two_digits(times * usual, math.ceil)) for times in (LEAST_HEADROOM, HEADROOM)
    )
    return min(wanted, max(least, harmless_limit(training, found)), training.largest_scalar)


def harmless_limit(training: Training, found: Pilot) -> int:
    """Return the largest limit that `check` lets pass, rounded down to two digits; 0 if there is none."""
    bound = LARGEST_MOVE * found.weight / (training.learning_rate * training.scalar_delta)
    return math.floor(_in_two_digits(bound, math.floor)) if bound else training.largest_scalar


def suitable_delta(training: Training, found: Pilot) -> float:
    """Return the smallest power of two as `scalar_delta` with which HEADROOM times the spread is a scalar."""
    return 2.0 ** math.ceil(math.log2(HEADROOM * found.spread / training.largest_scalar))


def shares(training: Training, found: Pilot) -> tuple[float, float]:
    """Return the share of slopes that are 0 as scalars, and the share that the limit clips."""
    exact = np.abs(found.slopes) / training.scalar_delta
    zeros = [quantise(slope, training.scalar_delta, training.scalar_limit) == 0 for slope in found.slopes]
    return float(np.mean(zeros)), float(np.mean(exact > training.scalar_limit))


def still(found: Pilot) -> float:
    """Return the share of directions along which the loss does not change at all."""
    return float(np.mean(found.slopes == 0))


def check(training: Training, found: Pilot) -> None:
    """Raise UserError UPDATE_TOO_LARGE if one update at the limit can wreck the model.

    An update moves every entry of every trained matrix by learning rate x delta x |scalar|, as the entries of
    u v^T are +1 and -1. A layer's output moves by that much times |x . v|, about |x|, and is itself about
    weight x |x|: so the ratio of the two says how much of an output is left, whatever the task, and also for
    a model that does not know the task yet and has no accuracy to lose.
    """
    move = training.learning_rate * training.scalar_delta * training.scalar_limit
    bound = LARGEST_MOVE * found.weight
    if not bound or move <= bound:
        return
    harmless = harmless_limit(training, found)
    limit = min(training.scalar_limit, suitable_limit(training, found) if found.spread else max(1, harmless))
    advice = [f"--scalar-limit to {limit}"] if limit < training.scalar_limit else []
    if limit > harmless:
        rate = _in_two_digits(bound / training.scalar_delta / limit, math.floor)
        advice.append(f"--learning-rate to {rate:g}")
    raise UserError(
        Code.UPDATE_TOO_LARGE,
        f"one update could wreck the model: it may move every weight by {move:.2g} (learning rate "
        f"{training.learning_rate:g} x scalar_delta {training.scalar_delta:g} x scalar_limit "
        f"{training.scalar_limit}), {move / found.weight:.1f} times a weight's usual size of "
        f"{found.weight:.2g}; {LARGEST_MOVE} times is the most",
        f"Lower {' and '.join(advice)}.",
    )


def typical_weight(loaded: LoadedModel) -> float:
    """Return the median, over the trained matrices, of the root mean square of the entries.

    Vectors count only where nothing else is trained: norms are near 1, and biases often 0.
    """
    numbers = [n for n, site in enumerate(loaded.sites) if site.form is not Form.VECTOR]
    return float(np.median([_size(loaded, number) for number in numbers or range(len(loaded.sites))]))


def _size(loaded: LoadedModel, number: int) -> float:
    """Return the root mean square of one target's base weights."""
    weight = loaded.base_weights.read(number)
    return float(torch.linalg.vector_norm(weight, dtype=torch.float32)) / math.sqrt(weight.numel())


def any_trainer(
    manifest: Manifest, device: str, dtype: str, bases: Path | None = None
) -> tuple[Trainer, str]:
    """Return a trainer on whatever public rows the run has, and, if there are none, why. `bases` is the
    folder with published ones, and with files of the run's data.

    It has directions of its own, which do not depend on the limit that is to be found.
    """
    numbers, data = manifest.training, manifest.data
    if not data.train:
        data = data.testing_as_training()
    numbers = numbers.model_copy(update={"scalar_limit": numbers.largest_scalar})
    manifest = manifest.model_copy(update={"training": numbers, "data": data})
    reason = "" if manifest.data.train else "the run names no data"
    if not reason:
        try:
            return Trainer.load(manifest, device=device, dtype=dtype, bases=bases, data=bases), ""
        except UserError as error:
            if error.code is not Code.DATA_NOT_FOUND:
                raise
            reason = error.what
    return Trainer.load(manifest, device=device, dtype=dtype, training=False), reason


def prior_of(manifest: Manifest, *, device: str, dtype: str, folder: Path | None = None) -> tuple[int, ...]:
    """Return the base model's prior as the manifest has it; () if no rows to measure it on are within reach.

    Of public training rows, or else of test rows, without their labels; `folder` has the files of the run's
    data. Raises UserError as `Trainer.load`.
    """
    data = manifest.data
    if not data.train:
        manifest = manifest.model_copy(update={"data": data.testing_as_training()})
    with Trainer.load(manifest, device=device, dtype=dtype, training=False, data=folder) as trainer:
        return calibration.for_manifest(trainer.base_prior()) if trainer.run_rows.some_if_any() else ()


def _in_two_digits(value: float, rounded: Callable[[float], int]) -> float:
    """Return a positive number with two significant digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return rounded(value / unit) * unit

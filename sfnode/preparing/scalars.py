"""Measures slopes of a run before it starts, to set the limit of its scalars and to check its
hyperparameters.

A node can publish any scalar up to the limit, by malice or by a fault, and everybody applies it. So the limit
should be close to the largest honest scalars, and no update at the limit may wreck the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfnode.engine import forward
from sfnode.engine.estimator import estimates, quantise
from sfnode.engine.head import HeadRows, rows_of
from sfnode.engine.losses import EVALUATION_BATCH, scorer
from sfnode.engine.making_bases import Pairs
from sfnode.engine.subspace import Subspace
from sfnode.engine.trainer import Trainer
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.training import Training
from sfnode.models import bases
from sfnode.models.loader import LoadedModel
from sfnode.models.targets import Form
from sfnode.store.disk_errors import disk_faults
from sfnode.tasks import calibration, dataset, encoding, prompts, tokenization
from sfnode.tasks.encoding import Encoded
from sfnode.tasks.prompts import Row
from sfnode.tasks.public_files import ELSEWHERE, NOWHERE, Places
from sfprotocol.seeds import feed_key, update_seeds

LOADING = 100
"""Example-forwards that take as long as loading the model, whatever its size."""

SECONDS = 7e-10
"""Estimated seconds of an example-forward on a CPU for each trained parameter. SmolLM2-135M takes 0.07 s for
a row of 60 tokens on two cores."""

FORWARDS = 342
"""Default number of example-forwards for a sample of slopes, or for a trial. `sfnode init` has this number
left after making a run's bases and measuring the prior of a centred loss."""

SLOPES, LEAST_SLOPES = 64, 4
"""Maximum and minimum number of directional derivatives that are measured. In runs of the built-in model that
differ only in their directions, the root mean square of 64 such slopes was between 34 and 64 units of
scalar_delta."""

PRIOR_ROWS = 120
"""Number of rows on which a manifest's prior is measured, for nodes without public rows. If scores have a
standard deviation of 2 nats over rows, the standard error of the prior is then below 0.2 nats."""

UNITS = 32
"""Target root mean square of the scalars, in units of scalar_delta. Rounding then adds less than a thousandth
of their variance. With 8 bits the target is half of UNITS."""

SHOWN = 4
"""Maximum number of answers that an error names if the model cannot tell them apart."""

MOST_ROWS = 8
"""Maximum number of rows of a measured mini-batch. Slopes of larger mini-batches are somewhat smaller (at 64
rows by a factor below 3), so hyperparameters that are measured on fewer rows still suit."""

HEADROOM = 8
"""Default limit of a scalar, as a multiple of the scalars' root mean square, unless the model requires a
lower limit. One or two honest scalars in a thousand reach this limit in a run of the built-in model
(docs/benchmarks.md)."""

LEAST_HEADROOM = 2
"""Minimum limit of a scalar, as a multiple of the scalars' root mean square, even if a large learning rate
requires a lower limit. With a multiple of 2 a run still learns as well as without a limit."""

NEAR = 2.0
"""Maximum factor between a manifest's limit and the measured limit at which the manifest keeps its limit. Two
samples of about twenty directions differ by up to this factor. The built-in run thus gets the same manifest
on every machine."""

LARGEST_MOVE = 0.25
"""Maximum change of the weights by one update, as a share of their root mean square. At this share the update
lowers the accuracy of a trained model by 0.03 at worst, and at twice this share by 0.25. At four times this
share it undoes nearly everything that was learnt (docs/benchmarks.md)."""

Tell = Callable[[int], None]
"""Function that is told the number of example-forwards taken so far."""

F64 = NDArray[np.float64]

Advance = Callable[[int, int], None]
"""Function that is told how many units of the work are finished, and how many units there are."""


Waiting = Callable[..., AbstractContextManager[Advance]]
"""Function that shows that work is under way, given the work's name and its estimated seconds (0: unknown).
Its context manager yields an `Advance`, and ends with the work."""


class Means(NamedTuple):
    """Device, number format and file locations with which a run is measured."""

    device: str = "cpu"
    dtype: str = "float32"
    bases: Path | None = None
    """Folder of published bases, into which new bases are written, too."""
    model: Path | None = None
    """Folder of the base model, if the user names one."""
    places: Places = NOWHERE
    """Locations of the run's data."""


class SlopeSample(NamedTuple):
    """Measured size of a run's slopes and of its weights."""

    slopes: F64
    """Directional derivatives, (n,); none if there were no rows to measure them on."""
    weight: float
    """Root mean square of the entries of a typical trained matrix."""
    reason: str = ""
    """Reason why there are no slopes; empty if there are some."""
    example_forwards: int = 0

    @property
    def spread(self) -> float:
        """Root mean square of the slopes; 0 if there are no slopes."""
        return float(np.sqrt(np.mean(self.slopes**2))) if len(self.slopes) else 0.0


Suited = tuple[dict[str, Any], SlopeSample]
"""Hyperparameters that suit a run, keyed by name, and the slopes from which they were chosen."""


class Prepared(NamedTuple):
    """A manifest, with the measurements from which its hyperparameters were chosen."""

    manifest: Manifest
    sample: SlopeSample | None = None
    """Sample of slopes; None if nothing was measured, as in a first-order run."""
    suited: Mapping[str, Any] = {}
    """Hyperparameters that a trial has found, keyed by name, whether they were taken or not."""
    untried: str = ""
    """Reason why there was no trial though hyperparameters were to be tried out; empty if there is no such
    reason."""
    no_bases: str = ""
    """Reason why no bases were made though the run was to have new ones; empty if there is no such reason."""
    example_forwards: int = 0
    """Example-forwards that were taken. A backward pass counts as two forward passes."""
    seconds: float = 0.0
    """Estimated seconds that one node, with this machine to itself, takes for all updates of a first-order
    run; 0 if this time is unknown."""


def measure(
    trainer: Trainer, forwards: int = FORWARDS, advance: Advance = lambda done, total: None
) -> SlopeSample:
    """Measure slopes on the rows of a trainer from `any_trainer`, with at most `forwards` example-forwards.

    Raises UserError as `three_points` and `Trainer.estimate` do.
    """
    weight, distance = typical_weight(trainer.loaded), trainer.epsilon
    _, slopes, bends, taken = three_points(trainer, distance, forwards, advance)
    slopes = as_scalars(trainer.manifest.training, slopes, bends, distance)
    return SlopeSample(slopes, weight, example_forwards=taken)


def three_points(
    trainer: Trainer, distance: float, forwards: int, advance: Advance
) -> tuple[list[int], F64, F64, int]:
    """Return seeds, slopes and bends (n,) of up to SLOPES directions, each on a mini-batch of its own, and
    the number of example-forwards taken. This number is `forwards` at most, unless LEAST_SLOPES directions
    need more. A bend is a second derivative. A value that is not a number becomes 0. Raises UserError
    LOSS_FLAT if no direction has a slope."""
    count = max(LEAST_SLOPES, forwards // (3 * trainer.manifest.training.batch_size))
    seeds = seeds_of(trainer, SLOPES)[: min(count, SLOPES)]
    found, taken = [], 0
    for done, seed in enumerate(seeds, 1):
        batch = trainer.mini_batch(seed)
        found.append(slopes_and_bends(trainer.loaded, trainer.space, [seed], [batch], distance))
        taken += 3 * batch.examples
        advance(done, len(seeds))
    slopes, bends = (as_numbers(np.concatenate(parts)) for parts in zip(*found, strict=True))
    require_slopes(slopes)
    return seeds, slopes, bends, taken


def slopes_and_bends(
    loaded: LoadedModel, space: Subspace, seeds: Sequence[int], batches: Sequence[Encoded], distance: float
) -> tuple[F64, F64]:
    """Return slopes and bends (n,) of mini-batches' losses along the first subspace's directions of these
    seeds, from three points each."""
    slopes, bends = [], []
    found = estimates(loaded, space.directions(seeds, 0), batches, distance)
    for estimate, batch in zip(found, batches, strict=True):
        here = forward.score_in_passes(loaded, batch).log_probs
        slopes.append(estimate.alpha)
        bends.append(2 * (estimate.loss - float(batch.losses(here).double().mean())) / distance**2)
    return np.array(slopes), np.array(bends)


def as_numbers(values: F64) -> F64:
    """Return values with 0 in place of those that are not finite."""
    return np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def require_slopes(slopes: F64) -> None:
    """Raise UserError LOSS_FLAT if all slopes are 0."""
    if not slopes.any():
        raise UserError(
            Code.LOSS_FLAT,
            f"the loss is the same at both points along all of {len(slopes)} directions, or is no number: "
            "nothing could be learnt",
            "Give a larger training.epsilon, or other data: of texts in which the model knows no word it "
            "learns nothing.",
        )


def require_answers(trainer: Trainer) -> None:
    """Raise UserError LOSS_FLAT if each row has two answers that are the same tokens to the model. Without
    rows the task's fixed answers are checked. In a reward run nothing is checked, as rows have no given
    answers."""
    task = trainer.manifest.task
    if task.is_rewarded:
        return
    rows = dataset.select(list(trainer.rows), PRIOR_ROWS)
    rows = rows or [prompts.example(task)] * task.labelled
    texts = [prompts.render_row(task, row) for row in rows]
    examples = [tokenization.example(trainer.loaded.tokenizer, words, task.max_tokens) for words in texts]
    found = [tokenization.alike(one) for one in examples]
    if not found or not all(found):
        return
    assert isinstance(texts[0], prompts.Prompt)  # others have one answer, or classes
    ways = ["other words", "another base model (--model)"]
    ways += ["a head, which needs no words (--set task.kind=sequence-classification)"] * task.labelled
    named = ", ".join(repr(texts[0].answers[number].strip()) for number in found[0][:SHOWN])
    raise UserError(
        Code.LOSS_FLAT,
        f"the base model cannot tell the answers {named} apart: its tokenizer reads them as the same tokens",
        f"Take {', or '.join(ways)}.",
    )


def seeds_of(trainer: Trainer, count: int) -> list[int]:
    """Return the seeds of `count` directions, or of a few more that complete a group."""
    together = trainer.manifest.training.batch_updates
    key = feed_key(trainer.manifest.run_id, bytes(32), 0)
    found: list[int] = update_seeds(key, 0, -(-count // together) * together).tolist()
    return found


def as_scalars(training: Training, slopes: F64, bends: F64, distance: float) -> F64:
    """Return the scalars that updates would have along directions with these slopes and bends (n,). In a
    group of m updates a scalar is the rise of the loss to one side, divided by the distance, less the mean
    rise along the m - 1 other directions."""
    if not training.group:
        return slopes
    rises = slopes + bends * distance / 2
    found: F64 = (rises - rises.mean()) * math.sqrt(training.group / (training.group - 1))
    return found


def with_limit(manifest: Manifest, found: SlopeSample) -> Manifest:
    """Return the manifest with the `scalar_limit` that suits the sample. The manifest keeps its own limit if
    the two limits differ by a factor of NEAR at most.

    Raises UserError as `check` does.
    """
    limit, present = suitable_limit(manifest.training, found), manifest.training.scalar_limit
    if limit / NEAR <= present <= NEAR * limit:
        limit = present
    manifest = changed(manifest, "training", scalar_limit=limit)
    check(manifest.training, found)
    return manifest


def suitable_limit(training: Training, found: SlopeSample) -> int:
    """Return HEADROOM times the root mean square of the scalars, rounded up to two digits.

    The result is at most `harmless_limit`, or LEAST_HEADROOM times the root mean square if this product is
    larger. It is also at most the largest scalar that fits the bits. Without slopes it is the manifest's
    limit.
    """
    if not found.spread:
        return training.scalar_limit
    usual = found.spread / training.scalar_delta
    least, wanted = (
        math.ceil(_in_two_digits(times * usual, math.ceil)) for times in (LEAST_HEADROOM, HEADROOM)
    )
    return min(wanted, max(least, harmless_limit(training, found)), training.largest_scalar)


def harmless_limit(training: Training, found: SlopeSample) -> int:
    """Return the largest limit that passes `check`, rounded down to two digits; 0 if there is none."""
    bound = LARGEST_MOVE * found.weight / (training.learning_rate * training.scalar_delta)
    return math.floor(_in_two_digits(bound, math.floor)) if bound else training.largest_scalar


def unit_for(training: Training, spread: float) -> float:
    """Return the scalar_delta, a power of two, with which slopes of this root mean square become scalars of
    about UNITS. The scalars are smaller if their bits cannot hold HEADROOM times UNITS."""
    return float(2.0 ** round(math.log2(spread / min(UNITS, training.largest_scalar / HEADROOM))))


def shares(training: Training, found: SlopeSample) -> tuple[float, float]:
    """Return the share of slopes that are 0 as scalars, and the share that the limit clips."""
    exact = np.abs(found.slopes) / training.scalar_delta
    zeros = [quantise(slope, training.scalar_delta, training.scalar_limit) == 0 for slope in found.slopes]
    return float(np.mean(zeros)), float(np.mean(exact > training.scalar_limit))


def check(training: Training, found: SlopeSample) -> None:
    """Raise UserError UPDATE_TOO_LARGE if one update at the limit can wreck the model.

    An update changes every entry of every trained matrix by learning rate x delta x |scalar|, as the entries
    of u v^T are +1 and -1. A layer's output changes by that amount times |x . v|, which is about |x|. The
    output itself is about a typical weight times |x|. The ratio of the two shows the share of an output that
    may change. It holds for any task, even for a model that does not know the task yet and has no accuracy to
    lose.
    """
    move = training.learning_rate * training.scalar_delta * training.scalar_limit
    bound = LARGEST_MOVE * found.weight
    if not bound or move <= bound:
        return
    harmless = harmless_limit(training, found)
    limit = min(training.scalar_limit, suitable_limit(training, found) if found.spread else max(1, harmless))
    advice = [f"training.scalar_limit to {limit}"] if limit < training.scalar_limit else []
    if limit > harmless:
        rate = _in_two_digits(bound / training.scalar_delta / limit, math.floor)
        advice.append(f"training.learning_rate to {rate:g}")
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


def any_trainer(manifest: Manifest, means: Means) -> tuple[Trainer, str]:
    """Return a trainer on any public rows of the run, and an empty text. If there are none, return a trainer
    without rows, and the reason.

    The trainer's manifest has test rows in place of missing training rows, mini-batches of MOST_ROWS rows at
    most (except in a reward run), and the largest scalar_limit. With the largest limit, the run id and the
    directions that follow from it do not depend on the limit that is to be found.
    """
    numbers, data, places = manifest.training, manifest.data, means.places
    if not data.train:
        data = data.testing_as_training()
        if "test" in places.named:
            places = places._replace(named={"train": places.named["test"]})
    rows = numbers.batch_size if manifest.task.is_rewarded else min(numbers.batch_size, MOST_ROWS)
    numbers = numbers.model_copy(update={"scalar_limit": numbers.largest_scalar, "batch_size": rows})
    measured = manifest.model_copy(update={"training": numbers, "data": data})
    how: dict[str, Any] = {"device": means.device, "dtype": means.dtype, "model_override": means.model}
    reason = "" if data.train else "the run names no data"
    if not reason:
        try:
            return Trainer.load(measured, bases=means.bases, places=places, **how), ""
        except UserError as error:
            if error.code not in ELSEWHERE:
                raise
            reason = error.what
    return Trainer.load(measured, training=False, **how), reason


def head_rows(trainer: Trainer, rows: Sequence[Row], advance: Tell) -> HeadRows:
    """Return the states and classes of rows at a model's head; `advance` is told how many rows have been
    through the model."""
    task, loaded = trainer.manifest.task, trainer.loaded
    return rows_of(loaded, encoding.batches(task, loaded.tokenizer, rows, EVALUATION_BATCH), advance)


def prior_of(
    trainer: Trainer, average: Callable[[Tensor], Tensor] = calibration.mean_score
) -> tuple[tuple[int, ...], int]:
    """Return the base model's prior in the manifest's form, and the example-forwards that it took.

    `trainer` comes from `any_trainer`. The prior is measured on up to PRIOR_ROWS of its public rows. Labels
    are not used.
    """
    rows = trainer.run_rows.fitting.of(dataset.select(trainer.run_rows.training(), PRIOR_ROWS))
    task, loaded = trainer.manifest.task, trainer.loaded
    found = calibration.prior(task, loaded.tokenizer, rows, scorer(loaded), EVALUATION_BATCH, average)
    return calibration.for_manifest(found), len(rows)


def _in_two_digits(value: float, rounded: Callable[[float], int]) -> float:
    """Return a positive number with two significant digits; `rounded` rounds it."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return rounded(value / unit) * unit


def seconds_of(manifest: Manifest, means: Means, forwards: int) -> float:
    """Return the approximate number of seconds that this many example-forwards take; 0 if that is unknown, as
    on other devices and for written answers."""
    if means.device != "cpu" or manifest.task.is_rewarded:
        return 0.0
    trained = sum(one.out_features * one.in_features for one in manifest.model.parsed_targets())
    return SECONDS * forwards * trained


def share(before: int, units: int, tell: Tell) -> Advance:
    """Return an `Advance` for one part of the work, which reports progress to `tell`. The part begins after
    `before` units, and has `units` units itself."""
    return lambda done, total: tell(before + units * done // total)


def write_bases(folder: Path, pairs: Pairs) -> str:
    """Write bases to a folder, and return their digest. Raises UserError DISK_FULL, DATA_DIR_UNUSABLE."""
    with disk_faults(folder):
        return bases.write(folder, pairs)


def changed(manifest: Manifest, section: str, **fields: Any) -> Manifest:
    """Return a manifest with other values in a section, without checking them."""
    return manifest.model_copy(update={section: getattr(manifest, section).model_copy(update=fields)})

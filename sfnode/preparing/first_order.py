"""Measures the missing parts of a first-order run's manifest: bases, prior, and unit and limit of scalars.

No rate is tried out. The coordinates are chosen so that gradients vary equally along all of them. In such
coordinates one first rate suits the heads of all models, and another first rate suits their bodies. The usual
norm of gradients is measured on a few mini-batches.

The head: its outputs change by U A V^T x for a state x, where U is the identity. V is chosen with V V^T = (S
+ strength)^-1, where S are the second moments of the scaled states. The second moments of V^T x are then at
most 1, and the curvature of a softmax is at most a half. So one rate serves all models and data, and no
direction learns more slowly than the others. The exceptions are directions in which states vary less than
`strength`, as in a ridge regression. `strength`, like the end of training, is chosen by the loss on
validation rows. S is not centred. The mean state is therefore a direction like others, and changes along it
act as a bias.

The body: its bases span its gradients. The bases' columns are mixed so that gradients of mini-batches vary
equally along all columns (`turned`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from sfnode.engine import making_bases
from sfnode.engine.gradients import GRADIENT
from sfnode.engine.head import Known, head_gradient, takes_features
from sfnode.engine.trainer import Trainer
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.task import ANSWERS
from sfnode.manifest.training import Training, units_of
from sfnode.models import bases
from sfnode.organising.policy import HEAD_EPOCH
from sfnode.preparing import scalars
from sfnode.preparing.manifest import WITHOUT_GRADIENTS, refusing
from sfnode.preparing.scalars import F64, Means, Prepared, Tell, Waiting
from sfnode.tasks import calibration, dataset
from sfnode.tasks.prompts import Row
from sfprotocol.decisions import RATE_ONE
from sfprotocol.seeds import stream

WHITENED_ROWS = 1024
"""Maximum number of rows whose states are computed. The states are kept for the nodes on this machine
(`kept_states`)."""

VALIDATING = 1 / 5
"""Share of the WHITENED_ROWS rows that serve as validation rows in a run without validation rows."""

STEP = 1.75
"""Length of the first step of a body along a usual gradient, in coordinates whose columns have mean norm 1
and along which gradients vary equally. SmolLM2 learns AG News and SST-2 with 2/3 of this length and with 3/2
of it. No single rate, and no single gain, suits both data sets (docs/research-log.md)."""

REWARD_STEP = 0.5
"""Length of the first step of a body in a reward run, whose gradients have far more noise. It is measured in
the same coordinates as STEP. The built-in model for sums ends best with 0.3 and 0.5, and is ruined by 1.
SmolLM2 learns to follow orders with 0.5 and 0.75 (docs/research-log.md)."""

USUAL_BATCHES, REWARDED_BATCHES = 32, 8
"""Number of mini-batches of which the usual norm of a gradient (the median) and the second moments of
gradients (the mean) are measured: USUAL_BATCHES, or REWARDED_BATCHES in reward runs. Reward runs have fewer,
because answers are written for each mini-batch."""

ROOT_MEAN_SQUARE = {8: 8, 16: 8 * 16}
"""Target root mean square of a usual update's scalars, keyed by the number of bits of a scalar. The largest
8-bit scalar is 16 times as large as the target."""

LIMIT = 2
"""Maximum norm of an update (`norm_limit`), as a multiple of a usual update's norm."""


IDENTITY = 64
"""Diagonal entries of a head's U. All others are 0, so each output has its own coordinate."""

ANY = {"estimator": "first-order", "norm_limit": 1, "basis": "published", "bases": "0" * 64}
"""Placeholders for hyperparameters that are measured later. With them the given hyperparameters are
checked."""


def _cost(manifest: Manifest) -> int:
    """Return the maximum number of example-forwards for completing a run."""
    if takes_features(manifest):
        return WHITENED_ROWS + manifest.data.withheld
    of_bases = 0 if manifest.training.bases else making_bases.cost("gradients")
    return scalars.PRIOR_ROWS + of_bases + _usual_batches(manifest) * _of_batch(manifest)


def _usual_batches(manifest: Manifest) -> int:
    return REWARDED_BATCHES if manifest.task.is_rewarded else USUAL_BATCHES


def _of_batch(manifest: Manifest) -> int:
    """Return the example-forwards of a mini-batch's gradient. Each drawn answer is an example."""
    answers = ANSWERS if manifest.task.is_rewarded else 1
    return GRADIENT * answers * manifest.training.batch_size


def begun(manifest: Manifest) -> Manifest:
    """Return a first-order run's manifest with zeroth-order values in place of hyperparameters that are not
    measured yet, so that a trainer can measure them."""
    task = manifest.task
    plain = task.model_copy(update={"loss": "plain", "prior": ()}) if task.loss == "calibrated" else task
    training = manifest.training.model_copy(update=WITHOUT_GRADIENTS)
    return manifest.model_copy(update={"training": training, "task": plain})


def prepare(
    manifest: Manifest, given: Container[str], means: Means, waiting: Waiting, measure: bool = True
) -> Prepared:
    """Return a first-order run with all its hyperparameters measured, except those named in `given`. A run
    whose hyperparameters were measured before is returned unchanged. Bases are written to the folder of
    `means`.

    Raises UserError as `making_bases.make_on` and `usual`, LOSS_FLAT without a gradient, and BAD_OPTION for
    values that no manifest can have, if no public row can be read, and without `measure`.
    """
    if manifest.training.norm_limit:
        return Prepared(manifest)
    if not measure:
        raise UserError(
            Code.BAD_OPTION,
            "init.measure: a first-order run has bases and a unit that are measured",
            "Leave it out, or take training.estimator=zeroth-order.",
        )
    total = scalars.LOADING + _cost(manifest)
    with waiting("measuring what suits the model", scalars.seconds_of(manifest, means, total)) as advance:
        trainer, reason = scalars.any_trainer(begun(manifest), means)
        with trainer:
            if reason:
                raise UserError(
                    Code.BAD_OPTION,
                    f"no gradient can be taken before the run starts: {reason}",
                    "Name training data, or make a run of forward passes, which learns less from them: "
                    "--set training.estimator=zeroth-order.",
                )
            if not takes_features(manifest):
                scalars.require_answers(trainer)
            tell: Tell = lambda taken: advance(min(scalars.LOADING + taken, total), total)  # noqa: E731
            return _complete(manifest, given, trainer, means.bases or Path(), tell)


@refusing()
def _complete(
    manifest: Manifest, given: Container[str], trainer: Trainer, folder: Path, tell: Tell
) -> Prepared:
    own = {name: getattr(manifest.training, name) for name in Training.model_fields if name in given}
    Training.model_validate(begun(manifest).training.model_dump() | ANY | own)  # the rest takes minutes
    found = (_head if takes_features(manifest) else _body)(manifest, trainer, folder, tell)
    numbers = found.manifest.training.model_dump() | own
    whole = Manifest.model_validate(found.manifest.model_dump() | {"training": numbers})
    return found._replace(manifest=whole)


def _body(manifest: Manifest, trainer: Trainer, folder: Path, tell: Tell) -> Prepared:
    """Return the run with its prior, bases from the mean gradient, and the hyperparameters that follow from
    the usual norm of a gradient in these bases."""
    taken = 0
    if manifest.task.loss == "calibrated":
        prior, taken = scalars.prior_of(trainer, calibration.mean_probability)
        manifest = scalars.changed(manifest, "task", prior=prior)
    made = None
    if not manifest.training.bases:
        rows, key = trainer.run_rows.training(), trainer.core.digest()
        advance = scalars.share(taken, making_bases.cost("gradients"), tell)
        made = making_bases.make_on(trainer.loaded, manifest, rows, "gradients", key, advance)
        manifest, taken = _with_bases(manifest, made.pairs, folder), taken + made.example_forwards
    ready = trainer.like(scalars.changed(manifest, "training", norm_limit=1), folder)
    began = time.monotonic()
    batches, rows_each = _usual_batches(manifest), _of_batch(manifest)
    least = 1 if manifest.task.is_rewarded else batches // 2 + 1  # all answers may be equally good
    found = usual(ready, batches, least, lambda done: tell(taken + done * rows_each))
    each = (time.monotonic() - began) / batches
    if made:
        manifest, found = _turned(manifest, made.pairs, found, folder)
    norm = float(np.median(np.linalg.norm(found, axis=1)))
    step = REWARD_STEP if manifest.task.is_rewarded else STEP
    rate = _as_rate(step / norm / manifest.training.epoch_updates)
    manifest = scalars.changed(manifest, "training", learning_rate=rate)
    judged = manifest.training.epochs * manifest.data.withheld / rows_each  # by forward passes
    seconds = each * (manifest.training.update_budget + judged)
    taken += batches * rows_each
    return Prepared(_measured(manifest, norm), example_forwards=taken, seconds=seconds)


def _head(manifest: Manifest, trainer: Trainer, folder: Path, tell: Tell) -> Prepared:
    """Return the run with whitened coordinates, the rate that suits these, and the hyperparameters that
    follow from the norm of a gradient in them."""
    public, held = _rows(manifest, trainer)
    began, loaded = time.monotonic(), trainer.loaded
    (site,) = loaded.sites
    known = _known(trainer, public, tell)
    validating = _known(trainer, held, lambda done: tell(len(public) + done))
    each = (time.monotonic() - began) / (len(public) + len(held))
    rows, columns = site.target.core_shape(manifest.training.rank)
    v, unit = whitening(known, validating, columns)
    u = np.eye(site.target.out_features, rows, dtype=np.int8) * np.int8(IDENTITY)
    manifest = _with_bases(manifest, [(u, v)], folder)
    units = units_of(manifest.training, site.target)
    of_u, of_v = (torch.from_numpy(side) * unit for side, unit in zip((u, v), units, strict=True))
    gradient, _ = head_gradient(known, of_u, of_v)
    size = IDENTITY * units[0] * units[1] / unit  # of the written bases, relative to the found ones
    rate = rate_of(len(u)) / size**2 / manifest.training.epoch_updates
    manifest = scalars.changed(manifest, "training", learning_rate=_as_rate(rate))
    seconds = each * len(trainer.run_rows.training()) + manifest.training.epochs * HEAD_EPOCH
    norm = float(np.linalg.norm(gradient))
    taken = len(public) + len(held)
    return Prepared(_measured(manifest, norm), example_forwards=taken, seconds=seconds)


def _rows(manifest: Manifest, trainer: Trainer) -> tuple[Sequence[Row], Sequence[Row]]:
    """Return public rows for whitening and for validation. Raises UserError as `RunRows.training`."""
    rows = trainer.run_rows.fitting.of(dataset.select(trainer.run_rows.training(), WHITENED_ROWS))
    if manifest.data.validation or manifest.data.withheld:
        return rows, trainer.run_rows.held_out("validation").rows
    apart = int(len(rows) * VALIDATING)
    return rows[apart:], rows[:apart] or rows


def _known(trainer: Trainer, rows: Sequence[Row], tell: Tell) -> Known:
    """Return the states, classes and outputs of rows."""
    states, labels = scalars.head_rows(trainer, rows, tell)
    (site,) = trainer.loaded.sites
    with torch.inference_mode():
        outputs = site.module(states)
    return Known(states.cpu(), labels.cpu(), outputs.cpu())


def _turned(manifest: Manifest, pairs: making_bases.Pairs, found: F64, folder: Path) -> tuple[Manifest, F64]:
    """Return the run with its bases transformed so that gradients vary equally along all columns, and the
    gradients in the new bases."""
    cores = found.reshape(-1, *manifest.core_shape)
    of_u, of_v = turned(cores)
    found = (of_u.swapaxes(1, 2) @ cores @ of_v).reshape(found.shape)
    sides = zip(pairs, of_u, of_v, strict=True)
    bases.remove(folder, manifest.training.bases)
    columns = [(_entries(u @ a), _entries(v @ b)) for (u, v), a, b in sides]
    return _with_bases(manifest, columns, folder), found


def _entries(columns: F64) -> NDArray[np.int8]:
    """Return columns rounded to entries of bases."""
    most = making_bases.LARGEST_ENTRY
    return np.rint(columns).clip(-most, most).astype(np.int8)


def _with_bases(manifest: Manifest, pairs: making_bases.Pairs, folder: Path) -> Manifest:
    return scalars.changed(manifest, "training", basis="published", bases=scalars.write_bases(folder, pairs))


def _measured(manifest: Manifest, norm: float) -> Manifest:
    """Return the run with the unit and the limit of scalars for gradients of this norm. Raises UserError
    LOSS_FLAT if the norm is 0."""
    if not norm > 0:
        raise UserError(
            Code.LOSS_FLAT,
            "the gradient of the loss is 0, or no number, at the base model: nothing could be learnt",
            "Give other data, or another base model (--model): of texts in which the model knows no word it "
            "learns nothing.",
        )
    numbers = numbers_for(norm, manifest.dimensions, manifest.training.scalar_bits)
    return scalars.changed(manifest, "training", **numbers)


def _as_rate(rate: float) -> float:
    """Return the nearest rate that a manifest can have."""
    return min(max(round(rate * RATE_ONE), 1), RATE_ONE - 1) / RATE_ONE


def usual(
    model: Trainer,
    count: int = USUAL_BATCHES,
    least: int = USUAL_BATCHES // 2 + 1,
    advance: Callable[[int], None] = lambda done: None,
) -> F64:
    """Return the gradients of `count` mini-batches at the present model, (n, cells), without those that are 0
    or not finite. `advance` is told the number of finished mini-batches.

    Raises as `gradient`, DATA_*, and LOSS_NOT_FINITE if fewer than `least` gradients are left.
    """
    seeds = stream(int.from_bytes(model.run.run_id[:8], "big"), 0, count).tolist()
    found: list[F64] = []
    for done, seed in enumerate(seeds):
        advance(done)
        found += [one.cells for one in model.gradients([seed], 0) if not one.failed and one.cells.any()]
    if len(found) < least:
        raise UserError(
            Code.LOSS_NOT_FINITE,
            "the loss of the base model has no gradient that is a number and not 0",
            "Compute with --dtype float32 or bfloat16, or take another model.",
        )
    return np.stack(found)


def numbers_for(norm: float, cells: int, bits: int) -> dict[str, float]:
    """Return scalar_delta, scalar_limit and norm_limit of a run with this many cells and scalar bits, whose
    usual gradient has this norm. norm_limit is LIMIT times the norm of a usual gradient in units of
    scalar_delta."""
    size = ROOT_MEAN_SQUARE[bits] * math.sqrt(cells)
    return {
        "scalar_delta": norm / size,
        "scalar_limit": (1 << (bits - 1)) - 1,
        "norm_limit": round(LIMIT * size),
    }


# -- coordinates ----------------------------------------------------------------------------------------


MOST_RATE = 2.0
"""Maximum rate of a round's mean gradient. The largest curvature is a half. So training may diverge at rates
above 4, or at rates above 2 if gradients are one round late."""

STRENGTHS = (10.0, 3.0, 1.0)
"""Strengths of regularisation that are tried, for features of variance 1. Runs with a strength of 30 took
longer and learnt no more. Strengths below 1 gain little on validation rows, and lose far more on rows of
another kind (docs/research-log.md)."""

ROUNDS = 64
"""Maximum number of rounds that are simulated to find the least validation loss."""

LEAST_SPREAD = 1e-3
"""Minimum spread by which a feature is divided, as a share of the median spread. A feature that hardly varies
carries no information."""

DAMPING = 1e-2
"""Share of each feature's second moment by which this moment is enlarged while rounding errors are passed on
to other features. Without this damping at least as many rows as features would be needed."""

DULL = 0.03
"""Amount that is added to the body's second moments in every direction, as a share of the mean square of all
cells' gradients. Without this amount steps would be longest in directions in which gradients are nearly 0. A
run learns less with 0.3 than with 0.03, and a little less with 0.1."""


def whitening(public: Known, validating: Known, columns: int) -> tuple[making_bases.I8, float]:
    """Return the coordinates V, (features, at most `columns`), in which training on the public rows lowers
    the validating rows' loss most within ROUNDS rounds. Also return the value of an entry of 1, a power of
    two.

    A lower strength is taken only if it lowers the loss by more than one standard error. On AG News a lower
    strength with a smaller gain lost as much on the test rows as it gained on the validating rows. The
    computation takes about features^3 operations.
    """
    x = public.states.double().cpu()
    spread = x.std(0, correction=0)
    spread = spread.clamp_min(max(LEAST_SPREAD * float(spread.median()), torch.finfo(torch.float32).tiny))
    sizes, directions = torch.linalg.eigh((x / spread).T @ (x / spread) / len(x))
    sizes, directions = sizes.flip(0)[:columns].clamp_min(0), directions.flip(1)[:, :columns]
    v = directions / spread[:, None]  # (features, columns)
    best: Tensor | None = None
    chosen: Tensor | None = None
    for strength in STRENGTHS:
        whitened = v / (sizes + strength).sqrt()
        losses = min(_losses(public, validating, whitened), key=lambda one: float(one.mean()))
        gain = None if best is None else best - losses
        if gain is None or gain.mean() > gain.std(correction=0) / math.sqrt(len(gain)):
            best, chosen = losses, whitened
    assert chosen is not None
    return _rounded(chosen.numpy(), (x.T @ x / len(x)).numpy())


def turned(gradients: F64) -> tuple[F64, F64]:
    """Return the matrices that multiply the columns of U and of V of each target from the right so that
    gradients vary equally along all columns: (targets, rows, rows) and (targets, columns, columns), with
    columns of mean squared norm 1. `gradients` are of some mini-batches, (n, targets, rows, columns).

    A step along a gradient in the new bases equals, in the old bases, a step along the gradient divided by
    the square root of its second moments. Within a target these are estimated from the moments of its rows
    and of its columns (Gupta, Koren, Singer 2018, "Shampoo").
    """
    mean_square = float((gradients**2).mean())
    sides: list[F64] = []
    for side in (gradients, gradients.swapaxes(2, 3)):
        moments = np.einsum("nlij,nlkj->lik", side, side) / (len(side) * side.shape[3])
        sizes, directions = np.linalg.eigh(moments)
        powers = (sizes.clip(0) + DULL * mean_square) ** -0.25
        found = (directions * powers[:, None, :]) @ directions.swapaxes(1, 2)
        sides.append(found * math.sqrt(found.shape[1] * len(found) / float((found**2).sum())))
    return sides[0], sides[1]


def rate_of(classes: int) -> float:
    """Return the rate of a round's mean gradient. It is half of the largest rate that is stable with
    gradients one round late, for equally likely classes and a curvature of 1 / classes."""
    return min(classes / 2, MOST_RATE)


def _losses(public: Known, validating: Known, v: Tensor) -> Iterator[Tensor]:
    """Yield the losses of the validating rows after 0 to ROUNDS steps along the public rows' gradients."""
    (x, outputs), (held, held_outputs) = (
        (rows.states.double().cpu() @ v, rows.outputs.double().cpu()) for rows in (public, validating)
    )
    classes = outputs.shape[1]
    rate = rate_of(classes)
    right = one_hot(public.labels.cpu(), classes)
    core = torch.zeros(classes, v.shape[1], dtype=torch.float64)
    for _ in range(ROUNDS + 1):
        yield cross_entropy(held_outputs + held @ core.T, validating.labels.cpu(), reduction="none")
        core -= rate * ((outputs + x @ core.T).softmax(1) - right).T @ x / len(x)


def _rounded(v: F64, moments: F64) -> tuple[making_bases.I8, float]:
    """Return V (features, columns) as int8, and the value of an entry of 1.

    Features are rounded one by one. The features that follow correct the error in products with states, whose
    second moments are `moments` (features, features) (Frantar et al. 2022, "GPTQ"). Without this correction
    errors add up along the mean state, and training diverges.
    """
    unit = 2.0 ** math.ceil(math.log2(max(np.abs(v).max(), 1e-30) / making_bases.LARGEST_ENTRY))
    order = np.argsort(np.diag(moments), kind="stable")  # the largest are rounded first
    damped = moments + DAMPING * np.diag(np.diag(moments))
    triangle = np.linalg.cholesky(damped[np.ix_(order, order)]).T
    entries, lost = np.empty(v.shape, np.int8), v[order] / unit
    for row in reversed(range(len(v))):
        wanted = lost[row] + triangle[row, row + 1 :] @ lost[row + 1 :] / triangle[row, row]
        entries[order[row]] = rounded = _entries(wanted)
        lost[row] -= rounded
    return entries, unit

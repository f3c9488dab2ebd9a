"""The line W + c D through a model's weights W, where D is the change that some cores make. Also the share of
each update in that change.

D is applied in activation space, as a step's directions are: U A is one side, V the other, and no matrix is
written. Vectors have no input to project, and are moved in place, as in a step. A search chooses c by the
loss on validation rows; a `LineSearcher` decides which values of c to try.

An update changes one entry of every layer's core. Let s, i, j be an update's signs and coordinates (SPEC R6),
and G the derivatives of the loss on some rows with respect to the entries of all cores. Then p = sum over
layers of s * G[i, j] is the slope along the update's direction: the scalar that the update would have if
these rows were its mini-batch. So one backward pass over the rows gives the slopes of all updates. G is taken
at the middle of the step that all updates make together. There the slope times the step equals the step's
effect on the loss, with an error of third order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfnode.engine import forward
from sfnode.engine.core import UpdateBatch
from sfnode.engine.forward import KeepGoing, always, paused
from sfnode.engine.gradients import GRADIENT, along, by_leaves, differentiable
from sfnode.engine.losses import line_rows, losses_at
from sfnode.engine.subspace import Subspace
from sfnode.engine.trainable_model import TrainableModel
from sfnode.errors import Code, UserError
from sfnode.models.loader import LoadedModel
from sfnode.models.perturbation import Directions
from sfnode.models.targets import Form
from sfnode.schema.measurements import StepShare
from sfnode.tasks.encoding import Encoded
from sfprotocol.seeds import I64

A = TypeVar("A", bound=NDArray[Any])


class LineSearcher(Protocol):
    """A policy that searches for the best c on a line (`organising.evaluation.line_search`)."""

    @property
    def amounts(self) -> Sequence[float]:
        """The values of c for which the policy wants losses."""

    @property
    def wanted(self) -> range:
        """Numbers of the rows whose losses the policy wants next; empty when the search is finished."""

    def take(self, losses: NDArray[np.float64]) -> None:
        """Receive the losses of the `wanted` rows at all `amounts`, (rows, amounts)."""


class Line:
    """The weights W + c D for all c. W are the model's weights at the time of each measurement."""

    def __init__(
        self, loaded: LoadedModel, space: Subspace, scale: Callable[[int], float], cores: Mapping[int, I64]
    ) -> None:
        """`cores`: the cores that make the change D, keyed by subspace, (layers, rows, columns) each. `scale`
        is as for `merging.MergedWeights`."""
        self._loaded = loaded
        sides = [_sides(space, scale, cores, number) for number in range(len(loaded.sites))]
        self._u = tuple(u for u, _ in sides)  # (k, out) float32
        self._v = tuple(v.to(loaded.dtype) for _, v in sides)  # (in, k)

    @contextmanager
    def at(self, amount: float) -> Iterator[forward.Perturb]:
        """Yield a function that returns the perturbation of a pass by `amount` times D. Within the block,
        targets that are vectors are moved in place."""
        u = tuple((side * amount).to(self._loaded.dtype) for side in self._u)
        directions = Directions(u, self._v, 0)
        kept = []
        for site, left, right in zip(self._loaded.sites, self._u, self._v, strict=True):
            if site.form is Form.VECTOR:
                parameter: Tensor = getattr(site.module, site.parameter).data
                kept.append((parameter, parameter.clone()))
                parameter.add_((left.t() @ right.to(left.dtype).t()).flatten().to(parameter), alpha=amount)
        try:
            yield lambda this: forward.everywhere(directions, this)
        finally:
            for parameter, before in kept:
                parameter.copy_(before)

    def losses(self, batches: Sequence[Encoded], amounts: Sequence[float]) -> NDArray[np.float64]:
        """Return the loss of each row of these batches at W + c D for each c of `amounts`: (rows, amounts).

        The loss is computed batch by batch, as a training step computes it.
        """
        found = []
        for amount in amounts:
            with self.at(amount) as perturb:
                found.append(losses_at(self._loaded, batches, perturb))
        return np.stack(found, 1)


def difference(after: Mapping[int, A], before: Mapping[int, A]) -> dict[int, A]:
    """Return `after` minus `before`, keyed by subspace, without cores that are zero."""
    found: dict[int, A] = {}
    for subspace in sorted({*after, *before}):
        some = after[subspace] if subspace in after else before[subspace]
        zero = np.zeros_like(some)
        core = after.get(subspace, zero) - before.get(subspace, zero)
        if core.any():
            found[subspace] = core
    return found


def _sides(
    space: Subspace, scale: Callable[[int], float], cores: Mapping[int, I64], number: int
) -> tuple[Tensor, Tensor]:
    """Return -scale (U A)^T (k, out) and V (in, k) of one target, all subspaces side by side."""
    target = space.targets[number]
    u = [torch.zeros(0, target.out_features, device=space.device)]
    v = [torch.zeros(target.in_features, 0, device=space.device)]
    for subspace, core in cores.items():
        left, right = space.matrices(subspace, number)
        by = -scale(subspace) * space.unit(number)
        a = torch.from_numpy(core[number] * by).to(left.device, torch.float32)  # (rows, columns)
        u.append(a.t() @ left.float().t())
        v.append(right.float())
    return torch.cat(u), torch.cat(v, 1)


def line_to(model: TrainableModel, after: Mapping[int, I64]) -> Line:
    """Return the line from the current weights to the weights with the cores `after`."""
    model.rebuild(max(after, default=0))
    step = difference(after, model.core.cores())
    return Line(model.loaded, model.space, model.weights.scale, step)


def search(
    model: TrainableModel, after: Mapping[int, I64], search: LineSearcher, keep_going: KeepGoing = always
) -> int:
    """Search the line from the current weights towards the weights with the cores `after`, by losses on
    validation rows. Return the cost in example-forwards: forward passes of one row.

    Raises UserError DATA_*, and PAUSED if `keep_going`, which is called before each part of the rows, returns
    False.
    """
    step = line_to(model, after)
    rows = line_rows(model.manifest.task, model.run_rows.held_out("validation").rows)
    taken = 0
    while wanted := search.wanted:
        if not keep_going():
            raise paused()
        measure, found = model.objective.losses_of(rows[wanted.start : wanted.stop]), []
        for amount in search.amounts:
            with step.at(amount) as perturb:
                found.append(measure(perturb, keep_going))
        search.take(np.stack(found, 1))
        taken += len(wanted) * len(search.amounts)
    return taken


F64 = NDArray[np.float64]

MEMORY = 0.95
"""Factor by which the weight of earlier gradients falls with each new measurement, in a first-order run.
Scores use a weighted sum of gradients, because a single gradient of 8 to 32 rows says little, and gradients
change little from one round to the next (benchmarks/first_order.py)."""

START, MIDDLE = 0.0, 0.5
"""Points of a step at which slopes are measured, as fractions of the step."""


Updates = tuple[UpdateBatch, I64]
"""Some updates with their scalars as they were sent, and the factor by which each update's scalar is
multiplied in the cores, (n,)."""


class Slopes(NamedTuple):
    """Derivatives of some batches' mean losses with respect to the entries of all cores."""

    loss: float
    """Mean loss of the batches."""
    cores: Mapping[int, F64]
    """Derivatives, keyed by subspace, (batches, layers, rows, columns). Entry [.., i, j] is the derivative
    with respect to a change of W along u_i v_j^T."""
    lately: Mapping[int, F64] = MappingProxyType({})
    """Weighted sum of the derivatives of this and all earlier measurements, keyed by subspace, (cells,) each.
    Only first-order runs use it."""

    @property
    def finite(self) -> bool:
        """Whether all numbers are finite."""
        return math.isfinite(self.loss) and all(bool(np.isfinite(core).all()) for core in self.cores.values())

    def along(self, batch: UpdateBatch) -> F64:
        """Return the slopes along the directions of n updates: (batches, n)."""
        found = np.zeros((len(next(iter(self.cores.values()))), len(batch.seeds)))
        for subspace, core in self.cores.items():
            chosen = batch.epochs == subspace
            found[:, chosen] = along(core, batch.seeds[chosen])
        return found

    def share(self, updates: Updates, delta: float, unit: Mapping[int, float]) -> StepShare:
        """Return how much of the step's effect is due to these updates. `delta`: the unit of a scalar.
        `unit`, keyed by subspace: the change of W along u_i v_j^T for a change of 1 in the core."""
        batch, weights = updates
        if batch.scalars.ndim == 2:
            return self._share_of_gradients(batch, weights, unit)
        slopes = self.along(batch)  # (batches, n)
        scalars = batch.scalars.astype(np.float64)
        products = scalars * slopes.mean(0) / delta
        roots = np.sign(products) * np.sqrt(np.abs(products))
        steps = scalars * weights * np.array([unit[subspace] for subspace in batch.epochs.tolist()])
        return _share(len(scalars), float(roots.sum()), float((roots**2).sum()), slopes @ steps)

    def _share_of_gradients(self, batch: UpdateBatch, weights: I64, unit: Mapping[int, float]) -> StepShare:
        """Return how much of the step's effect is due to first-order updates. The score is the cosine of
        their sum with the weighted sum of recent gradients, divided by the standard deviation of that cosine
        for a random direction (SPEC O16)."""
        steps, slopes, lately = list[F64](), list[F64](), list[F64]()
        for subspace in np.unique(batch.epochs).tolist():
            chosen = batch.epochs == subspace
            cells = (batch.scalars[chosen] * weights[chosen, None]).sum(0)
            steps.append(cells * unit[subspace])
            slopes.append(self.cores[subspace].reshape(-1, len(cells)))  # (batches, cells)
            lately.append(self.lately[subspace])
        step, late = np.concatenate(steps), np.concatenate(lately)
        norms = float(np.linalg.norm(step) * np.linalg.norm(late))
        score = float(late @ step) / norms * math.sqrt(len(step)) if norms else 0.0
        return _share(len(batch.scalars), score, 1.0, np.concatenate(slopes, 1) @ step)

    def added_to(self, past: dict[int, F64], rows: int) -> Slopes:
        """Add these slopes to `past`, the weighted sum of all measurements, which is changed in place. Return
        the slopes with that sum as `lately`."""
        for subspace, core in self.cores.items():
            mean = core.mean(0).reshape(-1)
            past[subspace] = MEMORY * past.get(subspace, np.zeros_like(mean)) + rows * mean
        return self._replace(lately=past)


def _share(updates: int, sum_: float, squares: float, worths: F64) -> StepShare:
    """Return a share, given its worth as measured on each of some batches: `worths`, (batches,)."""
    error = float(worths.std(ddof=1)) / math.sqrt(len(worths))
    return StepShare(updates, sum_, squares, float(worths.mean()), error)


def shares_towards(
    model: TrainableModel,
    after: Mapping[int, I64],
    updates: Sequence[Updates],
    rows: int,
    turn: int,
    keep_going: KeepGoing = always,
) -> tuple[list[StepShare], int]:
    """Return, for each of these `updates`, its share in the change from the current weights to the weights
    with the cores `after`. Also return the cost in example-forwards: forward passes of one row.

    Measures on `rows` validation rows, different ones for each `turn`. Raises UserError DATA_*,
    OUT_OF_MEMORY, LOSS_NOT_FINITE, and PAUSED if `keep_going`, which is called before each batch, returns
    False.
    """
    model.rebuild(max(after, default=0))
    touched = {subspace for batch, _ in updates for subspace in np.unique(batch.epochs).tolist()}
    if not touched:
        return [StepShare(0, 0.0, 0.0, 0.0, 0.0) for _ in updates], 0
    held_out = line_rows(model.manifest.task, model.run_rows.held_out("validation").rows)
    batches = model.objective.batches(held_out, rows, turn)
    zero = np.zeros(model.core.shape, np.int64)
    step = dict.fromkeys(touched, zero) | difference(after, model.core.cores())
    found, passes = _slopes(model, step, batches, keep_going)
    examples = sum(batch.examples for batch in batches)
    found = found.added_to(model.judged, examples)
    delta, unit = model.manifest.training.scalar_delta, {one: model.weights.scale(one) for one in touched}
    shared = [found.share(one, delta, unit) for one in updates]
    head = model.loaded.classifies and len(model.space.targets) == 1
    return [_of_rows(one) for one in shared] if head else shared, passes * examples


def _slopes(
    model: TrainableModel, step: Mapping[int, I64], batches: Sequence[Encoded], keep_going: KeepGoing
) -> tuple[Slopes, int]:
    """Return the slopes of these batches, and the number of forward passes used. They are measured in the
    middle of the step by the cores `step`. If the loss there is not finite, or higher than at the start of
    the step, they are measured at the start: otherwise an update that ruins the model would determine where
    all updates are judged. Raises UserError OUT_OF_MEMORY, LOSS_NOT_FINITE and PAUSED."""
    here = Line(model.loaded, model.space, model.weights.scale, {})
    before = float(np.mean([here.losses([batch], [0.0]).mean() for batch in batches]))
    found, passes = measure(model, step, batches, MIDDLE, keep_going), 1 + GRADIENT
    if not (found.finite and found.loss <= before):
        found, passes = measure(model, step, batches, START, keep_going), passes + GRADIENT
    if not found.finite:
        raise UserError(
            Code.LOSS_NOT_FINITE,
            "the loss has no finite gradient on the validation rows",
            "Nothing is said of what single nodes brought in this epoch. Should it happen again, have the "
            "organiser compute with --dtype float32 or bfloat16.",
        )
    return found, passes


def _of_rows(share: StepShare) -> StepShare:
    """Return a share with its score limited to the share's worth divided by the standard error of that worth
    (SPEC O16). For a linear head, the score of thousands of updates, or of many updates on the same rows,
    says little beyond the sample of validation rows. Without the limit, seals of a first-order run on SST-2
    skipped a quarter of the honest work, and the model overfitted the validation rows: its loss was 0.345 on
    these and 0.401 on the test rows. With the limit it was 0.381 and 0.385."""
    most = abs(share.worth) / share.error * math.sqrt(share.squares) if share.error else 0.0
    return share._replace(sum=math.copysign(min(abs(share.sum), most), share.worth))


def measure(
    model: TrainableModel,
    step: Mapping[int, I64],
    batches: Sequence[Encoded],
    at: float,
    keep_going: KeepGoing = always,
) -> Slopes:
    """Return the slopes of these batches at W + `at` D. W are the model's weights without a live core, and D
    is the change that the cores `step` make.

    Slopes are measured only in the subspaces of `step`, which must have at least one. Raises UserError
    OUT_OF_MEMORY, and PAUSED if `keep_going`, which is called before each batch, returns False.
    """
    loaded, space, scale, subspaces = model.loaded, model.space, model.weights.scale, sorted(step)
    directions, leaves = _side_by_side(loaded, space, subspaces), _leaves(space, scale, step, at)
    losses, found = [], []
    with ExitStack() as stack:
        stack.enter_context(Line(loaded, space, scale, step).at(at))  # vectors; all others by `leaves`
        vectors = stack.enter_context(differentiable(loaded))
        for batch in batches:
            if not keep_going():
                raise paused()
            loss, gradient = by_leaves(loaded, directions, leaves, vectors, batch)
            losses.append(loss)
            found.append(gradient)
    every = np.stack(found).swapaxes(3, 4)  # (batches, layers, subspaces, r, r), u by v
    cores = {subspace: every[:, :, n] for n, subspace in enumerate(subspaces)}
    return Slopes(sum(losses) / len(losses), cores)


def _side_by_side(loaded: LoadedModel, space: Subspace, subspaces: Sequence[int]) -> Directions:
    """Return the bases of these subspaces side by side, as directions with the bases' units applied."""
    u, v = [], []
    for number in range(len(space.targets)):
        pairs = [space.matrices(subspace, number) for subspace in subspaces]
        of_u, of_v = space.units[number]
        u.append(torch.cat([left.t() for left, _ in pairs]).to(loaded.dtype) * of_u)
        v.append(torch.cat([right for _, right in pairs], 1).to(loaded.dtype) * of_v)
    return Directions(tuple(u), tuple(v), 0)


def _leaves(
    space: Subspace, scale: Callable[[int], float], step: Mapping[int, I64], at: float
) -> list[Tensor]:
    """Return the transposed core of each target, scaled to the fraction `at` of the step, (subspaces, r, r),
    as leaves of an autograd graph."""
    found = []
    for number in range(len(space.targets)):
        blocks = [
            torch.from_numpy(step[subspace][number] * (-scale(subspace) * at)).t()
            for subspace in sorted(step)
        ]
        found.append(torch.stack(blocks).float().to(space.device).requires_grad_())
    return found

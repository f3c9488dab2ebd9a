"""The line W + c D through a model's weights: D is what a core would add to them. And how much of what it
changes each update does.

D rides along in activation space, as the directions of a step do, with the columns of U A for one side and
those of V for the other: no matrix is written. Vectors have no input to project and are moved in place, as in
a step. A search looks for a place on the line by validation rows: which, whoever searches says.

An update moves one entry of every layer's core. With G the derivatives of a loss by the entries of all cores,
s, i and j an update's signs and coordinates (SPEC R6), p = sum over layers of s * G[i, j] is the slope along
the update's direction: what its scalar would be, had these rows been its mini-batch. So that one backward
pass over some rows says it of all updates at once. G is taken in the middle of the step that they make
together, where a slope times the step is what the step does, to third order.
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
from sfnode.engine.gradients import GRADIENT, along, by_leaves, differentiable
from sfnode.engine.losses import KeepGoing, always, line_rows, losses_at, paused
from sfnode.engine.subspace import Subspace
from sfnode.engine.trainable_model import TrainableModel
from sfnode.errors import Code, UserError
from sfnode.models.loader import LoadedModel
from sfnode.models.perturbation import Directions
from sfnode.models.targets import Form
from sfnode.schema.evaluation import StepShare
from sfnode.tasks.encoding import Encoded
from sfprotocol.seeds import I64

A = TypeVar("A", bound=NDArray[Any])


class LineSearcher(Protocol):
    """Whoever looks for a place on a line (`organising.evaluation.line_search`)."""

    @property
    def amounts(self) -> Sequence[float]:
        """The c at which losses are wanted."""
        ...

    @property
    def wanted(self) -> range:
        """Numbers of the rows that are wanted next; none at the end."""
        ...

    def take(self, losses: NDArray[np.float64]) -> None:
        """Take the losses of these rows, (rows, amounts)."""
        ...


class Line:
    """All W + c D, with W the model's weights as they are whenever a loss is measured."""

    def __init__(
        self, loaded: LoadedModel, space: Subspace, scale: Callable[[int], float], cores: Mapping[int, I64]
    ) -> None:
        """`cores` by subspace, (layers, rows, columns) each; `scale` as for `merging.MergedWeights`."""
        self._loaded = loaded
        sides = [_sides(space, scale, cores, number) for number in range(len(loaded.sites))]
        self._u = tuple(u for u, _ in sides)  # (k, out) float32
        self._v = tuple(v.to(loaded.dtype) for _, v in sides)  # (in, k)

    @contextmanager
    def at(self, amount: float) -> Iterator[forward.Perturb]:
        """Move vectors to W + `amount` D within the block, and yield what does the same to a pass."""
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

        It is the loss that a step measures, batch by batch as they are.
        """
        found = []
        for amount in amounts:
            with self.at(amount) as perturb:
                found.append(losses_at(self._loaded, batches, perturb))
        return np.stack(found, 1)


def difference(after: Mapping[int, A], before: Mapping[int, A]) -> dict[int, A]:
    """Return the cores that lead from `before` to `after`, without those that are zero."""
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
    """Return the line from the weights as of now to those with the cores `after`."""
    model.rebuild(max(after, default=0))
    step = difference(after, model.core.cores())
    return Line(model.loaded, model.space, model.weights.scale, step)


def search(
    model: TrainableModel, after: Mapping[int, I64], search: LineSearcher, keep_going: KeepGoing = always
) -> int:
    """Let a line search look from the weights as of now towards those with the cores `after`, on
    validation rows; return how many example-forwards it took.

    Raises UserError DATA_*, and PAUSED when `keep_going`, asked before each part, says no.
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
"""Share of what was measured before that a score in a first-order run still goes by afterwards: a gradient of
8 to 32 rows says little, and it changes little from one round to the next (benchmarks/first_order.py)."""

START, MIDDLE = 0.0, 0.5
"""Shares of the step after which slopes are taken."""


Updates = tuple[UpdateBatch, I64]
"""Updates whose share is asked for, with their scalars as they were sent; and the factors of these in the
cores, (n,)."""


class Slopes(NamedTuple):
    """Derivatives of some batches' mean losses by the entries of all cores."""

    loss: float
    """The mean of those losses."""
    cores: Mapping[int, F64]
    """Entries by subspace (batches, layers, rows, columns), [.., i, j] for a move along u_i v_j by 1."""
    lately: Mapping[int, F64] = MappingProxyType({})
    """Those of measurements until now, added up, by subspace (cells,), in a first-order run."""

    @property
    def finite(self) -> bool:
        """Whether all of them are numbers."""
        return math.isfinite(self.loss) and all(bool(np.isfinite(core).all()) for core in self.cores.values())

    def along(self, batch: UpdateBatch) -> F64:
        """Return the slopes along the directions of n updates: (batches, n)."""
        found = np.zeros((len(next(iter(self.cores.values()))), len(batch.seeds)))
        for subspace, core in self.cores.items():
            chosen = batch.epochs == subspace
            found[:, chosen] = along(core, batch.seeds[chosen])
        return found

    def share(self, updates: Updates, delta: float, unit: Mapping[int, float]) -> StepShare:
        """Return the share of these updates; `delta` is a scalar's unit, and `unit` by how much a one in a
        subspace's core moves along u_i v_j."""
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
        """Return the share of first-order updates: their cosine with the gradients of late, over its standard
        deviation by chance (SPEC O16)."""
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
        """Return these with what they and those of the `past` say together, which is brought up to date."""
        for subspace, core in self.cores.items():
            mean = core.mean(0).reshape(-1)
            past[subspace] = MEMORY * past.get(subspace, np.zeros_like(mean)) + rows * mean
        return self._replace(lately=past)


def _share(updates: int, sum_: float, squares: float, worths: F64) -> StepShare:
    """Return a share by what it is worth on each of some batches, (batches,)."""
    error = float(worths.std(ddof=1)) / math.sqrt(len(worths))
    return StepShare(updates, sum_, squares, float(worths.mean()), error)


def shares(
    loaded: LoadedModel,
    space: Subspace,
    scale: Callable[[int], float],
    step: Mapping[int, I64],
    updates: Sequence[Updates],
    batches: Sequence[Encoded],
    delta: float,
    past: dict[int, F64],
    keep_going: Callable[[], bool],
) -> tuple[list[StepShare], int] | None:
    """Return the share that each of these `updates` has in the step that the cores `step` make from the
    model's weights as they are, on these batches, of which there are two at least; and the example-forwards
    that it took. `delta` is the unit of a scalar, `scale` as for `merging.MergedWeights`, and `past` what was
    measured before (`Slopes.added_to`).

    Slopes are those in the middle of the step, unless the loss is higher there than at its start: then those
    at its start, as who ruins the model has not to choose where all are judged. None once `keep_going`, asked
    before each batch, says no. Raises UserError OUT_OF_MEMORY, LOSS_NOT_FINITE.
    """
    touched = {subspace for batch, _ in updates for subspace in np.unique(batch.epochs).tolist()}
    if not touched:
        return [StepShare(0, 0.0, 0.0, 0.0, 0.0) for _ in updates], 0
    zero = np.zeros((len(space.targets), *space.columns_of), np.int64)
    whole = dict.fromkeys(touched, zero) | dict(step)
    here = Line(loaded, space, scale, {})
    before = float(np.mean([here.losses([batch], [0.0]).mean() for batch in batches]))
    found = measure(loaded, space, scale, whole, batches, keep_going, MIDDLE)
    passes = 1 + GRADIENT
    if found and not (found.finite and found.loss <= before):
        found = measure(loaded, space, scale, whole, batches, keep_going, START)
        passes += GRADIENT
    if not found:
        return None
    if not found.finite:
        raise UserError(
            Code.LOSS_NOT_FINITE,
            "the loss has no finite gradient on the validation rows",
            "Nothing is said of what single nodes brought in this epoch. Should it happen again, have the "
            "organiser compute with --dtype float32 or bfloat16.",
        )
    unit = {subspace: scale(subspace) for subspace in touched}
    rows = sum(batch.examples for batch in batches)
    taken, found = passes * rows, found.added_to(past, rows)
    shared = [found.share(one, delta, unit) for one in updates]
    head = loaded.classifies and len(space.targets) == 1
    return [_of_rows(one) for one in shared] if head else shared, taken


def shares_towards(
    model: TrainableModel,
    after: Mapping[int, I64],
    updates: Sequence[Updates],
    rows: int,
    turn: int,
    keep_going: KeepGoing = always,
) -> tuple[list[StepShare], int]:
    """Return the share of each of these `updates` in what leads from the weights as of now to those with
    the cores `after`, on so many validation rows, and the example-forwards that it took.

    Others of the rows with every `turn`. Raises UserError DATA_*, PAUSED, and as `measure`.
    """
    model.rebuild(max(after, default=0))
    held_out = line_rows(model.manifest.task, model.run_rows.held_out("validation").rows)
    batches = model.objective.batches(held_out, rows, turn)
    step, delta = difference(after, model.core.cores()), model.manifest.training.scalar_delta
    scale = model.weights.scale
    found = shares(model.loaded, model.space, scale, step, updates, batches, delta, model.judged, keep_going)
    if found is None:
        raise paused()
    return found


def _of_rows(share: StepShare) -> StepShare:
    """Return a share whose score is no larger than its worth in standard errors (SPEC O16): of thousands of
    updates along a linear head, or of many that are all of the same rows, it says little but what these rows
    are like. Without that a first-order run on SST-2 skipped a quarter of honest work, by what validation
    rows happen to say, and learnt these: a loss of 0.345 there, and 0.401 on the test rows, where it was
    0.381 and 0.385 with all of it."""
    most = abs(share.worth) / share.error * math.sqrt(share.squares) if share.error else 0.0
    return share._replace(sum=math.copysign(min(abs(share.sum), most), share.worth))


def measure(
    loaded: LoadedModel,
    space: Subspace,
    scale: Callable[[int], float],
    step: Mapping[int, I64],
    batches: Sequence[Encoded],
    keep_going: Callable[[], bool],
    at: float,
) -> Slopes | None:
    """Return the slopes of these batches at W + `at` D, with W the model's weights as they are, which nothing
    live moves, and D what the cores `step` would add to them.

    In the subspaces of `step`, of which there is one at least. None once `keep_going`, asked before each
    batch, says no. Raises UserError OUT_OF_MEMORY.
    """
    subspaces = sorted(step)
    directions, leaves = _side_by_side(loaded, space, subspaces), _leaves(space, scale, step, at)
    losses, found = [], []
    with ExitStack() as stack:
        stack.enter_context(Line(loaded, space, scale, step).at(at))  # vectors; all others by `leaves`
        vectors = stack.enter_context(differentiable(loaded))
        for batch in batches:
            if not keep_going():
                return None
            loss, gradient = by_leaves(loaded, directions, leaves, vectors, batch)
            losses.append(loss)
            found.append(gradient)
    every = np.stack(found).swapaxes(3, 4)  # (batches, layers, subspaces, r, r), u by v
    cores = {subspace: every[:, :, n] for n, subspace in enumerate(subspaces)}
    return Slopes(sum(losses) / len(losses), cores)


def _side_by_side(loaded: LoadedModel, space: Subspace, subspaces: Sequence[int]) -> Directions:
    """Return the bases of these subspaces side by side, as directions in their unit."""
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
    """Return per target by how much the step moves along its directions, (subspaces, r, r) v by u: leaves of
    a graph."""
    found = []
    for number in range(len(space.targets)):
        blocks = [
            torch.from_numpy(step[subspace][number] * (-scale(subspace) * at)).t()
            for subspace in sorted(step)
        ]
        found.append(torch.stack(blocks).float().to(space.device).requires_grad_())
    return found

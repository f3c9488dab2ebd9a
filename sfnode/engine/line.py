"""The line W + c D through a model's weights: D is what a core would add to them (DESIGN 10).

D rides along in activation space, as the directions of a step do, with the columns of U A for one side and
those of V for the other: no matrix is written. Vectors have no input to project and are moved in place, as in
a step. A
search looks for a place on the line by validation rows: which, whoever searches says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfnode.engine import forward
from sfnode.engine.losses import line_rows, losses_at
from sfnode.engine.objective import KeepGoing, always, paused
from sfnode.engine.subspace import Subspace
from sfnode.engine.trainable_model import TrainableModel
from sfnode.models.loader import LoadedModel
from sfnode.models.perturbation import Directions
from sfnode.models.targets import Form
from sfnode.tasks.encoding import Encoded
from sfprotocol.seeds import I64

A = TypeVar("A", bound=NDArray[Any])


class LineSearcher(Protocol):
    """Whoever looks for a place on a line (`organising.line_search`)."""

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
        self,
        loaded: LoadedModel,
        space: Subspace,
        scale: Callable[[int], float],
        cores: Mapping[int, I64],
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
    space: Subspace,
    scale: Callable[[int], float],
    cores: Mapping[int, I64],
    number: int,
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

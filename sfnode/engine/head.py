"""Slopes and gradients of the losses of a linear head, computed from kept hidden states: the head's inputs. A
few matrix products serve many updates.

Moving W along u v^T by eps moves the outputs for a hidden state x by eps (v . x) u. So a step computes the
outputs at the current weights, and the projections of all states, only once. The outputs at the two points of
every update are sums of these. The results equal those of `estimator`, which this module replaces if only a
head is trained, with the plain loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from sfnode.engine import forward
from sfnode.engine.estimator import Estimate, of_pairs, representable
from sfnode.engine.gradients import Gradient
from sfnode.engine.losses import EVALUATION_BATCH, Losses
from sfnode.engine.subspace import Subspace
from sfnode.manifest import Manifest
from sfnode.models.cuts import HEADS
from sfnode.models.loader import LoadedModel
from sfnode.tasks.encoding import Encoded

BLOCK = 1 << 20
"""Maximum number of the head's outputs that are processed at a time: 4 MiB in float32, most of which fits a
processor's cache."""


F64 = NDArray[np.float64]

PROJECTED = 1 << 22
"""Maximum number of entries of projected states that are in memory at a time: 32 MiB in float64."""


class HeadRows(NamedTuple):
    """The rows that a head is trained on, as hidden states and classes."""

    states: Tensor
    """Hidden states, (rows, features), in the head's dtype."""
    labels: Tensor
    """Classes, (rows,) int64."""


class Known(NamedTuple):
    """Rows with their hidden states in a frozen model, and the head's outputs for these states."""

    states: Tensor
    """Hidden states, (rows, features)."""
    labels: Tensor
    """Classes, (rows,) int64."""
    outputs: Tensor
    """The head's outputs at the weights at which the gradient is taken, (rows, classes)."""


class HeadLosses(Losses):
    """The objective of a trainer that trains only a linear head, with the plain loss. A mini-batch is an
    array of row numbers, (batch_size,)."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.mini_batch = self.shard.numbers
        self._rows: HeadRows | None = None
        """All rows that mini-batches are drawn from; read when they are first needed."""

    def estimates(
        self, space: Subspace, subspace: int, seeds: Sequence[int], batches: Sequence[Any], distance: float
    ) -> list[Estimate]:
        """Estimate the derivative of each mini-batch's mean loss along the direction with the same index. All
        mini-batches have the same number of rows. Raises UserError as `encode`."""
        directions, rows = space.directions(seeds, subspace), self._every_row()
        (u,), (v,), live = directions.u, directions.v, directions.live  # (k, classes), (features, k)
        epsilon = representable(distance, directions)
        with torch.inference_mode():
            along = rows.states @ v  # (rows, k)
            outputs = _outputs(self._loaded, rows, along[:, :live], u[:live])
            chosen = torch.from_numpy(np.stack(batches)).to(outputs.device)  # (q, B)
            size = max(1, BLOCK // (chosen.shape[1] * outputs.shape[1]))
            losses: tuple[list[Tensor], list[Tensor]] = ([], [])
            for first in range(0, len(chosen), size):
                some = chosen[first : first + size]
                queries = torch.arange(first, first + len(some), device=some.device) + live
                at, labels = outputs[some].float(), rows.labels[some]  # (q, B, classes), (q, B)
                by = along[some, queries[:, None]].float()[..., None] * u[queries].float()[:, None] * epsilon
                for side, found in zip((by, -by), losses, strict=True):
                    found.append(
                        cross_entropy((at + side).transpose(1, 2), labels, reduction="none").double()
                    )
            plus, minus = (torch.cat(found).cpu() for found in losses)
            return of_pairs([*plus, *minus], epsilon)

    def gradient(
        self, space: Subspace, subspace: int, seed: int, batch: Any, longest: float = math.inf
    ) -> Gradient:
        """Return the gradient of the mean loss of the rows with the numbers in `batch`, computed from their
        hidden states."""
        every, chosen = self._every_row(), torch.from_numpy(batch)
        rows = HeadRows(*(part[chosen.to(part.device)] for part in every))
        directions = space.whole(subspace)
        (u,), (v,), live = directions.u, directions.v, directions.live  # (k, classes), (features, k)
        with torch.inference_mode():
            outputs = _outputs(self._loaded, rows, rows.states @ v[:, :live], u[:live])
            cells, loss = head_gradient(Known(*rows, outputs), u[live:].t(), v[:, live:], longest)
        return self.of_all_drawn(Gradient(cells.ravel(), loss), len(batch))

    def move(self, device: torch.device) -> None:
        """Move the hidden states of all rows to a device. The caller moves the model there, too."""
        if self._rows:
            self._rows = HeadRows(*(part.to(device) for part in self._rows))

    def _every_row(self) -> HeadRows:
        """Return the hidden states of all rows. The first call may take minutes; meanwhile `reading` shows
        the progress."""
        if self._rows is None:
            self._tell(0)
            self._rows = rows_of(self._loaded, self.shard.encoded(EVALUATION_BATCH), self._tell)
            self.reading = None
        return self._rows

    def _tell(self, done: int) -> None:
        self.reading = done, self.shard.size


def takes_features(manifest: Manifest) -> bool:
    """Return whether a run trains only a linear head, with the plain loss and without groups. A zeroth-order
    run must also have no published bases, because its directions follow from the head's features."""
    target, *others = manifest.model.parsed_targets()
    numbers = manifest.training
    plain = manifest.task.loss == "plain" and not numbers.group
    plain = plain and (numbers.is_first_order or not numbers.bases)
    return plain and not others and target.name in HEADS


def rows_of(
    loaded: LoadedModel, batches: Iterable[Encoded], advance: Callable[[int], None] = lambda done: None
) -> HeadRows:
    """Return, for the rows of all batches, the states that enter the head, and the classes. Computes the
    states that the model does not keep yet, and tells `advance` the number of
    rows so far."""
    states, labels, done = [], [], 0
    for batch in batches:
        states.append(forward.states(loaded, batch))
        labels.append(batch.right.int().argmax(1))
        advance(done := done + len(labels[-1]))
    return HeadRows(torch.cat(states), torch.cat(labels).to(loaded.device))


def head_gradient(rows: Known, u: Tensor, v: Tensor, longest: float = math.inf) -> tuple[F64, float]:
    """Return the mean of the rows' gradients with respect to all cells of the head's core, (columns of u,
    columns of v), and the rows' mean loss. Both are taken at the weights that gave `rows.outputs`. A row's
    gradient is scaled down to the norm `longest` if it is longer.

    A row's gradient is an outer product, so its norm is known without computing it.
    """
    lacking = rows.outputs.double().softmax(1) - one_hot(rows.labels, rows.outputs.shape[1])
    along = lacking @ u.double()  # (rows, columns of u)
    total = torch.zeros(u.shape[1], v.shape[1], dtype=torch.float64, device=v.device)
    size = max(1, PROJECTED // v.shape[1])
    for first in range(0, len(along), size):
        some = along[first : first + size]
        projected = rows.states[first : first + size].double() @ v.double()  # (some, columns of v)
        lengths = some.norm(dim=1) * projected.norm(dim=1)
        total += (some * (longest / lengths).clamp_max(1.0)[:, None]).T @ projected
    loss = cross_entropy(rows.outputs.double(), rows.labels)
    return (total / len(along)).numpy(force=True), float(loss)


def _outputs(loaded: LoadedModel, rows: HeadRows, along: Tensor, u: Tensor) -> Tensor:
    """Return the head's outputs, (rows, classes), at the weights plus the live core u v^T. `along`: the rows'
    hidden states times v."""
    (head,) = loaded.sites
    found: Tensor = head.module(rows.states) + along @ u
    return found

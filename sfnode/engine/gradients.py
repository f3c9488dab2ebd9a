"""Gradients of mini-batches' losses with respect to the cells of small cores, for first-order updates (SPEC
U11).

A core X is applied in activation space, y += U (X (V^T x)), as a small leaf of the autograd graph
(`models.perturbation`). No matrix is written, no gradient of a weight is computed, and frozen layers below
the first target have no backward pass. If a backward pass needs too much memory, the mini-batch is computed
in parts. If a single row needs too much, the activations of the model's blocks are recomputed (gradient
checkpointing). The bytes that the first pass saves per token tell which of these is necessary.

This module knows a model, bases and encoded rows. It knows neither feeds nor the origin of rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from sfnode.engine import forward
from sfnode.engine.core import CHUNK_ENTRIES
from sfnode.engine.subspace import Subspace
from sfnode.errors import Code, UserError
from sfnode.models.cuts import instead
from sfnode.models.loader import LoadedModel
from sfnode.models.perturbation import Directions, Perturbation
from sfnode.models.targets import Form, blocks_of
from sfnode.tasks.encoding import Encoded
from sfprotocol.decisions import UNIT_ONE, RateFrom
from sfprotocol.seeds import coordinates

F64 = NDArray[np.float64]

GRADIENT = 3
"""Cost of the gradient of a row, in forward passes: one forward pass, and a backward pass, which counts as
two."""

ROOM_SHARE, LEAST_ROOM = 1 / 8, 64 << 20
"""Maximum bytes of the tensors that are saved for a backward pass: ROOM_SHARE of the weights' bytes, but at
least LEAST_ROOM. A step then takes 1.1 times the memory of inference in float32, and up to 1.3 times for a
small model in a narrower format. With half of this limit a step takes a quarter more time
(docs/benchmarks.md)."""

WRITTEN_ROOM = 8
"""Factor by which the limit of ROOM_SHARE is multiplied for answers that the model has written. Writing the
answers took memory anyway, and answers that are computed together share one reading of their common
beginning. Without the factor a step takes twice as long."""

LOSS_SCALE = 2.0**10
"""Factor by which losses are multiplied in float16, so that gradients do not underflow."""


class Gradient(NamedTuple):
    """A mini-batch's loss and its gradient with respect to all cells, with the bases' units applied."""

    cells: F64
    """(cells,), in the order of SPEC U11."""
    loss: float

    @property
    def failed(self) -> bool:
        """Whether the loss or a number of the gradient is not finite."""
        return not (math.isfinite(self.loss) and bool(np.isfinite(self.cells).all()))


def gradient(
    loaded: LoadedModel, space: Subspace, subspace: int, batch: Encoded, longest: float = math.inf
) -> Gradient:
    """Return the gradient of a mini-batch's mean loss at the current weights, including the live core. Each
    row's gradient is scaled down to the norm `longest` if it is longer.

    Raises UserError OUT_OF_MEMORY if there is not even room for one row.
    """
    rows, columns = space.columns_of
    leaves = [torch.zeros(1, columns, rows, device=loaded.device, requires_grad=True) for _ in space.targets]
    with differentiable(loaded) as vectors:
        loss, found = by_leaves(loaded, space.whole(subspace), leaves, vectors, batch, longest)
    return Gradient(found[:, 0].swapaxes(1, 2).ravel(), loss)


def along(derivatives: F64, seeds: NDArray[np.uint64]) -> F64:
    """Return the slopes along the directions of n updates in one subspace, (batches, n). `derivatives`: the
    derivative of each batch's loss with respect to every entry of the subspace's core, (batches, layers,
    rank, rank)."""
    count, layers, rank, _ = derivatives.shape
    found = np.empty((count, len(seeds)))
    each, every = max(1, CHUNK_ENTRIES // layers), np.arange(layers)
    for start in range(0, len(seeds), each):
        chunk = slice(start, start + each)
        row, column, sign = coordinates(seeds[chunk], layers, rank)  # (n, layers)
        found[:, chunk] = (derivatives[:, every, row, column] * sign).sum(2)  # of (batches, n, layers)
    return found


def quantised(cells: F64, delta: float, rate: RateFrom, limit: int) -> tuple[int, ...]:
    """Return a gradient as the scalars of an update, each of magnitude `limit` at most. The scalars' unit
    follows from `rate`, the rate of the epoch with which the update is labelled. If the gradient's norm
    exceeds the limit in `rate`, the whole gradient is scaled down (SPEC U11).

    All scalars are 0 if a cell is not finite: the measurement failed, and would fail again.
    """
    if not np.isfinite(cells).all():
        return (0,) * len(cells)
    wanted = cells / (delta * rate.unit / UNIT_ONE)
    most = float(rate.limit)
    while True:
        norm = float(np.linalg.norm(wanted))
        shortened = wanted * (most / norm) if norm > most else wanted
        scalars: NDArray[np.int64] = np.rint(shortened.clip(-limit, limit)).astype(np.int64)
        if int((scalars**2).sum()) <= rate.limit**2:
            return tuple(scalars.tolist())
        most *= 1 - 2**-8  # rounding has made it longer


# -- the pass --------------------------------------------------------------------------------------------


@contextmanager
def differentiable(loaded: LoadedModel) -> Iterator[dict[int, Tensor]]:
    """Record autograd graphs within the block. Yield the parameters of targets that are vectors, keyed by the
    target's number. These are perturbed in place, and require gradients within the block."""
    found: dict[int, Tensor] = {
        number: getattr(site.module, site.parameter)
        for number, site in enumerate(loaded.sites)
        if site.form is Form.VECTOR
    }
    for parameter in found.values():
        parameter.requires_grad_(True)
    try:
        with torch.enable_grad():
            yield found
    finally:
        for parameter in found.values():
            parameter.requires_grad_(False)


def by_leaves(
    loaded: LoadedModel,
    directions: Directions,
    leaves: Sequence[Tensor],
    vectors: Mapping[int, Tensor],
    batch: Encoded,
    longest: float = math.inf,
) -> tuple[float, F64]:
    """Return a batch's mean loss and its gradient with respect to every leaf, (layers, blocks, columns,
    rows). A leaf holds the transposed core of one target, with one block for each subspace in `directions`.
    In `directions` the live core's directions come before those of the subspaces. `longest` is as for
    `gradient`; it must be infinite if a target is a vector. Raises UserError OUT_OF_MEMORY."""
    if loaded.model not in _ROOMS:
        _ROOMS[loaded.model] = _Room.of(loaded)
    room = _ROOMS[loaded.model]
    while True:
        try:
            loss, sums = 0.0, None
            for part in room.parts(batch):
                share = part.examples / batch.examples
                one, found = _by_leaves(loaded, directions, leaves, vectors, part, room, longest)
                loss, sums = loss + share * one, share * found + (0.0 if sums is None else sums)
            assert sums is not None
            return loss, sums
        except torch.OutOfMemoryError as error:
            if not room.narrow(batch):
                raise no_room(loaded, "Take a device with more memory, or --dtype bfloat16.") from error


def no_room(loaded: LoadedModel, fix: str) -> UserError:
    """Return the error of a backward pass that does not fit the device."""
    what = f"there is no room for a backward pass on {str(loaded.device)!r}"
    return UserError(Code.OUT_OF_MEMORY, what, fix)


def _by_leaves(
    loaded: LoadedModel,
    directions: Directions,
    leaves: Sequence[Tensor],
    vectors: Mapping[int, Tensor],
    batch: Encoded,
    room: _Room,
    longest: float,
) -> tuple[float, F64]:
    used: list[Perturbation] = []
    row_by_row = longest < math.inf
    if row_by_row:  # each sequence has its own cores
        count = len(batch.input_ids)
        leaves = [leaf.detach().repeat(count, 1, 1, 1).requires_grad_() for leaf in leaves]

    def riding(this: forward.Pass) -> Perturbation:
        rows, width = this.input_ids.shape
        none = leaves[0].new_empty(rows * width, 0)
        cores = tuple(leaf.to(loaded.dtype).expand(rows, *([-1] * leaf.dim())[-3:]) for leaf in leaves)
        used.append(Perturbation(directions, none, none[:rows], none[: len(this.rows)], cores, this.rows))
        return used[-1]

    scale = LOSS_SCALE if loaded.dtype == torch.float16 else 1.0
    asked = [vectors.get(number, leaf) for number, leaf in enumerate(leaves)]
    again = room.recomputes(batch)
    with room.watched(batch), _recomputing(loaded) if again else ExitStack():
        loss = forward.mean_loss(loaded, batch, riding, at_once=again or row_by_row)
        with loaded.perturber.applying(used[-1]):  # for blocks that are computed again
            found = torch.autograd.grad(loss * scale, asked, materialize_grads=True)
    blocks = 1 if row_by_row else leaves[0].shape[0]
    parts = [
        _of_vector(directions, n, part, blocks) if n in vectors else part for n, part in enumerate(found)
    ]
    stacked: F64 = torch.stack([part.double().cpu() for part in parts]).numpy() / scale
    return float(loss.detach()), _cut(stacked, batch, longest) if row_by_row else stacked


def _cut(found: F64, batch: Encoded, longest: float) -> F64:
    """Return the mean of the rows' gradients, (layers, blocks, columns, rows), from the gradients of their
    sequences, (layers, sequences, blocks, columns, rows). Each row's gradient is scaled down to the norm
    `longest` if it is longer. A gradient that is not finite counts as 0, because a visible failure could
    reveal its row."""
    layers, sequences = found.shape[:2]
    of_sequence = batch.examples * found.reshape(layers, sequences, -1).swapaxes(0, 1).reshape(sequences, -1)
    of_row = np.zeros((batch.examples, of_sequence.shape[1]))
    np.add.at(of_row, batch.owners(), of_sequence)
    of_row[~np.isfinite(of_row).all(1)] = 0
    norms = np.linalg.norm(of_row, axis=1).clip(np.finfo(float).tiny)
    mean: F64 = np.minimum(1, longest / norms) @ of_row / batch.examples
    return mean.reshape(layers, *found.shape[2:])


def _of_vector(directions: Directions, number: int, gradient: Tensor, blocks: int) -> Tensor:
    """Return the gradient with respect to a vector's cores, (blocks, columns, rows), from the gradient with
    respect to its entries, (n,)."""
    live = directions.live
    u, v = directions.u[number][live:].to(gradient), directions.v[number][:, live:].to(gradient)
    return v.view(blocks, -1, 1) * (u @ gradient).view(blocks, 1, -1)


def _recomputing(loaded: LoadedModel) -> AbstractContextManager[None]:
    """Save only the input of each of the model's blocks within the context. Other activations are recomputed
    in the backward pass (gradient checkpointing)."""
    again = partial(partial, checkpoint, use_reentrant=False, preserve_rng_state=False)
    return instead({block: again(block.forward) for block in blocks_of(loaded.model)})


@dataclass(slots=True)
class _Room:
    """Memory of a model's backward pass: its limit, and the bytes that are saved for a token."""

    limit: float
    """Maximum bytes of saved tensors."""
    weights: frozenset[int]
    """Addresses of the model's own tensors, which do not count as saved."""
    of_token: float = 0.0
    """Bytes per token that the first pass saved for its backward pass; 0 before that pass."""

    @classmethod
    def of(cls, loaded: LoadedModel) -> _Room:
        """Return the memory for a model's backward pass: its limit, and 0 for the bytes of a token, which are
        not known yet."""
        tensors = (*loaded.model.parameters(), *loaded.model.buffers())
        places = frozenset(one.untyped_storage().data_ptr() for one in tensors)
        return cls(max(LEAST_ROOM, ROOM_SHARE * sum(one.nbytes for one in tensors)), places)

    def narrow(self, batch: Encoded) -> bool:
        """Lower the limit to a quarter, because there was no memory for this mini-batch. Return False,
        without a change, if the limit is already less than one token takes."""
        self.of_token = self.of_token or self.limit / int(batch.lengths().sum())
        if self.limit < self.of_token:
            return False
        self.limit /= 4
        return True

    def recomputes(self, part: Encoded) -> bool:
        """Return whether this part of a mini-batch exceeds the limit, although it cannot be cut further. The
        activations of the model's blocks must then be recomputed."""
        return self.of_token * int(part.lengths().sum()) > self._limit(part)

    def _limit(self, batch: Encoded) -> float:
        return self.limit if batch.weights is None else WRITTEN_ROOM * self.limit

    def parts(self, batch: Encoded) -> Iterator[Encoded]:
        """Yield a mini-batch in parts within the limit, rows of similar lengths together. For a model's first
        mini-batch, the first part is one row of median length, which shows the bytes that a token takes."""
        tokens, groups = batch.lengths(), list[list[int]]()
        order = np.argsort(-tokens, kind="stable").tolist()
        if not (self.of_token or batch.centred):
            yield batch.part([order.pop(len(order) // 2)])
        most = self._limit(batch) / self.of_token if self.of_token else math.inf
        if len(order) == len(tokens) and (batch.centred or int(tokens.sum()) <= most):
            yield batch
            return
        for row in order:
            if groups and tokens[groups[-1][0]] * (len(groups[-1]) + 1) <= most:
                groups[-1].append(row)
            else:
                groups.append([row])
        yield from map(batch.part, groups)

    @contextmanager
    def watched(self, batch: Encoded) -> Iterator[None]:
        """Measure the bytes that autograd graphs save per token within the block, unless they are known."""
        kept: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        if self.of_token:
            yield
            return
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            yield
        of_graph = sum(size for place, size in kept.items() if place not in self.weights)
        self.of_token = of_graph / max(1, int(batch.lengths().sum()))


_ROOMS: WeakKeyDictionary[Any, _Room] = WeakKeyDictionary()
"""Memory of backward passes, keyed by model."""

"""Moving a layer along one direction of its subspace without touching its weight (DESIGN 6).

W + m u v^T acts on an input x as W x + m (v . x) u. A hook on every target layer adds that second term to
the rows of a batch, with m = +eps for one half of it and -eps for the other, so that both points of a
two-point estimate, for several queries at once, come out of one forward pass. This module knows seeds,
bases and layers; it knows neither losses nor cores.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sfnode.config import Target
from sfnode.engine.basis import Basis
from sfnode.errors import Code, UserError
from sfprotocol.seeds import coordinates

CACHED_EPOCHS = 3
"""The current epoch, the one before (late updates of peers) and one to spare."""


class Columns(NamedTuple):
    """The bases of one epoch, all layers side by side and one direction per row."""

    u: Tensor
    """(rank, sum of out_features)."""
    v: Tensor
    """(rank, sum of in_features)."""


class Directions(NamedTuple):
    """For q queries, one direction per target layer."""

    u: tuple[Tensor, ...]
    """Per layer (q, out_features): eps * s * u_i."""
    v: tuple[Tensor, ...]
    """Per layer (in_features, q): v_j."""


class Subspace:
    """The r x r coordinates of every target layer, and where a seed lies in them."""

    def __init__(self, basis: Basis, targets: Sequence[Target], rank: int, device: torch.device) -> None:
        self.basis = basis
        self.targets = targets
        self.rank = rank
        self.device = device
        self._out = [target.out_features for target in targets]
        self._in = [target.in_features for target in targets]
        self._layer_of_out = _owners(self._out).to(device)  # (sum out,)
        self._layer_of_in = _owners(self._in).to(device)  # (sum in,)
        self._cache: OrderedDict[int, Columns] = OrderedDict()

    def directions(self, seeds: Sequence[int], epoch: int, epsilon: float) -> Directions:
        """The directions of the updates with these seeds, scaled by their signs and `epsilon`."""
        drawn = coordinates(np.array(seeds, np.uint64), len(self.targets), self.rank)
        row, column, sign = (torch.from_numpy(part).to(self.device) for part in drawn)  # (q, layers)
        columns = self.columns(epoch)
        u = columns.u.gather(0, row[:, self._layer_of_out])  # (q, sum out)
        u = u * (sign * epsilon)[:, self._layer_of_out]
        v = columns.v.gather(0, column[:, self._layer_of_in]).float()  # (q, sum in)
        return Directions(torch.split(u, self._out, 1), torch.split(v.t(), self._in, 0))

    def columns(self, epoch: int) -> Columns:
        """The bases of an epoch; the few that were used last are kept."""
        if epoch not in self._cache:
            pairs = [self.basis.matrices(epoch, layer) for layer in range(len(self.targets))]
            self._cache[epoch] = Columns(
                torch.cat([u.t() for u, _ in pairs], 1), torch.cat([v.t() for _, v in pairs], 1)
            )
        self._cache.move_to_end(epoch)
        while len(self._cache) > CACHED_EPOCHS:
            self._cache.popitem(last=False)
        return self._cache[epoch]

    def layer_columns(self, epoch: int) -> list[tuple[Tensor, Tensor]]:
        """Per layer, U.T (rank, out_features) and V.T (rank, in_features) of an epoch, from `columns`."""
        u, v = self.columns(epoch)
        return list(zip(torch.split(u, self._out, 1), torch.split(v, self._in, 1), strict=True))


@contextmanager
def moved(layers: Sequence[nn.Module], directions: Directions, signs: Tensor) -> Iterator[None]:
    """Within the block, row n of a batch sees every layer moved by `signs[n, k]` times direction k.

    `signs`: (N, q) float, N = sequences * tokens in the order of the batch; +1, -1, or 0 for a row of
    another query.
    """
    handles = [
        layer.register_forward_hook(_mover(u, v, signs))
        for layer, u, v in zip(layers, directions.u, directions.v, strict=True)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _mover(u: Tensor, v: Tensor, signs: Tensor) -> Callable[[nn.Module, Any, Tensor], None]:
    def move(layer: nn.Module, args: tuple[Tensor, ...], y: Tensor) -> None:
        x = args[0].reshape(-1, v.shape[0])  # (N, in)
        if x.shape[0] != signs.shape[0]:
            raise _reordered(layer)
        along = torch.mm(x, v).mul_(signs)  # (N, q)
        y.view(-1, u.shape[1]).addmm_(along, u)  # (N, out), in place: one pass over y and no copy

    return move


def _owners(sizes: Sequence[int]) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))


def _reordered(layer: nn.Module) -> UserError:
    return UserError(
        Code.MODEL_UNSUPPORTED,
        f"a layer of the base model ({layer}) does not see one row per token, as in a mixture of experts",
        "Use a model whose linear layers see every token.",
    )

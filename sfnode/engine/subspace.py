"""The r x r coordinates of every target, where a seed lies in them, and what of the core rides along.

The bases of the epoch in use are kept as int8, all targets side by side, so that the directions of a step
are two gathers whatever the number of layers. This module knows seeds and bases; it knows neither models nor
losses, and of the core only what it is given.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sfnode.config import Target
from sfnode.engine.basis import Basis
from sfnode.engine.steering import Directions
from sfprotocol.seeds import coordinates

CACHED_EPOCHS = 2
"""The current epoch, and the one before it or the next: at rank 32 each is about 1 % of a bf16 model."""


class Columns(NamedTuple):
    """The bases of one epoch, all targets side by side and one direction per row; int8."""

    u: Tensor
    """(rank, sum of out_features)."""
    v: Tensor
    """(rank, sum of in_features)."""


class Subspace:
    """Turns seeds into directions; `dtype` is that of the layers' inputs."""

    def __init__(
        self,
        basis: Basis,
        targets: Sequence[Target],
        rank: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        *,
        rides: bool = False,
    ) -> None:
        """With `rides`, every direction has `rank` columns in front of it that belong to all rows of a batch:
        the part of the core that is not yet in the weights (`ride`)."""
        self.basis = basis
        self.targets = targets
        self.rank = rank
        self.device = device
        self.dtype = dtype
        self._out = [target.out_features for target in targets]
        self._in = [target.in_features for target in targets]
        self._layer_of_out = _owners(self._out).to(device)  # (sum out,)
        self._layer_of_in = _owners(self._in).to(device)  # (sum in,)
        self._cache: OrderedDict[int, Columns] = OrderedDict()
        self._riding = rank if rides else 0
        self._u, self._v = self._room(0)

    def directions(self, seeds: Sequence[int], epoch: int) -> Directions:
        """The directions of the updates with these seeds: per target s * u_i and v_j, entries +1 and -1.

        They lie in memory that the next call writes over.
        """
        self._make_room(len(seeds))
        drawn = coordinates(np.array(seeds, np.uint64), len(self.targets), self.rank)
        row, column, sign = (torch.from_numpy(part).to(self.device) for part in drawn)  # (q, layers)
        columns, riding = self.columns(epoch), self._riding
        u = columns.u.gather(0, row[:, self._layer_of_out])  # (q, sum out)
        self._u[:, riding:] = (u * sign.to(torch.int8)[:, self._layer_of_out]).t()
        self._v[:, riding:] = columns.v.gather(0, column[:, self._layer_of_in]).t()  # (sum in, q)
        u_parts = tuple(part.t() for part in torch.split(self._u, self._out))
        return Directions(u_parts, torch.split(self._v, self._in), riding)

    def ride(self, layer: int, u: Tensor, v: Tensor) -> None:
        """From now on all rows of every batch see W + u v^T for this target: u (out, rank), v (in, rank)."""
        torch.split(self._u, self._out)[layer][:, : self._riding] = u
        torch.split(self._v, self._in)[layer][:, : self._riding] = v

    def columns(self, epoch: int) -> Columns:
        """The bases of an epoch; the few that were used last are kept."""
        if epoch not in self._cache:
            while len(self._cache) >= CACHED_EPOCHS:
                self._cache.popitem(last=False)
            pairs = [self.basis.matrices(epoch, layer) for layer in range(len(self.targets))]
            self._cache[epoch] = Columns(
                torch.cat([u.t() for u, _ in pairs], 1), torch.cat([v.t() for _, v in pairs], 1)
            )
        self._cache.move_to_end(epoch)
        return self._cache[epoch]

    def matrices(self, epoch: int, layer: int) -> tuple[Tensor, Tensor]:
        """U (out, rank) and V (in, rank) of one target, int8; from the cache if the epoch is there."""
        if epoch not in self._cache:
            return self.basis.matrices(epoch, layer)
        columns = self._cache[epoch]
        u, v = torch.split(columns.u, self._out, 1)[layer], torch.split(columns.v, self._in, 1)[layer]
        return u.t(), v.t()

    def _make_room(self, queries: int) -> None:
        """Memory for so many queries; what rides along stays."""
        if self._u.shape[1] != self._riding + queries:
            u, v = self._u, self._v
            self._u, self._v = self._room(queries)
            self._u[:, : self._riding] = u[:, : self._riding]
            self._v[:, : self._riding] = v[:, : self._riding]

    def _room(self, queries: int) -> tuple[Tensor, Tensor]:
        width = self._riding + queries
        shapes = (sum(self._out), width), (sum(self._in), width)
        u, v = (torch.zeros(shape, dtype=self.dtype, device=self.device) for shape in shapes)
        return u, v


def _owners(sizes: Sequence[int]) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))

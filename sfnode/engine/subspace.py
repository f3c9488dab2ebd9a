"""Turns seeds into directions: columns of the bases U and V of a subspace. Each target has r columns in U and
r in V (SPEC R7, R10, R12). All code takes the matrices from a `Basis` and assumes nothing about their origin.

The bases of the current epoch are kept as int8, all targets side by side, so that the directions of a step
take two gather operations for any number of targets. The live core, the part of the core that is not in the
weights yet, is applied in activation space; its directions come before those of the updates. This module
knows seeds and bases. It knows neither models nor losses, and no core but the live core that it is given.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfnode.manifest import Manifest
from sfnode.manifest.sections import Target
from sfnode.manifest.training import PUBLISHED_UNIT, Training, units_of
from sfnode.models import bases
from sfnode.models.perturbation import Directions
from sfprotocol.decisions import Bases
from sfprotocol.seeds import BASIS_ONE, MOST_ENTRY, basis_signs, contrasts, coordinates, scaled_signs

_SUBSPACE = attrgetter("subspace")


class ComputedBasis:
    """Basis that every node computes from counters, so that nothing is sent."""

    def __init__(
        self,
        sides: Callable[[int, int], tuple[NDArray[np.int8], NDArray[np.int8]]],
        device: torch.device,
        unit: float = 1.0,
        largest: int = 1,
    ) -> None:
        """`sides` returns U and V, given a subspace and a target. `unit` is the value of an entry 1, and
        `largest` the largest product of entries, for all subspaces and targets."""
        self._sides, self._device, self._unit, self._largest = sides, device, unit, largest

    def units(self, layer: int) -> tuple[float, float]:
        """Return the value of an entry 1 in U, and in V, of one target. Both are powers of two."""
        return self._unit, self._unit

    def has(self, subspace: int) -> bool:
        """Return whether the bases of a subspace are on this machine."""
        return True

    def matrices(self, subspace: int, layer: int) -> tuple[Tensor, Tensor]:
        """Return U (out_features, rows of a core) and V (in_features, columns of a core) of one target in one
        subspace, both int8.

        They are equal to the bit on every node, and have no entry of -128. int8 keeps a cached subspace
        small; callers convert to float.
        """
        u, v = self._sides(subspace, layer)
        return torch.from_numpy(u).to(self._device), torch.from_numpy(v).to(self._device)

    def largest(self, subspace: int, layer: int) -> int:
        """Return the largest product of the magnitudes of an entry of U and an entry of V."""
        return self._largest


class PublishedBasis:
    """Basis of the `published` kind: files in a folder, named by their digests (SPEC R10)."""

    def __init__(self, folder: Path, manifest: Manifest, device: torch.device) -> None:
        self._folder = folder
        self._targets, self._columns = manifest.model.parsed_targets(), manifest.basis_columns
        self._units = [units_of(manifest.training, target) for target in self._targets]
        self._device = device
        self._published: tuple[Bases, ...] = (Bases(0, bytes.fromhex(manifest.training.bases)),)
        self._read: dict[str, list[bases.Pair]] = {}
        """Files that were read and checked, mapped into memory, keyed by digest."""

    def units(self, layer: int) -> tuple[float, float]:
        """Return the value of an entry 1 in U, and in V, of one target, as `ComputedBasis.units` does."""
        return self._units[layer]

    def follow(self, published: Sequence[Bases]) -> None:
        """Set which bases are published for which subspaces, in ascending order from subspace 0. Bases serve
        their own subspace, and later ones without bases of their own (SPEC O9)."""
        self._published = tuple(published)

    def digest(self, subspace: int) -> str:
        """Return the digest of the bases of a subspace, in hex."""
        return self._published[bisect_right(self._published, subspace, key=_SUBSPACE) - 1].digest.hex()

    def has(self, subspace: int) -> bool:
        """Return whether the folder has the bases of a subspace."""
        digest = self.digest(subspace)
        return digest in self._read or bases.path_in(self._folder, digest).is_file()

    def matrices(self, subspace: int, layer: int) -> tuple[Tensor, Tensor]:
        """Return U and V as `ComputedBasis.matrices` does. Raises UserError BASES_MISSING, BASES_UNUSABLE."""
        u, v = self._pairs(subspace)[layer]
        return torch.from_numpy(u).to(self._device), torch.from_numpy(v).to(self._device)

    def largest(self, subspace: int, layer: int) -> int:
        """Return the largest product of the magnitudes of an entry of U and an entry of V, as
        `ComputedBasis.largest` does. Raises as `matrices`."""
        return self._pairs(subspace)[layer].largest

    def _pairs(self, subspace: int) -> list[bases.Pair]:
        digest = self.digest(subspace)
        if digest not in self._read:
            file = bases.path_in(self._folder, digest)
            if not file.is_file():
                raise bases.missing(f"the published bases {digest[:16]}... are not here")
            self._read[digest] = bases.read(file, self._targets, self._columns, digest)
        return self._read[digest]


Basis = ComputedBasis | PublishedBasis
"""A kind of basis; the manifest's `training.basis` names the kind."""


def random_basis(run_id: bytes, targets: Sequence[Target], rank: int, device: torch.device) -> ComputedBasis:
    """Return the basis of the `random` kind: entries +1 or -1 from counters (SPEC R7)."""

    def sides(subspace: int, layer: int) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
        sizes = {"U": targets[layer].out_features, "V": targets[layer].in_features}
        u, v = (basis_signs(run_id, subspace, layer, side, size, rank) for side, size in sizes.items())
        return u, v

    return ComputedBasis(sides, device)


def features_basis(run_id: bytes, head: Target, numbers: Training, device: torch.device) -> Basis:
    """Return the basis of the `features` kind, for a linear head. U has contrasts of classes. V has random
    signs times the features' scales in the manifest, plus a multiple of their means (SPEC R12)."""
    scales, means = np.array(numbers.scales_and_means(), np.int64).T

    def sides(subspace: int, layer: int) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
        return (
            contrasts(run_id, subspace, layer, head.out_features, numbers.rank),
            scaled_signs(run_id, subspace, layer, scales, means, numbers.rank),
        )

    return ComputedBasis(sides, device, PUBLISHED_UNIT, BASIS_ONE * MOST_ENTRY)


def basis_of(manifest: Manifest, folder: Path | None, device: torch.device) -> Basis:
    """Return the bases of a run. `folder` holds the files of published bases."""
    targets, numbers = manifest.model.parsed_targets(), manifest.training
    if numbers.bases:
        return PublishedBasis(folder or Path(), manifest, device)
    if numbers.features:
        return features_basis(manifest.run_id, targets[0], numbers, device)
    return random_basis(manifest.run_id, targets, numbers.rank, device)


CACHED_EPOCHS = 2
"""Number of epochs whose bases are cached: the current epoch, and the one before or after it. At rank 32 an
epoch's bases take about 1 % of the memory of a bf16 model."""


Columns = tuple[Tensor, Tensor]
"""The bases of one epoch, int8, all targets side by side and one direction per row: (rows of a core, sum of
out_features) and (columns of a core, sum of in_features)."""


class Subspace:
    """Turns seeds into directions, in the dtype of the layers' inputs."""

    def __init__(
        self,
        basis: Basis,
        targets: Sequence[Target],
        columns: tuple[int, int],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        *,
        live_core: bool = False,
    ) -> None:
        """`columns`: the numbers of columns of U and of V. With `live_core` directions begin with the two
        sides of a live core (`set_live_core`), which act on all rows of a batch. Each side has as many
        columns as the narrower of U and V."""
        self.basis = basis
        self.targets = targets
        self.columns_of = columns
        """Number of columns of U and of V of every target, which is the number of rows and of columns of a
        core."""
        self.units = tuple(basis.units(layer) for layer in range(len(targets)))
        """Value of an entry 1 in U, and in V, for each target."""
        self.device = device
        self.dtype = dtype
        self._out = [target.out_features for target in targets]
        self._in = [target.in_features for target in targets]
        self._layer_of_out = _owners(self._out).to(device)  # (sum out,)
        self._layer_of_in = _owners(self._in).to(device)  # (sum in,)
        self._cache: OrderedDict[int, Columns] = OrderedDict()
        self._coming: dict[int, Future[Columns]] = {}
        self.live = min(columns) if live_core else 0
        """Number of columns of each side of the live core; 0 without one."""
        self._u, self._v = self._allocated(0, 0)

    def directions(self, seeds: Sequence[int], epoch: int) -> Directions:
        """Return the directions of the updates with these seeds: s * u_i and v_j of each target, with the
        basis's units applied.

        The result lies in memory that the next call overwrites.
        """
        self._make_room(len(seeds), len(seeds))
        row, column, sign = coordinates(np.array(seeds, np.uint64), len(self.targets), self.columns_of[0])
        (of_u, of_v), live = self.columns(epoch), self.live
        u = of_u.gather(0, self._spread(row, self._out, self._layer_of_out))  # (q, sum out)
        u *= self._spread(sign.astype(np.int8), self._out, self._layer_of_out)
        v = of_v.gather(0, self._spread(column, self._in, self._layer_of_in))  # (q, sum in)
        self._u[:, live:] = u.t()
        self._v[:, live:] = v.t()
        unit, _ = self.units[0]  # the same for all targets: first-order runs have no directions
        if unit != 1.0:  # a power of two, so that nothing is rounded
            self._u[:, live:] *= unit
            self._v[:, live:] *= unit
        u_parts = tuple(part.t() for part in torch.split(self._u, self._out))
        return Directions(u_parts, torch.split(self._v, self._in), live)

    def unit(self, layer: int) -> float:
        """Return the change of an entry of W for an entry of 1 in a target's core, where the int8 entries of
        both bases are 1. The rate is not applied yet."""
        of_u, of_v = self.units[layer]
        return of_u * of_v

    def whole(self, epoch: int) -> Directions:
        """Return all columns of U and of V of an epoch as directions, with the bases' units applied. The live
        core's directions come before them.

        The result lies in memory that the next call overwrites.
        """
        (all_u, all_v), live = self.columns(epoch), self.live
        self._make_room(*self.columns_of)
        self._u[:, live:], self._v[:, live:] = all_u.t(), all_v.t()
        u, v = torch.split(self._u, self._out), torch.split(self._v, self._in)
        for left, right, (of_u, of_v) in zip(u, v, self.units, strict=True):
            left[:, live:] *= of_u
            right[:, live:] *= of_v
        return Directions(tuple(part.t() for part in u), v, live)

    def set_live_core(self, layer: int, u: Tensor, v: Tensor) -> None:
        """Make all rows of every batch see W + u v^T for this target. u (out, k) and v (in, k) have as many
        columns as the narrower of U and V.

        No units are applied to u and v here: the caller applies the bases' units before.
        """
        torch.split(self._u, self._out)[layer][:, : self.live] = u
        torch.split(self._v, self._in)[layer][:, : self.live] = v

    def move(self, device: torch.device) -> None:
        """Move bases and live core to another device. Bases that were prepared in advance are dropped."""
        self.device = device
        self._u, self._v = self._u.to(device), self._v.to(device)
        self._layer_of_out, self._layer_of_in = self._layer_of_out.to(device), self._layer_of_in.to(device)
        self._coming.clear()
        for epoch, (u, v) in list(self._cache.items()):
            self._cache[epoch] = u.to(device), v.to(device)

    def columns(self, epoch: int) -> Columns:
        """Return the bases of an epoch. The bases of the CACHED_EPOCHS epochs that were used last are
        cached."""
        if epoch not in self._cache:
            while len(self._cache) >= CACHED_EPOCHS:
                self._cache.popitem(last=False)
            coming = self._coming.pop(epoch, None)
            self._cache[epoch] = self._made(epoch) if coming is None else coming.result()
        self._cache.move_to_end(epoch)
        return self._cache[epoch]

    def expect(self, epoch: int, executor: Executor) -> None:
        """Prepare the bases of an epoch in the background. For a large model, making them takes longer than a
        step."""
        if epoch not in self._cache and epoch not in self._coming and self.basis.has(epoch):
            self._coming = {epoch: executor.submit(self._made, epoch)}

    def forget(self) -> None:
        """Forget the cached bases, because an epoch may have other bases now."""
        self._cache.clear()
        self._coming.clear()

    def matrices(self, epoch: int, layer: int) -> tuple[Tensor, Tensor]:
        """Return U (out, rows of a core) and V (in, columns of a core) of one target, int8. They come from
        the cache if the epoch's bases are cached."""
        if epoch not in self._cache:
            u, v = self.basis.matrices(epoch, layer)
            return u.to(self.device), v.to(self.device)
        u, v = self._cache[epoch]
        return torch.split(u, self._out, 1)[layer].t(), torch.split(v, self._in, 1)[layer].t()

    def _made(self, epoch: int) -> Columns:
        pairs = [self.basis.matrices(epoch, layer) for layer in range(len(self.targets))]
        u, v = (torch.cat([side.t() for side in sides], 1) for sides in zip(*pairs, strict=True))
        return u.to(self.device), v.to(self.device)

    def _spread(self, values: NDArray[Any], sizes: Sequence[int], owners: Tensor) -> Tensor:
        """Repeat a value per target, (q, layers), for every column of the target: (q, sum of sizes).

        On a CPU repeating is ten times as fast as indexing. An accelerator indexes, because it would have to
        wait for values repeated on the CPU.
        """
        if self.device.type == "cpu":
            return torch.from_numpy(np.repeat(values, sizes, axis=1))
        return torch.from_numpy(values).to(self.device)[:, owners]

    def _make_room(self, of_u: int, of_v: int) -> None:
        """Allocate memory for this many columns, keeping the live core."""
        if (self._u.shape[1], self._v.shape[1]) != (self.live + of_u, self.live + of_v):
            u, v = self._u, self._v
            self._u, self._v = self._allocated(of_u, of_v)
            self._u[:, : self.live] = u[:, : self.live]
            self._v[:, : self.live] = v[:, : self.live]

    def _allocated(self, of_u: int, of_v: int) -> tuple[Tensor, Tensor]:
        shapes = (sum(self._out), self.live + of_u), (sum(self._in), self.live + of_v)
        u, v = (torch.zeros(shape, dtype=self.dtype, device=self.device) for shape in shapes)
        return u, v


def _owners(sizes: Sequence[int]) -> Tensor:
    """Return the target that each column belongs to, (sum of sizes,) int64."""
    return torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))

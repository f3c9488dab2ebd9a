"""The bases U and V of a run's subspaces: r directions on either side of every target (DESIGN 3).

Everything else asks a `Basis` for its matrices and assumes nothing about where they come from. This module
knows neither updates nor models.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sfnode.manifest import Manifest
from sfnode.manifest.sections import Target
from sfnode.manifest.training import PUBLISHED_UNIT, Training, units_of
from sfnode.models import bases
from sfprotocol.decisions import Bases
from sfprotocol.seeds import BASIS_ONE, MOST_ENTRY, basis_signs, contrasts, scaled_signs

_SUBSPACE = attrgetter("subspace")


class Basis(Protocol):
    """Interface of a kind of basis; the manifest's `training.basis` names the kind."""

    def units(self, layer: int) -> tuple[float, float]:
        """Return the values of an entry of 1 of U and of V of one target: powers of two."""
        ...

    def has(self, subspace: int) -> bool:
        """Return whether the bases of a subspace are on this machine."""
        ...

    def matrices(self, subspace: int, layer: int) -> tuple[Tensor, Tensor]:
        """Return U (out_features, rows of a core) and V (in_features, columns of a core) of one target in one
        subspace, both int8.

        They are equal to the bit on every node, and have no entry of -128. int8 keeps a cached subspace
        small; users convert to float.
        """
        ...

    def largest(self, subspace: int, layer: int) -> int:
        """Return the largest magnitude of an entry of this U times that of V: what bounds their products."""
        ...


class RandomBasis:
    """Basis of the `random` kind: entries +1 or -1 from counters (SPEC R7), so that nothing has to be
    sent."""

    def __init__(self, run_id: bytes, targets: Sequence[Target], rank: int, device: torch.device) -> None:
        self._run_id = run_id
        self._targets = targets
        self._rank = rank
        self._device = device

    def units(self, layer: int) -> tuple[float, float]:
        """Return 1 and 1."""
        return 1.0, 1.0

    def has(self, subspace: int) -> bool:
        """Return True: they are computed."""
        return True

    def matrices(self, subspace: int, layer: int) -> tuple[Tensor, Tensor]:
        """Return U and V as `Basis.matrices` says."""
        target = self._targets[layer]
        u = basis_signs(self._run_id, subspace, layer, "U", target.out_features, self._rank)
        v = basis_signs(self._run_id, subspace, layer, "V", target.in_features, self._rank)
        return torch.from_numpy(u).to(self._device), torch.from_numpy(v).to(self._device)

    def largest(self, subspace: int, layer: int) -> int:
        """Return 1."""
        return 1


class PublishedBasis:
    """Basis of the `published` kind: from files of a folder that are named by their digests (SPEC R10)."""

    def __init__(self, folder: Path, manifest: Manifest, device: torch.device) -> None:
        self._folder = folder
        self._targets, self._columns = manifest.model.parsed_targets(), manifest.basis_columns
        self._units = [units_of(manifest.training, target) for target in self._targets]
        self._device = device
        self._published: tuple[Bases, ...] = (Bases(0, bytes.fromhex(manifest.training.bases)),)
        self._read: dict[str, list[bases.Pair]] = {}
        """The files that were read and found right, mapped into memory, by digest."""

    def units(self, layer: int) -> tuple[float, float]:
        """Return what `Basis.units` says."""
        return self._units[layer]

    def follow(self, published: Sequence[Bases]) -> None:
        """Take the bases of subspaces from here from now on, ascending from subspace 0 (SPEC O9)."""
        self._published = tuple(published)

    def digest(self, subspace: int) -> str:
        """Return the digest of the bases of a subspace, in hex."""
        return self._published[bisect_right(self._published, subspace, key=_SUBSPACE) - 1].digest.hex()

    def has(self, subspace: int) -> bool:
        """Return whether the folder has the bases of a subspace."""
        digest = self.digest(subspace)
        return digest in self._read or bases.path_in(self._folder, digest).is_file()

    def matrices(self, subspace: int, layer: int) -> tuple[Tensor, Tensor]:
        """Return U and V as `Basis.matrices` says. Raises UserError BASES_MISSING, BASES_UNUSABLE."""
        u, v = self._pairs(subspace)[layer]
        return torch.from_numpy(u).to(self._device), torch.from_numpy(v).to(self._device)

    def largest(self, subspace: int, layer: int) -> int:
        """Return what `Basis.largest` says. Raises as `matrices`."""
        return self._pairs(subspace)[layer].largest

    def _pairs(self, subspace: int) -> list[bases.Pair]:
        digest = self.digest(subspace)
        if digest not in self._read:
            file = bases.path_in(self._folder, digest)
            if not file.is_file():
                raise bases.missing(f"the published bases {digest[:16]}... are not here")
            self._read[digest] = bases.read(file, self._targets, self._columns, digest)
        return self._read[digest]


class FeaturesBasis:
    """Basis of the `features` kind, of a linear head: contrasts of classes, and random signs on features of
    which the run knows scale and mean (SPEC R12). Computed by everybody."""

    def __init__(self, run_id: bytes, head: Target, numbers: Training, device: torch.device) -> None:
        self._run_id, self._head, self._rank, self._device = run_id, head, numbers.rank, device
        self._scales, self._means = np.array(numbers.scales_and_means(), np.int64).T

    def units(self, layer: int) -> tuple[float, float]:
        """Return what `Basis.units` says."""
        return PUBLISHED_UNIT, PUBLISHED_UNIT

    def has(self, subspace: int) -> bool:
        """Return True: they are computed."""
        return True

    def matrices(self, subspace: int, layer: int) -> tuple[Tensor, Tensor]:
        """Return U and V as `Basis.matrices` says."""
        u = contrasts(self._run_id, subspace, layer, self._head.out_features, self._rank)
        v = scaled_signs(self._run_id, subspace, layer, self._scales, self._means, self._rank)
        return torch.from_numpy(u).to(self._device), torch.from_numpy(v).to(self._device)

    def largest(self, subspace: int, layer: int) -> int:
        """Return what `Basis.largest` says."""
        return BASIS_ONE * MOST_ENTRY


def basis_of(manifest: Manifest, folder: Path | None, device: torch.device) -> Basis:
    """Return the bases of a run; published ones are in files of `folder`."""
    targets, numbers = manifest.model.parsed_targets(), manifest.training
    if numbers.bases:
        return PublishedBasis(folder or Path(), manifest, device)
    if numbers.features:
        return FeaturesBasis(manifest.run_id, targets[0], numbers, device)
    return RandomBasis(manifest.run_id, targets, numbers.rank, device)

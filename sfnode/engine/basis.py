"""The bases U and V of a run's subspaces: for every epoch and target, r directions on either side (DESIGN 3).

Everything else asks a `Basis` for its matrices and assumes nothing about where they come from. This module
knows neither updates nor models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from sfnode.manifest import Target
from sfprotocol.seeds import basis_signs


class Basis(Protocol):
    """Interface of a kind of basis; the manifest's `training.basis` names the kind."""

    def matrices(self, epoch: int, layer: int) -> tuple[Tensor, Tensor]:
        """Return U (out_features, rank) and V (in_features, rank) of one target in one epoch, both int8.

        They are equal to the bit on every node. int8 keeps a cached epoch small; users convert to float.
        """
        ...


class RandomBasis:
    """Basis of the `random` kind: entries +1 or -1 from counters (SPEC R7), so that nothing has to be
    sent."""

    def __init__(self, run_id: bytes, targets: Sequence[Target], rank: int, device: torch.device) -> None:
        self._run_id = run_id
        self._targets = targets
        self._rank = rank
        self._device = device

    def matrices(self, epoch: int, layer: int) -> tuple[Tensor, Tensor]:
        """Return U and V as `Basis.matrices` says."""
        target = self._targets[layer]
        u = basis_signs(self._run_id, epoch, layer, "U", target.out_features, self._rank)
        v = basis_signs(self._run_id, epoch, layer, "V", target.in_features, self._rank)
        return torch.from_numpy(u).to(self._device), torch.from_numpy(v).to(self._device)

"""Low-rank factors of what training changed: exact at the rank that the sum has, or truncated to another.

The sum over subspaces of rank-r terms has rank r * subspaces at most, and never more than the matrix has rows
or columns. Everything is computed in float64; nothing here knows files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from sfnode.engine.trainer import Trainer


class Fit(NamedTuple):
    """Errors of factors of a capped rank."""

    rank: int
    """The largest rank of a matrix."""
    full: int
    """The rank that it takes to leave nothing out."""
    largest: float
    """Largest relative error of a matrix, in the Frobenius norm."""
    total: float
    """The same of all matrices together."""

    @property
    def in_words(self) -> str:
        """The fit for people."""
        if self.rank >= self.full:
            return f"rank {self.rank}, nothing left out"
        return (
            f"rank {self.rank} of {self.full}; relative error {self.largest:.2g} in the worst matrix, "
            f"{self.total:.2g} over all"
        )


class Factors(NamedTuple):
    """One matrix as `b @ a`."""

    b: Tensor
    """(out, rank) float32."""
    a: Tensor
    """(rank, in) float32."""


def factors(trainer: Trainer, most: int | None = None) -> tuple[list[Factors], Fit]:
    """Return what training has changed of each target as factors of rank `most` at most, by truncated SVD;
    None: of the rank that it has. Raises UserError BASES_MISSING, BASES_UNUSABLE."""
    cores = trainer.decay.faded(trainer.core.cores())
    found, full, largest, lost, all_ = list[Factors](), 1, 0.0, 0.0, 0.0
    for layer, target in enumerate(trainer.space.targets):
        terms = [_term(trainer, epoch, core[layer], layer) for epoch, core in cores.items()]
        u, s, v = _svd(terms, target.out_features, target.in_features)
        has = int((s > s.max() * max(len(u), v.shape[1]) * torch.finfo(s.dtype).eps).sum()) if len(s) else 0
        kept = min(has, most or has)
        squares = s[:has].square()
        missed, norm = float(squares[kept:].sum()), float(squares.sum())
        largest = max(largest, math.sqrt(missed / norm) if norm else 0.0)
        full, lost, all_ = max(full, has), lost + missed, all_ + norm
        found.append(_factors(u[:, :kept], s[:kept], v[:kept]))
    rank = max((len(one.a) for one in found), default=1)
    return found, Fit(rank, full, largest, math.sqrt(lost / all_) if all_ else 0.0)


def _term(trainer: Trainer, epoch: int, a: NDArray[Any], layer: int) -> tuple[Tensor, Tensor]:
    """Return U (out, r) and -scale * core @ V.T (r, in) of one subspace, in float64 on the CPU; `a` (r, r) is
    this layer of the core."""
    u, v = trainer.space.basis.matrices(epoch, layer)
    core = torch.from_numpy(a.astype(np.float64))
    return u.cpu().double(), core @ v.cpu().double().t() * -trainer.scale(epoch)


def _svd(terms: Sequence[tuple[Tensor, Tensor]], rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return U (out, k), S (k,) descending and V (k, in) of the sum of all `b @ a`.

    Terms of less rank together than the matrix has are factorised side by side, without ever making it.
    """
    width = sum(b.shape[1] for b, _ in terms)
    if width < min(rows, columns):
        left, right = (
            torch.cat([b for b, _ in terms] or [torch.zeros(rows, 1, dtype=torch.float64)], 1),
            torch.cat([a for _, a in terms] or [torch.zeros(1, columns, dtype=torch.float64)], 0),
        )
        q, r = torch.linalg.qr(left)
        p, l_t = torch.linalg.qr(right.t())
        u, s, v = torch.linalg.svd(r @ l_t.t())
        return q @ u, s, v @ p.t()
    dense = torch.zeros(rows, columns, dtype=torch.float64)
    for b, a in terms:
        dense.addmm_(b, a)
    u, s, v = torch.linalg.svd(dense, full_matrices=False)
    return u, s, v


def _factors(u: Tensor, s: Tensor, v: Tensor) -> Factors:
    """Return factors that share the singular values evenly; of rank 1 and zero if there is nothing."""
    if not len(s):  # an adapter must have a rank
        return Factors(torch.zeros(len(u), 1), torch.zeros(1, v.shape[1]))
    root = s.sqrt()
    return Factors((u * root).float().contiguous(), (root[:, None] * v).float().contiguous())

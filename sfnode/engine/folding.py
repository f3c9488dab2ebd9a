"""Keeping a live model's weights at what the core says: W = base - sum over epochs of rate * delta * U A V^T.

Two ways lead there. An incremental fold adds what is new since the last one: cheap, but every time each
weight is rounded once more. A refold starts from the pristine base and rounds each weight once, so that the
weights depend on the core alone and not on the road that led to it. Neither ever feeds back into the shared
state. A budget keeps both from eating into the time for training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from sfnode.engine.core import Core, UpdateBatch
from sfnode.engine.model import matrix
from sfnode.engine.subspace import Subspace
from sfprotocol.seeds import I64

REST = 20
"""A fold that took t seconds is followed by at least 20 t without one: at most about 5 % of the time each
for folds and refolds. Until then steps use weights that lack the newest updates, as they do on any node."""


class Budget:
    """Bounds the share of time that a repeated action takes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next = -math.inf

    def due(self) -> bool:
        """Whether the action has rested long enough."""
        return self._clock() >= self._next

    @contextmanager
    def paid(self) -> Iterator[None]:
        """Times the action in the block."""
        start = self._clock()
        yield
        end = self._clock()
        self._next = end + REST * (end - start)


class LiveWeights:
    """The target matrices of one live model as a function of a core that keeps growing.

    `scale(epoch)` is rate * delta: how far one unit of the core moves a weight. `clock` in seconds.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        space: Subspace,
        core: Core,
        scale: Callable[[int], float],
        clock: Callable[[], float],
    ) -> None:
        self._weights = [matrix(layer) for layer in layers]  # each (out, in)
        self._base = [weight.clone() for weight in self._weights]
        self._space = space
        self._core = core
        self._scale = scale
        self._folds = Budget(clock)
        self._refolds = Budget(clock)
        self._pending = self._nothing()
        self._newest = -1
        self._epoch_began = False
        self._exact = True

    def note(self, batch: UpdateBatch) -> None:
        """The core has just taken in these updates; the weights follow later."""
        if not len(batch.seeds):
            return
        self._exact = False
        newest = int(batch.epochs.max())
        if newest > self._newest:
            self._newest, self._epoch_began = newest, True
        if not self._refold_is_next():  # a refold reads the core itself; a long replay is added up only once
            self._pending.add(batch)

    def follow(self) -> None:
        """Bring the weights nearer to the core if the budget allows; called before every step."""
        if self._refold_is_next():
            self.refold()
        elif self._folds.due():
            self._fold()

    def refold(self) -> None:
        """Set every weight to base minus the sum over all epochs, rounded once; nothing to do when it is."""
        if self._exact:
            return
        with self._refolds.paid():
            epochs = self._core.epochs()
            for layer, (weight, base) in enumerate(zip(self._weights, self._base, strict=True)):
                torch.sub(base, self._moved_by(layer, epochs), out=weight)
            _finish(weight.device)
        self._pending, self._epoch_began, self._exact = self._nothing(), False, True

    @contextmanager
    def at_base(self) -> Iterator[None]:
        """Within the block the weights are the base model's; afterwards they are refolded."""
        for weight, base in zip(self._weights, self._base, strict=True):
            weight.copy_(base)
        try:
            yield
        finally:
            self._exact = False
            self.refold()

    def _refold_is_next(self) -> bool:
        """True until that refold is done, because what is due stays due."""
        return self._epoch_began and self._refolds.due()

    def _fold(self) -> None:
        """Add what is new since the last fold, each update through the basis and rate of its own epoch."""
        with self._folds.paid():
            for epoch in self._pending.epochs():
                self._fold_epoch(epoch, self._pending.of(epoch))
            _finish(self._weights[0].device)
        self._pending = self._nothing()

    def _fold_epoch(self, epoch: int, change: I64) -> None:
        """`change`: (layers, rank, rank). Multiplies with those columns of U only that an update touched."""
        columns = self._space.layer_columns(epoch)
        for weight, a, (u, v) in zip(self._weights, change, columns, strict=True):
            rows = np.flatnonzero(a.any(axis=1))  # (k,)
            right = _float(a[rows], v.device) @ v.float()  # (k, in)
            weight.addmm_(u[rows].float().t(), right, alpha=-self._scale(epoch))

    def _moved_by(self, layer: int, epochs: Sequence[int]) -> Tensor:
        """The sum over epochs of scale * U A V^T for one layer, fp32 (out, in)."""
        total = torch.zeros_like(self._base[layer])
        for epoch in epochs:
            u, v = self._space.basis.matrices(epoch, layer)
            a = _float(self._core.of(epoch)[layer], u.device)  # (rank, rank)
            total.addmm_(u.float(), a @ v.float().t(), alpha=self._scale(epoch))
        return total

    def _nothing(self) -> Core:
        return Core(len(self._weights), self._space.rank)


def _float(entries: I64, device: torch.device) -> Tensor:
    return torch.from_numpy(entries.astype(np.float32)).to(device)


def _finish(device: torch.device) -> None:
    """Wait for the device, so that what is timed is the work and not its order."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)

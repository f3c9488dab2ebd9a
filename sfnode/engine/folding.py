"""Keeping a live model's weights at what the core says: W = base - sum over epochs of rate * delta * U A V^T.

Two ways lead there. A refold starts from the pristine base and rounds each weight once, so that the weights
depend on the core alone, to the bit and on any machine, and not on the road that led to it. In between, what
is new since the last refold is added cheaply: to the weights, where their precision allows it, or else it
rides along with the activations (`Subspace.ride`), because in half precision one update is less than the
rounding of a weight. There is room for one epoch to ride; when it is over, what has ridden is written into
the weights, rounded at random so that it is not lost. None of this ever feeds back into the shared state.
Budgets keep all of it from eating into the time for training.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from sfnode.engine.core import Core, UpdateBatch
from sfnode.engine.model import LoadedModel, matrix, store_rows
from sfnode.engine.packed import BLOCK_ENTRIES, row_blocks
from sfnode.engine.subspace import Subspace
from sfnode.engine.targets import Form
from sfprotocol.seeds import I64

FOLD_REST = 80
"""A fold that took t seconds is followed by at least 80 t without one: about 1 % of the time. Until then
steps use weights that lack the newest updates, as they do on any node."""

REFOLD_REST = 150
"""The same for a target's refold: less than 1 % of the time."""

PACKED_REFOLD_REST = 10
"""The same where nothing but a refold brings what has ridden into the weights: 9 % of the time, at most."""

EXACT = 1 << 24
"""Integers below this are exact in float32, whatever the order in which a product adds them up."""


class Budget:
    """Bounds the share of time that a repeated action takes."""

    def __init__(self, clock: Callable[[], float], rest: int) -> None:
        self._clock = clock
        self._rest = rest
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
        self._next = end + self._rest * (end - start)


class LiveWeights:
    """The target matrices of one live model as a function of a core that keeps growing.

    `scale(epoch)` is rate * delta: how far one unit of the core moves a weight. `clock` in seconds.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        space: Subspace,
        core: Core,
        scale: Callable[[int], float],
        clock: Callable[[], float],
    ) -> None:
        self._loaded = loaded
        self._space = space
        self._core = core
        self._scale = scale
        self._folds = Budget(clock, FOLD_REST)
        self._refolds = Budget(clock, PACKED_REFOLD_REST if loaded.packed else REFOLD_REST)
        self._pending = Core(len(loaded.sites), space.rank)
        """What is in the core and not in the weights."""
        self._changed = False
        """Whether anything is pending that was not when it was last added."""
        self._newest = -1
        self._since = [-1] * len(loaded.sites)
        """For each target the epoch of which what is new rides along."""
        self._waiting: deque[int] = deque()
        """Targets that wait for their refold, those first that have waited longest."""
        self._behind: deque[int] = deque()
        """Targets with which an epoch rides that is over; of packed ones none, as they wait for a refold."""
        self._noise = _noise(loaded)
        self._blank = True
        """No step has been taken: what is replayed before is refolded from the core itself, and so a long
        history is added up only once."""
        self._exact = True

    def take(self, batch: UpdateBatch) -> None:
        """Take in new updates: the core at once, the weights when they next follow it."""
        if not len(batch.seeds):
            return
        self._core.add(batch, *(() if self._blank else (self._pending,)))
        self._exact = False
        self._changed = not self._blank
        newest = int(batch.epochs.max())
        if newest > self._newest:
            self._newest = newest
            every = range(len(self._since))
            self._waiting.extend(sorted(set(every) - set(self._waiting)))
            if not (self._loaded.exact or self._loaded.packed):
                self._behind.extend(sorted(set(every) - set(self._behind)))

    def follow(self) -> None:
        """Bring the weights nearer to the core as far as the budgets allow; called before every step.

        Stalls a step by no more than one target's refold and one's closing, or one fold.
        """
        if self._blank:
            self._blank = False
            return self.refold()
        if self._waiting and self._refolds.due():
            with self._refolds.paid():
                self._refold(self._waiting.popleft())
                _finish(self._loaded.device)
        if self._behind:
            self._close(self._behind.popleft())
        if self._changed and self._folds.due():
            with self._folds.paid():
                self._add()
                _finish(self._loaded.device)
            self._changed = False
        return None

    def refold(self) -> None:
        """Set every weight to base minus the sum over all epochs, rounded once; nothing to do when it is."""
        if self._exact:
            return
        for number in range(len(self._since)):
            self._refold(number)
        self._waiting.clear()
        self._behind.clear()
        self._add()  # of nothing, for what rode along is in the weights now
        self._changed, self._blank, self._exact = False, False, True

    @contextmanager
    def at_base(self) -> Iterator[None]:
        """Within the block the weights are the base model's; afterwards they are refolded."""
        self.refold()
        for number, site in enumerate(self._loaded.sites):
            store_rows(site, 0, self._loaded.pristine.read(number))
        try:
            yield
        finally:
            self._exact = False
            self.refold()

    def _add(self) -> None:
        """Add what is pending, each update through the basis and rate of its own epoch."""
        epochs = self._pending.epochs()
        if self._loaded.exact:
            for epoch in epochs:
                self._space.columns(epoch)  # all targets at once
                for number in range(len(self._since)):
                    self._fold(number, epoch)
            self._pending = Core(len(self._since), self._space.rank)
            return
        for number, site in enumerate(self._loaded.sites):
            if site.form is Form.VECTOR:  # has no input to ride on, and is in float32 in any trained model
                for epoch in epochs:
                    self._fold(number, epoch)
                self._pending.forget(number)
            else:
                self._ride(number, max(self._since[number], 0))

    def _fold(self, number: int, epoch: int) -> None:
        """Add what is pending of one epoch to one target."""
        scale, u, right = self._change(number, epoch)
        matrix(self._loaded.sites[number]).addmm_(u.float(), right, alpha=-scale)

    def _change(self, number: int, epoch: int) -> tuple[float, Tensor, Tensor]:
        """scale, U (out, k) int8 and A V^T (k, in) of what is pending; only those k columns that moved."""
        a = self._pending.of(epoch)[number]
        rows = np.flatnonzero(a.any(axis=1))  # (k,)
        u, v = self._space.matrices(epoch, number)
        return self._scale(epoch), u[:, rows], _float(a[rows], v.device) @ v.float().t()

    def _close(self, number: int) -> None:
        """Have the newest epoch ride with a target, and what is pending of others in its weights.

        A weight is rounded up or down by chance, more likely to the nearer side: then a change far below
        the rounding is there on average. A refold later takes the noise away.
        """
        over = [epoch for epoch in self._pending.epochs() if epoch != self._newest]
        changes = [self._change(number, epoch) for epoch in over if self._pending.of(epoch)[number].any()]
        weight = matrix(self._loaded.sites[number])
        for rows in row_blocks(*weight.shape) if changes else ():
            block = weight[rows].float()
            for scale, u, right in changes:
                block.addmm_(u[rows].float(), right, alpha=-scale)
            weight[rows] = self._rounded(block)
        self._pending.forget(number, but=self._newest)
        self._since[number] = self._newest
        self._ride(number, self._newest)

    def _rounded(self, block: Tensor) -> Tensor:
        """`block` (n, in) float32 with noise: the nearest weight is now one of two neighbours."""
        start = random.randrange(self._noise.numel() - block.numel() + 1)
        noise = self._noise[start : start + block.numel()].view_as(block)
        # The exponent alone: the distance of neighbours, but for the precision that they have.
        power = block.view(torch.int32).bitwise_and(0x7F800000).view(torch.float32)
        return block.addcmul_(power, noise, value=torch.finfo(self._loaded.dtype).eps)

    def _ride(self, number: int, epoch: int) -> None:
        """What is pending of one epoch goes along with the activations; the rest waits for the refold."""
        u, v = self._space.matrices(epoch, number)  # (out, rank), (in, rank)
        a = _float(self._pending.of(epoch)[number], v.device)
        self._space.ride(number, u, v.float() @ a.t() * -self._scale(epoch))

    @property
    def _exact_on(self) -> torch.device:
        """Where float64 is computed: Apple's GPUs have none."""
        device = self._space.device
        return torch.device("cpu") if device.type == "mps" else device

    def _refold(self, number: int) -> None:
        """Set one target's weights, block by block, and forget what is pending of it."""
        site = self._loaded.sites[number]
        base = self._loaded.pristine.read(number)  # (out, in)
        terms = [self._term(number, epoch) for epoch in self._core.epochs()]
        for rows in row_blocks(*base.shape):
            block = base[rows].to(self._exact_on).double()
            for scale, bound, u, right in terms:
                dtype = torch.float32 if bound < EXACT else torch.float64
                product = torch.mm(u[rows].to(dtype), right.to(dtype))
                block.sub_(product.double().mul_(scale))
            store_rows(site, rows.start, block)
        self._pending.forget(number)
        self._since[number] = self._newest
        if not self._loaded.exact:
            self._ride(number, max(self._newest, 0))

    def _term(self, number: int, epoch: int) -> tuple[float, int, Tensor, Tensor]:
        """scale, a bound of the entries of U A V^T, U (out, rank) int8 and A V^T (rank, in) as exact floats.

        All of them are integers, so that the product is exact: below 2**24 in float32, below 2**53 in
        float64, which no run reaches.
        """
        a = self._core.of(epoch)[number]
        bound = int(np.abs(a).sum())
        u, v = (side.to(self._exact_on) for side in self._space.matrices(epoch, number))
        dtype = torch.float32 if bound < EXACT else torch.float64
        right = torch.from_numpy(a.copy()).to(v.device, dtype) @ v.to(dtype).t()
        return self._scale(epoch), bound, u, right


def _noise(loaded: LoadedModel) -> Tensor:
    """Numbers from -1/2 to 1/2, of which each block takes a part that begins somewhere else."""
    if loaded.exact or loaded.packed:
        return torch.empty(0)
    largest = max((site.target.in_features for site in loaded.sites), default=1)
    return torch.rand(2 * max(BLOCK_ENTRIES, largest), device=loaded.device) - 0.5


def _float(entries: I64, device: torch.device) -> Tensor:
    return torch.from_numpy(entries.astype(np.float32)).to(device)


def _finish(device: torch.device) -> None:
    """Wait for the device, so that what is timed is the work and not its order."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)

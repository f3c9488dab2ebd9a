"""Merges cores into the weights of a model: W = base - sum over epochs of rate * delta * U A V^T (SPEC U8).

There are two ways: rebuilding and merging. A rebuild starts from the base weights and rounds each weight
once. The weights then depend on the core alone, to the bit and on any machine, and not on the order of
updates. Between rebuilds new updates are merged at low cost. In float32 they are added to the weights. In
half precision a single update would be lost in the rounding of a weight, and in first-order runs the few,
large updates must not wait for a rebuild. In these two cases the new part of the core, the live core, is
applied in activation space (`Subspace.set_live_core`). A live core has room for one epoch, that of this
node's own steps. When these steps enter another epoch, the live core is merged with stochastic rounding,
which keeps small changes on average; in first-order runs all targets are rebuilt instead. The epoch with
which another node has labelled its update decides only the core that the update is added to. Rounding never
feeds back into the core, which nodes share. Duty cycles bound the share of time that merges and rebuilds
take.

A decay pulls the weights towards the base weights. A core is multiplied by `gamma` once for each subspace
between its own and the newest subspace with a core that is not zero (SPEC O17). Weights stay a function of
the cores, and the cores are the same as without a decay: code that makes, keeps or corrects cores does not
know the decay. When the newest subspace changes, every target is scheduled for a rebuild, as in a new epoch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfnode import heap
from sfnode.engine.core import Core, UpdateBatch
from sfnode.engine.subspace import Subspace
from sfnode.models.bases import missing
from sfnode.models.loader import LoadedModel, matrix, store_rows
from sfnode.models.quantized import BLOCK_ENTRIES, row_blocks
from sfnode.models.targets import Form
from sfprotocol.seeds import I64


class Decay:
    """Function that returns powers of `gamma`. It multiplies repeatedly in binary64, which rounds alike on
    every machine; the `pow` of libraries does not."""

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self._powers = [1.0]

    def __call__(self, age: int) -> float:
        """Return gamma to the power of an age in subspaces; 1 for a negative age."""
        while len(self._powers) <= age:
            self._powers.append(self._powers[-1] * self.gamma)
        return self._powers[max(age, 0)]

    def faded(self, cores: Mapping[int, I64]) -> Mapping[int, NDArray[Any]]:
        """Return `cores`, each multiplied by the decay for its age. `cores` is keyed by subspace, and none of
        them is zero. Cores with a decay of 1 stay the same integers."""
        newest = max(cores, default=0)
        powers = {subspace: self(newest - subspace) for subspace in cores}
        return {s: core if powers[s] == 1 else core * powers[s] for s, core in cores.items()}


NO_DECAY = Decay(1.0)
"""No decay: all cores count the same."""


MERGE_REST = 80
"""Pause after a merge, as a multiple of the time that the merge took, so that merging takes about 1 % of the
time. Until the next merge, steps use weights without the newest updates."""

REBUILD_REST = 150
"""Pause after the rebuild of a target, as a multiple of the time that the rebuild took, so that rebuilds take
less than 1 % of the time."""

TRIM_REST = 200
"""Pause after freed memory was returned to the system, as a multiple of the time that this took. It takes 3
to 50 ms."""

QUANTISED_REBUILD_REST = 10
"""Pause after the rebuild of a quantised target, as a multiple of the time that the rebuild took, so that
rebuilds take 9 % of the time at most. Quantised weights change only by rebuilds."""

MERGE_SECONDS = 0.1
"""Time in seconds after which a merge leaves the updates of further epochs for the next merge. Because of
this limit, updates of many epochs at once, which anybody may send, hardly delay a step."""

PAST_EPOCHS = 8
"""Maximum number of past epochs that are merged into a half-precision target when another epoch begins: the
last epoch, and those for which late updates are likely. Updates of earlier epochs wait for the target's
rebuild."""

EXACT = 1 << 24
"""Bound below which integers are exact in float32, in whatever order a product adds them up."""

EXACT_DOUBLE = 1 << 53
"""Bound below which integers are exact in float64, in whatever order a product adds them up."""

HALF_BITS, QUARTER_BITS = 32, 16
"""Bits of each part of a core that is cut because its products may exceed EXACT_DOUBLE. If all entries of the
bases have magnitude 1, two parts suffice: the sum of 2^20 entries of 32 bits, a layer of the largest rank, is
below the bound. Other bases need four parts: 127^2 times the sum of 2^20 entries of 16 bits is below the
bound (SPEC U8)."""


class DutyCycle:
    """Bounds the share of time that a repeated action takes: an action of t seconds is followed by a pause of
    `rest * t` seconds."""

    def __init__(self, clock: Callable[[], float], rest: int) -> None:
        self._clock = clock
        self._rest = rest
        self._next = -math.inf

    def due(self) -> bool:
        """Return whether the action may be repeated now."""
        return self._clock() >= self._next

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Time the action in the block, and begin the pause after it."""
        start = self._clock()
        yield
        end = self._clock()
        self._next = end + self._rest * (end - start)


class MergedWeights:
    """The target matrices of one model as a function of a growing core.

    `scale(epoch)` is rate * delta: the change of weights along u v^T for one unit of the core, before any
    `decay`, with the bases' units applied to u and v. `clock` is in seconds. If published bases are missing,
    steps continue without the updates that need them; all other operations raise UserError BASES_MISSING.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        space: Subspace,
        core: Core,
        scale: Callable[[int], float],
        clock: Callable[[], float],
        decay: Decay = NO_DECAY,
        *,
        prompt: bool = False,
    ) -> None:
        """`prompt`: updates are few and large, as gradients are, so steps must not leave out the newest ones.
        The live core is then brought up to date before every step, and all targets are rebuilt when another
        epoch begins."""
        self._loaded = loaded
        self._targets = range(len(loaded.sites))
        self._space = space
        self._core = core
        self._undecayed = scale
        self._decay = decay
        self._newest = 0
        """The subspace of age 0, from which the ages of earlier ones are counted; 0 without a decay."""
        self._clock = clock
        self._prompt = prompt
        self._merges = DutyCycle(clock, 0 if prompt else MERGE_REST)
        self._trims = DutyCycle(clock, TRIM_REST)
        self._rebuilds = DutyCycle(clock, QUANTISED_REBUILD_REST if loaded.quantised else REBUILD_REST)
        self._pending = Core(*core.shape)
        """The part of the core that is not in the weights yet."""
        self._changed = False
        """Whether updates have become pending since the last merge."""
        self._epoch = 0
        """Epoch in training, which is that of this node's own steps, whatever labels other nodes use."""
        self._live_epochs = [0 for _ in self._targets]
        """Epoch of the live core of each target."""
        self._waiting: deque[int] = deque()
        """Targets that wait for their rebuild, the longest-waiting first."""
        self._behind: deque[int] = deque()
        """Targets whose live core is of a past epoch. Quantised targets are not among them: they wait for a
        rebuild."""
        self._noise, self._random = _noise(loaded), Random()
        self._blank = True
        """Whether no step was taken since the beginning or the last `renew`. Until the first step, replayed
        updates are in the core alone. That step rebuilds the weights from the core, so that a long history is
        added up only once."""
        self._exact = True
        """Whether the weights equal a rebuild from the current core, with ages counted from `_newest`."""
        self.incomplete = False
        """Whether updates were left out since the last `renew`, because their bases were missing."""

    def scale(self, epoch: int) -> float:
        """Return the change of weights along u v^T for one unit of an epoch's core, with the bases' units
        applied to u and v. The result includes the decay as of the last rebuild."""
        return self._undecayed(epoch) * self._decay(self._newest - epoch)

    def add(self, batch: UpdateBatch, *replicas: MergedWeights) -> None:
        """Add updates to the core at once. The weights change with the next `follow` or `rebuild`. So do the
        weights of `replicas`, which share the core."""
        if not len(batch.seeds):
            return
        every = (self, *replicas)
        self._core.add(batch, *(weights._pending for weights in every if not weights._blank))
        for weights in every:
            weights._exact = False
            weights._changed = not weights._blank

    def begin(self, cores: Mapping[int, I64], *replicas: MergedWeights) -> None:
        """Begin with these cores, which contain the sums of updates that are not added one by one. Call this
        method before any other."""
        self._core.put(cores)
        for weights in (self, *replicas):
            weights._exact = False

    def follow(self, epoch: int) -> None:
        """Bring the weights nearer to the core, as far as the duty cycles allow. Call this method before
        every step, with the step's epoch.

        It delays a step by the rebuild of one target, the merge of one live core and one merge of pending
        updates at most.
        """
        if self._blank:
            self._blank = False
            if not self._exact:
                self._rebuild_all()
        if epoch != self._epoch:
            self._begin(epoch)
        if (newest := self._newest_of(None)) != self._newest:
            self._newest = newest
            self._wait()
        if self._waiting and self._rebuilds.due():
            with self._rebuilds.timed():
                self._rebuild(self._waiting.popleft())
                _finish(self._loaded.device)
        if self._behind:
            self._merge_past(self._behind.popleft())
        if self._changed and self._merges.due():
            with self._merges.timed():
                self._changed = not self._merge_pending()
                _finish(self._loaded.device)

    def rebuild(self, newest: int | None = None) -> None:
        """Set every weight to base minus the sum over all epochs, rounded once. Does nothing if the weights
        are so already.

        With a decay, ages are counted from the newest subspace in the core, or from `newest` if it is given.
        A line towards cores whose newest subspace is another needs `newest`. Raises UserError BASES_MISSING,
        and changes nothing, if the bases of an epoch are missing.
        """
        if self._exact and self._newest_of(newest) == self._newest:
            return
        self.require(self._core.touched())
        self._rebuild_all(newest)

    def _newest_of(self, newest: int | None) -> int:
        """Return the subspace of age 0: `newest`, or else the newest one in the core; 0 without a decay."""
        if self._decay.gamma == 1:
            return 0
        return self._core.newest() if newest is None else newest

    def require(self, epochs: Sequence[int]) -> None:
        """Raise UserError BASES_MISSING if the bases of one of these epochs are missing."""
        for epoch in epochs:
            if not self._space.basis.has(epoch):
                raise missing(
                    f"the published bases of subspace {epoch}, in which updates were made, are not here yet"
                )

    def renew(self) -> None:
        """Schedule a rebuild of all weights for the next step. Call this method when bases were added or
        replaced."""
        self._blank, self._exact, self.incomplete = True, False, False

    def _rebuild_all(self, newest: int | None = None) -> None:
        self._newest = self._newest_of(newest)
        for number in self._targets:
            self._rebuild(number)
        self._waiting.clear()
        self._behind.clear()
        self._changed, self._blank = False, False
        self._exact = len(self._here(self._core)) == len(self._core.touched())

    def _here(self, core: Core) -> list[int]:
        """Return the epochs of a core that have updates and bases, ascending."""
        touched = core.touched()
        here = [epoch for epoch in touched if self._space.basis.has(epoch)]
        self.incomplete = self.incomplete or len(here) < len(touched)
        return here

    @contextmanager
    def at_base(self) -> Iterator[None]:
        """Give the model the base weights within the block, and rebuild the current ones afterwards."""
        self.rebuild()
        for number, site in enumerate(self._loaded.sites):
            store_rows(site, 0, self._loaded.base_weights.read(number))
        try:
            yield
        finally:
            self._exact = False
            self.rebuild()

    def _begin(self, epoch: int) -> None:
        """Make this the epoch in training. Schedule the rebuild of every target, and the merge of its live
        core, which is of the past epoch. Return memory that was freed in the past epoch to the system."""
        self._epoch = epoch
        if self._trims.due():  # epochs of an open run may last milliseconds
            with self._trims.timed():
                heap.trim()
        if self._exact:  # the live cores are empty
            self._live_epochs = [epoch for _ in self._targets]
            return
        self._wait()
        if self._space.live and not (self._prompt or self._loaded.quantised):
            self._behind.extend(sorted(set(self._targets) - set(self._behind)))

    def _wait(self) -> None:
        """Schedule the rebuild of every target. With `prompt` rebuild all of them at once instead."""
        if self._prompt:
            self._rebuild_all()
            return
        self._exact = False
        self._waiting.extend(sorted(set(self._targets) - set(self._waiting)))

    def _merge_pending(self) -> bool:
        """Merge pending updates, each with the basis and rate of its own epoch. Return whether no update is
        left to merge.

        Nothing is merged into a target with a live core, which holds the pending updates of its epoch.
        """
        sites = enumerate(self._loaded.sites)
        # vectors have no activations, and are in float32 in every trained model
        merged = [n for n, site in sites if not self._space.live or site.form is Form.VECTOR]
        start = self._clock()
        epochs = self._nearest() if merged else []
        while epochs and self._clock() - start <= MERGE_SECONDS:
            epoch = epochs.pop(0)
            for number in merged:
                if self._pending.layer(epoch, number).any():
                    scale, u, right = self._change(number, epoch)
                    matrix(self._loaded.sites[number]).addmm_(u.float(), right, alpha=-scale)
            self._pending.forget(merged, [epoch])
        for number in sorted(set(self._targets) - set(merged)):
            self._set_live_core(number)
        return not epochs

    def _nearest(self) -> list[int]:
        """Return the epochs that may have pending updates, those nearest to the epoch in training first."""
        return sorted(self._here(self._pending), key=lambda epoch: abs(epoch - self._epoch))

    def _change(self, number: int, epoch: int) -> tuple[float, Tensor, Tensor]:
        """Return scale, U (out, k) int8 and A V^T (k, in) of pending updates, for the k columns of U that
        have pending updates."""
        a = self._pending.layer(epoch, number)
        rows = np.flatnonzero(a.any(axis=1))  # (k,)
        u, v = self._space.matrices(epoch, number)
        return self._step(number, epoch), u[:, rows], _float(a[rows], v.device) @ v.float().t()

    def _merge_past(self, number: int) -> None:
        """Merge pending updates of other epochs into a target. Updates of the epoch in training become its
        live core.

        Rounding is stochastic: up or down with probabilities that keep the mean (Gupta et al. 2015). A later
        rebuild removes the noise.
        """
        live = self._live_epochs[number]
        nearest = sorted(self._nearest(), key=lambda epoch: epoch != live)  # the live core before all others
        others = (e for e in nearest if e != self._epoch and self._pending.layer(e, number).any())
        over = list(islice(others, PAST_EPOCHS))
        changes = [self._change(number, epoch) for epoch in over]
        weight = matrix(self._loaded.sites[number])
        for rows in row_blocks(*weight.shape) if changes else ():
            block = weight[rows].float()
            for scale, u, right in changes:
                block.addmm_(u[rows].float(), right, alpha=-scale)
            weight[rows] = self._rounded(block)
        self._pending.forget([number], over)
        self._live_epochs[number] = self._epoch
        self._set_live_core(number)

    def _rounded(self, block: Tensor) -> Tensor:
        """Return `block` (n, in) float32 plus noise, which makes the rounding to nearest that follows a
        stochastic one."""
        start = self._random.randrange(self._noise.numel() - block.numel() + 1)
        noise = self._noise[start : start + block.numel()].view_as(block)
        # The exponent alone, 2**e: times the machine epsilon it is the spacing of representable numbers.
        power = block.view(torch.int32).bitwise_and(0x7F800000).view(torch.float32)
        return block.addcmul_(power, noise, value=torch.finfo(self._loaded.dtype).eps)

    def _set_live_core(self, number: int) -> None:
        """Make a target's pending updates of its live epoch its live core. Pending updates of other epochs
        wait for the rebuild."""
        epoch = self._live_epochs[number]
        u, v = self._space.matrices(epoch, number)  # (out, rows), (in, columns)
        a, by = _float(self._pending.layer(epoch, number), v.device), -self._step(number, epoch)
        if u.shape[1] <= v.shape[1]:
            self._space.set_live_core(number, u, v.float() @ a.t() * by)
        else:
            self._space.set_live_core(number, u.float() @ a * by, v)

    def _step(self, number: int, epoch: int) -> float:
        """Return the change of a weight for an entry of 1 in a target's core, where the int8 entries of both
        bases are 1."""
        return self.scale(epoch) * self._space.unit(number)

    @property
    def _exact_on(self) -> torch.device:
        """Device on which float64 is computed: the CPU instead of Apple's GPUs, which lack float64."""
        device = self._space.device
        return torch.device("cpu") if device.type == "mps" else device

    def _rebuild(self, number: int) -> None:
        """Rebuild one target's weights, block by block, and clear its pending updates."""
        site = self._loaded.sites[number]
        base = self._loaded.base_weights.read(number)  # (out, in)
        terms = [
            self._term(number, epoch, unit, part)
            for epoch in self._here(self._core)
            for unit, part in _exact_parts(
                self._core.layer(epoch, number), self._space.basis.largest(epoch, number)
            )
            if part.any()
        ]
        for rows in row_blocks(*base.shape):
            block = base[rows].to(self._exact_on).double()
            for scale, bound, u, right in terms:
                dtype = torch.float32 if bound < EXACT else torch.float64
                product = torch.mm(u[rows].to(dtype), right.to(dtype))
                block.sub_(product.double().mul_(scale))
            store_rows(site, rows.start, block)
        self._pending.forget([number])
        self._live_epochs[number] = self._epoch
        if self._space.live:
            self._set_live_core(number)

    def _term(self, number: int, epoch: int, unit: int, a: I64) -> tuple[float, float, Tensor, Tensor]:
        """Return scale, a bound of the entries of U A V^T, U (out, k) int8 and A V^T (k, in) as floats, for
        the k rows of A that are not zero. `unit` * A is a part of the core.

        The product is exact, because all entries are integers: in float32 if the bound is below 2**24,
        otherwise in float64.
        """
        rows = np.flatnonzero(a.any(axis=1))  # (k,)
        bound = _bound(a) * self._space.basis.largest(epoch, number)
        u, v = (side.to(self._exact_on) for side in self._space.matrices(epoch, number))
        dtype = torch.float32 if bound < EXACT else torch.float64
        right = torch.from_numpy(a[rows]).to(v.device, dtype) @ v.to(dtype).t()
        return self._step(number, epoch) * unit, bound, u[:, rows], right


def _exact_parts(a: I64, largest: int) -> list[tuple[int, I64]]:
    """Cut one layer of a core, (rows, columns), into parts whose products with the bases are exact in
    float64. Return the unit and the entries of each part. `largest` is the largest product of two of the
    bases' entries."""
    if _bound(a) * largest < EXACT_DOUBLE:
        return [(1, a)]
    bits = HALF_BITS if largest == 1 else QUARTER_BITS
    first, *places = range(64 - bits, -1, -bits)
    digits = [(1 << place, (a >> place) & ((1 << bits) - 1)) for place in places]
    return [(1 << first, a >> first), *digits]  # the first one has the sign


def _bound(a: I64) -> float:
    """Return the sum of the magnitudes of a core's entries, which may exceed int64."""
    return float(np.abs(a.astype(np.float64)).sum())


def _noise(loaded: LoadedModel) -> Tensor:
    """Return random numbers from -1/2 to 1/2 for stochastic rounding; each block takes a slice from a random
    index. Empty if weights are not rounded stochastically.

    They come from a separate generator, so that other uses of torch's own generator are not disturbed.
    """
    if loaded.exact or loaded.quantised:
        return torch.empty(0)
    largest = max((site.target.in_features for site in loaded.sites), default=1)
    generator = torch.Generator(loaded.device)
    generator.seed()
    return torch.rand(2 * max(BLOCK_ENTRIES, largest), generator=generator, device=loaded.device) - 0.5


def _float(entries: I64, device: torch.device) -> Tensor:
    return torch.from_numpy(entries.astype(np.float32)).to(device)


def _finish(device: torch.device) -> None:
    """Wait for the device, so that the timing includes the work and not only its submission."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)

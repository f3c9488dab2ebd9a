"""The exact state of a run: for every subspace, an int64 r x r accumulator per target (DESIGN 3).

In an open run every epoch has a subspace of its own. Integer addition commutes, so any order, batching and
delay of the same updates leaves the same bits; and it is modulo 2^64, so that what is taken out again leaves
no trace. This module guards that property: it knows neither floats nor torch, and it does not detect
duplicates, which the frontier has done long before (SPEC).
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np

from sfprotocol.seeds import I64, U64, coordinates

CHUNK_ENTRIES = 1 << 14
"""Updates x layers handled at a time: temporaries of 128 KiB stay in the processor's cache, memory stays
bounded, and no single numpy call keeps the interpreter's lock for as long as a millisecond."""


class UpdateBatch(NamedTuple):
    """n updates as columns; each array has shape (n,)."""

    epochs: I64
    """Subspace that each update moves, from 0: in an open run the epoch that it is labelled with."""
    seeds: U64
    scalars: I64
    """Quantised directional derivatives, in units of scalar_delta; in an organised run times weights."""


class Core:
    """`A[epoch][layer][i, j] += sign * scalar` over all updates (DESIGN 3)."""

    def __init__(self, layers: int, rank: int) -> None:
        self._shape = (layers, rank, rank)
        self._cores: dict[int, I64] = {}

    def add(self, batch: UpdateBatch, *others: Core) -> None:
        """Add updates, none of them twice, to this core and to `others`, which have the same shape.

        Finding out which entries an update moves takes several times as long as moving them, so that several
        cores are best served at once. Negated scalars subtract what was added.
        """
        step = max(1, CHUNK_ENTRIES // self._shape[0])
        for start in range(0, len(batch.seeds), step):
            chunk = slice(start, start + step)
            epochs = batch.epochs[chunk]
            entries, amounts = self._moves(batch.seeds[chunk], batch.scalars[chunk])
            for epoch in np.unique(epochs).tolist():
                # most often all are of one epoch, and a slice makes no copy
                chosen = slice(None) if (epochs == epoch).all() else epochs == epoch
                for core in (self, *others):
                    np.add.at(core._entries(epoch), entries[chosen].reshape(-1), amounts[chosen].reshape(-1))

    def epochs(self) -> list[int]:
        """Return the epochs whose core is not zero, ascending."""
        return sorted(epoch for epoch, core in self._cores.items() if core.any())

    def of(self, epoch: int) -> I64:
        """Return the core of one epoch, (layers, rank, rank), read-only; zero for an epoch without
        updates."""
        core = self._cores.get(epoch)
        view = np.zeros(self._shape, np.int64) if core is None else core.view()
        view.flags.writeable = False
        return view

    def forget(self, layer: int, *, but: int | None = None) -> None:
        """Set one layer to zero in every epoch, or in all `but` this one."""
        for epoch, core in self._cores.items():
            if epoch != but:
                core[layer] = 0
        self._cores = {epoch: core for epoch, core in self._cores.items() if core.any()}

    def digest(self) -> bytes:
        """Return BLAKE2b-256 over the non-zero cores in ascending order of epochs.

        Each contributes its epoch (8 bytes, big-endian) and its entries (int64, little-endian, C order).
        """
        state = hashlib.blake2b(digest_size=32)
        for epoch in self.epochs():
            state.update(epoch.to_bytes(8, "big"))
            state.update(self._cores[epoch].astype("<i8", copy=False).tobytes())
        return state.digest()

    def _moves(self, seeds: U64, scalars: I64) -> tuple[I64, I64]:
        """Return which entry of a core each update moves in each layer, and by how much; each (n, layers)."""
        layers, rank, _ = self._shape
        entries, column, amounts = coordinates(seeds, layers, rank)
        entries *= rank  # in place, as the memory for a copy takes longer than the sum
        entries += column
        entries += np.arange(layers) * rank * rank
        amounts *= scalars[:, None]
        return entries, amounts

    def _entries(self, epoch: int) -> I64:
        """Return the core of one epoch, flat and writable."""
        if epoch not in self._cores:
            self._cores[epoch] = np.zeros(self._shape, np.int64)
        return self._cores[epoch].reshape(-1)

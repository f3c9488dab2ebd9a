"""The exact state of a run: for every subspace, an int64 r x r accumulator per target (SPEC U4).

In an open run every epoch has a subspace of its own. Integer addition commutes, so any order, batching and
delay of the same updates leaves the same bits; and it is modulo 2^64, so that what is taken out again leaves
no trace. This module guards that property: it knows neither floats nor torch, and it does not detect
duplicates, which the frontier has done long before (SPEC).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sfprotocol.seeds import I64, U64, coordinates

CHUNK_ENTRIES = 1 << 14
"""Updates x layers handled at a time: temporaries of 128 KiB stay in the processor's cache, memory stays
bounded, and no single numpy call keeps the interpreter's lock for as long as a millisecond."""

FEW = 4
"""An epoch's core becomes one array when it has a quarter as many updates as a layer has entries: up to there
they take less than half of the array's memory, and a single one takes 1/512 of it at rank 32."""


class UpdateBatch(NamedTuple):
    """n updates as columns; each array has shape (n,)."""

    epochs: I64
    """Subspace that each update moves, from 0: in an open run the epoch that it is labelled with."""
    seeds: U64
    scalars: I64
    """Quantised directional derivatives, in units of scalar_delta; in an organised run times weights."""


class Core:
    """`A[epoch][layer][i, j] += sign * scalar` over all updates (SPEC U4).

    What an epoch costs follows from its updates: anybody may make one and name any epoch.
    """

    def __init__(self, layers: int, rank: int) -> None:
        self._shape = (layers, rank, rank)
        self._cores: dict[int, _EpochCore] = {}
        self._hashed: dict[int, hashlib.blake2b] = {}
        """State of the digest after each epoch, ascending, up to the first that has changed since."""

    def add(self, batch: UpdateBatch, *others: Core) -> None:
        """Add updates, none of them twice, to this core and to `others`, which have the same shape.

        Finding out which entries an update moves takes several times as long as moving them, so that several
        cores are best served at once. Negated scalars subtract what was added; those that are 0 cost nothing.
        """
        if not batch.scalars.all():
            batch = UpdateBatch(*(column[batch.scalars != 0] for column in batch))
        step = max(1, CHUNK_ENTRIES // self._shape[0])
        for start in range(0, len(batch.seeds), step):
            chunk = slice(start, start + step)
            epochs = batch.epochs[chunk]
            entries, amounts = self._moves(batch.seeds[chunk], batch.scalars[chunk])
            for epoch in np.unique(epochs).tolist():
                # most often all are of one epoch, and a slice makes no copy
                chosen = slice(None) if (epochs == epoch).all() else epochs == epoch
                for core in (self, *others):
                    core._of(epoch).add(entries[chosen], amounts[chosen])

    def put(self, cores: Mapping[int, I64]) -> None:
        """Add whole cores by epoch, (layers, rank, rank) each."""
        for epoch, entries in cores.items():
            self._of(epoch).put(entries)

    def cores(self) -> dict[int, I64]:
        """Return the cores that are not zero by ascending epochs, read-only."""
        return {epoch: self.of(epoch) for epoch in self.epochs()}

    def epochs(self) -> list[int]:
        """Return the epochs whose core is not zero, ascending."""
        return sorted(epoch for epoch, core in self._cores.items() if core.any())

    def touched(self) -> list[int]:
        """Return the epochs that have updates, ascending: cheaper than `epochs`, and more if they cancel."""
        return sorted(self._cores)

    def newest(self) -> int:
        """Return the last epoch whose core is not zero; 0 if there is none. Cheap, however many there are."""
        return next((epoch for epoch in sorted(self._cores, reverse=True) if self._cores[epoch].any()), 0)

    def of(self, epoch: int) -> I64:
        """Return the core of one epoch, (layers, rank, rank), read-only; zero for an epoch without
        updates."""
        core = self._cores.get(epoch)
        view = np.zeros(self._shape, np.int64) if core is None else core.dense().view()
        view.flags.writeable = False
        return view

    def layer(self, epoch: int, layer: int) -> I64:
        """Return one layer of the core of one epoch, (rank, rank), read-only."""
        core = self._cores.get(epoch)
        view = np.zeros(self._shape[1:], np.int64) if core is None else core.layer(layer).view()
        view.flags.writeable = False
        return view

    def forget(self, layers: Sequence[int], epochs: Sequence[int] | None = None) -> None:
        """Set these layers to zero in these epochs, by default in all."""
        for epoch in list(self._cores) if epochs is None else epochs:
            self._changes(epoch)
            if not self._cores[epoch].forget(layers):
                del self._cores[epoch]

    def digest(self) -> bytes:
        """Return the core digest (SPEC D5), 32 bytes; takes as long as hashing the epochs from the first that
        has changed since it was last asked for."""
        newest = next(reversed(self._hashed), -1)
        state = self._hashed[newest] if self._hashed else hashlib.blake2b(digest_size=32)
        for epoch in sorted(epoch for epoch in self._cores if epoch > newest):
            if self._cores[epoch].any():
                self._hashed[epoch] = state = state.copy()
                _hash(state, epoch, self._cores[epoch].dense())
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

    def _changes(self, epoch: int) -> None:
        while self._hashed and next(reversed(self._hashed)) >= epoch:
            self._hashed.popitem()

    def _of(self, epoch: int) -> _EpochCore:
        self._changes(epoch)
        if epoch not in self._cores:
            self._cores[epoch] = _EpochCore(self._shape)
        return self._cores[epoch]


def digest(cores: Iterable[tuple[int, I64]]) -> bytes:
    """Return BLAKE2b-256 over these cores, which are not zero and in ascending order of epochs (SPEC D5).

    Each contributes its epoch (8 bytes, big-endian) and its entries (int64, little-endian, C order).
    """
    state = hashlib.blake2b(digest_size=32)
    for epoch, entries in cores:
        _hash(state, epoch, entries)
    return state.digest()


def _hash(state: hashlib.blake2b, epoch: int, entries: I64) -> None:
    state.update(epoch.to_bytes(8, "big"))
    state.update(np.ascontiguousarray(entries, "<i8").data)


class _EpochCore:
    """The core of one epoch: the moves as they came while they are few, and one array from then on."""

    __slots__ = ("_count", "_dense", "_few", "_shape")

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self._shape = shape
        self._few: list[tuple[I64, I64]] = []
        """Entries and amounts, each (n, layers); while there is no array."""
        self._count = 0
        """Updates of `_few`."""
        self._dense: I64 | None = None

    def add(self, entries: I64, amounts: I64) -> None:
        """Move these entries of the flat core by these amounts, each (n, layers)."""
        if self._dense is not None:
            np.add.at(self._dense.reshape(-1), entries.reshape(-1), amounts.reshape(-1))
            return
        self._few.append((entries, amounts.copy()))  # `forget` writes into it
        self._count += len(entries)
        _, rank, _ = self._shape
        if self._count * FEW >= rank * rank:
            self._dense = self.dense()
            self._few.clear()

    def put(self, entries: I64) -> None:
        """Add a whole core, (layers, rank, rank)."""
        self._dense = self.dense() + entries
        self._few.clear()

    def any(self) -> bool:
        """Return whether an entry is not zero."""
        if self._dense is not None:
            return bool(self._dense.any())
        entries, amounts = (moves.reshape(-1) for moves in self._moves())
        order = np.argsort(entries)
        starts = np.flatnonzero(np.diff(entries[order], prepend=-1))
        return bool(np.add.reduceat(amounts[order], starts).any())

    def dense(self) -> I64:
        """Return all layers, (layers, rank, rank)."""
        if self._dense is not None:
            return self._dense
        core = np.zeros(self._shape, np.int64)
        if self._few:
            entries, amounts = self._moves()
            np.add.at(core.reshape(-1), entries.reshape(-1), amounts.reshape(-1))
        return core

    def layer(self, layer: int) -> I64:
        """Return one layer, (rank, rank)."""
        if self._dense is not None:
            found: I64 = self._dense[layer]
            return found
        core = np.zeros(self._shape[1:], np.int64)
        entries, amounts = self._moves()
        np.add.at(core.reshape(-1), entries[:, layer] - layer * core.size, amounts[:, layer])
        return core

    def forget(self, layers: Sequence[int]) -> bool:
        """Set these layers to zero; return whether anything is left."""
        if self._dense is not None:
            self._dense[layers] = 0
            return bool(self._dense.any())
        _, amounts = self._moves()
        amounts[:, layers] = 0
        return bool(amounts.any())

    def _moves(self) -> tuple[I64, I64]:
        """Return all entries and amounts, each (n, layers), and keep them so."""
        if len(self._few) > 1:
            entries, amounts = (np.concatenate(parts) for parts in zip(*self._few, strict=True))
            self._few = [(entries, amounts)]
        return self._few[0]

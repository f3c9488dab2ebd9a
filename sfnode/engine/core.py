"""The exact state of a run: one int64 matrix per subspace and target, in which updates are summed (SPEC U4,
U11). In a zeroth-order run the matrices are r x r.

In an open run every epoch has its own subspace. Integer addition commutes, so the same updates give the same
bits in any order, with any batching and any delay. Sums are modulo 2^64, so subtracting an update leaves no
trace. To keep sums exact, this module uses neither floats nor torch. It does not detect duplicate updates;
the frontier does (SPEC).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sfprotocol.seeds import I64, U64, coordinates

CHUNK_ENTRIES = 1 << 14
"""Maximum product of the number of updates and the number of layers that are processed at a time. Temporary
arrays of 128 KiB stay in the processor's cache, and no single numpy call holds the interpreter's lock for a
millisecond."""

FEW = 4
"""Divisor of a layer's number of entries. An epoch whose number of updates reaches the quotient stores its
core as one array. With fewer updates the core is a list of updates, which takes less than half of the array's
memory. At rank 32 a single update takes 1/512 of the array's memory."""


class UpdateBatch(NamedTuple):
    """n updates as columns. Each array has shape (n,) unless its description says otherwise."""

    epochs: I64
    """Number of the subspace that each update changes, counted from 0. In an open run this number equals the
    epoch with which the update is labelled (SPEC U5)."""
    seeds: U64
    scalars: I64
    """Quantised derivatives, in units of scalar_delta. In an organised run each scalar is multiplied by its
    update's integer weight, which contains rate and factor. In a first-order run the shape is (n, cells)."""


class Core:
    """The sum of all updates. An update adds `sign * scalar` to one entry `A[epoch][layer][i, j]` of every
    layer (SPEC U4). In a first-order run it has a scalar for every entry, and adds each scalar to its entry.

    Memory and time for an epoch grow with the number of its updates. If every epoch took a whole array,
    anybody could fill the memory with a few updates labelled with many different epochs.
    """

    def __init__(self, layers: int, rows: int, columns: int = 0) -> None:
        """Begin with zeros of this shape (`Manifest.core_shape`). Without `columns` layers are square."""
        self.shape = layers, rows, columns or rows
        """Number of layers, and numbers of rows and columns of each layer."""
        self._cores: dict[int, _EpochCore] = {}
        self._hashed: dict[int, hashlib.blake2b] = {}
        """Hash object of the digest after each epoch, in ascending order of epochs. There is none for the
        first epoch that has changed since the last digest, nor for later epochs."""

    def add(self, batch: UpdateBatch, *others: Core) -> None:
        """Add updates to this core and to `others`, which have the same shape. The caller must add no update
        twice.

        Computing which entries an update changes takes several times as long as changing them, so one call
        serves several cores. Adding an update with its scalar negated subtracts it. Updates with scalar 0 are
        skipped.
        """
        if batch.scalars.ndim == 2:
            self._add_cells(batch, others)
            return
        if not batch.scalars.all():
            batch = UpdateBatch(*(column[batch.scalars != 0] for column in batch))
        step = max(1, CHUNK_ENTRIES // self.shape[0])
        for start in range(0, len(batch.seeds), step):
            chunk = slice(start, start + step)
            epochs = batch.epochs[chunk]
            entries, amounts = self._moves(batch.seeds[chunk], batch.scalars[chunk])
            for epoch in np.unique(epochs).tolist():
                # usually all updates are of one epoch, and a slice makes no copy
                chosen = slice(None) if (epochs == epoch).all() else epochs == epoch
                for core in (self, *others):
                    core._of(epoch).add(entries[chosen], amounts[chosen])

    def _add_cells(self, batch: UpdateBatch, others: tuple[Core, ...]) -> None:
        """Add updates of a first-order run, whose scalars are (n, cells)."""
        for epoch in np.unique(batch.epochs).tolist():
            entries = batch.scalars[batch.epochs == epoch].sum(0).reshape(self.shape)
            for core in (self, *others) if entries.any() else ():
                core._of(epoch).put(entries)

    def put(self, cores: Mapping[int, I64]) -> None:
        """Add whole cores, keyed by epoch, (layers, rows, columns) each."""
        for epoch, entries in cores.items():
            self._of(epoch).put(entries)

    def cores(self) -> dict[int, I64]:
        """Return the cores that are not zero, keyed by epoch in ascending order. They are read-only."""
        return {epoch: self.of(epoch) for epoch in self.epochs()}

    def epochs(self) -> list[int]:
        """Return the epochs whose core is not zero, ascending."""
        return sorted(epoch for epoch, core in self._cores.items() if core.any())

    def touched(self) -> list[int]:
        """Return the epochs that have updates, ascending, including epochs whose updates cancel. This is
        cheaper than `epochs`."""
        return sorted(self._cores)

    def newest(self) -> int:
        """Return the last epoch whose core is not zero; 0 if there is none. Cheap even with many epochs."""
        return next((epoch for epoch in sorted(self._cores, reverse=True) if self._cores[epoch].any()), 0)

    def of(self, epoch: int) -> I64:
        """Return the core of one epoch, (layers, rows, columns), read-only; zero for an epoch without
        updates."""
        core = self._cores.get(epoch)
        return _read_only(np.zeros(self.shape, np.int64) if core is None else core.dense())

    def layer(self, epoch: int, layer: int) -> I64:
        """Return one layer of the core of one epoch, (rows, columns), read-only."""
        core = self._cores.get(epoch)
        return _read_only(np.zeros(self.shape[1:], np.int64) if core is None else core.layer(layer))

    def forget(self, layers: Sequence[int], epochs: Sequence[int] | None = None) -> None:
        """Set these layers to zero in these epochs, by default in all epochs."""
        for epoch in list(self._cores) if epochs is None else epochs:
            self._changes(epoch)
            if not self._cores[epoch].forget(layers):
                del self._cores[epoch]

    def digest(self) -> bytes:
        """Return the core digest (SPEC D5), 32 bytes. Hashes only the first epoch that has changed since the
        last call, and all later epochs."""
        newest = next(reversed(self._hashed), -1)
        state = self._hashed[newest] if self._hashed else hashlib.blake2b(digest_size=32)
        for epoch in sorted(epoch for epoch in self._cores if epoch > newest):
            if self._cores[epoch].any():
                self._hashed[epoch] = state = state.copy()
                _hash(state, epoch, self._cores[epoch].dense())
        return state.digest()

    def _moves(self, seeds: U64, scalars: I64) -> tuple[I64, I64]:
        """Return, for each update and layer, the index of the changed entry in the flat core, and the amount
        added to the entry; each (n, layers)."""
        layers, rank, _ = self.shape
        entries, column, amounts = coordinates(seeds, layers, rank)
        entries *= rank  # in place, as allocating a copy takes longer than adding
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
            self._cores[epoch] = _EpochCore(self.shape)
        return self._cores[epoch]


def digest(cores: Iterable[tuple[int, I64]]) -> bytes:
    """Return BLAKE2b-256 over these pairs of epoch and core (SPEC D5). Cores must not be zero, and epochs
    must ascend.

    Each pair contributes its epoch (8 bytes, big-endian) and the core's entries (int64, little-endian, C
    order).
    """
    state = hashlib.blake2b(digest_size=32)
    for epoch, entries in cores:
        _hash(state, epoch, entries)
    return state.digest()


def _read_only(entries: I64) -> I64:
    view = entries.view()
    view.flags.writeable = False
    return view


def _hash(state: hashlib.blake2b, epoch: int, entries: I64) -> None:
    state.update(epoch.to_bytes(8, "big"))
    state.update(np.ascontiguousarray(entries, "<i8").data)


class _EpochCore:
    """The core of one epoch: a list of changes while there are few, one array afterwards."""

    __slots__ = ("_count", "_dense", "_few", "_shape")

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self._shape = shape
        self._few: list[tuple[I64, I64]] = []
        """Indices of changed entries, and the amounts added to them, each (n, layers). Empty once there is an
        array."""
        self._count = 0
        """Number of updates in `_few`."""
        self._dense: I64 | None = None

    def add(self, entries: I64, amounts: I64) -> None:
        """Add `amounts` to the flat core at the indices `entries`, each (n, layers)."""
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
        """Add a whole core, (layers, rows, columns)."""
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
        """Return all layers, (layers, rows, columns)."""
        if self._dense is not None:
            return self._dense
        core = np.zeros(self._shape, np.int64)
        if self._few:
            entries, amounts = self._moves()
            np.add.at(core.reshape(-1), entries.reshape(-1), amounts.reshape(-1))
        return core

    def layer(self, layer: int) -> I64:
        """Return one layer, (rows, columns)."""
        if self._dense is not None:
            found: I64 = self._dense[layer]
            return found
        core = np.zeros(self._shape[1:], np.int64)
        entries, amounts = self._moves()
        np.add.at(core.reshape(-1), entries[:, layer] - layer * core.size, amounts[:, layer])
        return core

    def forget(self, layers: Sequence[int]) -> bool:
        """Set these layers to zero. Return whether the other layers may still have changes."""
        if self._dense is not None:
            self._dense[layers] = 0
            return bool(self._dense.any())
        _, amounts = self._moves()
        amounts[:, layers] = 0
        return bool(amounts.any())

    def _moves(self) -> tuple[I64, I64]:
        """Join the pairs in `_few` into one, and return it: indices and amounts, each (n, layers)."""
        if len(self._few) > 1:
            entries, amounts = (np.concatenate(parts) for parts in zip(*self._few, strict=True))
            self._few = [(entries, amounts)]
        return self._few[0]

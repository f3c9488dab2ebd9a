"""Integer randomness for all random values on which nodes must agree (SPEC R1-R8, R11, R12).

SplitMix64 used as a counter-based generator: value k of a key is `mix64(key + (k + 1) * GOLDEN)`, all
arithmetic modulo 2**64. All operations are on integers, so that the result is the same on every machine. The
generators of numpy and torch do not promise equal results on all machines, and are not used for shared state.

All arrays are numpy uint64 unless a docstring says otherwise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]


BASIS_ONE = 8
"""Integer entry that stands for 1 in bases of the kinds `published` and `features`: such bases are divided by
BASIS_ONE (SPEC R10, R12)."""

MOST_ENTRY = 127
"""Maximum magnitude of an integer entry of bases of the kinds `published` and `features`."""

BIAS = 4096
"""Magnitude of the dot product of the mean feature vector and each column of V in a `features` basis (SPEC
R12)."""


class Coordinates(NamedTuple):
    """The entry that each update touches in the core of each target layer; arrays of shape (updates,
    layers)."""

    row: I64
    """i in 0..rank-1: the column of U."""
    column: I64
    """j in 0..rank-1: the column of V."""
    sign: I64
    """+1 or -1."""


def mix64(values: U64) -> U64:
    """Apply the finaliser of SplitMix64 to each value (Steele, Lea, Flood 2014; SPEC R1)."""
    return _mix64_in_place(values.copy())


def _mix64_in_place(z: U64) -> U64:
    shifted = np.empty_like(z)
    z ^= np.right_shift(z, np.uint64(30), out=shifted)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= np.right_shift(z, np.uint64(27), out=shifted)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= np.right_shift(z, np.uint64(31), out=shifted)
    return z


def stream(key: int, first: int, count: int) -> U64:
    """Return values `first .. first + count - 1` of the stream of `key` (SPEC R2); shape (count,)."""
    counters = np.arange(first + 1, first + count + 1, dtype=np.uint64)
    return mix64(np.uint64(key & _MASK) + counters * np.uint64(GOLDEN))


def derive_key(*parts: bytes) -> int:
    """Return a 64-bit key: the first 8 bytes, big-endian, of BLAKE2b-512 over the joined parts (SPEC R3)."""
    return int.from_bytes(hashlib.blake2b(b"".join(parts)).digest()[:8], "big")


def feed_key(run_id: bytes, origin: bytes, incarnation: int) -> int:
    """Return the key of a feed (SPEC R4): run id (32 bytes), origin (32), incarnation (8, big-endian)."""
    return derive_key(run_id, origin, incarnation.to_bytes(8, "big"))


def update_seeds(key: int, first_step: int, count: int) -> U64:
    """Return the seeds of steps `first_step ..` of the feed with this key (SPEC R5); shape (count,)."""
    return stream(key, first_step, count)


def coordinates(seeds: U64, layers: int, rank: int) -> Coordinates:
    """Return the core entry that each update with one of these seeds touches in each layer, and its sign
    (SPEC R6).

    Layer l of an update reads value l of the stream keyed by its seed: bits 0.. give the row, bits 24..
    the column (rank is a power of two, at most 2**16), bit 63 the sign (set means -1).
    """
    counters = np.arange(1, layers + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    values = _mix64_in_place(seeds[:, None] + counters[None, :])
    bits = values.view(np.int64)  # the same 64 bits, without a copy
    mask = np.int64(rank - 1)
    column = bits >> 24
    column &= mask
    sign = bits >> 63  # 0 or -1, as the shift is arithmetic
    sign |= 1
    return Coordinates(bits & mask, column, sign)


def basis_signs(run_id: bytes, epoch: int, layer: int, side: str, rows: int, rank: int) -> NDArray[np.int8]:
    """Return one side of the `random` basis (SPEC R7): a (rows, rank) int8 matrix of +1/-1.

    `side` is "U" (rows = out_features) or "V" (rows = in_features). Entry e = row * rank + column is bit
    e % 64 of value e // 64 of the stream; a set bit means -1.
    """
    entries = rows * rank
    words = stream(_basis_key(run_id, epoch, layer, side), 0, -(-entries // 64))
    bits = np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little")[:entries]
    return (1 - 2 * bits.astype(np.int8)).reshape(rows, rank)


def _basis_key(run_id: bytes, subspace: int, layer: int, side: str) -> int:
    return derive_key(run_id, b"basis", subspace.to_bytes(8, "big"), layer.to_bytes(8, "big"), side.encode())


def contrasts(run_id: bytes, subspace: int, layer: int, classes: int, rank: int) -> NDArray[np.int8]:
    """Return U of the `features` basis (SPEC R12): (classes, rank) int8. Each column has +BASIS_ONE for one
    half of the classes and -BASIS_ONE for another half."""
    draws = stream(_basis_key(run_id, subspace, layer, "U"), 0, rank * classes).reshape(rank, classes)
    order = np.argsort(draws, axis=1)  # no two values are equal
    half, found = classes // 2, np.zeros((rank, classes), np.int8)
    np.put_along_axis(found, order[:, :half], np.int8(BASIS_ONE), 1)
    np.put_along_axis(found, order[:, classes - half :], np.int8(-BASIS_ONE), 1)
    return np.ascontiguousarray(found.T)


def scaled_signs(
    run_id: bytes, subspace: int, layer: int, scales: I64, means: I64, rank: int
) -> NDArray[np.int8]:
    """Return V of the `features` basis (SPEC R12): (features, rank) int8.

    Each column is random signs times `scales`, (features,), plus a multiple of the mean feature vector
    `means`, (features,). With this multiple, the dot product of `means` and the column is BIAS or -BIAS, up
    to rounding.
    """
    signs = basis_signs(run_id, subspace, layer, "V", len(scales), rank).astype(np.int64)
    wanted = BIAS * basis_signs(run_id, subspace, layer, "B", 1, rank).astype(np.int64)  # (1, rank)
    entries: I64 = signs * scales[:, None]
    lacking = wanted - means @ entries  # (1, rank)
    square = max(int(means @ means), 1)
    entries += (2 * means[:, None] * lacking + square) // (2 * square)  # halves up
    return entries.clip(-MOST_ENTRY, MOST_ENTRY).astype(np.int8)


def batch_rows(seed: int, batch_size: int, rows: int) -> I64:
    """Return the rows of the mini-batch of the update with this seed, drawn with replacement (SPEC R8).

    Row k is value k of the stream keyed by `mix64(seed XOR "batch")`, modulo `rows`; shape (batch_size,).
    """
    return (stream(_purpose_key(seed, b"batch"), 0, batch_size) % np.uint64(rows)).astype(np.int64)


def balanced_rows(seed: int, batch_size: int, sizes: Sequence[int]) -> tuple[I64, I64]:
    """Return the classes of a balanced mini-batch, and the number of each row within its class (SPEC R8).

    `sizes`: number of rows of each class, not all 0. The mini-batch takes one row of each class in turn,
    leaving out classes without rows. The order of classes is drawn from a stream of the seed. Rows are drawn
    with replacement. Both results have shape (batch_size,).
    """
    present = np.flatnonzero(sizes)
    order = present[np.argsort(stream(_purpose_key(seed, b"order"), 0, len(present)))]
    classes = order[np.arange(batch_size) % len(present)]
    values = stream(_purpose_key(seed, b"batch"), 0, batch_size)
    return classes, (values % np.array(sizes, np.uint64)[classes]).astype(np.int64)


def token_keys(seed: int, prompts: int) -> U64:
    """Return one key for each prompt of the update with this seed (SPEC R11). The random numbers that draw
    the tokens of the prompt's answer follow from this key. The keys are the first values of the stream keyed
    by `mix64(seed XOR "tokens")`; shape (prompts,)."""
    return stream(_purpose_key(seed, b"tokens"), 0, prompts)


def token_draws(keys: U64, places: I64) -> U64:
    """Return one random number for each key: it draws the token of that key's answer at the position in
    `places`, counted from 0 (SPEC R11).

    With position p, the number is the upper 31 bits of value p of the key's stream. `keys`, `places` and the
    result have the same shape.
    """
    counters = (places.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN)
    return _mix64_in_place(keys + counters) >> np.uint64(33)


def _purpose_key(seed: int, purpose: bytes) -> int:
    """Return the key of an update's stream for a purpose (at most 8 bytes)."""
    return int(mix64(np.array([seed ^ int.from_bytes(purpose, "big")], dtype=np.uint64))[0])

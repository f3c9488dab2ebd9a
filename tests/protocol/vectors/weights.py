"""The vectors of weights: rates, bases, and a small matrix, computed from the rules with numpy alone."""

from __future__ import annotations

import hashlib
import math
import struct
from typing import Any

import numpy as np

from sfprotocol import model_listing, seeds
from tests.protocol.vectors.plain import RUN_ID


def vectors() -> dict[str, Any]:
    """Return rates, and the weights of one small matrix (U7, U8)."""
    cores = {0: [(0, 1, 350), (3, 2, -77)], 2: [(0, 1, -9), (1, 1, 32_767)]}
    aging = {subspace: [(1, 2, 2**36 + subspace)] for subspace in (0, 1, 3, 11)}
    huge = {1: [(0, 0, 2**62), (1, 3, -(2**61) - 12345), (2, 2, 2**40 + 1)]}
    return {
        "rates": [
            _rates(schedule, rate, epoch_updates, budget)
            for schedule, rate in (("constant", 6e-6), ("linear", 1e-3), ("cosine", 1e-3), ("cosine", 0.1))
            for epoch_updates, budget in ((1024, 4096), (1000, 2500), (1, 65536), (4096, 1))
        ],
        "weights": [
            _weights("cosine", cores, 0.05),
            _weights("linear", cores, 6e-6),
            _weights("organised", huge | {0: [(0, 1, 123_456_789)]}, 2.0**-20),
            _weights("linear", cores, 6e-6, bases=True),
            _weights("organised", huge | {0: [(0, 1, 123_456_789)]}, 2.0**-24, bases=True),
            _weights("organised", aging, 0.1, decay=0.9),
        ],
    }


def published_bases(rows: tuple[int, ...], rank: int) -> bytes:
    """Return a blob (R10) with the bases U, V, U, V, ... of one or more targets, with entries from a
    stream."""
    words = seeds.stream(seeds.derive_key(b"sfnode vector of bases"), 0, sum(rows) * rank)
    return ((words % np.uint64(255)).astype(np.int64) - 127).astype(np.int8).tobytes()


def bases_listing(blob: bytes) -> bytes:
    """Return the listing of a blob (R10)."""
    hashes = b"".join(
        model_listing.hash_piece(blob[at : at + model_listing.PIECE])
        for at in range(0, len(blob), model_listing.PIECE)
    )
    return model_listing.encode([model_listing.ListedFile("bases", len(blob), hashes)])


def rate(schedule: str, learning_rate: float, epoch: int, epochs: int) -> np.float32:
    """Return the rate of an epoch (U7)."""
    x = epoch / epochs
    f = {"constant": 1.0, "linear": 1.0 - x, "cosine": 0.5 * (1.0 + math.cos(math.pi * x))}[schedule]
    return np.float32(learning_rate * f)


def _rates(schedule: str, learning_rate: float, epoch_updates: int, budget: int) -> dict[str, Any]:
    epochs = -(-budget // epoch_updates)
    chosen = sorted({0, 1, 2, epochs // 3, epochs // 2, epochs - 1} & set(range(epochs)))
    return {
        "schedule": schedule,
        "learning_rate": learning_rate,
        "epoch_updates": epoch_updates,
        "update_budget": budget,
        "epochs": epochs,
        "rates": [
            {"epoch": epoch, "bits": bits(rate(schedule, learning_rate, epoch, epochs))} for epoch in chosen
        ],
    }


def moved(weights: Any, u: Any, core: Any, v: Any, scale: float) -> Any:
    """Return binary64 weights minus the term of a core (U8). Bases and core are Python integers."""
    largest = int(np.abs(u).max() * np.abs(v).max())
    parts = [(1, core)]
    if float(np.abs(core.astype(np.float64)).sum()) * largest >= 2.0**53:
        places = (32, 0) if largest == 1 else (48, 32, 16, 0)
        width = 64 // len(places)
        parts = [(2**at, core >> at if at == places[0] else (core >> at) % 2**width) for at in places]
    for unit, part in parts:
        weights = weights - (u @ part @ v.T).astype(np.float64) * (scale * unit)
    return weights


def _weights(
    schedule: str,
    cores: dict[int, list[tuple[int, int, int]]],
    factor: float,
    *,
    bases: bool = False,
    decay: float = 1.0,
) -> dict[str, Any]:
    """Return the weights of a 3 x 5 matrix at rank 4, for layer 0, with random or published bases.
    `factor` is the learning rate; in an organised run, whose cores contain the rates, it is scalar_delta."""
    rank, shape, delta = 4, (3, 5), 1 / 64 if schedule != "organised" else factor
    values = [1.0, -0.5, 3.0e-5, 1 / 3, -2.7182818, 0.1, 1e-8, -0.04, 12.5, 0.0, 7e-3, -0.9, 0.25, 1.5, -6.0]
    base = np.array(values, np.float32).reshape(shape)
    blob = published_bases(shape, rank)
    weights = base.astype(np.float64)
    terms, powers = [], [1.0]
    for _ in range(max(cores)):
        powers.append(powers[-1] * decay)
    for epoch in sorted(cores):
        core = np.zeros((rank, rank), object)
        for row, column, value in cores[epoch]:
            core[row, column] = value
        u, v = (
            seeds.basis_signs(RUN_ID, epoch, 0, side, size, rank).astype(object)
            for side, size in zip("UV", shape, strict=True)
        )
        if bases:
            entries = np.frombuffer(blob, np.int8).reshape(-1, rank).astype(object)
            u, v = entries[: shape[0]], entries[shape[0] :]
        scale = (
            delta * 2.0**-32 if schedule == "organised" else float(rate(schedule, factor, epoch, 4)) * delta
        )
        scale = scale * 2.0**-6 if bases else scale
        weights = moved(weights, u, core, v, scale * powers[max(cores) - epoch])
        entries = [{"row": i, "column": j, "value": str(a)} for i, j, a in cores[epoch]]
        power = {"power": powers[max(cores) - epoch]} if decay != 1 else {}
        terms.append({"epoch": epoch, "scale": scale, **power, "core": entries})
    result = weights.astype(np.float32)
    return {
        "run_id": RUN_ID.hex(),
        "schedule": schedule,
        "learning_rate": factor if schedule != "organised" else None,
        "epochs": 4,
        "scalar_delta": delta,
        **({"decay": decay} if decay != 1 else {}),
        "rank": rank,
        "layer": 0,
        "bases": _blob(blob) if bases else None,
        "base": [[bits(entry) for entry in row] for row in base],
        "terms": terms,
        "weights": [[bits(entry) for entry in row] for row in result],
        "bfloat16": [[_bfloat16(entry) for entry in row] for row in result],
    }


def bases_digest(listing: bytes) -> bytes:
    """Return the digest of a blob with this listing (R10)."""
    return hashlib.blake2b(listing, digest_size=32, person=b"sfnode-bases").digest()


def _blob(blob: bytes) -> dict[str, str]:
    listing = bases_listing(blob)
    return {"blob": blob.hex(), "listing": listing.hex(), "digest": bases_digest(listing).hex()}


def bits(value: np.float32) -> str:
    """Return the bits of a binary32 number in hexadecimal, sign first."""
    return struct.pack(">f", value).hex()


def _bfloat16(value: np.float32) -> str:
    """Return the upper half of the bits, rounded to nearest with ties to even; for finite numbers."""
    whole = int(bits(value), 16)
    return f"{(whole + 0x7FFF + (whole >> 16 & 1)) >> 16:04x}"

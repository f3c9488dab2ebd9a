"""The vectors of seeds: directions, mini-batches, rows and drawn tokens."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from sfprotocol import seeds
from sfprotocol.messages import Feed
from tests.protocol.vectors.plain import RUN_ID, SECRETS, integers, origin, plain


def vectors() -> dict[str, Any]:
    return {
        "splitmix64": [
            {"key": str(key), "values": integers(seeds.stream(key, 0, 5))}
            for key in (0, 1, 1234567, 0x9E3779B97F4A7C15, 2**64 - 1)
        ],
        "feeds": [
            _feed_seeds(Feed(origin(secret), number)) for secret in SECRETS for number in (0, 2**32 - 1)
        ],
        "coordinates": [
            _coordinates(seed, rank) for seed in (0, 1, 2**63, 2**64 - 1) for rank in (4, 32, 1024)
        ],
        "basis": [
            _basis(epoch, layer, side, rows, rank)
            for epoch, layer, side, rows, rank in ((0, 0, "U", 6, 4), (0, 0, "V", 6, 4), (7, 145, "V", 5, 32))
        ],
        "features": [_features(classes, rank) for classes, rank in ((2, 4), (3, 8), (6, 4))],
        "batches": [
            {"seed": str(seed), "rows": rows, "chosen": seeds.batch_rows(seed, 8, rows).tolist()}
            for seed, rows in ((0, 10), (2**64 - 1, 1024), (6457827717110365317, 67349))
        ],
        "balanced_batches": [
            _balanced(seed, size, sizes)
            for seed, size, sizes in (
                (0, 4, (7, 3)),
                (2**64 - 1, 8, (256, 0, 255, 513)),
                (6457827717110365317, 3, (30000, 30001, 29999, 1)),
            )
        ],
        "token_draws": [
            {"seed": str(seed), "draws": [integers(_drawn(key)) for key in seeds.token_keys(seed, 3)]}
            for seed in (0, 2**64 - 1, 6457827717110365317)
        ],
        "groups": [_group(m, rows) for m, rows in ((2, 1), (3, 2), (8, 4))],
        "selections": [
            {"purpose": purpose, "rows": rows, "count": count, "chosen": _selected(purpose, rows, count)}
            for purpose in ("sfnode row selection", "sfnode validation rows")
            for rows, count in ((10, 3), (1000, 12))
        ],
    }


def _drawn(key: np.uint64) -> seeds.U64:
    """Return the draws of the first tokens of an answer (R11)."""
    return seeds.token_draws(np.full(4, key), np.arange(4))


def _selected(purpose: str, rows: int, count: int) -> list[int]:
    """Return the rows with the smallest values (R9)."""
    values = seeds.stream(seeds.derive_key(purpose.encode()), 0, rows)
    chosen: list[int] = np.sort(np.argsort(values)[:count]).tolist()
    return chosen


def _balanced(seed: int, batch_size: int, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Return a balanced mini-batch: the class of each row, and its number within the class (R8)."""
    classes, rows = seeds.balanced_rows(seed, batch_size, sizes)
    return {"seed": str(seed), "sizes": list(sizes), "classes": classes.tolist(), "rows": rows.tolist()}


def _group(size: int, rows: int) -> dict[str, Any]:
    """Return the losses of a group's points by row, the scalars that follow from them (U2), and the step
    whose seed draws the mini-batch (R8)."""
    epsilon, delta, limit = Fraction(1, 1024), Fraction(1, 64), 20_000
    drawn = seeds.stream(size, 0, size * rows).reshape(size, rows).tolist()
    losses = [[Fraction(value >> 40, 1 << 24) for value in point] for point in drawn]
    total = [sum(row) for row in zip(*losses, strict=True)]
    alphas = [
        sum(one - (all_ - one) / (size - 1) for one, all_ in zip(point, total, strict=True)) / rows / epsilon
        for point in losses
    ]
    step = 3 * size + size // 2
    return {
        "group": size,
        "step": step,
        "step_that_draws": step - step % size,
        "losses": [[float(loss) for loss in point] for point in losses],
        "epsilon": float(epsilon),
        "scalar_delta": float(delta),
        "scalar_limit": limit,
        "scalars": [round(min(max(alpha / delta, -limit), limit)) for alpha in alphas],
    }


def _feed_seeds(feed: Feed) -> dict[str, Any]:
    key = seeds.feed_key(RUN_ID, *feed)
    return {
        "run_id": RUN_ID.hex(),
        **plain(feed),
        "feed_key": str(key),
        "seeds": integers(seeds.update_seeds(key, 0, 4)),
        "seed_of_step_1000000": integers(seeds.update_seeds(key, 1_000_000, 1))[0],
    }


def _coordinates(seed: int, rank: int) -> dict[str, Any]:
    found = seeds.coordinates(np.array([seed], dtype=np.uint64), 6, rank)
    names = ("row", "column", "sign")
    lists = {name: values[0].tolist() for name, values in zip(names, found, strict=True)}
    return {"seed": str(seed), "layers": 6, "rank": rank, **lists}


def _features(classes: int, rank: int) -> dict[str, Any]:
    """Return U and V of a head (R12)."""
    scales, means = np.array([1, 24, 127, 60, 3]), np.array([32_767, -40, 3, 0, -32_768])
    return {
        "run_id": RUN_ID.hex(),
        "subspace": 3,
        "layer": 0,
        "scales": scales.tolist(),
        "means": means.tolist(),
        "u": seeds.contrasts(RUN_ID, 3, 0, classes, rank).tolist(),
        "v": seeds.scaled_signs(RUN_ID, 3, 0, scales, means, rank).tolist(),
    }


def _basis(epoch: int, layer: int, side: str, rows: int, rank: int) -> dict[str, Any]:
    signs = seeds.basis_signs(RUN_ID, epoch, layer, side, rows, rank)
    return {
        "run_id": RUN_ID.hex(),
        "epoch": epoch,
        "layer": layer,
        "side": side,
        "rank": rank,
        "rows": ["".join("-" if sign < 0 else "+" for sign in row) for row in signs.tolist()],
    }

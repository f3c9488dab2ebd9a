"""Arithmetic on the clients' vectors that several methods share. Large vectors are changed in place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sfprotocol.seeds import derive_key

BLOCK = 1 << 16
"""Number of entries of each vector mixed at a time. For 128 clients they take 32 MiB of working memory."""


def key(purpose: bytes, *numbers: int) -> int:
    """Derive a 63-bit key for random draws from their purpose and counters."""
    return derive_key(b"sfnode baselines ", purpose, *(number.to_bytes(8, "big") for number in numbers)) >> 1


def fill_normal(out: Tensor, seed: int) -> Tensor:
    """Fill `out` with standard normal numbers drawn from `seed`. Different kinds of devices draw different
    numbers from the same seed."""
    generator = torch.Generator(out.device).manual_seed(seed)
    return torch.randn(out.shape, generator=generator, out=out)


def metropolis(clients: int, links: Sequence[tuple[int, int]]) -> Tensor:
    """Return the mixing matrix of Metropolis and Hastings, (N, N) float32: symmetric, rows adding up to 1.

    Linked clients i and j give each other the weight 1 / (1 + the larger of their degrees).
    """
    degrees = [0] * clients
    for link in links:
        for client in link:
            degrees[client] += 1
    weights = torch.zeros(clients, clients, dtype=torch.float64)
    for i, j in links:
        weights[i, j] = weights[j, i] = 1 / (1 + max(degrees[i], degrees[j]))
    weights.diagonal().copy_(1 - weights.sum(1))
    return weights.float()


def mix(x: Tensor, weights: Tensor) -> None:
    """Replace x (N, P) by weights (N, N) @ x, in place."""
    for block in torch.split(x, BLOCK, dim=1):
        block.copy_(weights @ block)


def mean(x: Tensor) -> Tensor:
    """Return the mean row (P,) of x (N, P)."""
    total = torch.zeros_like(x[0])
    for row in x:
        total.add_(row)
    return total.div_(len(x))


def spread(x: Tensor) -> float:
    """Return the consensus error of x (N, P): the mean of ||x_i - mean x||^2."""
    middle = mean(x)
    return float(sum((row - middle).double().square().sum() for row in x)) / len(x)


def largest(vector: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the indices and the values of the `count` entries of a vector (P,) with the largest absolute
    values, (k,) each."""
    indices = vector.abs().topk(count, sorted=False).indices
    return indices, vector[indices]


# Bytes of messages in the encoding of each method, without headers.
#
# These sizes give the SeedFlood paper's totals for OPT-1.3B (arXiv 2602.18181). The paper counts one
# direction of an edge in 100 rounds. 1,315,758,080 parameters of 4 bytes (the embedding once, as it is tied
# to the head) take 526.3 GB, and 1 % of them as float32 values with int64 indices 15.79 GB. LoRA of rank 8 on
# the query and value projections of 24 layers has 24 * 2 * 8 * (2048 + 2048) = 1,572,864 numbers: 629.1 MB,
# and 1 % of them 18.87 MB. `EdgeTraffic.per_edge` counts both directions, which is twice as much.

FLOAT = 4
"""Bytes of a float32."""

INDEX = 8
"""Bytes of the index of an entry: the paper counts an int64."""


def dense(entries: int) -> int:
    """Return the bytes of a vector of `entries` entries that is sent in full."""
    return FLOAT * entries


def sparse(entries: int) -> int:
    """Return the bytes of `entries` entries of a vector, each with its index."""
    return (FLOAT + INDEX) * entries


def kept(entries: int, share: float) -> int:
    """Return `share` times `entries`, rounded to a whole number of at least 1."""
    return max(1, round(share * entries))

"""Arithmetic on the clients' vectors that several methods share, in place wherever vectors are large."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sfprotocol.seeds import derive_key

BLOCK = 1 << 16
"""Entries of all vectors that are mixed at a time: 32 MiB of working memory for 128 clients."""


def key(purpose: bytes, *numbers: int) -> int:
    """Return 63 bits that follow from a purpose and counters, to key whatever is drawn for it."""
    return derive_key(b"sfnode baselines ", purpose, *(number.to_bytes(8, "big") for number in numbers)) >> 1


def fill_normal(out: Tensor, seed: int) -> Tensor:
    """Fill `out` with standard normal numbers that follow from `seed` (on one kind of device)."""
    generator = torch.Generator(out.device).manual_seed(seed)
    return torch.randn(out.shape, generator=generator, out=out)


def metropolis(clients: int, links: Sequence[tuple[int, int]]) -> Tensor:
    """Return the mixing matrix of Metropolis and Hastings, (N, N) float32: symmetric, rows adding up to 1.

    Linked clients i and j weigh each other by 1 / (1 + the larger one of their degrees).
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


def mean(x: Tensor, rows: Sequence[int] | None = None) -> Tensor:
    """Return the mean of the rows of x (N, P), or of some of them, (P,)."""
    total = torch.zeros_like(x[0])
    chosen = range(len(x)) if rows is None else rows
    for row in chosen:
        total.add_(x[row])
    return total.div_(len(chosen))


def spread(x: Tensor) -> float:
    """Return the consensus error of x (N, P): the mean of ||x_i - mean x||^2."""
    middle = mean(x)
    return float(sum((row - middle).double().square().sum() for row in x)) / len(x)


def largest(vector: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return where the `count` largest entries of a vector (P,) are, by size, and these, (k,) each."""
    indices = vector.abs().topk(count, sorted=False).indices
    return indices, vector[indices]


# Bytes of what the methods send, by the encoding that each would use; headers are not counted.
#
# The SeedFlood paper's totals for OPT-1.3B (arXiv 2602.18181) follow from these sizes, as what one client
# sends one neighbour, which is one direction of an edge, in 100 rounds. 1,315,758,080 parameters (the
# embedding once, as it is tied to the head) of 4 bytes make 526.3 GB, and 1 % of them as float32 values
# with int64 indices 15.79 GB. LoRA of rank 8 on the query and value projections of 24 layers has 24 * 2 * 8
# * (2048 + 2048) = 1,572,864 numbers: 629.1 MB, and 1 % of them 18.87 MB. `Traffic.per_edge` counts both
# directions: twice that.


FLOAT = 4
"""A float32."""

HALF = 2
"""A float16."""

INDEX = 8
"""An int64, as the paper counts the index of an entry."""

SEED = 4
"""A seed: 32 bits tell more directions apart than any run has."""


def dense(entries: int) -> int:
    """Return the size of a vector in full."""
    return FLOAT * entries


def sparse(entries: int) -> int:
    """Return the size of some entries of a vector, each with its index."""
    return (FLOAT + INDEX) * entries


def kept(entries: int, share: float) -> int:
    """Return how many entries a share of them is: the nearest whole number, at least one."""
    return max(1, round(share * entries))

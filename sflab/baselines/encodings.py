"""Bytes of what the methods send, by the encoding that each would use; headers are not counted.

The SeedFlood paper's totals for OPT-1.3B (arXiv 2602.18181) follow from these sizes, as what one client sends
one neighbour, which is one direction of an edge, in 100 rounds. 1,315,758,080 parameters (the embedding once,
as it is tied to the head) of 4 bytes make 526.3 GB, and 1 % of them as float32 values with int64 indices
15.79 GB. LoRA of rank 8 on the query and value projections of 24 layers has 24 * 2 * 8 * (2048 + 2048) =
1,572,864 numbers: 629.1 MB, and 1 % of them 18.87 MB. `Traffic.per_edge` counts both directions: twice that.
"""

from __future__ import annotations

from collections.abc import Sequence

from sflab.baselines.method import Traffic

FLOAT = 4
"""A float32."""

HALF = 2
"""A float16."""

INDEX = 8
"""An int64, as the paper counts the index of an entry."""

SEED = 4
"""A seed: 32 bits tell more directions apart than any run has."""

SEEDFLOOD_UPDATE = 5
"""The paper's own count for an update of SeedFlood: 400 KB for 80,000. Ours is measured, not computed."""


def dense(entries: int) -> int:
    """Return the size of a vector in full."""
    return FLOAT * entries


def sparse(entries: int) -> int:
    """Return the size of some entries of a vector, each with its index."""
    return (FLOAT + INDEX) * entries


def kept(entries: int, share: float) -> int:
    """Return how many entries a share of them is: the nearest whole number, at least one."""
    return max(1, round(share * entries))


def count_all_reduce(traffic: Traffic, peers: Sequence[int], entries: int, entry: int) -> None:
    """Count an all-reduce of `entries` numbers of `entry` bytes, done as hivemind does it (butterfly).

    The vector is cut into as many parts as there are peers; each peer averages one: it gets that part from
    everybody else and sends everybody the result.
    """
    parts = [entries // len(peers) + (place < entries % len(peers)) for place in range(len(peers))]
    for sender, reduced in zip(peers, parts, strict=True):
        for receiver, wanted in zip(peers, parts, strict=True):
            if sender != receiver:
                traffic.add((sender, receiver), (wanted + reduced) * entry)

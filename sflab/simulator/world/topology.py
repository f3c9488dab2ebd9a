"""Topologies: from the names of nodes to the pairs that are neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import isqrt
from random import Random

Pairs = list[tuple[str, str]]

CYCLES = 3
"""Random rings through all nodes whose union is the random regular graph of degree 6."""

LEAVES = 8
"""Neighbours around the middle of a star: as many as may open links to one node, with room for those that
join later."""


def ring(names: Sequence[str], random: Random) -> Pairs:
    return [*pairwise(names), (names[-1], names[0])] if len(names) > 2 else list(pairwise(names))


def line(names: Sequence[str], random: Random) -> Pairs:
    return list(pairwise(names))


def star(names: Sequence[str], random: Random) -> Pairs:
    """Star; of more nodes than one may be linked with, a star of stars."""
    return [(names[number // LEAVES], name) for number, name in enumerate(names[1:])]


def grid(names: Sequence[str], random: Random) -> Pairs:
    """Grid as square as possible, every node linked with the four around it."""
    width = max(1, isqrt(len(names)))
    beside = [(a, b) for n, (a, b) in enumerate(pairwise(names), 1) if n % width]
    return beside + list(zip(names, names[width:], strict=False))


def regular(names: Sequence[str], random: Random) -> Pairs:
    """Random, of degree 6 (a few pairs may meet twice), and in one piece."""
    pairs: dict[tuple[str, str], None] = {}
    for _ in range(CYCLES):
        order = list(names)
        random.shuffle(order)
        pairs.update(dict.fromkeys((min(pair), max(pair)) for pair in ring(order, random)))
    return list(pairs)


def bridge(names: Sequence[str], random: Random) -> Pairs:
    """Two random clusters with one link between them."""
    half = len(names) // 2
    one, other = names[:half], names[half:]
    return [*regular(one, random), *regular(other, random), (one[-1], other[0])]


TOPOLOGIES: dict[str, Callable[[Sequence[str], Random], Pairs]] = {
    "ring": ring,
    "grid": grid,
    "random": regular,
    "star": star,
    "line": line,
    "bridge": bridge,
}

MANAGED = "managed"
"""The topology without given pairs: every node finds its neighbours itself."""


def names() -> list[str]:
    """Return the names of all topologies."""
    return [*TOPOLOGIES, MANAGED]

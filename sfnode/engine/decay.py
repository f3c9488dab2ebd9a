"""Decay of what earlier subspaces of a run have brought: anchored weight decay, towards the base (SPEC O17).

A core counts `gamma` times less with each subspace between its own and the newest one whose core is not zero.
So weights stay a function of the cores alone, and cores are what they are without a decay: nothing that makes
them, keeps them, or takes something out of them knows of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from sfprotocol.seeds import I64


class Decay:
    """Powers of `gamma` by repeated multiplication in binary64, which rounds alike on every machine; the
    `pow` of libraries does not."""

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self._powers = [1.0]

    def __call__(self, age: int) -> float:
        """Return gamma to the power of an age in subspaces; 1 for what is newer than the newest."""
        while len(self._powers) <= age:
            self._powers.append(self._powers[-1] * self.gamma)
        return self._powers[max(age, 0)]

    def faded(self, cores: Mapping[int, I64]) -> Mapping[int, NDArray[Any]]:
        """Return cores by subspace, none of which is zero, as they count together; the same integers where
        that is once."""
        newest = max(cores, default=0)
        powers = {subspace: self(newest - subspace) for subspace in cores}
        return {s: core if powers[s] == 1 else core * powers[s] for s, core in cores.items()}


NONE = Decay(1.0)
"""Everything counts the same, whenever it came."""

"""LtHash: the hash of a set of byte strings, which a string joins or leaves at a cost of its own (SPEC D3).

Every element is expanded to 1,024 numbers of 16 bits by an extendable-output function, and the numbers of all
elements are added lane by lane, modulo 2^16 (Bellare and Micciancio 1997; Lewi, Kim, Maykov and Weis 2019,
"Securing Update Propagation with Homomorphic Hashing"). Two sets with equal sums are a short solution of a
lattice problem in 1,024 dimensions, which takes about 2^200 steps to find. Sums without lanes and XOR, which
Gaussian elimination or a generalised birthday attack solve at once, would let chosen feeds collide.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

LANES = 1024
"""Numbers of 16 bits in a sum: the size for which the authors above count 200 bits."""

_Lanes = NDArray[np.uint16]


class LtHash:
    """The hash of a set, empty at first. What is in it, its user knows."""

    def __init__(self) -> None:
        self._sum: _Lanes = np.zeros(LANES, "<u2")

    def add(self, element: bytes) -> None:
        """Add an element that is not in the set."""
        self._sum += _expand(element)

    def remove(self, element: bytes) -> None:
        """Remove an element that is in the set."""
        self._sum -= _expand(element)

    def value(self) -> bytes:
        """Return the hash: the lanes as little-endian integers of 16 bits, 2,048 bytes."""
        return self._sum.tobytes()


def _expand(element: bytes) -> _Lanes:
    return np.frombuffer(hashlib.shake_128(element).digest(2 * LANES), "<u2")

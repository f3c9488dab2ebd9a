"""The problem that a baseline minimises: a function of one vector, with mini-batches that clients draw.

Methods know nothing else of models and data. `model_problem` makes a language model such a function.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from sfnode.schema.evaluation import Evaluation


class Part(NamedTuple):
    """A parameter of the model: a run of entries of the vector."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)


class VectorProblem(Protocol):
    """Interface of a function of a vector of `size` float32 entries."""

    size: int
    batch_size: int
    """Examples of a mini-batch."""
    parts: Sequence[Part]
    """The vector's parts in order, together `size` entries."""

    def start(self) -> Tensor:
        """Return the vector that every client begins with, (P,) float32: a copy, on the problem's device."""
        ...

    def loss(self, x: Tensor, client: int, step: int) -> float:
        """Return the mean loss of the mini-batch that a client draws in this step out of its shard."""
        ...

    def gradient(self, x: Tensor, client: int, step: int) -> tuple[float, Tensor]:
        """Return that loss and its gradient, (P,) float32, which is valid until the next call."""
        ...

    def evaluate(self, x: Tensor, which: str) -> Evaluation:
        """Measure the model of this vector on the `validation` or the `test` rows."""
        ...

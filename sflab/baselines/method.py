"""The interface of a decentralised training method: N clients that step and communicate in lock step.

Whoever drives a method calls `step` for every local step, and `communicate` after every few of them; this
module knows neither models nor networks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from sfnode.schema.evaluation import Evaluation

Edge = tuple[int, int]
"""Sender and receiver, numbers of clients; the number of clients itself stands for a server."""


@dataclass
class Traffic:
    """Bytes that were sent over each edge, as the method encodes them, without headers of the transport."""

    sent: Counter[Edge] = field(default_factory=Counter)

    def add(self, edge: Edge, size: int) -> None:
        """Count a message of `size` bytes."""
        self.sent[edge] += size

    @property
    def total(self) -> int:
        """Bytes over all edges."""
        return self.sent.total()

    @property
    def per_edge(self) -> float:
        """Mean over the links that were used, of the bytes in both directions together."""
        links = {frozenset(edge) for edge in self.sent}
        return self.total / len(links) if links else 0.0


class Method(Protocol):
    """Interface of a method in the midst of its run."""

    traffic: Traffic
    example_forwards: int
    """Example-forwards so far: a forward of one example counts 1 and its backward 2, evaluations nothing."""

    def step(self, number: int) -> float:
        """Take local step `number`, counted from 0, of every client; return their mini-batches' mean loss.

        What the step draws follows from the seed and its number alone.
        """
        ...

    def communicate(self, number: int) -> None:
        """Exchange what the method exchanges after local step `number`."""
        ...

    def consensus(self) -> float:
        """Return the consensus error: the mean of ||x_i - mean x||^2 over clients."""
        ...

    def evaluate(self, which: str) -> Evaluation:
        """Measure the average of all clients' models on the `validation` or the `test` rows."""
        ...

    def state(self) -> Mapping[str, Any]:
        """Return all that a restart needs to go on with the same numbers (tensors, integers, strings).

        The tensors are those in use: store or copy them before the next step.
        """
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from such a state."""
        ...

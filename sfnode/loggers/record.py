"""One measurement of a training run, and the interface of what takes it.

A node, the simulator and a program that uses the library all say the same four kinds of things; where those
go is up to the logger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

Kind = Literal["step", "epoch", "evaluation", "traffic"]


@dataclass(frozen=True, slots=True)
class Record:
    """Numbers that were measured together."""

    kind: Kind
    step: int
    """Place on the x-axis: updates known to a node, or local steps of a simulated client."""
    values: Mapping[str, float]
    """Numbers by name, in lower case with underscores: `loss`, `accuracy`, `bytes_per_edge`."""


class Logger(Protocol):
    """Interface of a place for records."""

    def begin(self, name: str, settings: Mapping[str, object]) -> None:
        """Begin a run, once, with its name and all that its numbers follow from."""
        ...

    def record(self, record: Record) -> None:
        """Take a record. Must not block for long, and raises nothing for what goes wrong elsewhere."""
        ...

    def close(self) -> None:
        """Write what is left, and end."""
        ...

"""A network in one process that can be partitioned."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sfnode.transport.memory import Network


class SplitNetwork(Network):
    """A network with partitions between its members."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._deaf: set[tuple[str, str]] = set()
        """Pairs of a sender and a receiver that does not hear it."""

    def partition(self, one: Iterable[str], other: Iterable[str], *, one_way: bool = False) -> None:
        """Separate the peers of `one` from those of `other`. With `one_way`, `one` still hears the others."""
        others = tuple(other)
        for a in one:
            self._deaf.update((a, b) for b in others)
            self._deaf.update((b, a) for b in others if not one_way)

    def heal(self) -> None:
        """End all partitions. Lost frames stay lost."""
        self._deaf.clear()

    def hears(self, one: str, other: str) -> bool:
        return (one, other) not in self._deaf

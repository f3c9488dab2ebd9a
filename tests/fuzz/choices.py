"""A string of bytes, read as a sequence of decisions. hypothesis, atheris and a plain generator can write
one.

After its end all decisions are 0. So every string is a valid course of events, and a shorter string is a
simpler course.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Reads one string from its beginning."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def exhausted(self) -> bool:
        return self._at >= len(self._data)

    def below(self, bound: int) -> int:
        """Return a number from 0 up to `bound`, which is at least 1 and at most 65,536."""
        width = 1 if bound <= 256 else 2
        return int.from_bytes(self.take(width).ljust(width, b"\0"), "big") % bound

    def flip(self, one_in: int = 2) -> bool:
        """Return True once in `one_in` times on average; False at the end of the string."""
        return self.below(one_in) == one_in - 1

    def pick(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def some(self, items: Sequence[T], most: int = 4) -> list[T]:
        """Return up to `most` of `items`, without repetition, in their order."""
        chosen = {self.below(len(items)) for _ in range(self.below(most + 1))}
        return [items[index] for index in sorted(chosen)]

    def take(self, count: int) -> bytes:
        """Return the next bytes, fewer at the end."""
        taken = self._data[self._at : self._at + count]
        self._at += len(taken)
        return taken

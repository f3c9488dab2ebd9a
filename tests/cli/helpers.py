"""What the tests of the command line talk about."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.wording import has


class Ended(NamedTuple):
    """A command that has ended."""

    status: int
    out: str
    err: str

    def done(self) -> Ended:
        """Require that it has succeeded."""
        assert self.status == 0, self.err
        return self

    def failed(self, *words: str) -> Ended:
        """Require that it has failed, and that its error message has these words."""
        assert self.status == 1
        has(self.err, *words)
        return self

    def refused(self, *words: str) -> Ended:
        """Require that it has failed with these words, and has printed no result."""
        assert self.out == ""
        return self.failed(*words)


Run = Callable[..., Ended]
"""Runs a command line, as the fixture `sfnode` does."""


def sets(*pairs: str) -> tuple[str, ...]:
    """Options that are keys of --set."""
    return tuple(part for pair in pairs for part in ("--set", pair))

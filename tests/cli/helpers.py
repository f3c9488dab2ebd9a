"""What the tests of the command line talk about."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Ended(NamedTuple):
    """A command that has ended."""

    status: int
    out: str
    err: str


Run = Callable[..., Ended]
"""Runs a command line, as the fixture `sfnode` does."""


def sets(*pairs: str) -> tuple[str, ...]:
    """Options that are keys of --set."""
    return tuple(part for pair in pairs for part in ("--set", pair))

"""Helpers of the tests of the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sfnode.models import bases
from sfnode.preparing.manifest import build
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
"""Function that runs a command line, like the fixture `sfnode`."""


LENGTH = 'kind = "sum"\n' + "".join(
    f'[[terms]]\nweight = 0.125\nverifier = {{ kind = "length", least = {3 * n} }}\n' for n in range(1, 9)
)
"""A verifier whose reward rises with the length of the answer."""


def bases_file(folder: Path, rank: int, fill: int = 8) -> Path:
    """Write bases for the built-in model."""
    sizes = [(one.out_features, one.in_features) for one in build({}).model.parsed_targets()]
    pairs = [(np.full((out, rank), fill, np.int8), np.full((into, rank), 8, np.int8)) for out, into in sizes]
    return bases.path_in(folder, bases.write(folder, pairs))


def sets(*pairs: str) -> tuple[str, ...]:
    """Return the arguments that set these keys by --set."""
    return tuple(part for pair in pairs for part in ("--set", pair))

"""The values of an update: one scalar along its direction, or one for every cell of the cores (SPEC U1,
U11)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import mul
from typing import cast

Scalar = int
"""A quantised derivative, in units of the manifest's scalar_delta, or of the unit of the update's label."""

Values = Scalar | tuple[Scalar, ...]
"""The content of an update: one scalar along its direction, or in a first-order run one for every cell of the
cores, in their order (SPEC U11)."""


def flat(every: Sequence[Values]) -> Sequence[Scalar]:
    """Return the scalars of these updates of one run, one after the other."""
    vectors = not every or not isinstance(every[0], int)
    found = chain.from_iterable(cast(Sequence[tuple[Scalar, ...]], every)) if vectors else every
    return cast(tuple[Scalar, ...], tuple(found))


def cells_of(values: Values) -> int:
    """Return the cells of the run of an update (`messages.RunParameters`): 0 where it has one scalar."""
    return 0 if isinstance(values, int) else len(values)


def scalars_in(values: Values) -> int:
    """Return the number of scalars that an update has."""
    return cells_of(values) or 1


def squares_of(values: Values) -> int:
    """Return the sum of the squares of an update's scalars."""
    return values * values if isinstance(values, int) else sum(map(mul, values, values))

"""The values of an update: one scalar along its direction, or one for every cell of the cores (SPEC U1,
U11)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Scalar = int
"""A quantised derivative, in units of the manifest's scalar_delta, or of the unit of the update's label."""

Values = Scalar | tuple[Scalar, ...]
"""The content of an update: one scalar along its direction, or in a first-order run one for every cell of the
cores, in their order (SPEC U11)."""


def flat(every: Iterable[Values]) -> Iterator[Scalar]:
    """Yield the scalars of these updates, one after the other."""
    for values in every:
        yield from (values,) if isinstance(values, int) else values


def scalars_in(values: Values) -> int:
    """Return the number of scalars that an update has."""
    return 1 if isinstance(values, int) else len(values)


def squares_of(values: Values) -> int:
    """Return the sum of the squares of an update's scalars."""
    return values * values if isinstance(values, int) else sum(one * one for one in values)

"""The search for what has made a model worse: first the epoch, then the origins of whom its harm is.

Knows numbers only: whoever asks measures losses, lower ones being better, in whatever way. A loss that is no
number counts as the largest there is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

FEW = 8
"""Epochs, or origins, of which each is measured, rather than halves of them: that takes little longer, and
finds the worst one also where others have done harm."""

MOST_CULPRITS = 8
"""Origins that are looked for one after another."""

SHARE = 0.5
"""Share of an epoch's rise of the loss that may be left without the origins that are found: else it was not
they alone."""

LITTLE = 0.1
"""Share of the rise below which an origin's part of it is not looked for: much is chance, and honest work may
do a little harm, too."""

WORST = 1e30
"""A loss in place of one that is no number."""

T = TypeVar("T")


def sound(loss: float) -> float:
    """Return a loss that can be compared."""
    return min(loss, WORST) if not math.isnan(loss) else WORST


def raised(good: int, bad: int, loss: Callable[[int], float]) -> int | None:
    """Return the epoch after `good`, and `bad` at the latest, which has raised the loss most; None if that is
    no higher after `bad` than after `good`.

    Of many, by halves: the one at which the loss passes the middle between both ends.
    """
    if not sound(loss(bad)) > sound(loss(good)):
        return None
    if bad - good <= FEW:
        losses = [sound(loss(epoch)) for epoch in range(good, bad + 1)]
        return max(range(1, len(losses)), key=lambda n: losses[n] - losses[n - 1]) + good
    middle = (sound(loss(good)) + sound(loss(bad))) / 2
    while bad - good > 1:
        between = (good + bad) // 2
        if sound(loss(between)) < middle:
            good = between
        else:
            bad = between
    return bad


def culprits(
    origins: Sequence[T], before: float, after: float, without: Callable[[frozenset[T]], float]
) -> list[tuple[T, float]]:
    """Return origins without which at most SHARE of an epoch's rise from `before` to `after` is left, each
    with the loss without it and those found before it; none if it takes more of them than all that are found.

    `without` measures the loss without what some origins have brought in the epoch.
    """
    found: list[tuple[T, float]] = []
    rise = sound(after) - sound(before)
    left = sound(after)
    while left - sound(before) > LITTLE * rise and len(found) < min(MOST_CULPRITS, len(origins)):
        gone = frozenset(origin for origin, _ in found)
        worst, loss = _worst([one for one in origins if one not in gone], gone, without)
        if left - loss < LITTLE * rise:
            break
        found.append((worst, loss))
        left = loss
    return found if left - sound(before) <= SHARE * rise else []


def _worst(
    origins: Sequence[T], gone: frozenset[T], without: Callable[[frozenset[T]], float]
) -> tuple[T, float]:
    """Return the origin without which the loss is least, and that loss: of many, in the half without which it
    is less."""
    while len(origins) > FEW:
        halves = origins[: len(origins) // 2], origins[len(origins) // 2 :]
        origins = min(halves, key=lambda half: sound(without(gone | frozenset(half))))
    losses = {origin: sound(without(gone | {origin})) for origin in origins}
    worst = min(origins, key=lambda origin: losses[origin])
    return worst, losses[worst]

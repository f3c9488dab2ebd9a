"""The health of a run, as the results on the validation rows tell it.

Everybody who has the control feed comes to the same verdict. What to show of it is for the views.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from sfnode.schema.evaluation import Evaluation
from sfprotocol.decisions import Decision, Evaluated, Void

BASE = "base "
"""Beginning of the metric's name where the base model was measured: `base accuracy`."""

LOWER_IS_BETTER = frozenset({"perplexity"})

_UNIT = 1_000_000
_MOST = 1 << 62
"""The largest number that stands for an infinite end of an interval: fits 64 bits with its sign."""


class Health(Enum):
    """The state of a run's model."""

    OK = "nothing speaks against it"
    WORSE = "significantly worse than it was"


class Verdict(NamedTuple):
    """The health of a run, and what speaks for it."""

    health: Health
    latest: Evaluated | None = None
    base: Evaluated | None = None
    best: Evaluated | None = None
    worse_than: tuple[Evaluated, ...] = ()
    """Those of `base` and `best` than which `latest` is significantly worse."""


def published(epoch: int, result: Evaluation, *, base: bool = False) -> Evaluated | None:
    """Return a result as a decision, rounded to 10^-6; None if it is not a number."""
    numbers = result.value, result.low, result.high, result.loss
    if any(map(math.isnan, numbers)):
        return None
    value, low, high, loss = (round(max(-_MOST, min(_MOST, _UNIT * number))) for number in numbers)
    return Evaluated(epoch, BASE * base + result.metric, value, low, high, loss, result.count)


def verdict(decisions: Iterable[Decision]) -> Verdict:
    """Return the health of a run after these decisions.

    Worse means that the two 95 % intervals do not touch: both are of the same rows, so this is cautious. What
    was measured of epochs that were then voided, or later, does not count: those models are gone.
    """
    base: Evaluated | None = None
    results: list[Evaluated] = []
    for decision in decisions:
        match decision:
            case Evaluated() if decision.metric.startswith(BASE):
                base = decision
            case Evaluated():
                results.append(decision)
            case Void(first=first):
                results = [result for result in results if result.epoch < first]
    if not results:
        return Verdict(Health.OK, base=base)
    latest = max(results, key=lambda result: result.epoch)
    results = [result for result in results if result.metric == latest.metric]
    if base and base.metric != BASE + latest.metric:
        base = None
    best = max(results, key=lambda result: (_goodness(latest.metric, result.value), result.epoch))
    worse_than = tuple(other for other in (base, best) if other and _worse(latest, other))
    return Verdict(Health.WORSE if worse_than else Health.OK, latest, base, best, worse_than)


def _goodness(metric: str, value: int) -> int:
    return -value if metric in LOWER_IS_BETTER else value


def _worse(one: Evaluated, other: Evaluated) -> bool:
    if one.metric in LOWER_IS_BETTER:
        return one.low > other.high
    return one.high < other.low

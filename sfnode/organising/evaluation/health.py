"""The health of a run, as the results on the validation rows tell it.

Everybody who has the control feed comes to the same verdict. What to show of it is for the views.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from sfnode.schema.evaluation import Evaluation
from sfnode.schema.metrics import metric_of
from sfnode.schema.node_state import RunHealth
from sfprotocol.decisions import Decision, Evaluated, Void

BASE = "base "
"""Beginning of the metric's name where the base model was measured: `base accuracy`."""

CALIBRATED = "calibrated "
"""Beginning of the name where the prior over the answers was subtracted: `calibrated base accuracy`."""

_UNIT = 1_000_000
_MOST = 1 << 62
"""The largest number that stands for an infinite end of an interval: fits 64 bits with its sign."""


class Verdict(NamedTuple):
    """The health of a run, and what speaks for it."""

    health: RunHealth
    latest: Evaluated | None = None
    base: Evaluated | None = None
    best: Evaluated | None = None
    worse_than: tuple[Evaluated, ...] = ()
    """Those of `base` and `best` than which `latest` is significantly worse."""
    calibrated: Evaluated | None = None
    """The base model less its prior, for comparison."""

    @property
    def no_gain(self) -> bool:
        """Whether even the best seal is no better than the base model, beyond noise."""
        if self.health is not RunHealth.NO_BETTER or self.best is None or self.base is None:
            return False
        return not is_worse(self.base, self.best)

    @property
    def first_suspect(self) -> int:
        """The first epoch whose seal may have made the model worse: that after the best, or any if even the
        best is worse than the base model."""
        return (
            0 if self.best is None or (self.base and is_worse(self.best, self.base)) else self.best.epoch + 1
        )


def published(epoch: int, result: Evaluation, *, base: bool = False) -> Evaluated:
    """Return a result as a decision, rounded to 10^-6. What is not a number is told as the worst there is: a
    model that has diverged must not look like one that nobody has evaluated."""
    worst = math.inf if metric_of(result.metric).lower_is_better else 0.0
    value, low, high = (_fixed(number, worst) for number in (result.value, result.low, result.high))
    loss = _fixed(result.loss, math.inf)
    metric = CALIBRATED * result.calibrated + BASE * base + result.metric
    return Evaluated(epoch, metric, value, low, high, loss, result.count)


def is_base(said: Evaluated) -> bool:
    """Return whether a published result is of the base model."""
    return said.metric.removeprefix(CALIBRATED).startswith(BASE)


def metric_of_base(metric: str) -> str:
    """Return the metric under which the base model's result stands that such a result compares with."""
    return CALIBRATED * metric.startswith(CALIBRATED) + BASE + _bare(metric)


def _bare(metric: str) -> str:
    return metric.removeprefix(CALIBRATED).removeprefix(BASE)


def _fixed(number: float, worst: float) -> int:
    number = worst if math.isnan(number) else number
    return round(max(-_MOST, min(_MOST, _UNIT * number)))


def measured(said: Evaluated) -> Evaluation:
    """Return a published result as a measurement, of the metric without CALIBRATED and BASE."""
    value, low, high, loss = (
        math.copysign(math.inf, number) if abs(number) >= _MOST else number / _UNIT
        for number in (said.value, said.low, said.high, said.loss)
    )
    calibrated = said.metric.startswith(CALIBRATED)
    return Evaluation(
        metric=_bare(said.metric),
        value=value,
        low=low,
        high=high,
        loss=loss,
        count=said.rows,
        calibrated=calibrated,
    )


def in_words(said: Evaluated) -> str:
    """Return a published result for people, such as `accuracy 0.610 (0.581-0.642) of epoch 7`."""
    of = "the base model" if is_base(said) else f"epoch {said.epoch}"
    return f"{figure(measured(said))} of {of}"


def figure(result: Evaluation) -> str:
    """Return a result for people, such as `accuracy 0.610 (0.581-0.642)`."""
    return f"{metric_of(result.metric).name} {result.value:.3f} ({result.low:.3f}-{result.high:.3f})"


def verdict(decisions: Iterable[Decision]) -> Verdict:
    """Return the health of a run after these decisions.

    Worse means that the two 95 % intervals do not touch: both are of the same rows, so this is cautious. What
    was measured of epochs that were then voided, or later, does not count: those models are gone. Nor does
    what is told of a voided epoch after that: its evaluation was under way.
    """
    bases: dict[str, Evaluated] = {}
    results: list[Evaluated] = []
    voided: list[Void] = []
    for decision in decisions:
        match decision:
            case Evaluated() if is_base(decision):
                bases[decision.metric] = decision
            case Evaluated(epoch=epoch):
                if not any(void.first <= epoch <= void.last for void in voided):
                    results.append(decision)
            case Void(first=first):
                voided.append(decision)
                results = [result for result in results if result.epoch < first]
    if not results:
        return Verdict(RunHealth.UNKNOWN, base=next(iter(bases.values()), None))
    latest = max(results, key=lambda result: result.epoch)
    results = [result for result in results if result.metric == latest.metric]
    calibrated = bases.get(CALIBRATED + BASE + _bare(latest.metric))
    base = bases.get(metric_of_base(latest.metric))
    best = max(results, key=lambda result: (_goodness(latest.metric, result.value), result.epoch))
    worse_than = tuple(other for other in (base, best) if other and is_worse(latest, other))
    if worse_than:
        health = RunHealth.WORSE
    elif base is None:
        health = RunHealth.UNKNOWN
    else:
        health = RunHealth.BETTER if is_worse(base, latest) else RunHealth.NO_BETTER
    return Verdict(health, latest, base, best, worse_than, calibrated)


def _goodness(metric: str, value: int) -> int:
    return -value if metric_of(_bare(metric)).lower_is_better else value


def is_worse(one: Evaluated, other: Evaluated) -> bool:
    """Return whether one result is worse than another of the same rows: their intervals do not touch."""
    if metric_of(_bare(one.metric)).lower_is_better:
        return one.low > other.high
    return one.high < other.low

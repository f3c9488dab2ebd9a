"""The health of a run, judged from the results on the validation rows.

All nodes with the same control feed come to the same verdict. Views decide how much of it to show.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sfnode.schema.measurements import Evaluation
from sfnode.schema.metrics import measure_of, metric_of
from sfnode.schema.node_state import RunHealth
from sfnode.schema.organising import EpochEvaluation
from sfprotocol.decisions import Decision, Evaluated

BASE = "base "
"""Prefix of a metric's name for results of the base model: `base accuracy`."""

CALIBRATED = "calibrated "
"""Prefix of a metric's name for results from which the prior over the answers was subtracted: `calibrated
base accuracy`."""

_UNIT = 1_000_000
_MOST = 1 << 62
"""Number that stands for infinity in a decision. With its sign it fits into 64 bits."""


class HealthVerdict(NamedTuple):
    """Health of a run, with the results from which it follows."""

    health: RunHealth
    latest: EpochEvaluation | None = None
    bases: tuple[EpochEvaluation, ...] = ()
    """Results of the base model in the metric of `latest`: uncalibrated and calibrated, as far as they were
    measured."""
    best: EpochEvaluation | None = None
    worse_than: tuple[EpochEvaluation, ...] = ()
    """Those results of `base` and `best` that are significantly better than `latest`."""

    @property
    def base(self) -> EpochEvaluation | None:
        """Result of the base model that can be compared with `latest`: in the same metric, and calibrated
        only if `latest` is."""
        measure = measure_of(self.latest) if self.latest else None
        return next((one for one in self.bases if measure in (None, measure_of(one))), None)

    @property
    def calibrated(self) -> EpochEvaluation | None:
        """Result of the calibrated base model, for comparison."""
        return next((one for one in self.bases if one.calibrated), None)

    @property
    def no_gain(self) -> bool:
        """Whether no gain can be seen: even the best seal's value is inside the base model's confidence
        interval, or worse than that interval."""
        best, base = self.best, self.base
        if self.health is not RunHealth.NO_BETTER or best is None or base is None:
            return False
        return best.value >= base.low if metric_of(best.metric).lower_is_better else best.value <= base.high

    @property
    def first_suspect(self) -> int:
        """First epoch whose seal may have made the model worse: the epoch after the best one, or 0 if even
        the best seal is worse than the base model."""
        return (
            0 if self.best is None or (self.base and is_worse(self.best, self.base)) else self.best.epoch + 1
        )


def published(epoch: int, result: Evaluation, *, base: bool = False) -> Evaluated:
    """Return the decision that publishes a result, rounded to 10^-6. NaN becomes the worst possible value, so
    that a model that has diverged does not look like a model that was not evaluated."""
    worst = math.inf if metric_of(result.metric).lower_is_better else 0.0
    value, low, high = (_fixed(number, worst) for number in (result.value, result.low, result.high))
    loss = _fixed(result.loss, math.inf)
    metric = CALIBRATED * result.calibrated + BASE * base + result.metric
    return Evaluated(epoch, metric, value, low, high, loss, result.count)


def _fixed(number: float, worst: float) -> int:
    number = worst if math.isnan(number) else number
    return round(max(-_MOST, min(_MOST, _UNIT * number)))


def evaluation(said: Evaluated) -> EpochEvaluation:
    """Return a published result as an evaluation. Only this function reads from a metric's name which model
    was measured (SPEC O2)."""
    value, low, high, loss = (
        math.copysign(math.inf, number) if abs(number) >= _MOST else number / _UNIT
        for number in (said.value, said.low, said.high, said.loss)
    )
    named = said.metric.removeprefix(CALIBRATED)
    return EpochEvaluation(
        metric=named.removeprefix(BASE),
        value=value,
        low=low,
        high=high,
        loss=loss,
        count=said.rows,
        calibrated=said.metric.startswith(CALIBRATED),
        epoch=said.epoch,
        base=named.startswith(BASE),
    )


def evaluations(decisions: Iterable[Decision]) -> list[EpochEvaluation]:
    """Return all results that these decisions publish, in order."""
    return [evaluation(said) for said in decisions if isinstance(said, Evaluated)]


def verdict(
    bases: Mapping[tuple[str, bool], EpochEvaluation], seals: Sequence[EpochEvaluation]
) -> HealthVerdict:
    """Return the health of a run.

    `bases`: results of the base model, keyed by metric and whether they are calibrated. `seals`: results of
    the seals that were not taken back, all in one metric, and all or none calibrated. A result is worse than
    another if their 95 % intervals do not touch. This is cautious, as both results are of the same rows.
    """
    if not seals:
        return HealthVerdict(RunHealth.UNKNOWN, bases=tuple(bases.values()))
    latest = max(seals, key=lambda result: result.epoch)
    best = max(seals, key=lambda result: (_goodness(result), result.epoch))
    alike = (bases.get((latest.metric, calibrated)) for calibrated in (False, True))
    found = HealthVerdict(RunHealth.UNKNOWN, latest, tuple(filter(None, alike)), best)
    worse_than = tuple(other for other in (found.base, best) if other and is_worse(latest, other))
    if worse_than:
        return found._replace(health=RunHealth.WORSE, worse_than=worse_than)
    if found.base is None:
        return found
    return found._replace(health=RunHealth.BETTER if is_worse(found.base, latest) else RunHealth.NO_BETTER)


def _goodness(result: Evaluation) -> float:
    return -result.value if metric_of(result.metric).lower_is_better else result.value


def is_worse(one: Evaluation, other: Evaluation) -> bool:
    """Return whether `one` is worse than `other`, a result on the same rows: whether the whole interval of
    `one` is worse than that of `other`."""
    if metric_of(one.metric).lower_is_better:
        return one.low > other.high
    return one.high < other.low

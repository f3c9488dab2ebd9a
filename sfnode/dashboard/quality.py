"""Whether a run's model gets better: figures and a sentence, the same in the terminal and in the browser.

Of an organised run from what its organiser has published, of an open one from the evaluations that this node
was asked for. Knows neither terminal nor browser, and needs no library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sfnode.dashboard.formatting import count, figure
from sfnode.dashboard.snapshot import HEALTH_MOODS, Words, base_of
from sfnode.schema.node_state import LOWER_IS_BETTER, RunHealth

if TYPE_CHECKING:
    from sfnode.schema import Evaluation, NodeEvaluation, Status
    from sfnode.schema.organising import EpochEvaluation

BEFORE = "before training"

LEADS = {
    RunHealth.BETTER: "Getting better",
    RunHealth.NO_BETTER: "No better yet",
    RunHealth.WORSE: "WORSE",
    RunHealth.UNKNOWN: "Not compared yet",
}
"""Beginnings of the sentence."""


@dataclass(frozen=True, slots=True)
class Point:
    """A measurement of one model, with its 95 % confidence interval."""

    x: int
    """Epoch of an organised run; else updates in the model."""
    value: float
    low: float
    high: float
    count: int
    """Rows."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A result that the others are compared with."""

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Quality:
    """The quality of a run's model."""

    headline: Words
    metric: str | None
    """None while nothing was measured."""
    across: str
    """`epoch` or `updates`."""
    compared: list[Reference]
    """The base model as it is compared, first; then, where that is another one, as it is."""
    now: Point | None
    best: Point | None
    points: list[Point]
    """Oldest first."""


def of_run(s: Status, evaluations: Sequence[EpochEvaluation] = ()) -> Quality:
    """Return the quality of an organised run's model, by results on its validation rows."""
    assert s.organised is not None
    health = s.organised.health
    base, latest, best = health.base, health.latest, health.best
    told = {m.epoch: m for m in evaluations if not m.base and (latest is None or m.metric == latest.metric)}
    points = [_point(told[epoch], epoch) for epoch in sorted(told)]
    plain = [m for m in evaluations if m.base and (base is None or m.calibrated != base.calibrated)]
    compared = [_reference(BEFORE, base)] if base else []
    compared += [
        _reference("uncalibrated" if base and base.calibrated else "calibrated", m) for m in plain[-1:]
    ]
    if latest is None:
        early = "no epoch is sealed yet" if not s.organised.sealed else "nothing was evaluated so far"
        words = Words(f"Too early to tell: {early}.")
    else:
        verdict = RunHealth(health.verdict)
        worse_than_base = base is not None and any(m.base for m in health.worse_than)
        lead = LEADS[verdict]
        if verdict is RunHealth.WORSE:
            lead += " than before training" if worse_than_base else " than it was"
        other_best = best if best and best.epoch != latest.epoch else None
        where = f"epoch {other_best.epoch}" if other_best else ""
        words = Words(_sentence(lead, latest, base, other_best, where), HEALTH_MOODS[verdict])
    return Quality(
        headline=words,
        metric=latest.metric if latest else None,
        across="epoch",
        compared=compared,
        now=_point(latest, latest.epoch) if latest else None,
        best=_point(best, best.epoch) if best else None,
        points=points,
    )


def of_node(s: Status, measurements: Sequence[NodeEvaluation]) -> Quality:
    """Return the quality of the model by the evaluations that this node was asked for, on test rows."""
    ours = [m for m in measurements if not m.base]
    if not ours:
        asks = "ask a trainer to measure it" if s.role == "relay" else "measure it here"
        words = Words(f"Not measured: nobody judges an open run; {asks}.")
        return Quality(
            headline=words, metric=None, across="updates", compared=[], now=None, best=None, points=[]
        )
    latest = ours[-1]
    alike = [m for m in ours if (m.metric, m.calibrated) == (latest.metric, latest.calibrated)]
    better = min if latest.metric in LOWER_IS_BETTER else max
    best = better(alike, key=lambda m: m.value)
    base = base_of(measurements, calibrated=latest.calibrated) or base_of(measurements)
    verdict = _verdict(latest, base)
    other_best = best if best.known != latest.known else None
    where = f"{count(best.known)} updates"
    lead = LEADS[verdict] + (" than before training" if verdict is RunHealth.WORSE else "")
    words = Words(_sentence(lead, latest, base, other_best, where), HEALTH_MOODS[verdict])
    return Quality(
        headline=words,
        metric=latest.metric,
        across="updates",
        compared=[_reference(BEFORE, base)] if base else [],
        now=_point(latest, latest.known),
        best=_point(best, best.known),
        points=[_point(m, m.known) for m in sorted(alike, key=lambda m: m.known)],
    )


def quality(
    s: Status, measurements: Sequence[NodeEvaluation], evaluations: Sequence[EpochEvaluation] = ()
) -> Quality:
    """Return the quality of the model of whatever kind of run."""
    return of_run(s, evaluations) if s.organised else of_node(s, measurements)


def _verdict(latest: Evaluation, base: Evaluation | None) -> RunHealth:
    """Compare two measurements: intervals that do not touch differ beyond noise."""
    if base is None:
        return RunHealth.UNKNOWN
    low, high = latest.low > base.high, latest.high < base.low
    if latest.metric in LOWER_IS_BETTER:
        low, high = high, low
    return RunHealth.BETTER if low else RunHealth.WORSE if high else RunHealth.NO_BETTER


def _sentence(
    lead: str, latest: Evaluation, base: Evaluation | None, best: Evaluation | None, where: str
) -> str:
    parts = [f"{latest.metric.replace('_', ' ')} {figure(latest)} now"]
    parts += [f"{figure(base)} {BEFORE}"] if base else []
    parts += [f"{best.value:.3f} at best ({where})"] if best else []
    return f"{lead}: {', '.join(parts)}."


def _point(found: Evaluation, x: int) -> Point:
    return Point(x=x, value=found.value, low=found.low, high=found.high, count=found.count)


def _reference(name: str, found: Evaluation) -> Reference:
    return Reference(name=name, value=found.value, low=found.low, high=found.high)

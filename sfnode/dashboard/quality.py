"""Whether a run's model gets better: figures and a sentence, the same in the terminal, in the browser and on
the published page.

Of an organised run from what its organiser has published, of an open one from the evaluations that this node
was asked for. Knows neither terminal nor browser, and needs no library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sfnode.dashboard.formatting import count, figure, measured
from sfnode.dashboard.snapshot import Mood, Words, base_of
from sfnode.schema.metrics import LOSS, metric_of
from sfnode.schema.node_state import NodeState, RunHealth

if TYPE_CHECKING:
    from sfnode.schema import Evaluation, NodeEvaluation, Status
    from sfnode.schema.organising import EpochEvaluation

BEFORE = "before training"

STALE = 6
"""Evaluations without a new best after which nothing says any more that the model is still getting better."""

UNJUDGED = "Not measured: nobody judges an open run"
"""Verdict on the model of an open run of which no figure is known."""


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
    name: str
    """The metric for people; empty while nothing was measured."""
    across: str
    """`epoch` or `updates`."""
    compared: list[Reference]
    """The base model as it is compared, first; then, where that is another one, as it is."""
    now: Point | None
    best: Point | None
    points: list[Point]
    """Oldest first."""
    beside: str = ""
    """Sentence on what is trained, if it says anything: `Mean reward 0.922 now, 0.316 before training.`"""


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
    since = sum(point.x > best.epoch for point in points) if best else STALE
    words = verdict(RunHealth(health.verdict), latest, base, since_best=since, complete=_ended(s))
    if latest is None:
        early = "no epoch is sealed yet" if not s.organised.sealed else "nothing was evaluated so far"
        words = words._replace(text=f"{words.text}: {early}.")
    else:
        other_best = best if best and best.epoch != latest.epoch else None
        where = f"epoch {other_best.epoch}" if other_best else ""
        words = words._replace(text=_sentence(words.text, latest, base, other_best, where))
    return Quality(
        headline=words,
        metric=latest.metric if latest else None,
        name=metric_of(latest.metric).name if latest else "",
        across="epoch",
        compared=compared,
        now=_point(latest, latest.epoch) if latest else None,
        best=_point(best, best.epoch) if best else None,
        points=points,
        beside=beside(latest, base),
    )


def of_node(s: Status, measurements: Sequence[NodeEvaluation]) -> Quality:
    """Return the quality of the model by the evaluations that this node was asked for, on test rows."""
    ours = [m for m in measurements if not m.base]
    if not ours:
        asks = "ask a trainer to measure it" if s.role == "relay" else "measure it here"
        words = Words(f"{UNJUDGED}; {asks}.")
        return Quality(
            headline=words,
            metric=None,
            name="",
            across="updates",
            compared=[],
            now=None,
            best=None,
            points=[],
        )
    latest = ours[-1]
    alike = [m for m in ours if (m.metric, m.calibrated) == (latest.metric, latest.calibrated)]
    better = min if metric_of(latest.metric).lower_is_better else max
    best = better(alike, key=lambda m: m.value)
    base = base_of(measurements, calibrated=latest.calibrated) or base_of(measurements)
    since = sum(m.known > best.known for m in alike)
    words = verdict(_compared(latest, base), latest, base, since_best=since, complete=_ended(s))
    other_best = best if best.known != latest.known else None
    where = f"{count(best.known)} updates"
    words = words._replace(text=_sentence(words.text, latest, base, other_best, where))
    return Quality(
        headline=words,
        metric=latest.metric,
        name=metric_of(latest.metric).name,
        across="updates",
        compared=[_reference(BEFORE, base)] if base else [],
        now=_point(latest, latest.known),
        best=_point(best, best.known),
        points=[_point(m, m.known) for m in sorted(alike, key=lambda m: m.known)],
        beside=beside(latest, base),
    )


def quality(
    s: Status, measurements: Sequence[NodeEvaluation], evaluations: Sequence[EpochEvaluation] = ()
) -> Quality:
    """Return the quality of the model of whatever kind of run."""
    return of_run(s, evaluations) if s.organised else of_node(s, measurements)


def verdict(
    health: RunHealth,
    latest: Evaluation | None,
    base: Evaluation | None,
    *,
    since_best: int,
    complete: bool,
) -> Words:
    """Return the words that say whether a model gets better, the same wherever they are shown.

    `since_best` is the number of evaluations since the best one; `complete`: nothing more is to come.
    """
    if latest is None:
        return Words("Too early to tell")
    match health:
        case RunHealth.BETTER:
            rises = "" if complete or since_best >= STALE else ", and still getting better"
            return Words(f"Better than the base model{rises}", Mood.GOOD)
        case RunHealth.NO_BETTER:
            return Words(f"No better than the base model{'' if complete else ' yet'}", Mood.WARN)
        case RunHealth.UNKNOWN:
            return Words("Not compared with the base model yet")
    match _compared(latest, base):
        case RunHealth.BETTER:
            return Words("Better than the base model, but below its best", Mood.WARN)
        case RunHealth.WORSE:
            return Words("Worse than the base model", Mood.BAD)
        case _:
            return Words("Worse than it was", Mood.BAD)


def _ended(s: Status) -> bool:
    return s.state == NodeState.COMPLETE


def _compared(latest: Evaluation, base: Evaluation | None) -> RunHealth:
    """Compare two results: intervals that do not touch differ beyond noise."""
    if base is None:
        return RunHealth.UNKNOWN
    low, high = latest.low > base.high, latest.high < base.low
    if metric_of(latest.metric).lower_is_better:
        low, high = high, low
    return RunHealth.BETTER if low else RunHealth.WORSE if high else RunHealth.NO_BETTER


def _sentence(
    lead: str, latest: Evaluation, base: Evaluation | None, best: Evaluation | None, where: str
) -> str:
    parts = [f"{measured(latest)} now"]
    parts += [f"{figure(base)} {BEFORE}"] if base else []
    parts += [f"{best.value:.3f} at best ({where})"] if best else []
    return f"{lead}: {', '.join(parts)}."


def beside(latest: Evaluation | None, base: Evaluation | None) -> str:
    """Say what is trained, where people understand it: rewards, but no nats."""
    trained = metric_of(latest.metric).trained if latest else LOSS
    if latest is None or not trained.rises:
        return ""
    before = f", {trained.of(base.loss):.3f} {BEFORE}" if base else ""
    return f"{trained.name} {trained.of(latest.loss):.3f} now{before}.".capitalize()


def _point(found: Evaluation, x: int) -> Point:
    return Point(x=x, value=found.value, low=found.low, high=found.high, count=found.count)


def _reference(name: str, found: Evaluation) -> Reference:
    return Reference(name=name, value=found.value, low=found.low, high=found.high)

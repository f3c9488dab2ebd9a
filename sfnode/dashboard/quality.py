"""The quality of a run's model: figures and a sentence, the same in the terminal, in the browser and on the
published page.

For an organised run, quality is based on the organiser's published results, for an open run on this node's
evaluations. Independent of terminal and browser; needs no library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sfnode.dashboard.formatting import count
from sfnode.dashboard.snapshot import Mood, Words, base_of
from sfnode.schema.metrics import LOSS, better_by, figure, measure_of, measured, metric_of, value_in_words
from sfnode.schema.node_state import NodeState, RunHealth

if TYPE_CHECKING:
    from sfnode.schema.measurements import Evaluation, NodeEvaluation
    from sfnode.schema.organising import EpochEvaluation
    from sfnode.schema.status import Status

BEFORE = "before training"


UNJUDGED = "Not measured: nobody judges an open run"
"""Verdict on the model of an open run without evaluations."""


@dataclass(frozen=True, slots=True)
class Point:
    """A measurement of one model, with its 95 % confidence interval."""

    x: int
    """Position on the x-axis: in an organised run the epoch, in an open run the number of updates in the
    model."""
    value: float
    low: float
    high: float
    count: int
    """Number of rows on which the model was evaluated."""
    name: str = ""
    """Name of a result of the base model, such as `before training`; empty for a result of the trained
    model."""


@dataclass(frozen=True, slots=True)
class Quality:
    """The quality of a run's model."""

    across: str
    """Unit of the x-axis, `round` or `updates`."""
    compared: list[Point]
    """Results of the base model, at most two: calibrated (with its prior over the answers subtracted) and
    uncalibrated, in either order. `compared[0]` is calibrated exactly if the trained model's results are,
    where there is such a result."""
    now: Point | None
    best: Point | None
    points: list[Point]
    """Results of the trained model, in ascending order of `x`."""
    headline: Words
    metric: str | None = None
    """Metric of the points. Before the first measurement it is None, and `name` is empty."""
    name: str = ""
    """Name of the metric, for people."""
    is_share: bool = False
    """Whether the metric's values are shown in per cent."""
    beside: str = ""
    """Sentence on the mean reward: `Mean reward 0.922 now, 0.316 before training.` Empty unless it is a
    reward run."""


def of_run(s: Status, evaluations: Sequence[EpochEvaluation] = ()) -> Quality:
    """Return the quality of an organised run's model, from results on its validation rows."""
    assert s.organised is not None
    health = s.organised.health
    base, latest = health.base, health.latest
    alike = [m for m in evaluations if latest is None or measure_of(m) == measure_of(latest)]
    told = {m.epoch: m for m in alike if not m.base}
    points = [_point(told[epoch], epoch) for epoch in sorted(told)]
    plain = [m for m in evaluations if m.base and (base is None or m.calibrated != base.calibrated)]
    other = "uncalibrated" if base and base.calibrated else "calibrated"
    now, best = (_point(m, m.epoch) if m else None for m in (latest, health.best))
    found = Quality("round", [_point(m, 0, other) for m in plain[-1:]], now, best, points, Words(""))
    early = "nothing was evaluated so far" if s.organised.sealed else "no round counts yet"
    return _told(s, found, RunHealth(health.verdict), latest, base, early)


def of_node(s: Status, measurements: Sequence[NodeEvaluation]) -> Quality:
    """Return the quality of an open run's model, from this node's evaluations on test rows."""
    ours = [m for m in measurements if not m.base]
    if not ours:
        asks = "ask a trainer to measure it" if s.role == "relay" else "measure it here"
        return Quality("updates", [], None, None, [], Words(f"{UNJUDGED}; {asks}."))
    latest = ours[-1]
    alike = [m for m in ours if measure_of(m) == measure_of(latest)]
    better = min if metric_of(latest.metric).lower_is_better else max
    base = base_of(measurements, calibrated=latest.calibrated) or base_of(measurements)
    points = [_point(m, m.known) for m in sorted(alike, key=lambda m: m.known)]
    best = better(alike, key=lambda m: m.value)
    now, then = _point(latest, latest.known), _point(best, best.known)
    found = Quality("updates", [], now, then, points, Words(""))
    return _told(s, found, compare(latest, base), latest, base)


def _told(
    s: Status,
    found: Quality,
    health: RunHealth,
    latest: Evaluation | None,
    base: Evaluation | None,
    early: str = "",
) -> Quality:
    """Return `found`, completed with its headline and the base model's results. The headline is a sentence on
    the result `latest`. If that is None, the sentence gives the reason, `early`."""
    compared = [*([_point(base, 0, BEFORE)] if base else []), *found.compared]
    course = [one.value for one in (*compared[:1], *found.points)]
    if latest is None:
        words = verdict(health, latest, base, rises=False)
        return replace(found, compared=compared, headline=Words(f"{words.text}: {early}.", words.mood))
    noise = (latest.high - latest.low) / 2
    rises = s.state != NodeState.COMPLETE and still_rises(latest.metric, course, noise)
    words = verdict(health, latest, base, rises=rises)
    parts = [f"{measured(latest)} now"]
    parts += [f"{figure(base)} {BEFORE}"] if base else []
    if (best := found.best) and found.now and best.x != found.now.x:
        where = f"round {best.x}" if found.across == "round" else f"{count(best.x)} updates"
        parts.append(f"{value_in_words(latest.metric, best.value)} at best ({where})")
    metric = metric_of(latest.metric)
    return replace(
        found,
        compared=compared,
        headline=Words(f"{words.text}: {', '.join(parts)}.", words.mood),
        metric=latest.metric,
        name=metric.name,
        is_share=metric.is_share,
        beside=beside(latest, base),
    )


def quality(
    s: Status, measurements: Sequence[NodeEvaluation], evaluations: Sequence[EpochEvaluation] = ()
) -> Quality:
    """Return the quality of the model of a run, organised or open."""
    return of_run(s, evaluations) if s.organised else of_node(s, measurements)


def verdict(health: RunHealth, latest: Evaluation | None, base: Evaluation | None, *, rises: bool) -> Words:
    """Return a sentence on whether a model is better than before training, the same in every view.

    `rises`: whether the results still get better, and the run is not complete.
    """
    if latest is None:
        return Words("Too early to tell")
    match health:
        case RunHealth.BETTER:
            still = ", and still getting better" if rises else ""
            return Words(f"{_by(latest, base)}{still}", Mood.GOOD)
        case RunHealth.NO_BETTER:
            return Words(f"Not certainly better than {BEFORE}", Mood.WARN)
        case RunHealth.UNKNOWN:
            return Words("Not compared with the base model yet")
    match compare(latest, base):
        case RunHealth.BETTER:
            return Words(f"{_by(latest, base)}, but below its best", Mood.WARN)
        case RunHealth.WORSE:
            return Words(_by(latest, base, "worse"), Mood.BAD)
        case _:
            return Words("Worse than it was", Mood.BAD)


def still_rises(metric: str, course: Sequence[float], noise: float) -> bool:
    """Return whether the results of a model still get better.

    They do if the gain over the last third of `course` exceeds `noise`, such as half the width of a 95 %
    interval. `course` has the results in order, the base model's first.
    """
    if len(course) < 2:
        return False
    gain = course[-1] - course[min(len(course) - 2, 2 * (len(course) - 1) // 3)]
    return (-gain if metric_of(metric).lower_is_better else gain) > noise


def _by(latest: Evaluation, base: Evaluation | None, word: str = "better") -> str:
    """Return `Better by 3.1 points`, or `Better than before training` if the difference cannot be stated.
    `word` replaces `better`."""
    by = better_by(latest.metric, base.value, latest.value) if base else ""
    return (by if by.startswith(word) else f"{word} than {BEFORE}").capitalize()


def compare(latest: Evaluation, base: Evaluation | None) -> RunHealth:
    """Compare two results: better or worse if their intervals do not overlap, otherwise NO_BETTER."""
    if base is None:
        return RunHealth.UNKNOWN
    low, high = latest.low > base.high, latest.high < base.low
    if metric_of(latest.metric).lower_is_better:
        low, high = high, low
    return RunHealth.BETTER if low else RunHealth.WORSE if high else RunHealth.NO_BETTER


def beside(latest: Evaluation | None, base: Evaluation | None) -> str:
    """Return a sentence on the mean reward now and before training. Outside a reward run the text is empty,
    because few people understand a loss."""
    trained = metric_of(latest.metric).trained if latest else LOSS
    if latest is None or not trained.rises:
        return ""
    before = f", {trained.of(base.loss):.3f} {BEFORE}" if base else ""
    return f"{trained.name} {trained.of(latest.loss):.3f} now{before}.".capitalize()


def _point(found: Evaluation, x: int, name: str = "") -> Point:
    return Point(x, found.value, found.low, found.high, found.count, name)

"""Describes metrics, the trained quantity and a node's work in words that are the same in every view.

Imports only the standard library.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from sfnode.printable import span

if TYPE_CHECKING:
    from sfnode.schema.measurements import Drift, Evaluation
    from sfnode.schema.organising import EpochEvaluation
    from sfnode.schema.status import DoingStatus


class Trained(NamedTuple):
    """The quantity that training improves, and how it is shown."""

    name: str
    rises: bool = False
    """Whether the shown quantity is 1 minus the loss, which rises as a model gets better."""

    def of(self, loss: float) -> float:
        """Return the quantity for a loss."""
        return 1 - loss if self.rises else loss


LOSS = Trained("loss")
REWARD = Trained("mean reward", rises=True)
"""Quantity that reward runs train. The loss of a row is 1 minus its reward. This loss is not in nats, and it
is not continuous: one different word in an answer can change it from 0 to 1."""


class Metric(NamedTuple):
    """A metric, and how it is shown."""

    name: str
    is_share: bool = True
    """Whether the metric is between 0 and 1, and shown in per cent."""
    lower_is_better: bool = False
    trained: Trained = LOSS
    meaning: str = ""
    """The meaning of the metric in plain words; empty if its name is enough."""


PASS_AT_1 = "pass_at_1"
"""Name of the metric of reward runs: the share of rows whose greedy answer is right."""

EXPECTS = "how well it expects the right words: 1 is surely, and lower is better"

METRICS = {
    "accuracy": Metric("accuracy"),
    "f1": Metric("F1"),
    "exact_match": Metric("exact match"),
    PASS_AT_1: Metric("right answers (pass@1)", trained=REWARD),
    "perplexity": Metric("perplexity", is_share=False, lower_is_better=True, meaning=EXPECTS),
}


def metric_of(name: str) -> Metric:
    """Return the metric called `name`. For a metric that this version does not know, the result has only the
    name: an organiser with a later version may publish such a metric."""
    return METRICS.get(name) or Metric(name.replace("_", " "), is_share=False)


def measure_of(found: Evaluation) -> tuple[str, bool]:
    """Return the metric of a result, and whether the result is calibrated. Results can be compared only if
    they have the same metric, and are both calibrated or both not."""
    return found.metric, found.calibrated


def value_in_words(metric: str, value: float) -> str:
    """Format a metric's value for people: `52.6 %`, `12.3`."""
    if not math.isfinite(value):
        return "infinite"
    return f"{100 * value:.1f} %" if metric_of(metric).is_share else f"{value:.3g}"


def figure(found: Evaluation) -> str:
    """Return a value with its 95 % confidence interval, such as `52.6 % (49.3-55.9 %)`."""
    value, low, high = (value_in_words(found.metric, one) for one in (found.value, found.low, found.high))
    return f"{value} ({low.removesuffix(' %')}-{high})"


def measured(found: Evaluation) -> str:
    """Return a result in words, such as `accuracy 52.6 % (49.3-55.9 %)`."""
    return f"{metric_of(found.metric).name} {figure(found)}"


CLASSES_SHOWN = 5
"""Maximum number of classes whose figures are shown: those with the worst figures."""

CHANCE = 3.0
"""Number of standard deviations of chi-square above its mean. Beyond this threshold, differences between
classes are not taken for chance."""


def by_class(found: Evaluation) -> str:
    """Return the accuracy of the worst classes if classes differ by more than chance: `by class: complaint
    12.5 % of 8 rows, other 98.2 % of 380 rows`. Otherwise return an empty text.

    The test is Pearson's chi-square of right and wrong answers by class. By chance its mean is the number of
    degrees of freedom, and its variance is twice that number.
    """
    classes = found.by_class
    right, count = sum(one.right for one in classes), sum(one.count for one in classes)
    if len(classes) < 2 or not 0 < right < count:
        return ""
    share, free = right / count, len(classes) - 1
    square = sum((one.right - one.count * share) ** 2 / one.count for one in classes)
    if square / (share * (1 - share)) <= free + CHANCE * math.sqrt(2 * free):
        return ""
    worst = sorted(classes, key=lambda one: (one.right / one.count, one.name))
    told = (f"{one.name} {100 * one.right / one.count:.1f} % of {one.count:,} rows" for one in worst)
    more = ", ..." if len(worst) > CLASSES_SHOWN else ""
    return f"by class: {', '.join(islice(told, CLASSES_SHOWN))}{more}"


TENTH = 0.0005
"""Minimum difference, as a fraction of 1, that is shown. A smaller difference would be rounded to 0.0 %."""


def better_by(metric: str, before: float, after: float) -> str:
    """Return in words how much better or worse the result `after` is than `before`.

    For shares the text has the difference in percentage points, such as `better by 3.1 points`. For other
    values it has the difference relative to `before`, such as `better by 15.0 %`. The text is empty if the
    difference is not a number, too small to show, or above 100 %.
    """
    kind = metric_of(metric)
    gain = after - before if kind.is_share else (after - before) / (abs(before) or math.nan)
    gain = -gain if kind.lower_is_better else gain
    if not TENTH <= abs(gain) <= 1:
        return ""
    unit = "points" if kind.is_share else "%"
    return f"{'worse' if gain < 0 else 'better'} by {100 * abs(gain):.1f} {unit}"


def model_in_words(found: EpochEvaluation) -> str:
    """Return the model of a published result, such as `round 7` or `the calibrated base model`."""
    if found.base:
        return "the calibrated base model" if found.calibrated else "the base model"
    return f"round {found.epoch}"


def result_in_words(found: EpochEvaluation) -> str:
    """Return a published result in words, such as `accuracy 52.6 % (49.3-55.9 %) of round 7`."""
    return f"{measured(found)} of {model_in_words(found)}"


def drift_in_words(drift: Drift) -> str:
    """Describe the drift of a model from its base model, with figures. The text has no KL for a classifier,
    and no relative distance for a head whose weights were zero at first."""
    if math.isinf(drift.distance):
        return moved_in_words(drift.distance)
    moved = f"weights moved by {drift.distance:.3g} of the base's norm"
    if drift.kl is None:
        return moved
    return f"{moved}, KL on neutral text {drift.kl:.3g} nats a token (a nat is 1.44 bits)"


def moved_in_words(distance: float) -> str:
    """Describe the distance of weights from the base model, relative to their norm there: `the weights have
    moved by 12 %`."""
    if math.isinf(distance):
        return "what is trained was zero at first"
    far = f"{100 * distance:.2g} %" if distance <= 1 else "more than they were"
    return f"the weights have moved by {far}"


def trained_by(task: str) -> Trained:
    """Return the quantity that training changes in this kind of task."""
    return REWARD if task == "reward" else LOSS


def kind_in_words(kind: str) -> str:
    """Describe a kind of task for people."""
    if kind == "reward":
        return "answers that the model writes and a program scores"
    return kind.replace("-", " ")


def far(doing: DoingStatus) -> str:
    """Format the progress of a node's work: `1,024 of 4,096`; empty if the progress is unknown."""
    return f"{doing.done:,} of {doing.total:,}" if doing.total else ""


def doing_in_words(doing: DoingStatus) -> str:
    """Describe the work of a node's model, with its progress and its duration: `measuring epoch 3, 12 s`."""
    return ", ".join(filter(None, (doing.what, far(doing), span(doing.seconds))))

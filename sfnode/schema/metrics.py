"""Metrics and what is trained, as people are told of them: one table, which every view reads.

Imports nothing but the standard library.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sfnode.schema.evaluation import Evaluation, PassAt
    from sfnode.schema.organising import EpochEvaluation


class Trained(NamedTuple):
    """The quantity that training changes, as it is shown."""

    name: str
    rises: bool = False
    """Whether it is told as 1 less the loss, which rises as a model gets better."""

    def of(self, loss: float) -> float:
        """Return it by the loss."""
        return 1 - loss if self.rises else loss


LOSS = Trained("loss")
REWARD = Trained("mean reward", rises=True)
"""Metric of reward runs. Losses of rows are 1 less a reward, and not nats; they jump where a word changes."""


class Metric(NamedTuple):
    """A metric, as it is shown."""

    name: str
    is_share: bool = True
    """Whether it is between 0 and 1, and shown in per cent to whom knows nothing of it."""
    lower_is_better: bool = False
    trained: Trained = LOSS


PASS_AT_1 = "pass_at_1"
"""The metric of reward runs: the share of answers that are right, one to a row, of the likeliest tokens."""

METRICS = {
    "accuracy": Metric("accuracy"),
    "f1": Metric("F1"),
    "exact_match": Metric("exact match"),
    PASS_AT_1: Metric("right answers (pass@1)", trained=REWARD),
    "perplexity": Metric("perplexity", is_share=False, lower_is_better=True),
}


class TaskInWords(NamedTuple):
    """A kind of task, as it is shown."""

    name: str
    trained: Trained = LOSS


TASKS = {"reward": TaskInWords("answers that the model writes and a program scores", REWARD)}
"""Kinds of which there is more to say than their names."""


def metric_of(name: str) -> Metric:
    """Return a metric by its name; one that this version does not know, which an organiser may name, has its
    own name and nothing known of it."""
    return METRICS.get(name) or Metric(name.replace("_", " "), is_share=False)


def measure_of(found: Evaluation) -> tuple[str, bool]:
    """Return a result's metric, and whether it is calibrated: results that differ in either cannot
    be compared."""
    return found.metric, found.calibrated


def figure(found: Evaluation | PassAt) -> str:
    """Return a value with its 95 % confidence interval, such as `0.526 (0.493-0.559)`."""
    return f"{found.value:.3f} ({found.low:.3f}-{found.high:.3f})"


def measured(found: Evaluation) -> str:
    """Return a result in words, such as `accuracy 0.526 (0.493-0.559)`."""
    return f"{metric_of(found.metric).name} {figure(found)}"


def model_in_words(found: EpochEvaluation) -> str:
    """Return the model that a published result is about, such as `epoch 7` or `the calibrated base model`."""
    if found.base:
        return "the calibrated base model" if found.calibrated else "the base model"
    return f"epoch {found.epoch}"


def result_in_words(found: EpochEvaluation) -> str:
    """Return a published result in words, such as `accuracy 0.526 (0.493-0.559) of epoch 7`."""
    return f"{measured(found)} of {model_in_words(found)}"


def drift_in_words(distance: float, kl: float | None) -> str:
    """Return the drift of a model from its base, of which some have no KL; a head begins at zero."""
    if math.isinf(distance):
        return "what is trained was zero at first"
    moved = f"weights moved by {distance:.3g} of the base's norm"
    return moved if kl is None else f"{moved}, KL on neutral text {kl:.3g} nats a token"


NO_WORTH = "rewards have no worth in nats"
"""The reason why nothing says what updates of a reward run were worth."""


def trained_by(task: str) -> Trained:
    """Return what a task of this kind trains."""
    return task_of(task).trained


def task_of(kind: str) -> TaskInWords:
    """Return a kind of task."""
    return TASKS.get(kind) or TaskInWords(kind.replace("-", " "))

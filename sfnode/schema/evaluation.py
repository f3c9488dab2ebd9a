"""A measurement of a model on test rows: one type from the task that computes it to the dashboard."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    """A frozen record that survives JSON."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")
    """JSON has no NaN and no infinity: they travel as strings, which fields of type float accept as well."""


class ClassScore(Answer):
    """Right answers among the rows of one class."""

    name: str
    right: int
    count: int


class Evaluation(Answer):
    """Scores of a model on some rows."""

    metric: str
    """accuracy, f1, exact_match (completion, greedily decoded), perplexity (text, chat, long answers of a
    completion) or pass_at_1 (the share of a reward run's answers that are right, greedily decoded)."""
    value: float
    low: float
    """Lower end of the value's 95 % confidence interval."""
    high: float
    """Upper end; infinite for the perplexity of a single row."""
    loss: float
    """Mean loss of the rows in nats, as trained on; of a reward run 1 less the mean reward."""
    count: int
    """Number of rows."""
    calibrated: bool = False
    """Whether the model's prior over the answers was subtracted from their scores (docs/tasks.md)."""
    by_class: tuple[ClassScore, ...] = ()
    """Right answers by class, of the classes that have rows; empty for a task without classes."""

    @property
    def on_rows(self) -> str:
        """The rows for people."""
        return f"on {self.count:,} test rows"


class EvaluationOfRows(Evaluation):
    """An evaluation with what it is the mean of, for comparisons in pairs: nobody else is told."""

    losses: tuple[float, ...] = Field(exclude=True, repr=False)
    """Loss of each row, in the same order whenever the same rows are measured."""


class StepShare(NamedTuple):
    """The share that the updates of a feed have in an epoch's step, by its effect on validation rows.

    With q the scalar of an update, s, i and j its signs and coordinates (SPEC R6), and G the derivatives of
    the validation loss by the entries of every layer's core at the middle of the step that the epoch makes,
    p = sum over layers of s * G[i, j] is the scalar that the validation rows would have given. Of first-order
    updates `sum` is the score, in standard deviations, and `squares` 1.
    """

    updates: int
    sum: float
    """Sum of the roots of |q * p| with the signs of q * p: positive if the scalars agree with the slopes.
    Products have heavy tails, so that a sum of them is mostly a few: with the roots half of the updates say
    as much."""
    squares: float
    """Sum of |q * p|: the variance of `sum` if the signs of the scalars were tosses of a coin."""
    worth: float
    """Nats by which they lower the validation loss with factor 1: the Aumann-Shapley value of the feed in the
    epoch's step, by the midpoint rule. The worths of all feeds add up to the whole step's, to third order."""
    error: float
    """Standard error of `worth` over the validation rows."""


class ProbeEvaluation(Evaluation):
    """Scores of a linear probe on the rows on which a run's model was measured (`engine.probe`)."""

    rows: int
    """Training rows that it was fitted to."""
    lead: float
    """Nats by which its loss is lower than the model's, the mean over the rows."""
    error: float
    """Standard error of the lead."""

    @property
    def better(self) -> bool:
        """Whether it is better than the model by more than the noise of the rows."""
        return self.lead > 2 * self.error


class BaselineEvaluation(Evaluation):
    """Scores on the same rows of what needs no model (`tasks.baselines`)."""

    name: str
    """The commonest label, or TF-IDF with logistic regression."""
    rows: int
    """Training rows that it was fitted to: those of this node, and the run's public ones."""


class LayerDrift(Answer):
    """Drift of the weights of one trained matrix."""

    name: str
    norm: float
    """Frobenius norm of what training has changed."""
    distance: float
    """The same relative to the norm of the base weights."""


class Drift(Answer):
    """Distance of a model from its base (`engine.drift`)."""

    norm: float
    """Frobenius norm of what training has changed, over all trained matrices."""
    distance: float
    """The same relative to the norm of their base weights."""
    kl: float | None
    """Mean of KL(base || model), in nats, over the tokens of a neutral text and of what the base model goes
    on with after each line; None for a classifier."""
    tokens: int
    """Tokens that were predicted; 0 for a classifier."""


class LayeredDrift(Drift):
    """A drift, also of each trained matrix."""

    layers: list[LayerDrift]

    @property
    def whole(self) -> Drift:
        """The drift alone."""
        return Drift(norm=self.norm, distance=self.distance, kl=self.kl, tokens=self.tokens)


class NodeEvaluation(Evaluation):
    """An evaluation that a running node was asked for: also which model it is about, and when."""

    seconds: float
    """Time at which it was finished, in seconds since the start of the node."""
    known: int
    """Updates in the model; 0 for the base model."""
    base: bool
    """Whether the base model was evaluated."""
    digest: str | None
    """State digest (SPEC D3) of the model; of a seal, the core digest of what it counts; None for the base
    model."""
    drift: Drift | None = None
    """Distance of the model from its base; None for the base model."""
    probe: ProbeEvaluation | None = None
    """The linear probe, if it was asked for; None where no linear head alone is trained, and where too few
    states of training rows are kept."""
    baselines: tuple[BaselineEvaluation, ...] = ()
    """Results without a model, if they were asked for; empty for a task without labels."""

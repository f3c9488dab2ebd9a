"""Types of a model's measurements, from the task that computes them to the dashboard that shows them."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    """An immutable record that can be written as JSON and read back."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")
    """Numbers that are not finite are strings in JSON. Fields of type float accept these strings."""


class ClassScore(Answer):
    """Number of right answers among the rows of one class."""

    name: str
    right: int
    count: int


class Evaluation(Answer):
    """Scores of a model on some rows."""

    metric: str
    """Name of the metric: accuracy, f1, exact_match (completion, greedily decoded), perplexity (text, chat,
    long answers of a completion) or pass_at_1 (share of right answers in a reward run, greedily decoded)."""
    value: float
    low: float
    """Lower end of the value's 95 % confidence interval."""
    high: float
    """Upper end of the value's 95 % confidence interval; infinite for the perplexity of a single row."""
    loss: float
    """Mean over the rows of the loss that training minimises, in nats. In a reward run it is 1 minus the mean
    reward."""
    count: int
    """Number of rows."""
    calibrated: bool = False
    """Whether the model's prior over the answers was subtracted from the answers' scores (docs/tasks.md)."""
    by_class: tuple[ClassScore, ...] = ()
    """Number of right answers for each class that has rows; empty for a task without classes."""

    @property
    def on_rows(self) -> str:
        """Number and kind of the rows, in words."""
        return f"on {self.count:,} test rows"


class EvaluationOfRows(Evaluation):
    """An evaluation with the loss of each row, for paired comparisons. The losses are not published."""

    losses: tuple[float, ...] = Field(exclude=True, repr=False)
    """Loss of each row. Evaluations of the same rows have the losses in the same order."""


class StepShare(NamedTuple):
    """The part of an epoch's step that is due to one feed's updates, measured by its effect on validation
    rows.

    q is the scalar of an update; s, i and j are its signs and coordinates (SPEC R6). G has the derivatives of
    the validation loss with respect to the entries of every layer's core, at the middle of the epoch's step
    (at its beginning if the loss is lower there). Then p, the sum of s * G[i, j] over layers, is the scalar
    that the validation rows would have given. For first-order updates `sum` is the score of SPEC O16, in
    standard deviations, and `squares` is 1.
    """

    updates: int
    sum: float
    """Sum over the updates of sqrt(|q * p|), each with the sign of q * p. It is positive if the scalars
    mostly have the signs of the slopes on validation rows. The products q * p have heavy tails, so a few of
    them would dominate a sum without roots. The roots halve the number of updates needed for the same
    certainty."""
    squares: float
    """Sum of |q * p|, which would be the variance of `sum` if the scalars had random signs."""
    worth: float
    """Decrease of the validation loss by the updates with factor 1, in nats. It is the Aumann-Shapley value
    of the feed in the epoch's step, computed with the midpoint rule. The worths of all feeds add up to the
    decrease of the loss by the whole step, with an error of third order in the size of the step."""
    error: float
    """Standard error of `worth` over the validation rows."""


class ProbeEvaluation(Evaluation):
    """Scores of a linear probe on the rows on which a run's model was measured (`engine.probe`)."""

    rows: int
    """Number of training rows to which the probe was fitted."""
    lead: float
    """Mean loss of the model minus mean loss of the probe, in nats; positive if the probe is better."""
    error: float
    """Standard error of `lead`."""

    @property
    def better(self) -> bool:
        """Whether the probe is better than the model by more than two standard errors."""
        return self.lead > 2 * self.error


class BaselineEvaluation(Evaluation):
    """Scores of a baseline that uses no pretrained model, on the test rows of a run (`tasks.baselines`)."""

    name: str
    """Name of the baseline: the commonest label, or TF-IDF with logistic regression."""
    rows: int
    """Number of training rows to which the baseline was fitted. These are this node's own rows and the run's
    public rows."""


class LayerDrift(Answer):
    """Drift of one trained matrix: its distance from the same matrix of the base model."""

    name: str
    norm: float
    """Frobenius norm of the matrix's change by training."""
    distance: float
    """`norm` divided by the norm of this matrix in the base model."""


class Drift(Answer):
    """Distance of a model from its base model (`engine.drift`)."""

    norm: float
    """Frobenius norm of the change by training, over all trained matrices."""
    distance: float
    """`norm` divided by the norm of these matrices in the base model."""
    kl: float | None
    """Mean of KL(base model || model), in nats per token. The tokens are those of some neutral lines of text,
    and of the base model's continuation of each line. None for a classifier."""
    tokens: int
    """Number of predicted tokens over which `kl` is the mean; 0 for a classifier."""


class LayeredDrift(Drift):
    """Drift of a model, in total and for each trained matrix."""

    layers: list[LayerDrift]

    @property
    def whole(self) -> Drift:
        """The drift over all trained matrices, without the list of single matrices."""
        return Drift(norm=self.norm, distance=self.distance, kl=self.kl, tokens=self.tokens)


class NodeEvaluation(Evaluation):
    """An evaluation that a running node made on request, with the evaluated model and the time."""

    seconds: float
    """Time at which the evaluation finished, in seconds since the start of the node."""
    known: int
    """Number of updates in the evaluated model; 0 if `base`."""
    base: bool
    """Whether the base model was evaluated."""
    digest: str | None
    """State digest (SPEC D3) of the model in an open run; in an organised run, core digest (SPEC D5) of the
    updates that the last seal counts; None if `base`."""
    drift: Drift | None = None
    """Distance of the model from its base model; None if `base`."""
    probe: ProbeEvaluation | None = None
    """Result of the linear probe. None if it was not requested, if more than a linear head is trained, or if
    too few hidden states of training rows are kept."""
    baselines: tuple[BaselineEvaluation, ...] = ()
    """Results of baselines without a model; empty if they were not requested, and for a task without
    labels."""

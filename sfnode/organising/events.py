"""Events that the organiser takes in, and actions that it asks for: frozen data, no behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sfnode.organising.evaluation.line_search import LATE_SCALE, SearchResult
from sfnode.schema.measurements import Evaluation, StepShare
from sfprotocol.decisions import Bases, Checkpoint, Decision, Recount
from sfprotocol.events import JoinRequested
from sfprotocol.messages import Feed

# -- events --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NobodyElse:
    """Event: no other node of the run can be found, and either the run is new or this node lacks no signed
    decision."""


@dataclass(frozen=True, slots=True)
class EvaluationEnded:
    """Event: an evaluation that was asked for has ended."""

    epoch: int
    result: Evaluation | None
    """Result of the epoch's model; None if the model was not evaluated or the evaluation failed."""
    base: Evaluation | None = None
    """The base model's result on the same rows. It is set in only one event of a run, and None in all
    others."""
    calibrated: Evaluation | None = None
    """The base model's result with its prior over the answers subtracted; None if that was not measured."""
    found: SearchResult | None = None
    """Result of the line search; None if there was no search. After a search `result` belongs to the model
    with the factor that the search has found."""
    forwards: int = 0
    """Example-forwards that the evaluation took."""
    shares: Mapping[Feed, StepShare] = field(default_factory=dict)
    """Contribution of each feed to the epoch's step; empty if contributions were not requested or could not
    be measured."""


Product = type[Bases] | type[Checkpoint]
"""Kind of decision whose content must be made or computed before it is signed."""


@dataclass(frozen=True, slots=True)
class MakingEnded:
    """Event: the action Make has ended."""

    what: Product
    made: bytes | Checkpoint | None
    """Digest of the bases, which peers can download from this node by now; or the checkpoint, computed from
    the decisions at the time of the action Make. None if the making failed."""


@dataclass(frozen=True, slots=True)
class OwnerDecision:
    """Event: the run's owner wants this decision, such as an Admit, a Revoke or a Void."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class Round:
    """Event: this node has processed a batch of events and carried out their actions, or `next_deadline` has
    come."""

    moved: tuple[Feed, ...] = ()
    """Feeds whose held updates, counted updates or fork proofs have changed."""


Event = Round | NobodyElse | JoinRequested | EvaluationEnded | MakingEnded | OwnerDecision


# -- actions -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sign:
    """Action: sign this decision as number `position` of the control feed, counted from 0, unless that
    position is taken. The decision is stored before it is sent to any peer."""

    position: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Action: evaluate the model on the validation rows, with the updates that the closes up to epoch `epoch`
    list. Report EvaluationEnded."""

    epoch: int
    rows: int = 0
    """Maximum number of rows for a line search before the evaluation (`line_search`); 0 for no search."""
    scored: bool = True
    """Whether the model is evaluated on all validation rows. If not, only the line search and the
    contributions are measured."""
    origins: int = 0
    """Number of validation rows on which the contribution of each feed is measured; 0 if it is not
    measured."""
    skipped: frozenset[int] = frozenset()
    """Numbers of the feeds that the seal will skip in this epoch. Their work is left out of the step that is
    searched and of the model that is evaluated. Their contributions are measured nevertheless."""
    recounted: frozenset[Recount] = frozenset()
    """Skipped work of earlier epochs that this seal will count. This work is part of the step and of the
    model."""

    @property
    def scale(self) -> float:
        """Factor on the step lengths (`line_search.AMOUNTS`) at which the line search measures losses."""
        return LATE_SCALE if self.recounted else 1.0


@dataclass(frozen=True, slots=True)
class Make:
    """Action: make and keep bases for the weights after epoch `epoch`, or compute a checkpoint of that epoch
    from the present decisions. Report MakingEnded."""

    what: Product
    epoch: int


@dataclass(frozen=True, slots=True)
class AnswerOwner:
    """Action: tell the owner whether a decision was signed."""

    decision: Decision
    refused: str | None
    """Reason why the decision is not signed; None once it is signed and stored."""


@dataclass(frozen=True, slots=True)
class StopSigning:
    """Action: tell the owner that this organiser no longer signs, and why."""

    reason: str


Action = Sign | Evaluate | Make | AnswerOwner | StopSigning

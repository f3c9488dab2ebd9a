"""Events that the organiser takes in, and actions that it asks for: frozen data, no behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sfnode.organising.evaluation.line_search import LATE_SCALE, SearchResult
from sfnode.schema.evaluation import Evaluation, StepShare
from sfprotocol.decisions import Bases, Checkpoint, Decision, Recount
from sfprotocol.events import JoinRequested
from sfprotocol.messages import Feed

# -- events --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NobodyElse:
    """No other node of the run is to be found, and it is new, or nothing that was signed is lacking here."""


@dataclass(frozen=True, slots=True)
class EvaluationEnded:
    """An evaluation that was asked for has ended."""

    epoch: int
    result: Evaluation | None
    """None if it has failed."""
    base: Evaluation | None = None
    """The base model's on the same rows, once, when it is known."""
    calibrated: Evaluation | None = None
    """The same less its prior over the answers, where that can be measured."""
    found: SearchResult | None = None
    """Result of the line search, if there was one: the evaluation is of the model with that factor."""
    forwards: int = 0
    """Example-forwards that it has taken."""
    shares: Mapping[Feed, StepShare] = field(default_factory=dict)
    """Shares of feeds in the step of the epoch, if that was wanted and could be measured."""


Product = type[Bases] | type[Checkpoint]
"""The kinds of decisions for which something is made first."""


@dataclass(frozen=True, slots=True)
class MakingEnded:
    """A Make was carried out."""

    what: Product
    made: bytes | Checkpoint | None
    """Digest of the bases, which this node can give to its peers; or what counts up to the epoch, by the
    decisions at that time; None if it has failed."""


@dataclass(frozen=True, slots=True)
class OwnerDecision:
    """The run's owner wants this decision: an Admit approves, a Revoke or a Void takes back, and so on."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class Round:
    """A round of this node was carried out, or the time has come."""

    moved: tuple[Feed, ...] = ()
    """Feeds of which something else is held, counts or is proven than before."""


Event = Round | NobodyElse | JoinRequested | EvaluationEnded | MakingEnded | OwnerDecision


# -- actions -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sign:
    """Sign this decision if it will be number `position` of the control feed, counted from 0; keep it before
    anybody is told."""

    position: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Evaluate the model on the validation rows with all that closes up to that of `epoch` have named; report
    EvaluationEnded."""

    epoch: int
    rows: int = 0
    """Rows that a line search along the epoch may take before that (`line_search`); 0: there is none."""
    scored: bool = True
    """Whether the model is evaluated at all."""
    origins: int = 0
    """Validation rows on which to measure what each feed has brought; 0: it is not measured."""
    skipped: frozenset[int] = frozenset()
    """Numbers of feeds whose work in this epoch the seal is going to skip: it makes no part of the step that
    is searched, and of the model that is evaluated. What they have brought is measured beside that of the
    others."""
    recounted: frozenset[Recount] = frozenset()
    """Work that earlier seals have skipped and this one is going to count: it makes part of both."""

    @property
    def scale(self) -> float:
        """Scale of the line search."""
        return LATE_SCALE if self.recounted else 1.0


@dataclass(frozen=True, slots=True)
class Make:
    """Make bases at the weights with all that closes up to that of `epoch` have named, and keep them; or work
    out a checkpoint, the digests of what counts up to it by the decisions as they are. Report MakingEnded."""

    what: Product
    epoch: int


@dataclass(frozen=True, slots=True)
class AnswerOwner:
    """Tell the owner what has become of a decision that was wanted."""

    decision: Decision
    refused: str | None
    """The reason for which it is not signed; None once it is signed, and kept here."""


@dataclass(frozen=True, slots=True)
class StopSigning:
    """Tell the owner that this organiser signs nothing any more, and why."""

    reason: str


Action = Sign | Evaluate | Make | AnswerOwner | StopSigning

"""Events that the organiser takes in, and actions that it asks for: frozen data, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from sfnode.organising.evaluation.line_search import LATE_SCALE, Found
from sfnode.organising.evaluation.origins import Brought
from sfnode.schema.evaluation import Evaluation
from sfprotocol.counting import Counting
from sfprotocol.decisions import Checkpoint, Decision, Part, Recount
from sfprotocol.messages import Feed, Petition, Position


class Tenure(Enum):
    """The standing of the key that this organiser signs with."""

    HELD = "the key of the present term is ours"
    PASSED_ON = "the deputies have passed the run on to another key"
    FORKED = "the key of the present term has signed two sequences"


class Mark(NamedTuple):
    """A step of a feed at which a close may stop; all updates since the mark before have one label."""

    stop: int
    label: int
    chain: bytes
    """The chain hash after `stop` updates."""
    squares: int = 0
    """Sum of the squares of the scalars since the mark before."""
    zeros: int = 0
    """Number of scalars since then that are 0."""


# -- events --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wake:
    """The time that `next_deadline` named has come."""


@dataclass(frozen=True, slots=True)
class ControlChanged:
    """The control feed here has changed, by what this organiser has signed or by what peers have sent."""

    counting: Counting
    tenure: Tenure
    decisions: tuple[Decision, ...] = ()
    """Those that have come since the last such event."""
    anew: bool = False
    """Whether others have gone: `decisions` are all that there are."""


@dataclass(frozen=True, slots=True)
class HeldChanged:
    """This node holds other updates of a feed than before, from step `first` on.

    There is a mark wherever the label changes, wherever a close that is not sealed, or the last sealed one,
    has stopped, and at the end: after a start all of these, then those of each segment that is admitted.
    A feed that was rolled back has no marks from step 0 on. What peers have shown of it from `first` on
    was of another history.
    """

    feed: Feed
    first: int
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class ForkProven:
    """A proof of two histories of a feed is here: nothing from step `at` on counts unless it was named."""

    feed: Feed
    at: int


@dataclass(frozen=True, slots=True)
class PeerShows:
    """A peer has shown that it holds these feeds, as far as our history of them goes."""

    positions: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class PeersClaim:
    """Linked peers say that they have more of these feeds than is here, of those that miss named steps here;
    and of no others."""

    feeds: frozenset[Feed]


@dataclass(frozen=True, slots=True)
class PeerControl:
    """A linked peer has told how many decisions it has."""

    peer: str
    decisions: int


@dataclass(frozen=True, slots=True)
class PeerGone:
    """The last link with a peer has ended."""

    peer: str


@dataclass(frozen=True, slots=True)
class NobodyElse:
    """The run is new, and no other node of it is to be found."""


@dataclass(frozen=True, slots=True)
class PetitionHeard:
    """A petition with the signature of its origin has come over the link with the peer `via`."""

    petition: Petition
    via: str


@dataclass(frozen=True, slots=True)
class FindingHeard:
    """A validator on the panel of an epoch has told what it has measured, as it was committed to (SPEC
    O18)."""

    epoch: int
    member: int
    rows: int
    parts: tuple[Part, ...]


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
    found: Found | None = None
    """Result of the line search, if there was one: the evaluation is of the model with that factor."""
    forwards: int = 0
    """Example-forwards that it has taken, but for those of the rate, which are spent once."""
    rate: float | None = None
    """The rate that suits the epoch's subspace at its beginning, if that was wanted and could be told."""
    brought: tuple[Brought, ...] = ()
    """Figures of what each feed has brought, if that was wanted and could be measured."""


@dataclass(frozen=True, slots=True)
class BasesMade:
    """A MakeBases was carried out."""

    digest: bytes | None
    """Digest of the bases, which this node can give to its peers; None if it has failed."""


@dataclass(frozen=True, slots=True)
class Summarised:
    """A Summarise was carried out: what counts up to an epoch, by the decisions at that time."""

    checkpoint: Checkpoint | None
    """None if it has failed."""


@dataclass(frozen=True, slots=True)
class OwnerWish:
    """The run's owner wants this decision: an Admit approves, a Revoke or a Void takes back, and so on."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class OwnerTrusts:
    """The run's owner trusts a member, or does not: then seals skip its work until it is trusted again, and
    recount it."""

    member: int
    trusted: bool


Event = (
    Wake
    | ControlChanged
    | HeldChanged
    | ForkProven
    | PeerShows
    | PeersClaim
    | PeerControl
    | PeerGone
    | NobodyElse
    | PetitionHeard
    | FindingHeard
    | EvaluationEnded
    | Summarised
    | BasesMade
    | OwnerWish
    | OwnerTrusts
)


@dataclass(frozen=True, slots=True)
class Round:
    """A round of this node was carried out; for the desk, which finds out the rest itself."""

    moved: tuple[Feed, ...] = ()
    """Feeds of which something else is held, counts or is proven than before."""


DeskEvent = (
    Round
    | NobodyElse
    | PetitionHeard
    | FindingHeard
    | EvaluationEnded
    | Summarised
    | BasesMade
    | OwnerWish
    | OwnerTrusts
)
"""Events that the desk is told of; all others it makes of a Round."""


# -- actions -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sign:
    """Sign this decision if it will be number `position` of the control feed, counted from 0; keep it before
    anybody is told; report ControlChanged."""

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
    sized: bool = False
    """Whether to find, first, the rate that suits the epoch's subspace at its beginning (`engine.step_size`);
    if one is found, there is no line search."""
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
class Summarise:
    """Work out the digests of what counts up to an epoch, by the decisions as they are; report Summarised."""

    epoch: int


@dataclass(frozen=True, slots=True)
class MakeBases:
    """Make bases at the weights with all that closes up to that of `epoch` have named, keep them, and report
    BasesMade."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """Tell the owner that a wish is not carried out."""

    decision: Decision
    reason: str


@dataclass(frozen=True, slots=True)
class Signed:
    """Tell the owner that a wish is carried out: it is signed, and kept here. Comes from the desk."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class Stop:
    """Tell the owner that this organiser signs nothing any more, and why."""

    reason: str


Action = Sign | Evaluate | Summarise | MakeBases | Refuse | Signed | Stop

"""A node's answers about an organised run, and the requests of its owner about the run. docs/json.md
describes answers and requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import ConfigDict, Field

from sfnode.schema.measurements import Answer, Evaluation
from sfnode.schema.node_state import RunHealth

if TYPE_CHECKING:
    from sfprotocol.messages import Succession

Hex32 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
"""A key or a hash, 32 bytes."""

Hex64 = Annotated[str, Field(pattern="^[0-9a-f]{128}$")]
"""A signature, 64 bytes."""

MAX_RECORD = 400_000
"""Maximum length of a decision in a request, in hex digits: somewhat more than two digits for each of the
MAX_DECISION bytes of a decision."""

EncodedDecision = Annotated[str, Field(pattern="^([0-9a-f]{2})+$", max_length=MAX_RECORD)]
"""An encoded decision (SPEC O2), in hex."""

_STRICT = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class EpochEvaluation(Evaluation):
    """An evaluation that the organiser published, measured on the validation rows."""

    epoch: int
    """The sealed epoch whose model was evaluated. For the base model, the epoch in which it was measured."""
    base: bool
    """Whether the base model was evaluated, instead of the epoch's model."""

    @property
    def on_rows(self) -> str:
        return f"on {self.count:,} rows kept aside"


class HealthStatus(Answer):
    """Comparison of the model with the base model and with the run's best model. Two models differ if their
    95 % intervals do not overlap."""

    verdict: RunHealth
    latest: EpochEvaluation | None
    """Evaluation of the model at the last evaluated seal that was not taken back."""
    base: EpochEvaluation | None
    """Evaluation of the base model with the metric of `latest`, and calibrated if `latest` is."""
    calibrated: EpochEvaluation | None = None
    """Evaluation of the base model with its prior over the answers subtracted; None if the prior cannot be
    measured."""
    best: EpochEvaluation | None
    worse_than: list[EpochEvaluation]


class EvidenceStatus(Answer):
    """Evidence on whether a member's work helps. It follows from the organiser's published figures on those
    updates of the member that count, and on those that seals have skipped (SPEC O16)."""

    member: int
    origin: str
    updates: int
    """Number of the member's updates that were measured."""
    worth: int
    """Decrease of the validation loss by the measured updates with factor 1, in units of 10^-9 nats."""
    evidence: float
    """Log-likelihood ratio of useful against useless work. A single harmful epoch can lower it only by a
    limited amount."""
    bound: float
    """Minimum evidence at which a member's skipped updates count after all when the run ends. For this
    comparison a harmful epoch lowers the evidence by its full amount. Skipped updates of a member whose work
    was often far too large never count."""
    counts_at_last: bool
    """Whether the member's skipped updates would count if the run ended now."""
    agreement: float
    """Agreement of the member's scalars with the validation rows, divided by the usual member's agreement.
    The part of the difference that chance alone explains is removed."""
    outlier_share: float
    """Share of the member's measured epochs in which its updates were far too large. Recent epochs have more
    weight."""
    skipped: bool
    """Whether seals skip the member's new updates now, unless the run's owner decides otherwise."""
    harmful_since: int | None
    """Epoch since which the member's work evidently does harm; None if no harm is evident."""


class SubspaceBases(Answer):
    """Published bases that serve one subspace and the following ones."""

    subspace: int
    digest: str


class StandInStatus(Answer):
    """A stand-in for the organiser. More than half of the stand-ins must store a decision before it takes
    effect, and must agree to elect an organiser (SPEC O21)."""

    member: int
    key: str
    here: bool
    """Whether the stand-in was heard from within the last minute."""
    organises: bool
    lied: bool = False
    """Whether the stand-in voted twice in one election, and is excluded (SPEC O24)."""


class OrganiserStatus(Answer):
    """Answer to `GET /organising`: an organised run as this node knows it. Epochs are given by number, from
    0."""

    run_id: str
    run_name: str
    term: int
    """Number of the current term: 0 while the manifest's key signs. Every succession and every election
    begins the next term."""
    term_since: float | None
    """Time at which the first decision of this term arrived at this node, in seconds since 1970; None if none
    has arrived."""
    stand_ins: list[StandInStatus]
    decisions: int
    chain: str
    """Chain hash of the control feed after the number of decisions in `decisions`."""
    incomplete: bool
    """Whether this node lacks decisions that the last succession keeps in force."""
    frozen: bool
    """Whether the key of this term signed two different sequences of decisions. Then the deputies must name
    another key."""
    unsupported: bool
    """Whether the organiser made a decision that only a later version of sfnode understands."""
    open_epoch: int
    sealed: int
    """Number of sealed epochs."""
    counted: int
    """Number of updates that count according to the seals so far."""
    budget: int
    complete: bool
    quota: int
    """Maximum number of updates of one member in one epoch, if somebody vouches for the member and its
    admission says nothing else."""
    members: int
    invitations: int
    behind: int
    """Number of updates that closes list and this node lacks."""
    bases: list[SubspaceBases]
    """Published bases, in ascending order from subspace 0; empty if bases are random."""
    next_subspace: int
    """The first subspace for which bases may still be published."""
    organiser: str | None
    """State of the organiser on this node; None if the organiser's key is elsewhere."""
    waits: str | None
    """Reason why the organiser on this node does not sign yet, and the event for which it waits. None if it
    signs, or if the organiser's key is elsewhere."""
    petitions: int | None
    """Number of newcomers whose join requests wait for the owner's decision; None if the organiser's key is
    elsewhere."""
    health: HealthStatus
    evaluations: list[EpochEvaluation]
    """The evaluations that the organiser published last, in order of time."""
    announcements: list[str]
    """The organiser's last announcements, in order of time."""
    doubted: list[EvidenceStatus]
    """Members whose updates seals skip because of the evidence, in ascending order of evidence. A hundred at
    most."""


class MemberStatus(Answer):
    """An origin that the organiser admitted."""

    number: int
    origin: str
    quota: int
    """Maximum number of the member's updates with the label of the open epoch."""
    vouched: bool
    """Whether an invitation or the organiser vouches for the member. If not, it shares the quota of strangers
    (SPEC O20)."""
    proven: bool
    """Whether at least some of the member's new updates count provisionally, before a seal has judged
    them."""
    invitation: int | None
    """Number of the invitation with which the member joined, from 1; None if it joined without an
    invitation."""
    revoked: int | None
    """First epoch of which no update of the member counts; None if the member was not revoked."""
    counted: int
    """Number of the member's updates that count."""


class Members(Answer):
    """Answer to `GET /organising/members`: a page of the list of members."""

    total: int
    """Number of members on all pages that match the request."""
    offset: int
    members: list[MemberStatus]


class JoinRequestStatus(Answer):
    """A newcomer that waits for the owner's decision."""

    origin: str
    work: int
    """Number of leading zero bits of the newcomer's proof of work."""
    invitation: int | None
    """Number of the invitation that the newcomer shows, from 1; None if it shows none."""
    invited: bool
    """Whether the newcomer shows a valid invitation."""


class OfferStatus(Answer):
    """A member that offers to stand in for the organiser."""

    member: int
    key: str
    own: bool
    """Whether the member is this node itself."""


class JoinRequestList(Answer):
    """Answer to `GET /organising/petitions`."""

    petitions: list[JoinRequestStatus]
    offers: list[OfferStatus]
    """Members that stand in for the organiser, and members that offer to do so. Empty if the organiser's key
    is elsewhere."""


class Change(Answer):
    """A value of the run that a decision changes, such as the budget."""

    name: str
    before: int
    after: int


class DecisionResult(Answer):
    """The answer to a valid request for a decision."""

    signed: bool
    """Whether the decision was signed; False for a dry run."""
    changes: list[Change]
    invitation: int | None
    """Number of the invitation that the decision publishes, from 1; None if the decision publishes no
    invitation."""


class DeputyVote(Answer):
    """The signature of one deputy."""

    model_config = _STRICT

    deputy: int = Field(ge=0)
    """Number of the deputy in the manifest, counted from 0."""
    signature: Hex64


class SuccessionFile(Answer):
    """A succession that deputies sign. It is the content of a file, the body of `POST
    /organising/succession`, and the answer to a proposal.

    It contains everything that deputies need, so they can sign on a machine without a network.
    """

    model_config = _STRICT

    run_id: Hex32
    run_name: str = Field(max_length=64)
    term: int = Field(ge=1, lt=1 << 32)
    kept: int = Field(ge=0, lt=1 << 63)
    """Number of decisions, from the first one on, that the succession keeps in force."""
    chain: Hex32
    """Chain hash of the control feed after the kept decisions."""
    key: Hex32
    """The public key that will sign the decisions after the succession."""
    deputies: list[Hex32] = Field(max_length=64)
    needed: int = Field(ge=1)
    """Number of deputies' votes that make the succession valid."""
    votes: list[DeputyVote] = Field(default=[], max_length=64)

    def message(self) -> Succession:
        """Return the succession as the protocol's message."""
        from sfprotocol.messages import Succession, Vote

        votes = tuple(Vote(vote.deputy, bytes.fromhex(vote.signature)) for vote in self.votes)
        return Succession(self.term, self.kept, bytes.fromhex(self.chain), bytes.fromhex(self.key), votes)

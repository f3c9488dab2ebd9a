"""Answers of a node about an organised run, and requests of the node's owner. docs/json.md describes both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import ConfigDict, Field

from sfnode.schema.evaluation import Answer, Evaluation
from sfnode.schema.node_state import RunHealth

if TYPE_CHECKING:
    from sfprotocol.messages import Succession

Hex32 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
"""A key or a hash, 32 bytes."""

Hex64 = Annotated[str, Field(pattern="^[0-9a-f]{128}$")]
"""A signature, 64 bytes."""

MAX_RECORD = 400_000
"""Maximum length of a decision in a request, in hex digits: room for twice MAX_DECISION."""

EncodedDecision = Annotated[str, Field(pattern="^([0-9a-f]{2})+$", max_length=MAX_RECORD)]
"""An encoded decision (SPEC O2), in hex."""

_STRICT = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class EpochEvaluation(Evaluation):
    """An evaluation on the validation rows that the organiser published."""

    epoch: int
    """The sealed epoch whose model was evaluated; for the base model, the epoch when it was measured."""
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
    """The last evaluated seal that was not taken back."""
    base: EpochEvaluation | None
    """The base model, measured like `latest`."""
    calibrated: EpochEvaluation | None = None
    """The base model less its prior over the answers; None if the prior cannot be measured."""
    best: EpochEvaluation | None
    worse_than: list[EpochEvaluation]


class EvidenceStatus(Answer):
    """Evidence on a member's work, from the organiser's figures on its counted and skipped updates (SPEC
    O16)."""

    member: int
    origin: str
    updates: int
    """Number of the member's updates that were measured."""
    worth: int
    """Decrease of the validation loss by these updates with factor 1, in units of 10^-9 nats."""
    evidence: float
    """Log-likelihood ratio that the member's work is useful. One harmful epoch lowers it by a bounded
    amount."""
    bound: float
    """Minimum evidence with which skipped work still counts at the run's last seals. At these seals harmful
    epochs lower the evidence in full, and the work of a frequent outlier does not count."""
    counts_at_last: bool
    """Whether the member's waiting work would count if the run ended now, according to these figures."""
    agreement: float
    """Agreement of the member's scalars with the validation rows, divided by a typical member's agreement.
    Differences between members that may be chance are left out."""
    outlier_share: float
    """Share of the member's latest measured epochs in which its work was far too large. Such work never
    counts."""
    skipped: bool
    """Whether seals currently skip the member's work, unless the owner decides otherwise."""
    harmful_since: int | None
    """Epoch since which the member's work clearly does harm; None if that is not clear."""


class SubspaceBases(Answer):
    """Published bases that are used from a subspace on."""

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
    """`GET /organising`: an organised run as this node knows it. Epochs are labels, counted from 0."""

    run_id: str
    run_name: str
    term: int
    """Term of the key that signs now: 0 for the manifest's key. Every succession and every election begins a
    term."""
    term_since: float | None
    """Time at which the first decision of this term arrived here, in seconds since 1970; None before that."""
    stand_ins: list[StandInStatus]
    decisions: int
    chain: str
    """The chain hash after these decisions."""
    incomplete: bool
    """Whether decisions that the last succession keeps are missing here."""
    frozen: bool
    """Whether the key of this term signed two different sequences of decisions, so that the deputies must
    name another key."""
    unsupported: bool
    """Whether a decision needs a later version of sfnode."""
    open_epoch: int
    sealed: int
    """Number of sealed epochs."""
    counted: int
    """Number of updates that count after the seals so far."""
    budget: int
    complete: bool
    quota: int
    """Default maximum number of updates with one label in one feed of an admitted member."""
    members: int
    invitations: int
    behind: int
    """Number of updates that the organiser listed but that are missing here."""
    bases: list[SubspaceBases]
    """Published bases, in ascending order from subspace 0; empty if bases are random."""
    next_subspace: int
    """The first subspace for which bases may be published."""
    organiser: str | None
    """State of the organiser on this node; None if its key is elsewhere."""
    waits: str | None
    """Reason why the organiser on this node does not sign yet, and how that ends; None if it signs, or if its
    key is elsewhere."""
    petitions: int | None
    """Number of newcomers that wait for the owner's decision; None if the organiser's key is elsewhere."""
    health: HealthStatus
    evaluations: list[EpochEvaluation]
    """The last published evaluations, oldest first."""
    announcements: list[str]
    """The last announcements, oldest first."""
    doubted: list[EvidenceStatus]
    """Members whose work seals skip because of the evidence, the lowest evidence first, a hundred at most."""


class MemberStatus(Answer):
    """An origin that the organiser admitted."""

    number: int
    origin: str
    quota: int
    """Maximum number of the member's updates with the label of the open epoch."""
    vouched: bool
    """Whether the member has a quota of its own, from an invitation or a decision of the organiser."""
    proven: bool
    """Whether the member's new work counts before it was measured, until a seal judges it."""
    invitation: int | None
    """Number of the invitation with which the member joined, counted from 1; None without an invitation."""
    revoked: int | None
    """First epoch label whose updates do not count; None if the member was not revoked."""
    counted: int
    """Number of the member's updates that count."""


class Members(Answer):
    """`GET /organising/members`: a page of the members."""

    total: int
    """Number of matching members on all pages."""
    offset: int
    members: list[MemberStatus]


class JoinRequestStatus(Answer):
    """A newcomer that waits for the owner's decision."""

    origin: str
    work: int
    """Number of leading zero bits of the newcomer's proof of work."""
    invitation: int | None
    """Number of the invitation that the newcomer shows, counted from 1; None without an invitation."""
    invited: bool
    """Whether this invitation is valid."""


class OfferStatus(Answer):
    """A member that offers to stand in for the organiser."""

    member: int
    key: str
    own: bool
    """Whether the member is this node itself."""


class JoinRequestList(Answer):
    """`GET /organising/petitions`."""

    petitions: list[JoinRequestStatus]
    offers: list[OfferStatus]
    """Members that stand in for the organiser, or offer to; empty if the organiser's key is elsewhere."""


class Change(Answer):
    """A value of the run that a decision changes, such as the budget."""

    name: str
    before: int
    after: int


class DecisionResult(Answer):
    """The answer to a valid request for a decision."""

    signed: bool
    """False for a dry run."""
    changes: list[Change]
    invitation: int | None
    """Number of the invitation that was published, counted from 1; None if the decision publishes no
    invitation."""


class DeputyVote(Answer):
    """The signature of one deputy."""

    model_config = _STRICT

    deputy: int = Field(ge=0)
    """Number of the deputy in the manifest, counted from 0."""
    signature: Hex64


class SuccessionFile(Answer):
    """A succession that deputies sign: a file, `POST /organising/succession`, and the answer to a proposal.

    It holds everything that deputies need, so that they can sign on a machine without a network.
    """

    model_config = _STRICT

    run_id: Hex32
    run_name: str = Field(max_length=64)
    term: int = Field(ge=1, lt=1 << 32)
    kept: int = Field(ge=0, lt=1 << 63)
    """Number of decisions that stay in force, from the first one on."""
    chain: Hex32
    """The chain hash after these decisions."""
    key: Hex32
    """The public key that signs the following decisions."""
    deputies: list[Hex32] = Field(max_length=64)
    needed: int = Field(ge=1)
    """Number of votes that are required."""
    votes: list[DeputyVote] = Field(default=[], max_length=64)

    def message(self) -> Succession:
        """Return the succession as the protocol's message."""
        from sfprotocol.messages import Succession, Vote

        votes = tuple(Vote(vote.deputy, bytes.fromhex(vote.signature)) for vote in self.votes)
        return Succession(self.term, self.kept, bytes.fromhex(self.chain), bytes.fromhex(self.key), votes)

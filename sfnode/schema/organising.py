"""Answers of a node of an organised run, and its owner's questions: docs/json.md describes each."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from sfnode.schema.evaluation import Answer, Evaluation
from sfnode.schema.node_state import RunHealth

Hex32 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
"""A key or a hash, 32 bytes."""

Hex64 = Annotated[str, Field(pattern="^[0-9a-f]{128}$")]
"""A signature, 64 bytes."""

MAX_RECORD = 400_000
"""Hex digits of a decision that is asked for: twice MAX_DECISION fits."""

EncodedDecision = Annotated[str, Field(pattern="^([0-9a-f]{2})+$", max_length=MAX_RECORD)]
"""A decision as it is encoded (SPEC O2), in hex."""

_STRICT = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class EpochEvaluation(Evaluation):
    """An evaluation on the validation rows that the organiser has published."""

    epoch: int
    """The sealed epoch whose model it is about; of the base model, when it was measured."""
    base: bool
    """Whether it is of the base model."""

    @property
    def on_rows(self) -> str:
        return f"on {self.count:,} rows kept aside"


class HealthStatus(Answer):
    """Comparison of the model with the base model and its own best: 95 % intervals that do not touch."""

    verdict: RunHealth
    latest: EpochEvaluation | None
    """The last seal that was evaluated and not taken back."""
    base: EpochEvaluation | None
    """The base model, measured as `latest` was."""
    calibrated: EpochEvaluation | None = None
    """The base model less its prior over the answers; None where that cannot be measured."""
    best: EpochEvaluation | None
    worse_than: list[EpochEvaluation]


class EvidenceStatus(Answer):
    """Evidence by the organiser's figures about a member's work, counted or not (SPEC O16)."""

    member: int
    origin: str
    updates: int
    """Updates that were measured."""
    worth: int
    """Nats by which they lower the loss with factor 1, in units of 10^-9."""
    evidence: float
    """Log-likelihood ratio for useful work, from which a spoilt epoch takes a part only."""
    bound: float
    """Evidence, less all that such epochs would take, from which on its work counts by the run's last seals
    at the latest, unless it is an outlier too often."""
    counts_at_last: bool
    """Whether what waits of it would count if the run ended now, as far as these figures tell."""
    agreement: float
    """Agreement of its scalars with the validation rows, in terms of the usual member's, as far as members
    differ by more than chance."""
    outlier_share: float
    """Share of its latest measured epochs in which its work was far too large, and will never count."""
    skipped: bool
    """Whether seals skip its work for now, unless the owner has said otherwise."""
    harmful_since: int | None
    """The epoch since when its work evidently does harm; None if that is not evident."""


class SubspaceBases(Answer):
    """Published bases that serve from a subspace on."""

    subspace: int
    digest: str


class StandInStatus(Answer):
    """A member of whom more than half hold what is decided, and elect who organises (SPEC O21)."""

    member: int
    key: str
    here: bool
    """Whether it was heard within a minute."""
    organises: bool
    lied: bool = False
    """Whether it has voted twice in one election, and is out (SPEC O24)."""


class OrganiserStatus(Answer):
    """`GET /organising`: an organised run as this node knows it. Epochs are labels, counted from 0."""

    run_id: str
    run_name: str
    term: int
    """Term of the key that signs now: 0 for the manifest's; every succession, every election begins one."""
    term_since: float | None
    """Time at which its first decision came here, in seconds since 1970; None before."""
    stand_ins: list[StandInStatus]
    decisions: int
    chain: str
    """The chain hash after them."""
    incomplete: bool
    """Whether decisions are lacking that the last succession keeps."""
    frozen: bool
    """Whether the key of this term has signed two sequences: the deputies have to name another."""
    unsupported: bool
    """Whether a decision is beyond this version of sfnode."""
    open_epoch: int
    sealed: int
    """Epochs that are sealed."""
    counted: int
    """Updates that count by these seals."""
    budget: int
    complete: bool
    quota: int
    """Updates of one feed with one label that an admission allows unless it says otherwise."""
    members: int
    invitations: int
    behind: int
    """Updates that the organiser has named and that are not here."""
    bases: list[SubspaceBases]
    """Published bases, ascending from subspace 0; none if bases are random."""
    next_subspace: int
    """The first subspace for which bases may be published."""
    organiser: str | None
    """State of the organiser on this node; None if its key is elsewhere."""
    waits: str | None
    """Reason why it does not sign yet, and what ends that; None once it does, or where it is not."""
    petitions: int | None
    """Newcomers that wait for the owner; None where the organiser is elsewhere."""
    health: HealthStatus
    evaluations: list[EpochEvaluation]
    """The last ones, oldest first."""
    announcements: list[str]
    """The last ones, oldest first."""
    doubted: list[EvidenceStatus]
    """Members whose work seals skip by the evidence, those with most of it first, a hundred at most."""


class MemberStatus(Answer):
    """An origin that the organiser has admitted."""

    number: int
    origin: str
    quota: int
    """Updates of it that may have the label of the open epoch."""
    vouched: bool
    """Whether it has a quota of its own: by an invitation, or the organiser's word."""
    proven: bool
    """Whether its work is taken at its word until a seal judges it."""
    invitation: int | None
    """Number of the invitation by which it came, counted from 1; None without one."""
    revoked: int | None
    """The first epoch label with which nothing of it counts; None if it was not revoked."""
    counted: int
    """Updates of it that count."""


class Members(Answer):
    """`GET /organising/members`: a page of the members."""

    total: int
    """Number of those that match, on all pages."""
    offset: int
    members: list[MemberStatus]


class JoinRequestStatus(Answer):
    """A newcomer that waits for the owner."""

    origin: str
    work: int
    """Leading zero bits of its proof of work."""
    invitation: int | None
    """Number of the invitation that it shows, counted from 1; None without one."""
    invited: bool
    """Whether this invitation holds."""


class OfferStatus(Answer):
    """A member that would stand in for the organiser."""

    member: int
    key: str
    own: bool
    """Whether it is this node itself."""


class JoinRequestList(Answer):
    """`GET /organising/petitions`."""

    petitions: list[JoinRequestStatus]
    offers: list[OfferStatus]
    """Those here who would stand in, or do; none where the organiser is elsewhere."""


class Change(Answer):
    """A number of the run that a decision changes."""

    name: str
    before: int
    after: int


class DecisionResult(Answer):
    """The answer to a wish that holds."""

    signed: bool
    """False for a dry run."""
    changes: list[Change]
    invitation: int | None
    """Number of the invitation that was published, counted from 1."""


class DeputyVote(Answer):
    """The signature of one deputy."""

    model_config = _STRICT

    deputy: int = Field(ge=0)
    """Place in the manifest, counted from 0."""
    signature: Hex64


class SuccessionFile(Answer):
    """A succession that deputies sign: a file, `POST /organising/succession`, and the answer to a proposal.

    It holds all that they need for that, so that they sign on a machine without a network.
    """

    model_config = _STRICT

    run_id: Hex32
    run_name: str = Field(max_length=64)
    term: int = Field(ge=1, lt=1 << 32)
    kept: int = Field(ge=0, lt=1 << 63)
    """Number of decisions that stay."""
    chain: Hex32
    """The chain hash after them."""
    key: Hex32
    """The public key that signs from there on."""
    deputies: list[Hex32] = Field(max_length=64)
    needed: int = Field(ge=1)
    """Votes that it takes."""
    votes: list[DeputyVote] = Field(default=[], max_length=64)

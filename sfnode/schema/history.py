"""The past of a run, as commands print it with --json (docs/json.md): its history and its seals."""

from __future__ import annotations

from typing import NamedTuple

from sfnode.manifest.sections import Parent
from sfnode.schema.evaluation import Answer
from sfnode.schema.node_state import Uncounted
from sfnode.schema.organising import EpochEvaluation


class OriginPart(Answer):
    """Updates of one origin."""

    origin: str
    name: str | None = None
    """Display name that the origin chose; None without one."""
    updates: int


class EpochEntry(Answer):
    """An epoch; in an organised run a sealed epoch."""

    epoch: int
    named: int
    """Number of updates that its close lists; in an open run updates with its label."""
    counted: int
    """Number of the epoch's updates that count now, after all decisions."""
    factor: float | None
    """Factor of its seal. Like `digest` and `evaluation`, None in an open run."""
    rate: float
    """Learning rate of updates with its label."""
    digest: str | None
    """Named digest (SPEC O10)."""
    evaluation: EpochEvaluation | None
    """The last evaluation of its model that the organiser published."""
    origins: list[OriginPart]
    """Origins with updates that count, the most updates first."""


class Decided(Answer):
    """A decision, or an epoch of an open run, as every view shows it."""

    position: int | None
    """Number of the decision in the control feed, from 0; None in an open run."""
    kind: str
    """Name of the decision in lower case; `seal` and `epoch` entries have an `epoch`."""
    text: str
    """Its content in words."""
    arrived: int | None = None
    """Time at which it arrived at this node, in seconds since 1970. None in an open run, and if an earlier
    version did not record it."""


class HistoryEntry(Decided):
    """A decision, or an epoch of an open run, with all its consequences."""

    term: int | None
    """Number of successions before it; None in an open run."""
    epoch: EpochEntry | None = None


class HistoryResult(Answer):
    """`sfnode log --json`."""

    run_id: str
    run_name: str
    sealed: int | None
    """Number of sealed epochs; None in an open run."""
    counted: int
    """Number of updates that count."""
    waiting: int
    """Number of updates stored here that no seal has judged; 0 in an open run."""
    complete: bool
    """Whether the run is complete. Then no more updates are made, and updates that wait never count."""
    budget: int
    parent: Parent | None
    """The state of the other run from which this run was forked; None if it is not a fork."""
    entries: list[HistoryEntry]
    """Decisions and seals, the oldest first."""


class Ranked(Answer):
    """A member of an organised run, ranked by its contribution."""

    rank: int
    """Rank by worth, then by updates that count, from 1."""
    origin: str
    name: str | None
    """Display name that the member chose; None without one."""
    counted: int
    """Number of its updates that count."""
    measured: int
    """Counted updates with a measured worth."""
    worth: int
    """Decrease of the validation loss by these updates, in units of 10^-9 nats, from the figures in the
    control feed (SPEC O16)."""
    revoked: bool
    left_out: str | None = None
    """Reason why its latest work was left out; None if it counts."""


class Verdict(Answer):
    """Outcome of a member's work in a round."""

    epoch: int
    incarnation: int
    named: int
    counted: int
    reason: Uncounted | None
    """Reason why it does not count; None if it does."""


class WhyResult(Answer):
    """`sfnode log --why MEMBER --json`."""

    run_id: str
    member: int
    origin: str
    name: str | None
    revoked: int | None
    verdicts: list[Verdict]


class Remeasured(Answer):
    """Comparison of an epoch's worths that the organiser signed with worths that were measured here."""

    epoch: int
    rows: int
    said: int
    """Sum over all feeds of the worths in the control feed, with factor 1, in units of 10^-9 nats."""
    found: int
    """The same sum, as measured here."""
    off: float
    """Sum over feeds of the absolute difference between both worths, divided by the sum of the absolute
    signed worths."""
    agrees: bool
    """Whether `off` is within the tolerance."""


class LeaderboardResult(Answer):
    """`sfnode leaderboard --json`."""

    run_id: str
    run_name: str
    sealed: int
    counted: int
    worth: int
    """Sum of all members' worths, in units of 10^-9 nats."""
    verified: bool
    """Whether every signature and every seal of the log was checked."""
    members: list[Ranked]
    tolerance: float | None = None
    """Maximum `off` at which an epoch agrees; None if nothing was measured again."""
    epochs: list[Remeasured]
    """Epochs that were measured again."""


class CheckoutResult(Answer):
    """`sfnode history checkout --json`."""

    run_id: str
    epoch: int
    updates: int
    """Number of updates that counted at its seal."""
    named_digest: str
    """Named digest in the seal (SPEC O10)."""
    core_digest: str
    """Digest of the cores, computed from the log (SPEC D5)."""


# -- facts about an exported model, from the log, for its card (`engine.model_card`) -----------------------


class Contributor(NamedTuple):
    """An origin with updates that count."""

    origin: str
    """Key, in hex."""
    name: str
    """Display name and team that the origin chose; empty without one."""
    updates: int
    """Number of its updates that count."""


class EvaluatedModel(NamedTuple):
    """An evaluation that the organiser published."""

    of: str
    """The model in words."""
    result: EpochEvaluation


class Provenance(NamedTuple):
    """The state of a run that was exported."""

    seal: int | None
    """Epoch of the seal; None in an open run, and with --as-of-now."""
    digest: str
    """Core digest of the updates that the seal counts, or else the state digest; in hex."""
    updates: int
    amended: bool = False
    """Whether later decisions changed which of its updates count."""
    evaluations: tuple[EvaluatedModel, ...] = ()
    contributors: tuple[Contributor, ...] = ()
    """Contributors, the most updates first."""

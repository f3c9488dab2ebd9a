"""The past of a run, as commands print it with --json (docs/json.md): history, seals and members."""

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
    """Number of updates that the epoch's close lists; in an open run, number of updates with the epoch's
    label."""
    counted: int
    """Number of the epoch's updates that count now, after all decisions."""
    factor: float | None
    """Factor of the epoch's seal. Like `digest` and `evaluation`, None in an open run."""
    rate: float
    """Learning rate of updates with the epoch's label."""
    digest: str | None
    """Named digest in the seal (SPEC O10)."""
    evaluation: EpochEvaluation | None
    """The last published evaluation of the model at this seal."""
    origins: list[OriginPart]
    """Origins with updates that count, the most updates first."""


class Decided(Answer):
    """A decision, or in an open run an epoch, with the fields that every view shows."""

    position: int | None
    """Number of the decision in the control feed, from 0; None in an open run."""
    kind: str
    """Name of the decision in lower case; `seal` and `epoch` entries have an `epoch`."""
    text: str
    """Content of the decision, in words."""
    arrived: int | None = None
    """Time at which the decision arrived at this node, in seconds since 1970. None in an open run, and if an
    earlier version did not record it."""


class HistoryEntry(Decided):
    """A decision with all its consequences; in an open run an epoch."""

    term: int | None
    """Number of successions before the decision; None in an open run."""
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
    """Whether the run is complete. After that no more updates are made, and waiting updates never count."""
    budget: int
    parent: Parent | None
    """The state of the other run from which this run was forked; None if it is not a fork."""
    entries: list[HistoryEntry]
    """Decisions and seals, the oldest first."""


class Ranked(Answer):
    """A member of an organised run, ranked by its contribution."""

    rank: int
    """Rank, from 1, in descending order of worth, and with equal worth of updates that count."""
    origin: str
    name: str | None
    """Display name that the member chose; None without one."""
    counted: int
    """Number of the member's updates that count."""
    measured: int
    """Number of counted updates whose worth was measured."""
    worth: int
    """Decrease of the validation loss by these updates, in units of 10^-9 nats, from the figures in the
    control feed (SPEC O16)."""
    revoked: bool
    left_out: str | None = None
    """Reason why the member's latest work was left out; None if that work counts."""


class Verdict(Answer):
    """Outcome of a member's work in a round."""

    epoch: int
    incarnation: int
    named: int
    counted: int
    reason: Uncounted | None
    """Reason why the work does not count; None if it counts."""


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
    """Sum of all feeds' worths with factor 1, according to the control feed, in units of 10^-9 nats."""
    found: int
    """Sum of all feeds' worths with factor 1, as measured here, in units of 10^-9 nats."""
    off: float
    """Sum over feeds of the absolute difference between the two worths, divided by the sum of the absolute
    worths in the control feed."""
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
    """Number of updates that counted at this seal."""
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
    """Number of the origin's updates that count."""


class EvaluatedModel(NamedTuple):
    """An evaluation that the organiser published."""

    of: str
    """Description of the evaluated model."""
    result: EpochEvaluation


class Provenance(NamedTuple):
    """The exported state of a run."""

    seal: int | None
    """Epoch of the seal; None in an open run, and with --as-of-now."""
    digest: str
    """Core digest of the updates that the seal counts, or else the state digest; in hex."""
    updates: int
    amended: bool = False
    """Whether later decisions changed which updates of the seal count."""
    evaluations: tuple[EvaluatedModel, ...] = ()
    contributors: tuple[Contributor, ...] = ()
    """Contributors, in descending order of updates."""

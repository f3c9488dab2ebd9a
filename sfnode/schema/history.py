"""Output of commands with `--json` about the past of a run (docs/json.md): history, seals and members."""

from __future__ import annotations

from typing import NamedTuple

from sfnode.manifest.sections import Parent
from sfnode.schema.measurements import Answer
from sfnode.schema.node_state import Uncounted
from sfnode.schema.organising import EpochEvaluation


class OriginPart(Answer):
    """Number of an origin's updates in an epoch."""

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
    """Factor with which the seal multiplies the epoch's updates. `factor`, `digest` and `evaluation` are None
    in an open run."""
    rate: float
    """Learning rate at which updates with the epoch's label are applied."""
    digest: str | None
    """Named digest in the seal (SPEC O10)."""
    evaluation: EpochEvaluation | None
    """The last published evaluation of the model at this seal."""
    origins: list[OriginPart]
    """Origins with updates that count, the most updates first."""


class Decided(Answer):
    """A decision with the fields that every view shows. In an open run, which has no decisions, an epoch
    takes its place."""

    position: int | None
    """Number of the decision in the control feed, from 0; None in an open run."""
    kind: str
    """Name of the kind of decision, in lower case; `epoch` for an epoch of an open run."""
    text: str
    """Content of the decision, in words."""
    arrived: int | None = None
    """Time at which the decision arrived at this node, in seconds since 1970. None in an open run, and if an
    earlier version did not record it."""


class HistoryEntry(Decided):
    """A decision with its term and, if it is a seal, the sealed epoch. In an open run each entry is an
    epoch."""

    term: int | None
    """Term in which the decision was signed; None in an open run."""
    epoch: EpochEntry | None = None


class HistoryResult(Answer):
    """Output of `sfnode log --json`."""

    run_id: str
    run_name: str
    sealed: int | None
    """Number of sealed epochs; None in an open run."""
    counted: int
    """Number of updates that count."""
    waiting: int
    """Number of updates in this node's log that no seal has judged; 0 in an open run."""
    complete: bool
    """Whether the run is complete. Nodes make no more updates in a complete run, and updates that still wait
    for a seal never count."""
    budget: int
    parent: Parent | None
    """The run, and its state, from which this run was forked; None if this run is not a fork."""
    entries: list[HistoryEntry]
    """Decisions, the oldest first; in an open run, epochs."""


class Ranked(Answer):
    """A member of an organised run, ranked by its contribution."""

    rank: int
    """Rank, from 1. Members are ranked by worth; members of equal worth are ranked by the number of their
    updates that count."""
    origin: str
    name: str | None
    """Display name that the member chose; None without one."""
    counted: int
    """Number of the member's updates that count."""
    measured: int
    """Number of the member's counted updates whose worth was measured."""
    worth: int
    """Decrease of the validation loss by the measured updates, in units of 10^-9 nats, according to the
    organiser's decisions (SPEC O16)."""
    revoked: bool
    left_out: str | None = None
    """Reason why the member's latest work was left out; None if that work counts."""


class Verdict(Answer):
    """Verdict on the updates that a member made in one epoch, in one incarnation."""

    epoch: int
    incarnation: int
    named: int
    counted: int
    reason: Uncounted | None
    """Reason why these updates do not count; None if they count."""


class WhyResult(Answer):
    """Output of `sfnode log --why MEMBER --json`."""

    run_id: str
    member: int
    origin: str
    name: str | None
    revoked: int | None
    verdicts: list[Verdict]


class Remeasured(Answer):
    """Comparison of the feeds' worths in one epoch as the organiser signed them and as this machine measured
    them. A worth is the decrease of the validation loss by a feed's updates."""

    epoch: int
    rows: int
    said: int
    """Sum of all feeds' worths with factor 1, as the organiser signed them, in units of 10^-9 nats."""
    found: int
    """Sum of all feeds' worths with factor 1, as measured here, in units of 10^-9 nats."""
    off: float
    """Relative difference: the sum over feeds of |signed worth - measured worth|, divided by the sum over
    feeds of |signed worth|."""
    agrees: bool
    """Whether `off` is at most `LeaderboardResult.tolerance`."""


class LeaderboardResult(Answer):
    """Output of `sfnode leaderboard --json`."""

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
    """Maximum `Remeasured.off` at which the measured worths of an epoch agree with the signed ones; None if
    no epoch was measured again."""
    epochs: list[Remeasured]
    """Epochs whose worths this machine measured again."""


class CheckoutResult(Answer):
    """Output of `sfnode history checkout --json`."""

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
    """An origin whose updates count in an exported model."""

    origin: str
    """Key, in hex."""
    name: str
    """Display name and team that the origin chose; empty if it chose neither."""
    updates: int
    """Number of the origin's updates that count."""


class EvaluatedModel(NamedTuple):
    """An evaluation that the organiser published."""

    of: str
    """Description of the evaluated model."""
    result: EpochEvaluation


class Provenance(NamedTuple):
    """The state of a run from which a model was exported."""

    seal: int | None
    """Epoch of the seal; None in an open run, and with --as-of-now."""
    digest: str
    """Core digest of the updates that the seal counts; without a seal, the state digest. In hex."""
    updates: int
    amended: bool = False
    """Whether later decisions changed which updates of the seal count."""
    evaluations: tuple[EvaluatedModel, ...] = ()
    contributors: tuple[Contributor, ...] = ()
    """Contributors, in descending order of updates."""

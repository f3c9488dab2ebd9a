"""Past of a run as commands print it with --json (docs/json.md): its history, its seals, what changed."""

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
    """Display name that it has published of itself; None if it has none."""
    updates: int


class EpochEntry(Answer):
    """One epoch: of an organised run one that is sealed."""

    epoch: int
    named: int
    """Updates that its close has named; in an open run those with its label."""
    counted: int
    """Those that count now, by all decisions."""
    factor: float | None
    """Factor of what its seal counts; this and all below is None in an open run."""
    rate: float
    """Learning rate of updates with its label."""
    digest: str | None
    """Named digest (SPEC O10)."""
    evaluation: EpochEvaluation | None
    """The last one of its model that the organiser has published."""
    origins: list[OriginPart]
    """Those of whom something counts, the most updates first."""


class Decided(Answer):
    """A decision, or an epoch of an open run, as every view tells of it."""

    position: int | None
    """Number of the decision in the control feed, from 0; None in an open run."""
    kind: str
    """Name of the decision in lower case; `seal` and `epoch` have an `epoch`."""
    text: str
    """Its content in words."""
    arrived: int | None = None
    """Time at which it came to this node, in seconds since 1970; None in an open run, and where an earlier
    version has not noted it."""


class HistoryEntry(Decided):
    """The same with all that became of it."""

    term: int | None
    """Number of successions before it; None in an open run."""
    epoch: EpochEntry | None = None


class HistoryResult(Answer):
    """`sfnode log --json`."""

    run_id: str
    run_name: str
    sealed: int | None
    """Epochs that are sealed; None in an open run."""
    counted: int
    """Updates that count."""
    waiting: int
    """Updates here that no seal has judged; 0 in an open run."""
    complete: bool
    """Whether the run is: then nobody makes updates any more, and what waits counts nowhere."""
    budget: int
    parent: Parent | None
    """The state with which it began; None for a run that is not forked from another."""
    entries: list[HistoryEntry]
    """Decisions and seals, the oldest first."""


class Ranked(Answer):
    """A member of an organised run by what it has brought."""

    rank: int
    """Rank by worth, then by updates that count, from 1."""
    origin: str
    name: str | None
    """Display name that it has published of itself; None if it has none."""
    counted: int
    """Its updates that count."""
    measured: int
    """Updates among them of which the worth was measured."""
    worth: int
    """Nats of validation loss that these have taken off by the figures in the control feed (SPEC O16), in
    units of 10^-9."""
    revoked: bool
    left_out: str | None = None
    """Verdict against its latest work."""


class Verdict(Answer):
    """Outcome of a member's work in a round."""

    epoch: int
    incarnation: int
    named: int
    counted: int
    reason: Uncounted | None
    """Verdict against it."""


class WhyResult(Answer):
    """`sfnode log --why MEMBER --json`."""

    run_id: str
    member: int
    origin: str
    name: str | None
    revoked: int | None
    verdicts: list[Verdict]


class Remeasured(Answer):
    """Comparison of the figures of one epoch with those that were measured here."""

    epoch: int
    rows: int
    said: int
    """Worth of all feeds in the control feed, with factor 1, in units of 10^-9 nats."""
    found: int
    """The same as measured here."""
    off: float
    """Sum of the absolute differences over feeds, beside the sum of the absolute figures."""
    agrees: bool
    """Whether that is within the tolerance."""


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
    """The largest `off` that agrees; None if nothing was measured anew."""
    epochs: list[Remeasured]
    """Epochs that were measured anew."""


class CheckoutResult(Answer):
    """`sfnode history checkout --json`."""

    run_id: str
    epoch: int
    updates: int
    """Updates that count by its seal."""
    named_digest: str
    """Digest in the seal of what was named (SPEC O10)."""
    core_digest: str
    """Digest of the cores, computed from the log (SPEC D5)."""


# -- of an exported model, as far as a log tells: what its card says of it (`engine.model_card`) ----------


class Contributor(NamedTuple):
    """An origin of which something counts."""

    origin: str
    """Key, in hex."""
    name: str
    """Display name and team that it has published of itself; "" if it has none."""
    updates: int
    """Updates of its that count."""


class EvaluatedModel(NamedTuple):
    """An evaluation that the organiser has published."""

    of: str
    """The model in words."""
    result: EpochEvaluation


class Provenance(NamedTuple):
    """The state of a run that was exported."""

    seal: int | None
    """Epoch of the seal; None in an open run, and as of now."""
    digest: str
    """Core digest of what the seal counts; else the state digest; in hex."""
    updates: int
    amended: bool = False
    """Whether decisions after the seal have changed what counts by it."""
    evaluations: tuple[EvaluatedModel, ...] = ()
    contributors: tuple[Contributor, ...] = ()
    """Those with most updates first."""

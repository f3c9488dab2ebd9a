"""The views of a running node: the documented shapes of `GET /views/...`, `POST /generate` and queries."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sfnode.schema.evaluation import Answer, NodeEvaluation
from sfnode.schema.history import Decided
from sfnode.schema.organising import EpochEvaluation

MAX_PAGE = 1000
"""Origins or feeds in one answer; 300 KB."""

MAX_POINTS = 1000
"""Points of a history; more than a slider has positions."""

MAX_PROMPT = 8_192
"""Characters of a prompt; a person types fewer."""

MAX_GENERATED = 64
"""Tokens written after a prompt. The engine does not train meanwhile, and a CPU takes seconds for so many."""

MAX_ENTRIES = 1000
"""Entries of a timeline in one answer; more than anybody reads, 400 KB."""

Count = Annotated[int, Field(ge=0)]
Page = Annotated[int, Field(ge=1, le=MAX_PAGE)]
Points = Annotated[int, Field(ge=1, le=MAX_POINTS)]
Entries = Annotated[int, Field(ge=1, le=MAX_ENTRIES)]
Prompt = Annotated[str, Field(min_length=1, max_length=MAX_PROMPT)]
Tokens = Annotated[int, Field(ge=1, le=MAX_GENERATED)]
KeyStart = Annotated[str, Field(max_length=64, pattern="^[0-9a-f]*$")]
"""Fields of questions."""


class Progress(Answer):
    """Progress of the run, and the time at which it will be over at the present rate."""

    known: int
    """Updates here; in an organised run those that count by the seals so far."""
    update_budget: int
    epoch: int
    """Epoch of the next update, from 0."""
    epochs: int
    epoch_known: int
    """Updates since the epoch began; in an organised run those here that no close has named."""
    epoch_updates: int
    """Updates of the whole epoch."""
    updates_per_second: float | None
    """Rate of all nodes together, as updates arrive here; None until the node has caught up."""
    epoch_seconds_left: float | None
    seconds_left: float | None
    """None if the rate is unknown or zero."""


class Curves(Answer):
    """Measurements by this node since it started: columns of equal length, thinned out as they grow."""

    now: float
    """Seconds since the start."""
    interval: float
    """Seconds between two points."""
    seconds: list[float]
    known: list[int]
    own_rate: list[float]
    swarm_rate: list[float | None]
    loss: list[float | None]
    cpu: list[float | None]
    """Cores that the node kept busy."""
    memory: list[int | None]
    """Bytes of memory that it held."""
    gpu: list[float | None]
    """Share of the time in which its GPU was busy; None where nothing tells."""
    measurements: list[NodeEvaluation]


class FeedStatus(Answer):
    """The number of updates in one feed."""

    origin: str
    incarnation: int
    updates: int


class Feeds(Answer):
    """A part of the list of all feeds, in the order of their keys."""

    total: int
    offset: int
    feeds: list[FeedStatus]


class Origin(Answer):
    """The contribution of one key, counted in the signed log."""

    rank: int
    """Rank by worth, then by updates, from 1."""
    origin: str
    updates: int
    share: float
    """Share of all updates."""
    feeds: int
    """Number of incarnations."""
    first_step: int
    last_step: int
    """Steps of its latest feed."""
    first_epoch: int
    last_epoch: int
    cut: bool
    """Whether it has signed two histories; what came after the fork does not count."""
    counted: int | None = None
    """Its updates that seals count; None in an open run."""
    worth: int | None = None
    """Nats of validation loss that these have taken off by the organiser's figures, in units of 10^-9; None
    where nobody's were measured, and of who is no member."""
    left_out: str | None = None
    """Verdict against its latest work."""
    gain_share: float | None = None
    """Part that this has in all members' worths, each taken without its sign: -1 to 1; None as `worth`."""
    own: bool
    """Whether it is this node."""
    name: str | None
    """Display name; another origin may have the same."""
    team: str | None


class Team(Answer):
    """The contribution of the origins that name this team, which anybody may do."""

    team: str
    updates: int
    share: float
    """Share of all updates."""
    origins: int


class Origins(Answer):
    """A part of the list of all origins, those with the greatest worth first, then most updates."""

    total: int
    """Number of origins found."""
    offset: int
    updates: int
    """Updates of all origins, found or not."""
    indexed: int
    """Updates of the log that have been counted so far; counting goes on."""
    origins: list[Origin]
    teams: list[Team]
    """Teams of all origins, those with most updates first, a hundred at most."""


class SwarmNode(Answer):
    """One node, as this one knows it."""

    peer: str
    kind: Literal["self", "neighbour", "known"]
    """known: from the roster only, which anybody can write to."""
    role: str
    known: int
    """Updates that it knew in its last report."""
    lag: int
    """Number of our updates that it lacked then; 0 if it had more."""
    agrees: bool | None = None
    """Whether its last summary carried our digest at that moment; None unless it is a neighbour."""
    differs_for: float | None = None
    """Seconds for which it has not agreed, which is normal while updates are under way."""
    latency: float | None = None
    """Last measured round trip in seconds, over the same connection."""
    outbound: bool | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    name: str | None = None
    """Display name of this node, and of a neighbour that says with proof that it is `origin`; None for those
    that do not say it, and for relays."""
    origin: str | None = None
    """The origin that signs the peer's updates, if it says so with proof (SPEC L7)."""


class SwarmEdge(Answer):
    """A link between two nodes; a node knows only its own."""

    source: str
    target: str


class Swarm(Answer):
    """The swarm as a graph, this node first, then its neighbours."""

    nodes: list[SwarmNode]
    edges: list[SwarmEdge]


class HistoryPoint(Answer):
    """A span of consecutive epochs."""

    first_epoch: int
    last_epoch: int
    updates: int
    """Updates made in the span."""
    known: int
    """Updates made until its end."""
    origins: int
    """Number of origins that contributed to it."""


class Leader(Answer):
    """The growth of one origin's contribution."""

    origin: str
    name: str | None
    known: list[int]
    """Its updates until the end of each point."""


class History(Answer):
    """The course of the run by epochs, because the log has no clock."""

    indexed: int
    points: list[HistoryPoint]
    leaders: list[Leader]
    """The origins with most updates."""
    others: list[int]
    """Updates of everybody else until the end of each point."""


class Generated(Answer):
    """The continuations of a prompt by two models, decoded greedily."""

    base: str
    """Continuation by the base model."""
    now: str
    """Continuation by the model of the last seal; in an open run, as of now."""
    digest: str
    known: int
    """Updates in that model."""


class About(Answer):
    """The purpose of a run, and what it is made of: by its manifest, but for the licence."""

    run_id: str
    run_name: str
    description: str
    """Its purpose, as its owner states it; empty if it does not."""
    organised: bool
    model: str
    parent: str | None
    """Run of whose state the base model is made; None if it is none's."""
    licence: str | None
    """Licence that the base model's card names; None if it is not here, or names none."""
    task: str
    """Kind of the task (docs/tasks.md)."""
    template: str
    answers: list[str]
    """Answers that the task knows; empty unless they are the same for all rows."""
    train: str
    """Source of the training rows; empty if everybody brings their own."""
    test: str


class OwnStanding(Answer):
    """The contribution of this node's origin, over all its feeds."""

    rank: int | None
    """Rank by worth, then by updates; None as long as it has made nothing."""
    of: int
    """Origins in the log."""
    updates: int
    share: float
    """Share of all updates."""
    counted: int | None
    """Its updates that seals count; None in an open run."""
    worth: int | None
    """The same as of an `Origin`."""
    gain_share: float | None = None
    """The same as of an `Origin`."""


class SampleRow(Answer):
    """A test row as the models see it, and how the base model answers it."""

    text: str
    right: str
    """The right answer, or how the text goes on."""
    base: str
    base_score: float
    """1 if that answer is right, else 0; in a reward run its reward."""


class SampleMoment(Answer):
    """The answers of one model to the rows."""

    epoch: int | None
    """The sealed epoch whose model it is; in an open run the epoch that was open."""
    known: int
    """Updates in the model."""
    answers: list[str]
    scores: list[float]
    """Scores of these answers, as `base_score`."""


class Samples(Answer):
    """Answers to a few test rows, always the same ones, of the base model and of later models: as this node
    has computed them, thinned out as they grow."""

    rows: list[SampleRow]
    moments: list[SampleMoment]
    """Oldest first."""


class TimelineEntry(Decided):
    """A decision, with what became of it; what is None below is so unless it is a `seal`."""

    epoch: int | None
    counted: int | None
    """Updates of the epoch that count now."""
    origins: int | None
    """Origins of whom something in it counts."""
    evaluation: EpochEvaluation | None


class Timeline(Answer):
    """The last decisions of an organised run: seals, announcements, who was admitted, what was taken back."""

    total: int
    """Number of entries of the whole run; 0 in an open one."""
    entries: list[TimelineEntry]
    """Newest first."""

"""The views of a running node: the documented shapes of `GET /views/...`, `POST /generate` and queries."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sfnode.schema.evaluation import Answer, NodeEvaluation
from sfnode.schema.history import Decided
from sfnode.schema.organising import EpochEvaluation

MAX_PAGE = 1000
"""Maximum number of origins or feeds in one answer, which then has 300 KB."""

MAX_POINTS = 1000
"""Maximum number of points of a history: more than a slider has positions."""

MAX_PROMPT = 8_192
"""Maximum length of a prompt, in characters; a person types less."""

MAX_GENERATED = 64
"""Maximum number of tokens generated after a prompt. The engine does not train meanwhile, and a CPU takes
seconds for 64 tokens."""

MAX_ENTRIES = 1000
"""Maximum number of timeline entries in one answer, 400 KB: more than anybody reads."""

Count = Annotated[int, Field(ge=0)]
Page = Annotated[int, Field(ge=1, le=MAX_PAGE)]
Points = Annotated[int, Field(ge=1, le=MAX_POINTS)]
Entries = Annotated[int, Field(ge=1, le=MAX_ENTRIES)]
Prompt = Annotated[str, Field(min_length=1, max_length=MAX_PROMPT)]
Tokens = Annotated[int, Field(ge=1, le=MAX_GENERATED)]
KeyStart = Annotated[str, Field(max_length=64, pattern="^[0-9a-f]*$")]
"""Beginning of a key in hex, as a field of requests."""


class Progress(Answer):
    """Progress of the run, and the time left at the current rate."""

    known: int
    """Number of updates stored here; in an organised run updates that count after the seals so far."""
    update_budget: int
    epoch: int
    """Epoch of the next update, from 0."""
    epochs: int
    epoch_known: int
    """Number of updates since the epoch began; in an organised run updates stored here that no close
    lists."""
    epoch_updates: int
    """Number of updates of the whole epoch."""
    updates_per_second: float | None
    """Rate of all nodes together, as updates arrive here; None until the node caught up."""
    epoch_seconds_left: float | None
    seconds_left: float | None
    """Time until the end of the run; None if the rate is unknown or zero."""


class Curves(Answer):
    """Measurements by this node since it started, in columns of equal length. As they become many, some
    points are dropped."""

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
    """Number of cores that the node kept busy."""
    memory: list[int | None]
    """Bytes of memory that the node held."""
    gpu: list[float | None]
    """Share of the time in which the node's GPU was busy; None if that is unknown."""
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
    """Rank, from 1, in descending order of worth, and with equal worth of updates."""
    origin: str
    updates: int
    share: float
    """Share of all updates."""
    feeds: int
    """Number of incarnations."""
    first_step: int
    last_step: int
    """Last step of the origin's latest feed. `first_step` is its first step."""
    first_epoch: int
    last_epoch: int
    cut: bool
    """Whether the origin signed two different updates of one step. Its updates from that step on do not
    count."""
    counted: int | None = None
    """Number of its updates that seals count; None in an open run."""
    worth: int | None = None
    """Decrease of the validation loss by these updates, from the organiser's figures, in units of 10^-9 nats.
    None if no member's updates were measured, and for an origin that is not a member."""
    left_out: str | None = None
    """Reason why the origin's latest work was left out; None if that work counts."""
    gain_share: float | None = None
    """Worth divided by the sum of all members' absolute worths, from -1 to 1; None if `worth` is None."""
    own: bool
    """Whether it is this node's origin."""
    name: str | None
    """Display name. Another origin may have the same name."""
    team: str | None


class Team(Answer):
    """The contribution of all origins that name this team. Any origin may name it."""

    team: str
    updates: int
    share: float
    """Share of all updates."""
    origins: int


class Origins(Answer):
    """A part of the list of all origins, in descending order of worth, and with equal worth of updates."""

    total: int
    """Number of matching origins."""
    offset: int
    updates: int
    """Number of updates of all origins, matching or not."""
    indexed: int
    """Number of updates of the log that this node has counted so far for these statistics. Counting
    continues."""
    origins: list[Origin]
    teams: list[Team]
    """Teams of all origins, the most updates first, a hundred at most."""


class SwarmNode(Answer):
    """One node, as this node knows it."""

    peer: str
    kind: Literal["self", "neighbour", "known"]
    """Source of the information. `known` nodes are only in the roster, which anybody can write to."""
    role: str
    known: int
    """Number of updates that the node knew at its last report."""
    lag: int
    """Number of updates that it lacked then in comparison with this node; 0 if it lacked none."""
    agrees: bool | None = None
    """Whether the digest in its last Summary equalled this node's digest when it arrived; None unless it is a
    neighbour."""
    differs_for: float | None = None
    """Seconds for which its digest has differed from this node's, which is normal while updates are under
    way."""
    latency: float | None = None
    """Last measured round trip in seconds, over the same connection."""
    outbound: bool | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    name: str | None = None
    """Display name of this node, or of a neighbour that proved to be `origin`. None for other neighbours, and
    for relays."""
    origin: str | None = None
    """The origin that signs the peer's updates, if the peer proved it (SPEC L7)."""


class SwarmEdge(Answer):
    """A link between two nodes; a node knows only its own."""

    source: str
    target: str


class Swarm(Answer):
    """The swarm as a graph: this node, then its neighbours, then others."""

    nodes: list[SwarmNode]
    edges: list[SwarmEdge]


class HistoryPoint(Answer):
    """A span of consecutive epochs."""

    first_epoch: int
    last_epoch: int
    updates: int
    """Number of updates made in the span."""
    known: int
    """Number of updates made until the end of the span."""
    origins: int
    """Number of origins with updates in the span."""


class Leader(Answer):
    """The growth of one origin's contribution."""

    origin: str
    name: str | None
    known: list[int]
    """Number of the origin's updates until the end of each span in `History.points`."""


class History(Answer):
    """The course of the run over its epochs, because the log has no times."""

    indexed: int
    points: list[HistoryPoint]
    leaders: list[Leader]
    """The origins with the most updates."""
    others: list[int]
    """Number of updates of all other origins until the end of each span in `points`."""


class Generated(Answer):
    """The continuations of a prompt by two models, decoded greedily."""

    base: str
    """Continuation by the base model."""
    now: str
    """Continuation by the model of the last seal; in an open run, as of now."""
    digest: str
    known: int
    """Number of updates in the model of `now`."""


class About(Answer):
    """The purpose and the parts of a run. All but the licence is from its manifest."""

    run_id: str
    run_name: str
    description: str
    """Purpose of the run in its owner's words; empty without a description."""
    organised: bool
    model: str
    parent: str | None
    """Run whose state is the base model; None if the run is not a fork."""
    licence: str | None
    """Licence that the base model's card names; None without a card or a licence in it."""
    task: str
    """Kind of the task (docs/tasks.md)."""
    template: str
    answers: list[str]
    """Possible answers of the task; empty unless they are the same for all rows."""
    train: str
    """Source of the training rows; empty if every trainer brings its own."""
    test: str


class OwnStanding(Answer):
    """The contribution of this node's origin, over all its feeds."""

    rank: int | None
    """Rank in descending order of worth, and with equal worth of updates; None before the first update."""
    of: int
    """Number of origins in the log."""
    updates: int
    share: float
    """Share of all updates."""
    counted: int | None
    """Number of its updates that seals count; None in an open run."""
    worth: int | None
    """Worth of this node's origin, as in `Origin.worth`."""
    gain_share: float | None = None
    """Share of this node's origin in all worths, as in `Origin.gain_share`."""


class SampleRow(Answer):
    """A test row as the models see it, with the base model's answer."""

    text: str
    right: str
    """The right answer, or the row's continuation."""
    base: str
    base_score: float
    """Score of the base model's answer: 1 if it is right, else 0; in a reward run its reward."""


class SampleMoment(Answer):
    """The answers of one model to the rows."""

    epoch: int | None
    """The sealed epoch of the model; in an open run the epoch that was open."""
    known: int
    """Number of updates in the model."""
    answers: list[str]
    scores: list[float]
    """Scores of these answers, like `base_score`."""


class Samples(Answer):
    """Answers of the base model and of later models to a few test rows, always the same rows. This node
    computed the answers. As they become many, some models' answers are dropped."""

    rows: list[SampleRow]
    moments: list[SampleMoment]
    """The answers of each model, the oldest model first."""


class TimelineEntry(Decided):
    """A decision and its consequences. `epoch`, `counted`, `origins` and `evaluation` are None unless it is a
    `seal`."""

    epoch: int | None
    counted: int | None
    """Number of updates of the epoch that count now."""
    origins: int | None
    """Number of origins with updates of the epoch that count."""
    evaluation: EpochEvaluation | None


class Timeline(Answer):
    """The last decisions of an organised run: seals, announcements, admissions, and work that was taken
    back."""

    total: int
    """Number of entries of the whole run; 0 in an open run."""
    entries: list[TimelineEntry]
    """Entries, the newest first."""

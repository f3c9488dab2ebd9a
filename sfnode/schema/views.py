"""The views of a running node: the answers to `GET /views/...` and `POST /generate`, and the parameters of
these requests."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sfnode.schema.history import Decided
from sfnode.schema.measurements import Answer, NodeEvaluation
from sfnode.schema.organising import EpochEvaluation

MAX_PAGE = 1000
"""Maximum number of origins or feeds in one answer. Such an answer has 300 KB."""

MAX_POINTS = 1000
"""Maximum number of points of a history: more than a slider on a screen can distinguish."""

MAX_PROMPT = 8_192
"""Maximum length of a prompt, in characters: more than a person types."""

MAX_GENERATED = 64
"""Maximum number of tokens generated after a prompt. A CPU takes seconds for 64 tokens, and the engine does
not train meanwhile."""

MAX_ENTRIES = 1000
"""Maximum number of timeline entries in one answer, 400 KB: more than anybody reads."""

Count = Annotated[int, Field(ge=0)]
Page = Annotated[int, Field(ge=1, le=MAX_PAGE)]
Points = Annotated[int, Field(ge=1, le=MAX_POINTS)]
Entries = Annotated[int, Field(ge=1, le=MAX_ENTRIES)]
Prompt = Annotated[str, Field(min_length=1, max_length=MAX_PROMPT)]
Tokens = Annotated[int, Field(ge=1, le=MAX_GENERATED)]
KeyStart = Annotated[str, Field(max_length=64, pattern="^[0-9a-f]*$")]
"""Beginning of a key in hex, as requests give it to find an origin or a member."""


class Progress(Answer):
    """Progress of the run, and the time left at the current rate."""

    known: int
    """Number of updates stored here. In an organised run it is the number of updates that count according to
    the seals so far."""
    update_budget: int
    epoch: int
    """Epoch of the next update, from 0."""
    epochs: int
    epoch_known: int
    """Number of updates since the epoch began. In an organised run it is the number of updates stored here
    that no close lists."""
    epoch_updates: int
    """Number of updates of the whole epoch; in an organised run, the usual number."""
    updates_per_second: float | None
    """Rate of all nodes together, at which updates arrive here; None until this node has caught up."""
    epoch_seconds_left: float | None
    seconds_left: float | None
    """Seconds until the end of the run; None if the rate is unknown or 0."""


class Curves(Answer):
    """Measurements by this node since its start, in columns of equal length. When there are too many points,
    every second point is dropped."""

    now: float
    """Current time, in seconds since the node's start."""
    interval: float
    """Seconds between two points."""
    seconds: list[float]
    known: list[int]
    own_rate: list[float]
    swarm_rate: list[float | None]
    loss: list[float | None]
    cpu: list[float | None]
    """Number of CPU cores that the node kept busy, at each point."""
    memory: list[int | None]
    """Bytes of memory that the node held, at each point."""
    gpu: list[float | None]
    """Share of the time in which the node's GPUs were busy, at each point; None if that is unknown."""
    measurements: list[NodeEvaluation]


class FeedStatus(Answer):
    """The number of updates in one feed."""

    origin: str
    incarnation: int
    updates: int


class Feeds(Answer):
    """A page of the list of all feeds, sorted by origin, then by incarnation."""

    total: int
    offset: int
    feeds: list[FeedStatus]


class Origin(Answer):
    """The contribution of one origin, counted in the log of signed updates."""

    rank: int
    """Rank, from 1. Origins are ranked by worth; origins of equal worth are ranked by their number of
    updates."""
    origin: str
    updates: int
    share: float
    """Share of all updates."""
    feeds: int
    """Number of the origin's feeds, one for each incarnation."""
    first_step: int
    last_step: int
    """Last step of the origin's latest feed. `first_step` is the first step of the same feed."""
    first_epoch: int
    last_epoch: int
    cut: bool
    """Whether the origin signed two different updates of one step. The feed's updates from that step on do
    not count."""
    counted: int | None = None
    """Number of the origin's updates that count according to seals; None in an open run."""
    worth: int | None = None
    """Decrease of the validation loss by the origin's updates that the organiser has measured, in units of
    10^-9 nats. None if no member's updates were measured, and for an origin that is not a member."""
    left_out: str | None = None
    """Reason why the origin's latest work was left out; None if that work counts."""
    gain_share: float | None = None
    """Worth divided by the sum of all members' absolute worths, from -1 to 1; None if `worth` is None."""
    own: bool
    """Whether this is the origin that signs this node's updates."""
    name: str | None
    """Display name that the origin chose. Another origin may have the same name."""
    team: str | None


class Team(Answer):
    """The contribution of all origins that name this team. Any origin may name any team."""

    team: str
    updates: int
    share: float
    """Share of all updates."""
    origins: int


class Origins(Answer):
    """A page of the list of all origins, ordered by rank."""

    total: int
    """Number of origins on all pages that match the request."""
    offset: int
    updates: int
    """Number of updates of all origins, whether or not they match the request."""
    indexed: int
    """Number of updates of the log that these statistics include so far. The node is still counting the
    others."""
    origins: list[Origin]
    teams: list[Team]
    """Teams of all origins, in descending order of their numbers of updates. A hundred at most."""


class SwarmNode(Answer):
    """A node of the run, as the answering node knows it."""

    peer: str
    kind: Literal["self", "neighbour", "known"]
    """Source of the information. Nodes of the kind `known` are only in the roster, to which anybody can
    write."""
    role: str
    known: int
    """Number of updates that the node had when it last reported."""
    lag: int
    """Number of updates by which the answering node has more; 0 if it does not have more."""
    agrees: bool | None = None
    """Whether the digest in the node's last Summary equalled the answering node's digest when the Summary
    arrived. True for the answering node itself, None for nodes of the kind `known`."""
    differs_for: float | None = None
    """Seconds for which a neighbour's digest has differed from the answering node's; None if it does not
    differ. A difference is normal while updates are under way."""
    latency: float | None = None
    """Last round-trip time in seconds, measured over the connection of the link; None if unknown."""
    outbound: bool | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    name: str | None = None
    """Display name of the answering node, or of a neighbour that has proved its `origin`. None for other
    nodes, and for relays."""
    origin: str | None = None
    """The origin that signs the node's updates; None if the node has not proved it (SPEC L7)."""


class SwarmEdge(Answer):
    """A link from the node that opened it to another node. A node knows only its own links."""

    source: str
    target: str


class Swarm(Answer):
    """The swarm as a graph. The nodes are the answering node, then its neighbours, then others."""

    nodes: list[SwarmNode]
    edges: list[SwarmEdge]


class HistoryPoint(Answer):
    """A span of consecutive epochs."""

    first_epoch: int
    last_epoch: int
    updates: int
    """Number of updates made in the span."""
    known: int
    """Number of updates made from the beginning of the run to the end of the span."""
    origins: int
    """Number of origins with updates in the span."""


class Leader(Answer):
    """The growth of one origin's contribution over a run."""

    origin: str
    name: str | None
    known: list[int]
    """Number of the origin's updates from the beginning of the run to the end of each span in
    `History.points`."""


class History(Answer):
    """The course of a run over its epochs. The log has no times, so the points are spans of epochs."""

    indexed: int
    points: list[HistoryPoint]
    leaders: list[Leader]
    """The origins with the most updates."""
    others: list[int]
    """Number of updates of all other origins, from the beginning of the run to the end of each span in
    `points`."""


class Generated(Answer):
    """The continuations of a prompt by two models, decoded greedily."""

    base: str
    """Continuation by the base model."""
    now: str
    """Continuation by the model of the last seal; in an open run, by the model with all updates so far."""
    digest: str
    known: int
    """Number of updates in the model of `now`."""


class About(Answer):
    """The purpose, model, task and data of a run. All of it is from the run's manifest, except the
    licence."""

    run_id: str
    run_name: str
    description: str
    """Purpose of the run, in the words of its owner; empty without a description."""
    organised: bool
    model: str
    parent: str | None
    """Run whose state is the base model; None if the run is not a fork."""
    licence: str | None
    """Licence that the base model's model card names; None if it names none, or if there is no card."""
    task: str
    """Kind of the task (docs/tasks.md)."""
    template: str
    answers: list[str]
    """Possible answers of the task; empty if they differ from row to row."""
    train: str
    """Source of the training rows; empty if every trainer brings its own rows."""
    test: str


class OwnStanding(Answer):
    """The contribution of this node's origin, over all its feeds."""

    rank: int | None
    """Rank of this node's origin among all origins, as in `Origin.rank`; None before its first update."""
    of: int
    """Number of origins in the log."""
    updates: int
    share: float
    """Share of all updates."""
    counted: int | None
    """Number of the origin's updates that count according to seals; None in an open run."""
    worth: int | None
    """Worth of this node's origin, as in `Origin.worth`."""
    gain_share: float | None = None
    """The origin's worth relative to that of all members, as in `Origin.gain_share`."""


class SampleRow(Answer):
    """A test row as models read it, with the base model's answer."""

    text: str
    right: str
    """The right answer, or the row's continuation."""
    base: str
    base_score: float
    """Score of the base model's answer: 1 if the answer is right, else 0; in a reward run, the reward of the
    answer."""


class SampleMoment(Answer):
    """The answers to the sample rows by the model of one moment of a run."""

    epoch: int | None
    """The sealed epoch of the model; in an open run the epoch at that moment."""
    known: int
    """Number of updates in the model."""
    answers: list[str]
    scores: list[float]
    """Scores of the answers, as in `SampleRow.base_score`."""


class Samples(Answer):
    """Answers of the base model and of later models to a few test rows, always the same rows. This node
    computed the answers. When there are too many moments, every second one is dropped."""

    rows: list[SampleRow]
    moments: list[SampleMoment]
    """The answers of each model, the oldest model first."""


class TimelineEntry(Decided):
    """A decision of an organised run. `epoch`, `counted`, `origins` and `evaluation` describe the sealed
    epoch, and are None unless the decision is a seal."""

    epoch: int | None
    counted: int | None
    """Number of updates of the epoch that count now."""
    origins: int | None
    """Number of origins with updates of the epoch that count."""
    evaluation: EpochEvaluation | None


class Timeline(Answer):
    """The last decisions of an organised run, such as seals, announcements, admissions, and decisions to take
    back work."""

    total: int
    """Number of entries of the whole run; 0 in an open run."""
    entries: list[TimelineEntry]
    """Decisions, the newest first."""

"""What the views of a node are made of: the documented shapes of `GET /views/...` and `POST /generate`,
and of what may be asked there.

Pydantic models and nothing else, as in `status`, so that whoever shows them loads neither torch nor the node.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from sfnode.runtime.status import Answer, Measured

MAX_PAGE = 1000
"""Origins or feeds told at a time; 300 KB."""

MAX_POINTS = 1000
"""Of a history; more than a slider can be moved to."""

MAX_PROMPT = 8_192
"""Characters of a prompt: beyond any that a person types."""

MAX_GENERATED = 64
"""Tokens written after a prompt: the engine trains nothing meanwhile, and a CPU takes seconds for so many."""


class _Query(BaseModel):
    model_config = ConfigDict(extra="forbid")


class FeedsQuery(_Query):
    """Which part of the list of feeds."""

    offset: int = Field(default=0, ge=0)
    limit: int = Field(default=100, ge=1, le=MAX_PAGE)


class OriginsQuery(FeedsQuery):
    """Which part of the list of origins."""

    find: str = Field(default="", max_length=64, pattern="^[0-9a-f]*$")


class HistoryQuery(_Query):
    """How finely the history is told."""

    points: int = Field(default=200, ge=1, le=MAX_POINTS)


class GenerateRequest(_Query):
    """What to write on, and how many tokens at most."""

    prompt: str = Field(min_length=1, max_length=MAX_PROMPT)
    tokens: int = Field(default=32, ge=1, le=MAX_GENERATED)


class Progress(Answer):
    """How far the run is, and when it will be over if it goes on like this."""

    known: int
    update_budget: int
    epoch: int
    """Of the next update, from 0."""
    epochs: int
    epoch_known: int
    """Updates since the epoch began."""
    epoch_updates: int
    """How many it has."""
    updates_per_second: float | None
    """Of all nodes together, as they arrive here; null until the node has caught up."""
    epoch_seconds_left: float | None
    seconds_left: float | None
    """Null where the rate is unknown or nothing moves."""


class Measurement(Measured):
    """An evaluation that somebody has asked this node for."""

    seconds: float
    known: int
    base: bool
    """Of the base model."""


class Curves(Answer):
    """What this node has seen since it started, in columns of equal length; thinned out as it grows."""

    now: float
    """Seconds since the start."""
    interval: float
    """Seconds between two points."""
    seconds: list[float]
    known: list[int]
    own_rate: list[float]
    swarm_rate: list[float | None]
    loss: list[float | None]
    measurements: list[Measurement]


class FeedStatus(Answer):
    """How many updates one feed has contributed."""

    origin: str
    incarnation: int
    updates: int


class Feeds(Answer):
    """A part of the list of all feeds, in the order of their keys."""

    total: int
    offset: int
    feeds: list[FeedStatus]


class Origin(Answer):
    """What one key has contributed, counted in the signed log."""

    rank: int
    """By updates, from 1."""
    origin: str
    updates: int
    share: float
    """Of all updates."""
    feeds: int
    """Incarnations."""
    first_step: int
    last_step: int
    """Of its latest feed."""
    first_epoch: int
    last_epoch: int
    cut: bool
    """It has signed two histories, and what came after the fork does not count."""
    own: bool
    """It is this node."""
    name: str
    """What it calls itself, if it does; another may have the same name."""
    team: str


class Team(Answer):
    """What those have contributed who name this team, which anybody may."""

    team: str
    updates: int
    share: float
    """Of all updates."""
    origins: int


class Origins(Answer):
    """A part of the list of all origins, those with most updates first."""

    total: int
    """Origins that were looked for and found."""
    offset: int
    updates: int
    """Of all origins, found or not."""
    indexed: int
    """Updates of the log that are counted so far; the rest follows."""
    origins: list[Origin]
    teams: list[Team]
    """Of all origins, those with most updates first, a hundred at most."""


class SwarmNode(Answer):
    """One node, as far as this one knows it."""

    peer: str
    kind: str
    """self | neighbour | known (from the roster only, which anybody can write into)."""
    role: str
    known: int
    """Updates it had by its last word."""
    lag: int
    """How many of our updates it lacked then; 0 if it had more."""
    agrees: bool | None = None
    """Its last summary carried our digest of that moment; null for those who are no neighbours."""
    differs_for: float | None = None
    """Seconds for which it has not: with updates under way that is nothing to worry about."""
    latency: float | None = None
    """Seconds from a question to its answer over the same road, as last measured."""
    outbound: bool | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    name: str = ""
    """Of this node only: who a peer is as an origin, nobody tells."""


class SwarmEdge(Answer):
    """A link between two nodes; this node knows its own only."""

    source: str
    target: str


class Swarm(Answer):
    """The swarm as a graph, this node first, then its neighbours."""

    nodes: list[SwarmNode]
    edges: list[SwarmEdge]


class HistoryPoint(Answer):
    """Some consecutive epochs of the run."""

    first_epoch: int
    last_epoch: int
    updates: int
    """Made in them."""
    known: int
    """Made until their end."""
    origins: int
    """How many have contributed to them."""


class Leader(Answer):
    """How one origin's contribution has grown."""

    origin: str
    name: str
    known: list[int]
    """Its updates until the end of each point."""


class History(Answer):
    """The course of the run as the log has it, by epochs: the log knows no clock."""

    indexed: int
    points: list[HistoryPoint]
    leaders: list[Leader]
    """Those with most updates."""
    others: list[int]
    """Updates of everybody else until the end of each point."""


class Generated(Answer):
    """What two models write after a prompt, each taking the likeliest token every time."""

    base: str
    """The base model."""
    now: str
    """The model as of now."""
    digest: str
    known: int
    """Which model that was."""

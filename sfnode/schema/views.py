"""The views of a running node: the documented shapes of `GET /views/...`, `POST /generate` and queries."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from sfnode.schema.base import Answer
from sfnode.schema.evaluation import NodeEvaluation

MAX_PAGE = 1000
"""Origins or feeds in one answer; 300 KB."""

MAX_POINTS = 1000
"""Points of a history; more than a slider has positions."""

MAX_PROMPT = 8_192
"""Characters of a prompt; a person types fewer."""

MAX_GENERATED = 64
"""Tokens written after a prompt. The engine does not train meanwhile, and a CPU takes seconds for so many."""


class _Query(BaseModel):
    model_config = ConfigDict(extra="forbid")


class FeedsQuery(_Query):
    """A part of the list of feeds."""

    offset: int = Field(default=0, ge=0)
    limit: int = Field(default=100, ge=1, le=MAX_PAGE)


class OriginsQuery(FeedsQuery):
    """A part of the list of origins, perhaps only of those whose key begins with `find`."""

    find: str = Field(default="", max_length=64, pattern="^[0-9a-f]*$")


class HistoryQuery(_Query):
    """The number of points of a history."""

    points: int = Field(default=200, ge=1, le=MAX_POINTS)


class GenerateRequest(_Query):
    """A prompt, and how many tokens may follow it."""

    prompt: str = Field(min_length=1, max_length=MAX_PROMPT)
    tokens: int = Field(default=32, ge=1, le=MAX_GENERATED)


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
    """Its updates that count by the seals so far; None in an open run."""
    worth: int | None = None
    """Nats of validation loss that these have taken off by the organiser's figures, in units of 10^-9; None
    in an open run, and of who is no member."""
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
    """Display name of this node; None for the others, as nobody tells which origin a peer is."""


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

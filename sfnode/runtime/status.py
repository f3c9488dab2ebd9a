"""What a node says about itself over its control socket: the stable, documented shape of `status --json`.

Pydantic models and nothing else, so that clients load neither torch nor the node.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from sfnode.limits import Limits


class Answer(BaseModel):
    """Whatever a node answers."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")
    """JSON has no NaN: a loss that is none travels as a string, which floats are read from as well."""


class LinkStatus(Answer):
    """One neighbour."""

    peer: str
    outbound: bool
    role: str
    known: int
    """Updates it knew by its last word."""
    agrees: bool
    """Its last Summary carried our digest of that moment."""
    bytes_sent: int
    bytes_received: int


class FetchStatus(Answer):
    """The base model on its way from peers."""

    done: int
    """Bytes that are here, of earlier attempts too."""
    total: int
    """Bytes in all; 0 until the listing has come."""
    peers: int
    """Peers that have given something."""


class Status(Answer):
    """The state of a node. Hashes and keys in hex, rates per second, bytes over all links since the start.

    Of the size of its links, however many feeds the run has: it is asked for every second."""

    version: str
    run_id: str
    run_name: str
    role: str
    state: str
    """starting | catching-up | asking | training | paused | finishing | idle | complete.

    complete: the budget is used up and nothing more will come from this node. When all nodes of a run say so
    and their digests are equal, they stay equal."""
    pid: int
    peer: str
    addresses: list[str]
    known: int
    update_budget: int
    epoch: int
    epochs: int
    digest: str
    """The state digest (SPEC D3): equal digests mean equal models."""
    origin: str
    incarnation: int
    own_updates: int
    """Updates of this process."""
    contributed: int
    """Updates of its feed in the log, over all its starts."""
    updates_per_second: float
    """Own updates, over the last ten seconds."""
    loss: float | None
    """Training loss at the points evaluated lately (moving average)."""
    lacking: int
    """Updates that neighbours have, by their word, and that it is fetching."""
    links: list[LinkStatus]
    feed_count: int
    bytes_sent: int
    bytes_received: int
    segment_bytes_sent: int
    updates_sent: int
    """Updates that left over links, each link counted; segment_bytes_sent / updates_sent is their cost."""
    log_bytes: int
    uptime: float
    fetch: FetchStatus | None
    """None while no base model is on its way from peers."""
    pauses: list[str]
    """Why it computes nothing now, in words."""
    limits: Limits


class Measured(Answer):
    """What an evaluation has found."""

    metric: str
    """accuracy, f1, exact_match or perplexity."""
    value: float
    low: float
    """Lower end of the value's 95 % confidence interval."""
    high: float
    loss: float
    count: int


class EvaluationStatus(Measured):
    """The answer to an evaluation."""

    digest: str
    """State digest of the model that was evaluated; empty for the base model."""


class CoreStatus(Answer):
    """The answer to `digest`: the digest over the cores checks the engine against the log."""

    digest: str
    core_digest: str
    known: int

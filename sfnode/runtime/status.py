"""What a node says about itself over its control socket: the stable, documented shape of `status --json`.

Pydantic models and nothing else, so that clients load neither torch nor the node.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from sfnode.limits import Limits


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")
    """JSON has no NaN: a loss that is none travels as a string, which floats are read from as well."""


class LinkStatus(_Answer):
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


class FeedStatus(_Answer):
    """How many updates one feed has contributed, from the signed log."""

    origin: str
    incarnation: int
    updates: int


class Status(_Answer):
    """The state of a node. Hashes and keys in hex, rates per second, bytes over all links since the start."""

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
    updates_per_second: float
    """Own updates, over the last ten seconds."""
    loss: float | None
    """Training loss at the points evaluated lately (moving average)."""
    lacking: int
    """Feeds being pulled from peers."""
    links: list[LinkStatus]
    feeds: list[FeedStatus]
    bytes_sent: int
    bytes_received: int
    segment_bytes_sent: int
    updates_sent: int
    """Updates that left over links, each link counted; segment_bytes_sent / updates_sent is their cost."""
    log_bytes: int
    uptime: float
    pauses: list[str]
    """Why it computes nothing now, in words."""
    limits: Limits


class EvaluationStatus(_Answer):
    """The answer to an evaluation."""

    metric: str
    value: float
    low: float
    """Lower end of the value's 95 % confidence interval."""
    high: float
    loss: float
    count: int
    digest: str
    """State digest of the model that was evaluated; empty for the base model."""


class CoreStatus(_Answer):
    """The answer to `digest`: the digest over the cores checks the engine against the log."""

    digest: str
    core_digest: str
    known: int

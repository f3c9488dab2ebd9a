"""What the commands that end print with `--json`: the stable shapes that docs/json.md describes.

Pydantic models and nothing else. What a running node says of itself is in `sfnode.runtime.status`.
"""

from __future__ import annotations

from pydantic import BaseModel


class Measurement(BaseModel):
    """A model on the run's test rows."""

    metric: str
    """accuracy, exact_match or perplexity."""
    value: float
    loss: float
    count: int


class EvalResult(BaseModel):
    """`sfnode eval --json`."""

    run_id: str
    updates: int
    digest: str
    before: Measurement
    after: Measurement


class VerifyResult(BaseModel):
    """`sfnode verify --json`."""

    run_id: str
    feeds: int
    updates: int
    signatures: int
    digest: str
    core_digest: str


class NodeResult(BaseModel):
    """One node of a local swarm."""

    node: int
    own_updates: int
    digest: str
    core_digest: str


class SwarmResult(BaseModel):
    """`sfnode swarm --json`."""

    version: str
    run_id: str
    run_name: str
    updates: int
    update_budget: int
    equal: bool
    """All digests and all core digests are the same."""
    before: Measurement | None
    after: Measurement | None
    """None for a run without test data."""
    nodes: list[NodeResult]
    bytes_per_update: float
    bytes_sent: int
    seconds: float
    """From the first update that was seen until all nodes had all of them."""
    seconds_in_all: float
    """From the start of the command."""

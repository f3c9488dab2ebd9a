"""What the commands that end print with `--json`: the stable shapes that docs/json.md describes.

Pydantic models and nothing else. What a running node says of itself is in `sfnode.runtime.status`.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class _Result(BaseModel):
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")
    """JSON has no NaN: a loss that is none is a string, as in `sfnode.runtime.status`."""


class Measurement(_Result):
    """A model on the run's test rows."""

    metric: str
    """accuracy, exact_match or perplexity."""
    value: float
    loss: float
    count: int


class EvalResult(_Result):
    """`sfnode eval --json`."""

    run_id: str
    updates: int
    digest: str
    before: Measurement
    after: Measurement


class VerifyResult(_Result):
    """`sfnode verify --json`."""

    run_id: str
    feeds: int
    updates: int
    signatures: int
    digest: str
    core_digest: str


class NodeResult(_Result):
    """One node of a local swarm."""

    node: int
    own_updates: int
    digest: str
    core_digest: str


class SwarmResult(_Result):
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

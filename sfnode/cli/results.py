"""What the commands that end print with `--json`: the stable shapes that docs/json.md describes.

Pydantic models and nothing else. What a running node says of itself is in `sfnode.runtime.status`.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from sfnode.runtime.status import Measured


class _Result(BaseModel):
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")
    """JSON has no NaN: a loss that is none is a string, as in `sfnode.runtime.status`."""


class Measurement(Measured):
    """A model on the run's test rows."""


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


class InviteResult(_Result):
    """`sfnode invite --json`."""

    link: str
    run_id: str
    run_name: str
    protocol: int
    addresses: list[str]
    reach: str
    """internet, network (a private one) or machine: from where the addresses can be reached at all."""


class PeerProtocol(_Result):
    """What one peer speaks."""

    address: str
    protocol: int | None
    reason: str


class UpgradeResult(_Result):
    """`sfnode upgrade-check --json`."""

    version: str
    protocol: int
    run_id: str
    run_name: str
    run_protocol: int | None
    peers: list[PeerProtocol]
    can_join: bool


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


class BatchResult(_Result):
    """One size of a mini-batch in `sfnode bench`."""

    batch: int
    """Rows of each query's mini-batch."""
    tokens: int
    """Real ones in a step's mini-batches, counted once."""
    forwards_seconds: float
    """Two plain forward passes."""
    step_seconds: float
    step_ratio: float
    """The step's time by that of two forward passes."""
    tokens_per_second: float
    """Through the step, at both points."""
    updates_per_hour: float
    inference_peak_bytes: int | None
    """A plain forward pass with the batch doubled; None where it is unknown."""
    training_peak_bytes: int | None
    memory_ratio: float | None
    mezo_matrices_seconds: float | None
    """MeZO's step on the same matrices; None unless asked for, or where it cannot work."""
    mezo_matrices_ratio: float | None
    """By our step."""
    mezo_all_seconds: float | None
    """MeZO's step on all parameters."""
    mezo_all_ratio: float | None


class IncomingResult(_Result):
    """What taking in others' updates costs, in `sfnode bench`."""

    updates: int
    """That arrive during a step."""
    add_seconds: float
    """For the exact core to take them in."""
    fold_seconds: float
    """For the weights to follow, once, whatever has come since they last did."""
    shares: dict[int, float]
    """Of a step's time, in the long run, by batch."""


class FitResult(_Result):
    """The largest model that fits, in one number format, in `sfnode bench`."""

    dtype: str
    bytes_per_parameter: float
    parameters: int


class BenchResult(_Result):
    """`sfnode bench --json`."""

    version: str
    model: str
    parameters: int
    trained_parameters: int
    matrices: int
    device: str
    device_name: str
    dtype: str
    threads: int
    rank: int
    queries: int
    repetitions: int
    batches: list[BatchResult]
    incoming: list[IncomingResult]
    weight_bytes: int
    overhead_bytes: int | None
    """The largest training peak without the weights."""
    free_bytes: int | None
    """On the device, before the model was loaded."""
    fits: list[FitResult]

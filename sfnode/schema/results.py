"""Output of commands with `--json`, in a stable form that docs/json.md describes.

The answers of a running node are in `sfnode.schema.status` and `sfnode.schema.views`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from sfnode.schema.measurements import Answer, BaselineEvaluation, Evaluation, LayeredDrift, ProbeEvaluation
from sfnode.schema.status import Status
from sfnode.schema.views import FeedStatus


class StatusResult(Status):
    """Output of `sfnode status --json --feeds`. Without --feeds the output is a `Status`."""

    feeds: list[FeedStatus]


class EvalResult(Answer):
    """Output of `sfnode eval --json`."""

    run_id: str
    updates: int
    digest: str
    """Core digest (SPEC D5) of the updates that the seal counts; without a seal, the state digest."""
    seal: int | None
    """Epoch of the seal whose model was evaluated; None in an open run, and with --as-of-now."""
    before: Evaluation
    """Result of the base model."""
    calibrated: Evaluation | None
    """Result of the base model with its prior over the answers subtracted. None if the answers differ from
    row to row, or if there are no training rows on which to measure the prior."""
    after: Evaluation
    """Result of the trained model. If the run's loss is centred, the model's prior over the answers is
    subtracted."""
    probe: ProbeEvaluation | None = None
    """Result of a linear probe fitted to the run's training rows. None if more than a linear head is trained,
    or if too few hidden states are stored here."""
    baselines: tuple[BaselineEvaluation, ...] = ()
    """Results of baselines without a model on the same test rows; empty for a task without labels."""
    loss: Literal["plain", "centred", "calibrated"]
    """Kind of the run's loss."""
    prior: dict[str, float] | None
    """The trained model's prior that was subtracted from its scores, in nats, keyed by answer; None if no
    prior was subtracted."""
    drift: LayeredDrift
    """Distance of the trained model from the base model."""


class UpdateLine(Answer):
    """A line of `sfnode log`."""

    origin: str
    incarnation: int
    step: int
    epoch: int
    seed: str
    """Seed of the update, in decimal digits. It is text because many JSON readers round integers of 64
    bits."""
    scalar: int | tuple[int, ...]
    """Scalar of the update; in a first-order run one scalar for every cell of the cores."""
    weight: int
    """Factor of the scalar (SPEC O8); 1 in an open run."""


class VerifyResult(Answer):
    """Output of `sfnode verify --json`."""

    run_id: str
    feeds: int
    updates: int
    signatures: int
    digest: str
    core_digest: str
    """Core digest of the updates that count at the seal of `SealsResult.epoch`. In an open run and with
    --as-of-now, core digest of all updates that count now."""
    checkpoint: int | None
    """Epoch of the checkpoint at which verification began; None if it began at genesis."""
    seals: SealsResult | None
    """Results for the seals; None for an open run."""


class SealsResult(Answer):
    """The organiser's part of `sfnode verify --json`."""

    decisions: int
    sealed: int
    """Number of sealed epochs."""
    checked: int
    """Number of seals whose digest was recomputed. The others cannot be checked, because the log lacks some
    of their updates."""
    behind: int
    """Number of updates that closes list and that are not in the log."""
    named_digest: str | None
    """Named digest of the last seal that was checked; None if no seal was checked."""
    epoch: int | None
    """Epoch of the last seal whose updates are all stored here; None if there is no such seal."""
    updates: int
    """Number of updates that count at the seal of `epoch`."""
    lacking: int
    """Number of updates that the closes of sealed epochs list and that are not in the log."""


class ArchiveStatement(Answer):
    """The statement in an archive: counts and digests of the archive's log. `sfnode history archive --json`
    prints the statement."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int
    """Version of the archive's format."""
    version: str = Field(max_length=64)
    """Version of sfnode that wrote the archive."""
    run_id: str = Field(pattern="^[0-9a-f]{64}$")
    feeds: int
    updates: int
    decisions: int
    """Number of decisions of the organiser. `decisions` and `sealed` are 0 in an open run."""
    sealed: int
    """Number of sealed epochs."""
    digest: str
    """State digest of the archive's whole log."""
    core_digest: str
    """Core digest of the updates that count at the last seal whose updates are all in the archive."""
    named_digest: str | None
    """Named digest of the last seal whose updates are all in the archive; None if there is no such seal."""


class ImportResult(Answer):
    """Output of `sfnode history import --json`."""

    run_id: str
    run_name: str
    new_updates: int
    """Number of updates that the import added to the folder."""
    new_decisions: int
    updates: int
    """Number of updates in the folder after the import."""
    sealed: int | None
    """Number of sealed epochs after the import; None in an open run."""
    digest: str
    """State digest of the folder's log after the import."""
    same: bool
    """Whether the folder's log then has the same state digest as the archive's."""


Reach = Literal["internet", "network", "machine"]


class InviteResult(Answer):
    """Output of `sfnode invite --json`."""

    link: str
    run_id: str
    run_name: str
    protocol: int
    addresses: list[str]
    contacts_url: str = ""
    """Web page with current contacts (SPEC N6) that the link names; empty if it names no page."""
    reach: Reach
    """Place from which a peer can reach the addresses, as far as their form shows: the internet, the same
    private network, or only this machine."""


class NodeResult(Answer):
    """Result of one node of a local swarm."""

    node: int
    own_updates: int
    digest: str
    core_digest: str | None


class SwarmResult(Answer):
    """Output of `sfnode swarm --json`."""

    version: str
    run_id: str
    run_name: str
    updates: int
    """Number of updates in the nodes' logs at the end."""
    counted: int | None
    """Number of updates that count according to the organiser's seals; None for an open run."""
    sealed: int | None
    """Number of epochs that the organiser sealed; None for an open run."""
    announced: str | None = None
    """The organiser's last announcement, such as why it ended the run early or took updates back; None
    without an announcement."""
    update_budget: int
    equal: bool
    """Whether all nodes have the same digest and the same core digest."""
    before: Evaluation | None
    calibrated: Evaluation | None = None
    """Result of the base model with its prior over the answers subtracted; None if the prior cannot be
    measured."""
    after: Evaluation | None
    """Result of the trained model. `before` and `after` are None for a run without test data."""
    probe: ProbeEvaluation | None = None
    """Result of a linear probe fitted to the training rows of all nodes; None if more than a linear head is
    trained."""
    baselines: tuple[BaselineEvaluation, ...] = ()
    """Results of baselines without a model, fitted to the first node's rows and the public rows; empty for a
    task without labels."""
    nodes: list[NodeResult]
    bytes_per_update: float
    bytes_sent: int
    seconds: float
    """Seconds from the first update until all nodes had all updates."""
    seconds_in_all: float
    """Duration of the whole command in seconds."""


class BatchResult(Answer):
    """Measurements for one mini-batch size in `sfnode lab bench`."""

    batch: int
    """Number of rows of each mini-batch."""
    tokens: int
    """Number of tokens in the mini-batches of a step, without padding."""
    forwards_seconds: float
    """Time of plain forward passes, as many as a step needs: two for each update, or one for each update of a
    group."""
    step_seconds: float
    step_ratio: float
    """`step_seconds` divided by `forwards_seconds`."""
    tokens_per_second: float
    """Number of tokens that a step processes per second. A token counts once for each forward pass."""
    updates_per_hour: float
    inference_peak_bytes: int | None
    """Peak memory of a plain forward pass over as many rows as a step has; None if unknown."""
    training_peak_bytes: int | None
    memory_ratio: float | None
    mezo_matrices_seconds: float | None
    """Time of MeZO's step on the same matrices. None if it was not requested, or if the weights are
    quantised, so that MeZO cannot perturb them."""
    mezo_matrices_ratio: float | None
    """`mezo_matrices_seconds` divided by `step_seconds`."""
    mezo_all_seconds: float | None
    """Time of MeZO's step on all parameters; None if `mezo_matrices_seconds` is."""
    mezo_all_ratio: float | None


class IncomingResult(Answer):
    """Cost of applying other nodes' updates, in `sfnode lab bench`."""

    updates: int
    """Number of other nodes' updates that are assumed to arrive during one step."""
    add_seconds: float
    """Time to add this number of updates to the core."""
    fold_seconds: float
    """Time to merge the core into the weights once. This time does not depend on the number of updates."""
    shares: dict[int, float]
    """Share of a node's time that applying others' updates takes in the long run; its own steps take the
    rest. Keyed by the number of rows of a mini-batch."""


class FitResult(Answer):
    """The largest model that fits in memory in one number format, in `sfnode lab bench`."""

    dtype: str
    bytes_per_parameter: float
    parameters: int


class TriedAnswer(Answer):
    """An answer of the base model to a prompt of a reward run."""

    prompt: str
    right: str
    """Text of the row with which the verifier compares the answer; empty if the verifier reads no column."""
    answer: str
    reward: float


class TryRewardResult(Answer):
    """Output of `sfnode organise try-reward --json`."""

    model: str
    device: str
    dtype: str
    temperature: float
    prompts: int
    """Number of prompts that the base model answered by greedy decoding."""
    reward: float
    """Mean reward of the greedy answers."""
    reward_low: float
    """Lower end of the 95 % confidence interval of `reward`."""
    reward_high: float
    right: float
    """Share of greedy answers with the reward 1."""
    right_low: float
    right_high: float
    examples: list[TriedAnswer]
    drawn_reward: float
    """Mean reward of sampled answers. As in training, several answers are drawn for each prompt."""
    apart: float
    """Share of prompts whose drawn answers got unequal rewards. Training learns nothing from the other
    prompts."""
    answers: int
    """Number of drawn answers."""
    cut: int
    """Number of drawn answers that reached the maximum number of tokens."""
    tokens: int
    seconds: float
    """Time to draw and score the drawn answers."""
    answers_per_second: float
    tokens_per_second: float
    load_seconds: float
    """Time to load the model."""
    peak_bytes: int | None
    """Peak memory of the process, or on CUDA of its tensors; None if unknown."""


class TogetherResult(Answer):
    """Speed of training in `sfnode lab bench` with several devices: that of all devices together, or that of
    one device alone."""

    batch: int
    devices: str
    threads: int
    """Number of CPU threads of each replica."""
    updates_per_hour: float
    ratio: float
    """Speed of all devices together, divided by the speed in this result. The median over repetitions of the
    measurement is taken. For all devices together the ratio is 1."""


class BenchResult(Answer):
    """Output of `sfnode lab bench --json`."""

    version: str
    model: str
    parameters: int
    trained_parameters: int
    matrices: int
    device: str
    device_name: str
    dtype: str
    threads: int
    busy_cores: float
    """Number of CPU cores that other programs used while the model was loaded."""
    rank: int
    queries: int
    """Number of mini-batches of a step."""
    group: int
    """Number of updates that share a mini-batch; 0 if each update is measured at two points."""
    repetitions: int
    batches: list[BatchResult]
    incoming: list[IncomingResult]
    weight_bytes: int
    overhead_bytes: int | None
    """The largest training peak minus the size of the weights."""
    free_bytes: int | None
    """Memory that was free on the device before the model was loaded."""
    fits: list[FitResult]
    together: list[TogetherResult]
    """Comparison of all devices together with single devices; empty for one device."""

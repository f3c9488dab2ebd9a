"""Output of commands with `--json`: stable shapes, which docs/json.md describes.

The answers of a running node are in `sfnode.schema.status` and `sfnode.schema.views`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from sfnode.schema.evaluation import Answer, BaselineEvaluation, Evaluation, LayeredDrift, ProbeEvaluation
from sfnode.schema.status import Status
from sfnode.schema.views import FeedStatus


class StatusResult(Status):
    """`sfnode status --json --feeds`; without --feeds it is a `Status`."""

    feeds: list[FeedStatus]


class EvalResult(Answer):
    """`sfnode eval --json`."""

    run_id: str
    updates: int
    digest: str
    """State digest; core digest (SPEC D5) of what the seal counts."""
    seal: int | None
    """Epoch of the seal whose model was evaluated; None in an open run, and as of now."""
    before: Evaluation
    """The base model."""
    calibrated: Evaluation | None
    """The base model less its prior over the answers; None where there are no fixed answers, or no training
    rows to measure the prior on."""
    after: Evaluation
    """The trained model; less its prior where the run's loss is centred."""
    probe: ProbeEvaluation | None = None
    """A linear probe on the run's training rows; None where no linear head alone is trained, and where too
    few states of them are kept here."""
    baselines: tuple[BaselineEvaluation, ...] = ()
    """Results of the same rows without a model; empty for a task without labels."""
    loss: Literal["plain", "centred", "calibrated"]
    """The run's loss."""
    prior: dict[str, float] | None
    """Prior of each answer of the trained model in nats, which was subtracted; None where nothing was."""
    drift: LayeredDrift
    """Distance of the trained model from the base model."""


class UpdateLine(Answer):
    """A line of `sfnode log`."""

    origin: str
    incarnation: int
    step: int
    epoch: int
    seed: str
    """Decimal: many JSON readers round integers of 64 bits."""
    scalar: int | tuple[int, ...]
    """One for every cell of the cores in a first-order run."""
    weight: int
    """Factor of the scalar (SPEC O8); 1 in an open run."""


class VerifyResult(Answer):
    """`sfnode verify --json`."""

    run_id: str
    feeds: int
    updates: int
    signatures: int
    digest: str
    core_digest: str
    """Digest of what counts by the seal of `SealsResult.epoch`, unless it was to be as of now."""
    checkpoint: int | None
    """Epoch of the checkpoint from which it was verified; None: from genesis."""
    seals: SealsResult | None
    """None for an open run."""


class SealsResult(Answer):
    """The organiser's part of `sfnode verify --json`."""

    decisions: int
    sealed: int
    """Epochs that are sealed."""
    checked: int
    """Seals whose digest was computed anew; of the others the log lacks updates."""
    behind: int
    """Updates that closes have named and the log lacks."""
    named_digest: str | None
    """Digest of the last seal that was checked; None if none was."""
    epoch: int | None
    """Epoch of the last seal of which everything is here; None if there is none."""
    updates: int
    """Updates that count by that seal."""
    lacking: int
    """Updates that seals are about and the log lacks."""


class ArchiveStatement(Answer):
    """The statement in an archive: what its log comes to. `sfnode history archive --json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int
    """Version of the archive's format."""
    version: str = Field(max_length=64)
    """The sfnode that has written it."""
    run_id: str = Field(pattern="^[0-9a-f]{64}$")
    feeds: int
    updates: int
    decisions: int
    """Decisions of the organiser; this and `sealed` are 0 in an open run."""
    sealed: int
    """Epochs that are sealed."""
    digest: str
    """State digest of all that is in it."""
    core_digest: str
    """Digest of the cores of what counts, by the last seal that is in it as a whole."""
    named_digest: str | None
    """Digest of the last seal that is in it as a whole."""


class ImportResult(Answer):
    """`sfnode history import --json`."""

    run_id: str
    run_name: str
    new_updates: int
    """Updates that have come from the archive."""
    new_decisions: int
    updates: int
    """Updates that are here now."""
    sealed: int | None
    """Epochs that are sealed now; None in an open run."""
    digest: str
    """State digest of what is here now."""
    same: bool
    """Whether this is what the archive has, too: then both have the same."""


Reach = Literal["internet", "network", "machine"]


class InviteResult(Answer):
    """`sfnode invite --json`."""

    link: str
    run_id: str
    run_name: str
    protocol: int
    addresses: list[str]
    contacts_url: str = ""
    """The web page with current contacts (SPEC N6) that the link names; empty if it names none."""
    reach: Reach
    """Networks from which the addresses can be reached, as far as they tell; network is a private one."""


class NodeResult(Answer):
    """One node of a local swarm."""

    node: int
    own_updates: int
    digest: str
    core_digest: str | None


class SwarmResult(Answer):
    """`sfnode swarm --json`."""

    version: str
    run_id: str
    run_name: str
    updates: int
    """Updates that the nodes hold."""
    counted: int | None
    """Those of them that count by the organiser's seals; None for an open run."""
    sealed: int | None
    """Epochs that the organiser has sealed; None for an open run."""
    announced: str | None = None
    """The organiser's last announcement: why it has ended the run early or taken updates back; None if there
    is none."""
    update_budget: int
    equal: bool
    """Whether all digests and all core digests are the same."""
    before: Evaluation | None
    calibrated: Evaluation | None = None
    """The base model less its prior over the answers; None where that cannot be measured."""
    after: Evaluation | None
    """`before` and `after` are None for a run without test data."""
    probe: ProbeEvaluation | None = None
    """A linear probe on the training rows of all nodes; None where no linear head alone is trained."""
    baselines: tuple[BaselineEvaluation, ...] = ()
    """Results of the first node's rows and the public ones without a model; empty for a task without
    labels."""
    nodes: list[NodeResult]
    bytes_per_update: float
    bytes_sent: int
    seconds: float
    """Seconds from the first update that was seen until all nodes had all of them."""
    seconds_in_all: float
    """Seconds since the start of the command."""


class BatchResult(Answer):
    """One size of a mini-batch in `sfnode lab bench`."""

    batch: int
    """Rows of each mini-batch."""
    tokens: int
    """Tokens in a step's mini-batches, without padding."""
    forwards_seconds: float
    """Time of as many plain forward passes as a step has points: two, or a group's updates."""
    step_seconds: float
    step_ratio: float
    """Time of a step divided by that of these forward passes."""
    tokens_per_second: float
    """Tokens through the step, at all points."""
    updates_per_hour: float
    inference_peak_bytes: int | None
    """Peak memory of a plain forward pass with as many rows as the step; None if unknown."""
    training_peak_bytes: int | None
    memory_ratio: float | None
    mezo_matrices_seconds: float | None
    """Time of MeZO's step on the same matrices; None unless asked for, or if it cannot work."""
    mezo_matrices_ratio: float | None
    """The same divided by the time of our step."""
    mezo_all_seconds: float | None
    """Time of MeZO's step on all parameters."""
    mezo_all_ratio: float | None


class IncomingResult(Answer):
    """The cost of applying others' updates, in `sfnode lab bench`."""

    updates: int
    """Updates that arrive during a step."""
    add_seconds: float
    """Time to add them to the core."""
    fold_seconds: float
    """Time to merge the core into the weights once, however many updates it holds."""
    shares: dict[int, float]
    """Share of the time that they take beside steps, in the long run, by batch."""


class FitResult(Answer):
    """The largest model that fits, in one number format, in `sfnode lab bench`."""

    dtype: str
    bytes_per_parameter: float
    parameters: int


class TriedAnswer(Answer):
    """An answer of the base model to a prompt of a reward run."""

    prompt: str
    right: str
    """Value that the verifier compares an answer with; empty if it reads no column."""
    answer: str
    reward: float


class TryRewardResult(Answer):
    """`sfnode organise try-reward --json`."""

    model: str
    device: str
    dtype: str
    temperature: float
    prompts: int
    """Prompts that the base model has answered, each with its likeliest tokens."""
    reward: float
    """Mean of these answers."""
    reward_low: float
    """Lower end of its 95 % confidence interval."""
    reward_high: float
    right: float
    """Share of answers with the reward 1."""
    right_low: float
    right_high: float
    examples: list[TriedAnswer]
    drawn_reward: float
    """Mean of the answers that were drawn then, some to each prompt, as in training."""
    apart: float
    """Share of prompts that got answers of unequal rewards: the others teach nothing."""
    answers: int
    """Answers that were drawn."""
    cut: int
    """Those that had not ended when they had all tokens that they may have."""
    tokens: int
    seconds: float
    """Time of these answers and their scores."""
    answers_per_second: float
    tokens_per_second: float
    load_seconds: float
    """Time until the model was there."""
    peak_bytes: int | None
    """Most memory that the process has had, on CUDA its tensors; None where that is unknown."""


class TogetherResult(Answer):
    """One contestant of `sfnode lab bench` with several devices: all of them, or one alone."""

    batch: int
    devices: str
    threads: int
    """CPU threads of each replica."""
    updates_per_hour: float
    ratio: float
    """Speed of all devices together in terms of theirs: the median over turns, compared turn by turn; 1 for
    themselves."""


class BenchResult(Answer):
    """`sfnode lab bench --json`."""

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
    """Cores that other programs used while the model was loaded."""
    rank: int
    queries: int
    """Mini-batches of a step."""
    group: int
    """Updates that share a mini-batch; 0: each is measured at two points."""
    repetitions: int
    batches: list[BatchResult]
    incoming: list[IncomingResult]
    weight_bytes: int
    overhead_bytes: int | None
    """The largest training peak, without the weights."""
    free_bytes: int | None
    """Memory that was free on the device before the model was loaded."""
    fits: list[FitResult]
    together: list[TogetherResult]
    """Speeds of several devices together; none for one."""

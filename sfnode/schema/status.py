"""The status of a running node: the answer to `GET /status` and the output of `sfnode status --json`."""

from __future__ import annotations

from sfnode.limits import Limits
from sfnode.schema.measurements import Answer, Drift
from sfnode.schema.node_state import NodeState, Wait
from sfnode.schema.organising import EvidenceStatus, HealthStatus


class LinkStatus(Answer):
    """The link to one neighbour."""

    peer: str
    outbound: bool
    role: str
    known: int
    """Number of updates that the neighbour knew at its last report."""
    agrees: bool
    """Whether the digest in the neighbour's last Summary equalled this node's digest when the Summary
    arrived."""
    bytes_sent: int
    bytes_received: int


class FetchStatus(Answer):
    """A download of the run's data, the base model or published bases from peers."""

    what: str = "base model"
    done: int
    """Number of bytes that have been downloaded so far, including those of earlier attempts."""
    total: int
    """Size of the whole download in bytes; 0 until its listing has arrived."""
    peers: int
    """Number of peers that sent a part of the download."""


class WaitStatus(Answer):
    """The reason why a trainer may not make updates now."""

    reason: Wait
    text: str
    """The reason in words, with advice."""


class DoingStatus(Answer):
    """Work that a node's model does instead of making updates, such as an evaluation."""

    what: str
    """The work in words, such as `measuring epoch 3`."""
    seconds: float
    """Seconds since the work began."""
    done: int = 0
    total: int = 0
    """Total number of units of the work, such as rows; 0 if unknown. `done` counts the finished ones."""


class DeviceStatus(Answer):
    """One of the devices on which a trainer measures its steps."""

    name: str
    """Name of the device, such as `cuda:1`. Devices of the same name also have a number."""
    updates: int
    """Number of updates measured on the device since the node's start."""
    seconds: float | None
    """Seconds to measure one update, averaged over the last steps; None before the first step."""
    problem: str | None
    """Reason why the device computes nothing now; None if it computes. The node's other devices continue."""


class GpuStatus(Answer):
    """A GPU on which a node computes. A value is None if NVML does not provide it."""

    device: str
    name: str
    memory: int
    """Bytes of the GPU's memory that the node holds."""
    memory_total: int
    busy: float | None
    """Share of the time in which any program kept the GPU busy."""
    celsius: float | None
    watts: float | None


class MachineStatus(Answer):
    """The node's use of its machine, including its network daemon."""

    device: str
    """The device that computes, or several, separated by commas."""
    cpu: float
    """Number of cores that the node kept busy over the last ten seconds."""
    cores: float
    """Number of cores that the node may use."""
    memory: int
    """Bytes of resident memory."""
    memory_total: int
    """Bytes of memory that the machine has."""
    gpus: list[GpuStatus]
    """GPUs on which the node computes; empty before the model is loaded."""


class AlarmStatus(Answer):
    """A problem of the run that somebody should look at."""

    code: str
    """Number of the error, such as SF070."""
    what: str
    fix: str


class PrivacyStatus(Answer):
    """The noise that a node adds to its scalars, and the differential privacy that this noise gives each of
    its rows."""

    noise: float
    """Standard deviation of the noise, relative to the largest change of a scalar by one row."""
    clip: float
    """Maximum magnitude of a slope that is sent. Larger slopes are clipped to it."""
    updates: int
    """Number of updates for which `epsilon` was computed: the number made so far, or slightly more."""
    epsilon: float | None
    """Epsilon of (epsilon, delta) differential privacy after `updates` updates; None before it was first
    computed."""
    delta: float


class RunStatus(Answer):
    """An organised run as this node knows it, and the node's part in it."""

    sealed: int
    """Number of sealed epochs."""
    counted: int
    """Number of updates that count according to the seals so far."""
    members: int
    behind: int
    """Number of updates that closes list and this node lacks."""
    seconds_since_seal: float | None
    """Seconds since the last seal arrived; None if no seal has arrived since the node's start."""
    organiser: str | None
    """State of the organiser on this node; None if the organiser's key is elsewhere."""
    member: int | None
    """Member number of this node's origin; None if it is not a member."""
    quota: int | None
    """Maximum number of updates that this node's origin may make in one epoch; None if it is not a member."""
    room: int | None
    """Number of updates that this node may still make in the open epoch; None if its origin is not a
    member."""
    health: HealthStatus
    evidence: EvidenceStatus | None = None
    """Evidence on whether this node's own work helps; None before any of this work was measured."""
    announced: str | None = None
    """The organiser's last announcement; None before the first one."""
    term: int = 0
    """Number of the current term, from 0. Every succession and every election begins the next term."""
    stand_ins: int = 0
    """Number of members who stand in for the organiser, including the organiser."""
    stand_ins_here: int = 0
    """Number of stand-ins that were heard from within the last minute."""


class Status(Answer):
    """The current state of a node. Hashes and keys are in hex, rates are per second, and bytes are counted
    over all links since the start.

    The size of the status depends on the number of links and not on the number of feeds, because programs
    request the status every second.
    """

    version: str
    run_id: str
    run_name: str
    task: str
    """Kind of the task (docs/tasks.md)."""
    role: str
    state: NodeState
    pid: int
    peer: str
    addresses: list[str]
    known: int
    update_budget: int
    epoch: int
    """Epoch of the next update."""
    epochs: int
    """Number of epochs of the whole run. In an organised run it is an estimate, as if all epochs had the
    usual size."""
    digest: str
    """The state digest (SPEC D3): equal digests mean equal models."""
    origin: str | None
    """The public key that signs the node's updates; None for a relay."""
    incarnation: int | None
    """Incarnation of the feed to which the node adds its updates; None for a relay."""
    own_updates: int
    """Number of updates made by this process."""
    contributed: int
    """Number of updates of the node's origin in the log, in all its feeds."""
    updates_per_second: float
    """Number of updates per second that this node made over the last ten seconds."""
    loss: float | None
    """Moving average of the training loss; in a reward run 1 minus the mean reward."""
    drift: Drift | None
    """Distance between the base model and the model that this node evaluated last; None before an
    evaluation."""
    lacking: int
    """Number of updates that neighbours have announced and this node lacks."""
    links: list[LinkStatus]
    feed_count: int
    bytes_sent: int
    bytes_received: int
    segment_bytes_sent: int
    updates_sent: int
    """Number of updates sent, counted once for each link on which they were sent. One update costs
    segment_bytes_sent / updates_sent bytes."""
    log_bytes: int
    uptime: float
    fetch: FetchStatus | None
    """Current download of data, the base model or bases from peers; None if there is none."""
    pauses: list[str]
    """Reasons why the node is paused, one sentence for each."""
    paused_by: list[str]
    """Names of the reasons in `pauses`: `asked`, `disk`, `room`, or the name of a limit."""
    limits: Limits
    devices: list[DeviceStatus]
    """Devices on which the node computes; empty before the model is loaded, and for a relay."""
    machine: MachineStatus | None
    """The node's use of its machine; None before the first measurement."""
    wait: WaitStatus | None
    """Reason why the node may not make updates now; None if it may, and for a relay."""
    alarms: list[AlarmStatus]
    """Alarms, the most severe first; in an open run only about problems of this node."""
    organised: RunStatus | None
    """The organised run; None in an open run."""
    privacy: PrivacyStatus | None = None
    """Noise that the node adds to its scalars; None if it adds none."""
    doing: DoingStatus | None = None
    """Long work that the model does now instead of making updates, such as an evaluation; None if there is
    none."""
    seconds_left: float | None = None
    """Seconds until the run's budget is used up, at the current rate of all nodes; None if that rate is
    unknown or 0."""


class CoreStatus(Answer):
    """State digest and core digest at one moment. Comparing the core digest with one computed from the log
    checks the engine."""

    digest: str
    core_digest: str | None
    """Digest of the cores; None for a relay, which has no cores."""
    known: int

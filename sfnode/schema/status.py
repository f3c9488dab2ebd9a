"""The status of a running node: the stable, documented shape of `GET /status` and `status --json`."""

from __future__ import annotations

from sfnode.limits import Limits
from sfnode.schema.evaluation import Answer, Drift
from sfnode.schema.node_state import NodeState, Wait
from sfnode.schema.organising import EvidenceStatus, HealthStatus


class LinkStatus(Answer):
    """One neighbour."""

    peer: str
    outbound: bool
    role: str
    known: int
    """Number of updates that the neighbour knew at its last report."""
    agrees: bool
    """Whether the digest in the neighbour's last Summary equalled this node's digest when it arrived."""
    bytes_sent: int
    bytes_received: int


class FetchStatus(Answer):
    """A download of the run's data, the base model or published bases from peers."""

    what: str = "base model"
    done: int
    """Number of bytes that have arrived, including those of earlier attempts."""
    total: int
    """Size in bytes; 0 until the listing arrived."""
    peers: int
    """Number of peers that sent a part of the download."""


class WaitStatus(Answer):
    """The reason why a trainer may not make updates now."""

    reason: Wait
    text: str
    """The reason in words, and what to do about it."""


class DoingStatus(Answer):
    """Work of a node's model other than updates."""

    what: str
    """The work in words, such as `measuring epoch 3`."""
    seconds: float
    """Time since the work began."""
    done: int = 0
    total: int = 0
    """Total number of units of the work, such as rows; 0 if unknown."""


class DeviceStatus(Answer):
    """One of the devices on which a trainer measures its steps."""

    name: str
    """Name of the device such as `cuda:1`, with a number if several have the same name."""
    updates: int
    """Number of updates measured on the device since the start."""
    seconds: float | None
    """Time of an update, averaged over the last steps; None before the first one."""
    problem: str | None
    """Reason why the device computes nothing now; None if it works. The other devices continue."""


class GpuStatus(Answer):
    """A GPU on which a node computes. Values are None if they are not available (from NVML)."""

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
    """The noise on a node's scalars, and its guarantee for each of the node's rows."""

    noise: float
    """Standard deviation of the noise, relative to the largest change of a scalar by one row."""
    clip: float
    """Maximum slope that is sent; larger ones are clipped."""
    updates: int
    """Number of updates for which `epsilon` was computed: the current number, or slightly more."""
    epsilon: float | None
    """Epsilon of these updates; None before it was first computed."""
    delta: float


class RunStatus(Answer):
    """An organised run as this node knows it, and the node's part in it."""

    sealed: int
    """Number of sealed epochs."""
    counted: int
    """Number of updates that count after the seals so far."""
    members: int
    behind: int
    """Number of updates that the organiser listed but that are missing here."""
    seconds_since_seal: float | None
    """Time since the last seal arrived; None if none arrived since the start."""
    organiser: str | None
    """State of the organiser on this node; None if its key is elsewhere."""
    member: int | None
    """Number of this node's origin among the members; None if it is not a member."""
    quota: int | None
    """Maximum number of updates of this node's feed in one epoch; None if it is not a member."""
    room: int | None
    """Number of updates that this node's feed may still have in the open epoch; None if it is not a
    member."""
    health: HealthStatus
    evidence: EvidenceStatus | None = None
    """Evidence on this node's own work; None before any of this work was measured."""
    announced: str | None = None
    """The organiser's last announcement; None before the first one."""
    term: int = 0
    """Term of the key that organises. Every succession and every election begins a term."""
    stand_ins: int = 0
    """Number of members who stand in for the organiser, including the organiser."""
    stand_ins_here: int = 0
    """Number of stand-ins that were heard from within the last minute."""


class Status(Answer):
    """The current state of a node. Hashes and keys are in hex, rates are per second, and bytes are counted
    over all links since the start.

    Its size depends on the number of links, not of feeds, because it is requested every second.
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
    """Number of epochs of the whole run; in an organised run an estimate for epochs of the usual size."""
    digest: str
    """The state digest (SPEC D3): equal digests mean equal models."""
    origin: str | None
    """The public key that signs the node's updates; None for a relay."""
    incarnation: int | None
    """Incarnation of the origin in this feed; None for a relay."""
    own_updates: int
    """Number of updates made by this process."""
    contributed: int
    """Number of updates of the node's origin in the log, over all its starts and incarnations."""
    updates_per_second: float
    """Own updates per second, over the last ten seconds."""
    loss: float | None
    """Recent training loss, a moving average; in a reward run 1 less the mean reward."""
    drift: Drift | None
    """Distance between the base model and the model that this node evaluated last; None before an
    evaluation."""
    lacking: int
    """Number of updates that neighbours announced but that are missing here."""
    links: list[LinkStatus]
    feed_count: int
    bytes_sent: int
    bytes_received: int
    segment_bytes_sent: int
    updates_sent: int
    """Number of updates sent, counted once for each link. The cost of one update is segment_bytes_sent /
    updates_sent."""
    log_bytes: int
    uptime: float
    fetch: FetchStatus | None
    """Running download of data, the base model or bases from peers; None if there is none."""
    pauses: list[str]
    """Reasons why the node is paused, one sentence each."""
    paused_by: list[str]
    """Names of the reasons in `pauses`: `asked`, `disk`, `room`, or the name of a limit."""
    limits: Limits
    devices: list[DeviceStatus]
    """Devices that compute; empty before the model is loaded, and for a relay."""
    machine: MachineStatus | None
    """Use of the machine; None before it was measured."""
    wait: WaitStatus | None
    """Reason why the node may not make updates now; None if it may, and for a relay."""
    alarms: list[AlarmStatus]
    """Alarms, the most severe first; in an open run only about problems of this node."""
    organised: RunStatus | None
    """The organised run; None in an open run."""
    privacy: PrivacyStatus | None = None
    """Noise on the node's updates; None for a node without noise."""
    doing: DoingStatus | None = None
    """Long work of the model other than updates; None if there is none."""
    seconds_left: float | None = None
    """Time until the run's budget is used up, at the current rate of all nodes; None if it is unknown."""


class CoreStatus(Answer):
    """State digest and core digest at one moment. The core digest checks the engine against the log."""

    digest: str
    core_digest: str | None
    """Digest of the cores; None for a relay, which has none."""
    known: int

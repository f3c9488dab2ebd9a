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
    """Updates that it knew in its last report."""
    agrees: bool
    """Whether its last Summary carried our digest at that moment."""
    bytes_sent: int
    bytes_received: int


class FetchStatus(Answer):
    """A download from peers: of the run's data, the base model, or published bases."""

    what: str = "base model"
    done: int
    """Bytes that have arrived, including earlier attempts."""
    total: int
    """Bytes in all; 0 until the listing has arrived."""
    peers: int
    """Peers that have sent some of it."""


class WaitStatus(Answer):
    """The reason for which a trainer may make no updates now."""

    reason: Wait
    text: str
    """The same in words, with what to do if there is something."""


class DoingStatus(Answer):
    """Work of a node's model beside updates."""

    what: str
    """Such as `measuring epoch 3`."""
    seconds: float
    """Time since it began."""
    done: int = 0
    total: int = 0
    """Units of it that there are, such as rows; 0 where nobody knows."""


class DeviceStatus(Answer):
    """One of the devices on which a trainer measures its steps."""

    name: str
    """`cuda:1`; with a number where several have the same name."""
    updates: int
    """Updates that it has measured since the start."""
    seconds: float | None
    """Time of an update, averaged over the last steps; None before the first one."""
    problem: str | None
    """Reason why it computes nothing now; the others go on."""


class GpuStatus(Answer):
    """A GPU on which a node computes; None for what nothing tells here (NVML does)."""

    device: str
    name: str
    memory: int
    """Bytes of its memory that the node holds."""
    memory_total: int
    busy: float | None
    """Share of the time in which it was busy, with whatever."""
    celsius: float | None
    watts: float | None


class MachineStatus(Answer):
    """The part of its machine that a node takes, its network daemon included."""

    device: str
    """The device that computes, or several, separated by commas."""
    cpu: float
    """Cores that it kept busy over the last ten seconds."""
    cores: float
    """Cores that it may use."""
    memory: int
    """Bytes of resident memory."""
    memory_total: int
    """Bytes of memory that the machine has."""
    gpus: list[GpuStatus]
    """Those that it computes on; none before the model is loaded."""


class AlarmStatus(Answer):
    """Something about the run that somebody has to see to."""

    code: str
    """Number of the error, such as SF070."""
    what: str
    fix: str


class PrivacyStatus(Answer):
    """The noise on a node's scalars, and what it is worth for one of its rows."""

    noise: float
    """Standard deviation, in units of the most that one row can change a scalar."""
    clip: float
    """The largest slope that is told."""
    updates: int
    """Updates for which epsilon is worked out: as many as there are, or somewhat more."""
    epsilon: float | None
    """None until it is worked out for the first time."""
    delta: float


class RunStatus(Answer):
    """An organised run as this node knows it, and what it may do there."""

    sealed: int
    """Epochs that are sealed."""
    counted: int
    """Updates that count by these seals."""
    members: int
    behind: int
    """Updates that the organiser has named and that are not here."""
    seconds_since_seal: float | None
    """Time since a seal has come; None if none has since the start."""
    organiser: str | None
    """State of the organiser on this node; None if its key is elsewhere."""
    member: int | None
    """Number of this node's origin among the members; None if it is none."""
    quota: int | None
    """Updates that its feed may have in one epoch."""
    room: int | None
    """The part of it that is left in the open epoch."""
    health: HealthStatus
    evidence: EvidenceStatus | None = None
    """Evidence about this node's own work; None as long as nothing of it was measured."""
    announced: str | None = None
    """The organiser's last announcement."""
    term: int = 0
    """Term of the key that organises; every succession and every election begins one."""
    stand_ins: int = 0
    """Members who stand in for the organiser, itself among them."""
    stand_ins_here: int = 0
    """Those of them that were heard within a minute."""


class Status(Answer):
    """A node as of now. Hashes and keys are hex, rates per second, bytes over all links since the start.

    Its size depends on the number of links and not on that of feeds, because it is asked for every second.
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
    """Epochs of the whole run; in an organised run as many as it takes if all have their usual size."""
    digest: str
    """The state digest (SPEC D3): equal digests mean equal models."""
    origin: str | None
    """The public key that signs its updates; None for a relay."""
    incarnation: int | None
    """Incarnation of the origin, and so the feed, that it continues; None for a relay."""
    own_updates: int
    """Updates made by this process."""
    contributed: int
    """Updates of the node's origin in the log, over all its starts and incarnations."""
    updates_per_second: float
    """Own updates per second, over the last ten seconds."""
    loss: float | None
    """Recent training loss, a moving average; in a reward run 1 less the mean reward."""
    drift: Drift | None
    """Distance from the base of the model that this node has evaluated last; None before that."""
    lacking: int
    """Updates that neighbours have announced and that have not arrived yet."""
    links: list[LinkStatus]
    feed_count: int
    bytes_sent: int
    bytes_received: int
    segment_bytes_sent: int
    updates_sent: int
    """Updates sent, counted once for each link; segment_bytes_sent / updates_sent is the cost of one."""
    log_bytes: int
    uptime: float
    fetch: FetchStatus | None
    """None while neither data, base model nor bases are being downloaded from peers."""
    pauses: list[str]
    """Reasons why it is paused, one sentence each."""
    paused_by: list[str]
    """The same as names: `asked`, `room`, and those of limits."""
    limits: Limits
    devices: list[DeviceStatus]
    """Devices that compute; none before the model is loaded, and for a relay."""
    machine: MachineStatus | None
    """None until it was looked at."""
    wait: WaitStatus | None
    """None while it may make updates, for a relay, and in an open run whose bases are here."""
    alarms: list[AlarmStatus]
    """The gravest first; in an open run only about what is wrong with this node."""
    organised: RunStatus | None
    """None in an open run."""
    privacy: PrivacyStatus | None = None
    """None for a node without noise."""
    doing: DoingStatus | None = None
    """None while it does nothing that takes long but updates."""
    seconds_left: float | None = None
    """Time until the run has used up its budget at the pace of all nodes of the last seconds; None while that
    is not known."""


class CoreStatus(Answer):
    """State digest and core digest of one moment: the second checks the engine against the log."""

    digest: str
    core_digest: str | None
    """None for a relay, which has no cores."""
    known: int

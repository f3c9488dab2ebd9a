"""The kinds of faults, as data: what goes wrong and when.

Times are in seconds after the links are up. `injection` makes them happen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sflab.simulator.world.hardware import Hardware, Range

SLOW = Hardware(commit=(0.1, 0.5), work=0.002)
"""A disk that spins and is shared, a processor of a small board."""


@dataclass(frozen=True, slots=True)
class Partition:
    """Two groups of nodes that do not hear each other from `start` to `stop`."""

    start: float
    stop: float
    share: float = 0.5
    """Share of all nodes in the first group."""
    one_way: bool = False
    """Whether only the second group does not hear the first."""
    hang_up: bool = False
    """Whether links between the groups end at once, instead of swallowing what is sent."""


@dataclass(frozen=True, slots=True)
class Flaps:
    """Links that end at random moments and are opened again."""

    every: float
    """Seconds between two, on average."""


@dataclass(frozen=True, slots=True)
class Crashes:
    """Nodes that die in the middle of whatever they do, and come back later."""

    every: float
    """Seconds between two, on average."""
    down: Range = (0.5, 5.0)
    power_cut: bool = False
    """Whether a commit under way is lost, and the neighbours hear nothing of the end."""


@dataclass(frozen=True, slots=True)
class OldBackup:
    """A node that crashes at `restored` and comes back with the disk that it had at `taken`."""

    taken: float
    restored: float


@dataclass(frozen=True, slots=True)
class Twins:
    """A second machine that begins at `start` with a copy of a node's disk and key; both go on."""

    start: float
    told: bool = False
    """Whether the copy knows that it is one (and takes an incarnation of its own)."""
    apart: float = 5.0
    """Seconds that the two are on different sides of a partition, so that neither hears of the other."""


@dataclass(frozen=True, slots=True)
class ClockJumps:
    """Clocks that leap ahead, or stand still as long (a monotonic clock never goes back)."""

    every: float
    """Seconds between two, on average."""
    most: float = 300.0
    """Seconds of the longest leap."""


@dataclass(frozen=True, slots=True)
class Churn:
    """Nodes that leave for good, each replaced by a fresh one."""

    per_minute: float
    """Share of all nodes that is replaced a minute."""


@dataclass(frozen=True, slots=True)
class SlowPeers:
    """Nodes with a slow disk and processor, and with links that take nothing for a while."""

    share: float
    hardware: Hardware = SLOW
    stall_every: float = 2.0
    stall: Range = (0.5, 15.0)


@dataclass(frozen=True, slots=True)
class LateJoin:
    """Fresh nodes that join at one moment."""

    at: float
    count: int = 1
    checkpoint: bool = False
    """Whether they begin with a checkpoint."""


@dataclass(frozen=True, slots=True)
class Pruning:
    """Nodes that keep nothing before the newest checkpoint that they have compared; never the organiser."""

    share: float


@dataclass(frozen=True, slots=True)
class ArchiveLeaves:
    """A node that keeps everything, and is not the organiser, leaves for good."""

    at: float


@dataclass(frozen=True, slots=True)
class OrganiserAway:
    """An organiser that is gone from `start` to `stop`, and may come back with an old disk."""

    start: float
    stop: float
    taken: float | None = None
    """The time at which the disk was copied with which it comes back; None: it has its own."""


@dataclass(frozen=True, slots=True)
class OrganiserTwice:
    """A second node with the organiser's key: at `start` both decide; at `succeeded` the deputies pass the
    control feed on to a third one."""

    start: float
    succeeded: float


@dataclass(frozen=True, slots=True)
class OrganiserLost:
    """An organiser that is gone for good at `at`, with its key; at `succeeded` the deputies name another."""

    at: float
    succeeded: float


@dataclass(frozen=True, slots=True)
class LeaderFalls:
    """Whoever organises a run with stand-ins at `at` dies, for good or until `back`. With `during`, in the
    middle of something: of a decision of any kind that others are to hold, or of an evaluation."""

    at: float
    back: float | None = None
    during: bool = False


@dataclass(frozen=True, slots=True)
class HandOver:
    """Whoever organises at `at` passes that on to another stand-in."""

    at: float


@dataclass(frozen=True, slots=True)
class Split:
    """Stand-ins in groups of these sizes that hear nothing of each other from `start` to `stop`, whoever
    organises in the first; other nodes are with some of them."""

    start: float
    stop: float
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stopped:
    """Whoever organises at `at` is stopped for `seconds`, after which its clock says that `shown` passed."""

    at: float
    seconds: float
    shown: float


@dataclass(frozen=True, slots=True)
class ClockAhead:
    """The clock of whoever organises at `at` leaps."""

    at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Undo:
    """The owner takes back something of a random member's at this moment."""

    at: float
    what: Literal["revoke", "void", "amend"]


@dataclass(frozen=True, slots=True)
class Loss:
    """Named steps of a random feed that are gone from every disk from one moment on; all nodes die."""

    at: float


Fault = (
    Partition
    | Flaps
    | Crashes
    | OldBackup
    | Twins
    | ClockJumps
    | Churn
    | SlowPeers
    | LateJoin
    | Pruning
    | ArchiveLeaves
    | OrganiserAway
    | OrganiserLost
    | OrganiserTwice
    | LeaderFalls
    | HandOver
    | Split
    | Stopped
    | ClockAhead
    | Undo
    | Loss
)

"""The seam through which a node takes from outside whatever could be otherwise the next time.

Clock, chance and keys, sensors, and whether others reach it over a socket; transport and model are given to
`Node` itself, and timers, threads and turns are those of its event loop. Below it nobody asks the system
for the time or for random numbers (tests/node/test_outside.py). So the node that ships is the one that is
simulated, on `sfnode.virtual_time`, and repeats from a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from random import Random, SystemRandom

from sfnode.organising.evaluation.judging import Judge
from sfnode.organising.policy import OrganiserPolicy
from sfnode.resources.sensors import Sensors
from sfnode.schema.status import MachineStatus
from sfnode.stats.usage import MachineUsage
from sfnode.store.log import UpdateLog
from sfprotocol.signing import Verify, verifies


def system_usage(*devices: str) -> Callable[[], MachineStatus]:
    """Return what tells the usage of this machine by a node that computes on these devices."""
    return MachineUsage(*devices).look


@dataclass(frozen=True, slots=True)
class Outside:
    """Everything that a node takes from outside."""

    random: Random = field(default_factory=SystemRandom)
    """All chance, keys and incarnations included."""
    clock: Callable[[], float] | None = None
    """Monotonic time in seconds; None for that of the event loop."""
    today: Callable[[], date] = date.today
    """The date, for what is allowed each day."""
    sensors: Callable[..., Sensors] = Sensors
    """Makes the sensors of the owner's limits, given the devices."""
    usage: Callable[..., Callable[[], MachineStatus]] = system_usage
    """Makes what shows the usage of the machine, given the devices."""
    verify: Verify = verifies
    """Checks the signatures of segments."""
    open_log: Callable[[Path, bytes], UpdateLog] = UpdateLog.open
    """Opens the update log of a run."""
    policy: OrganiserPolicy | None = None
    """An organiser's policy in place of that of the manifest, and the proof of work that petitions show."""
    judge: Judge | None = None
    """Judgement of seals, in place of the manifest's schedule."""
    listens: bool = True
    """Whether the node answers on a control socket, and serves metrics where its settings say so."""

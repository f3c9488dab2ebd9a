"""The seam through which a node takes from outside whatever could be otherwise the next time.

Clock, chance and keys, sensors, and whether others reach it over a socket; transport and model are given to
`Node` itself, and timers, threads and turns are those of its event loop. Below it nobody asks the system
for the time or for random numbers (tests/node/test_outside.py). So the node that ships is the one that is
simulated, on `sfnode.virtual_time`, and repeats from a seed.

No update has a time in it, so a wrong clock harms no model; but it hides a node in the DHT, so it is compared
with those of peers, by the time that their DHT nodes tell with every answer.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import psutil

from sfnode.errors import Code, UserError
from sfnode.organising.policy import OrganiserPolicy
from sfnode.organising.steps import Judge
from sfnode.resources.sensors import NetworkDaemon, Nvidia, Sensors, allowed_here
from sfnode.schema.status import GpuStatus, MachineStatus
from sfnode.stats import Rate
from sfnode.store.log import UpdateLog
from sfnode.transport.base import TransportError
from sfnode.transport.roster import CLOCK_WRONG
from sfprotocol.signing import Verify, verifies


class MachineUsage:
    """The usage of the machine by one node that computes on `devices`, its network daemon included. Not for
    two threads at once.

    For people and metrics; limits have sensors of their own, which read only what a limit asks for.
    """

    def __init__(self, *devices: str) -> None:
        self._devices = devices
        self._process = psutil.Process()
        self._daemon = NetworkDaemon(self._process)
        self._rate = Rate()
        self._gpus: dict[str, Nvidia | None] = {}
        """Sensors of the GPUs that were looked for, by device."""

    def __call__(self) -> MachineStatus:
        """Return the usage as of now, that of the CPU since earlier looks. Takes a millisecond."""
        used = self._daemon.used()
        return MachineStatus(
            device=",".join(self._devices),
            cpu=self._rate.update(time.monotonic(), time.process_time() + used.cpu),
            cores=allowed_here(),
            memory=self._process.memory_info().rss + self._daemon.resident(),
            memory_total=psutil.virtual_memory().total,
            gpus=self._look_at_gpus(),
        )

    def _look_at_gpus(self) -> list[GpuStatus]:
        """Return the usage of each GPU; none before torch has opened it, which nothing here should do."""
        torch: Any = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return []
        chosen = dict.fromkeys(device for device in self._devices if device.startswith("cuda"))
        return [self._look_at_gpu(device, torch.cuda) for device in chosen]

    def _look_at_gpu(self, device: str, cuda: Any) -> GpuStatus:
        if device not in self._gpus:
            try:
                self._gpus[device] = Nvidia(device, "watts")
            except UserError:
                self._gpus[device] = None
        found, gpu = cuda.get_device_properties(device), self._gpus[device]
        return GpuStatus(
            device=device,
            name=found.name,
            memory=cuda.memory_reserved(device),
            memory_total=found.total_memory,
            busy=_read(gpu, "busy"),
            celsius=_read(gpu, "celsius"),
            watts=_read(gpu, "watts"),
        )


def _read(gpu: Nvidia | None, sensor: str) -> float | None:
    """Return what a sensor says; None for one that is not there."""
    try:
        return None if gpu is None else float(getattr(gpu, sensor)())
    except UserError:
        return None


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
    usage: Callable[..., Callable[[], MachineStatus]] = MachineUsage
    """Makes what shows the usage of the machine, given the devices."""
    verify: Verify = verifies
    """Checks the signatures of segments."""
    open_log: Callable[[Path, bytes], UpdateLog] = UpdateLog.open
    """Opens the update log of a run."""
    policy: OrganiserPolicy | None = None
    """Organiser's policy in place of the manifest's, and the proof of work that join requests must show."""
    judge: Judge | None = None
    """Judgement of seals, in place of that which counts everything."""
    listens: bool = True
    """Whether the node answers on a control socket, and serves metrics where its settings say so."""


# -- this clock beside those of peers -----------------------------------------------------------


PEERS = 3
"""Peers that are asked: the median of three stands one that is wrong, or that lies."""

FIRST, AGAIN = 5.0, 1_800.0
"""Seconds until the peers are asked, when some are there, and asked again: a laptop may have slept."""


class ClockCheck:
    """A comparison of this clock with those of peers, again and again."""

    def __init__(self, ahead: Callable[[str], Awaitable[float]], peers: Callable[[], Sequence[str]]) -> None:
        """Take what asks the peer at an address how far ahead of ours its clock is, in seconds, and what
        names addresses of peers."""
        self._ahead = ahead
        self._peers = peers
        self.problem: UserError | None = None
        """CLOCK_DIFFERS, if the last comparison has found that."""

    async def run(self) -> None:
        """Compare until cancelled."""
        await asyncio.sleep(FIRST)
        while True:
            await self.compare()
            await asyncio.sleep(AGAIN)

    async def compare(self) -> None:
        """Compare once; without an answer everything stays as it is."""
        ahead = []
        for address in self._peers()[:PEERS]:
            try:
                ahead.append(await self._ahead(address))
            except (TransportError, UserError):
                continue
        if ahead:
            self.problem = _judged(statistics.median(ahead), len(ahead))


def _judged(ahead: float, count: int) -> UserError | None:
    if abs(ahead) < CLOCK_WRONG:
        return None
    way = "behind" if ahead > 0 else "ahead of"
    those = "the clock of a peer" if count == 1 else f"the clocks of {count} peers"
    return UserError(
        Code.CLOCK_DIFFERS,
        f"this clock is {_span(abs(ahead))} {way} {those}: nobody finds this node through the DHT",
        "Have the system set its clock (`timedatectl set-ntp true`); `sfnode doctor` asks a time server.",
    )


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"

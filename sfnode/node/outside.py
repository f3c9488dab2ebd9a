"""The inputs of a node that can differ between two executions.

These are the clock, randomness and keys, sensors, and the control socket. The transport and the model are
arguments of `Node` itself, and the event loop provides timers and threads. With few exceptions no other
module of a node asks the system for the time or for random numbers (tests/node/test_outside.py). So the
simulator runs the same node as users, on `sfnode.virtual_time`, and a seed repeats an execution.

An update contains no time, so a wrong clock harms no model. But a node with a wrong clock is not found in the
DHT. So the clock is compared with those of peers, whose DHT nodes send the time with every answer.
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
    """The usage of the machine by one node on `devices`, including its network daemon. Only one thread at a
    time may use it.

    The figures are for people and metrics. Limits have their own sensors (`resources.sensors`).
    """

    def __init__(self, *devices: str) -> None:
        self._devices = devices
        self._process = psutil.Process()
        self._daemon = NetworkDaemon(self._process)
        self._rate = Rate()
        self._gpus: dict[str, Nvidia | None] = {}
        """Sensors of the GPUs, keyed by device; None for a GPU without sensors."""

    def __call__(self) -> MachineStatus:
        """Return the present usage. The CPU usage is an average since an earlier call. Takes a
        millisecond."""
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
        """Return the usage of each GPU; an empty list before torch has initialised CUDA. Never initialises
        CUDA itself."""
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
    """Return the reading of a sensor; None without the sensor."""
    try:
        return None if gpu is None else float(getattr(gpu, sensor)())
    except UserError:
        return None


@dataclass(frozen=True, slots=True)
class Outside:
    """The inputs of a node that can differ between two executions."""

    random: Random = field(default_factory=SystemRandom)
    """The source of all random numbers, including keys and incarnations."""
    clock: Callable[[], float] | None = None
    """Monotonic clock in seconds; None means the event loop's clock."""
    today: Callable[[], date] = date.today
    """Function that returns the date, for daily quotas."""
    sensors: Callable[..., Sensors] = Sensors
    """Function that makes the sensors for the owner's limits, given the devices."""
    usage: Callable[..., Callable[[], MachineStatus]] = MachineUsage
    """Function that makes the reader of the machine's usage, given the devices."""
    verify: Verify = verifies
    """Function that checks the signatures of segments."""
    open_log: Callable[[Path, bytes], UpdateLog] = UpdateLog.open
    """Function that opens the update log of a run."""
    policy: OrganiserPolicy | None = None
    """Organiser's policy in place of the manifest's, including the proof of work for join requests; None
    means the manifest's policy."""
    judge: Judge | None = None
    """Judge of seals in place of the default judge, which counts everything; None means the default judge."""
    listens: bool = True
    """Whether the node opens its control socket and serves metrics."""


# -- this clock beside those of peers -----------------------------------------------------------


PEERS = 3
"""Number of peers that are asked for the time: the median of three tolerates one wrong or lying clock."""

FIRST, AGAIN = 5.0, 1_800.0
"""Pauses, in seconds: FIRST before the first comparison, AGAIN before each later comparison. The comparison
is repeated because a laptop's clock may be wrong after it has slept."""


class ClockCheck:
    """The regular comparison of this clock with those of peers."""

    def __init__(self, ahead: Callable[[str], Awaitable[float]], peers: Callable[[], Sequence[str]]) -> None:
        """`ahead` asks the peer at an address for its time, and returns how many seconds its clock is ahead
        of ours. `peers` returns addresses of peers."""
        self._ahead = ahead
        self._peers = peers
        self.problem: UserError | None = None
        """The error CLOCK_DIFFERS if the last comparison found a difference; else None."""

    async def run(self) -> None:
        """Compare regularly until cancelled."""
        await asyncio.sleep(FIRST)
        while True:
            await self.compare()
            await asyncio.sleep(AGAIN)

    async def compare(self) -> None:
        """Compare once. If no peer answers, keep the last result."""
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

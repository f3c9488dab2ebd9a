"""Usage of its machine by a node: CPU, memory and GPU, its network daemon included.

For people and metrics; limits have sensors of their own (`sensors`), which read only what a limit asks for.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol

import psutil

from sfnode.errors import UserError
from sfnode.resources.sensors import NetworkDaemon, Nvidia, allowed_here
from sfnode.schema.status import GpuStatus, MachineStatus
from sfnode.stats.time_series import Rate


class GpuSensors(Protocol):
    """The sensors of a GPU."""

    def celsius(self) -> float: ...
    def watts(self) -> float: ...
    def busy(self) -> float: ...


class MachineUsage:
    """The usage of the machine by one node that computes on `devices`. Not for two threads at once."""

    def __init__(self, *devices: str) -> None:
        self._devices = devices
        self._process = psutil.Process()
        self._daemon = NetworkDaemon(self._process)
        self._rate = Rate()
        self._gpus: dict[str, GpuSensors | None] = {}
        """Sensors of the GPUs that were looked for, by device."""

    def look(self) -> MachineStatus:
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


def _read(gpu: GpuSensors | None, sensor: str) -> float | None:
    """Return what a sensor says; None for one that is not there."""
    try:
        return None if gpu is None else float(getattr(gpu, sensor)())
    except UserError:
        return None

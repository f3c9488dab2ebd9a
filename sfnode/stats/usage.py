"""Usage of its machine by a node: CPU, memory and GPU, its network daemon included.

For people and metrics; limits have sensors of their own (`sensors`), which read only what a limit asks for.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol

import psutil

from sfnode.errors import UserError
from sfnode.resources.sensors import Daemon, Nvidia, allowed_here
from sfnode.schema.status import GpuStatus, MachineStatus
from sfnode.stats.time_series import Rate


class Gpu(Protocol):
    """The sensors of a GPU."""

    def celsius(self) -> float: ...
    def watts(self) -> float: ...
    def busy(self) -> float: ...


class Usage:
    """The usage of the machine by one node that computes on `device`. Not for two threads at once."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._process = psutil.Process()
        self._daemon = Daemon(self._process)
        self._rate = Rate()
        self._gpu: Gpu | None = None
        self._tried = False
        """Whether the sensors of the GPU were looked for."""

    def look(self) -> MachineStatus:
        """Return the usage as of now, that of the CPU since earlier looks. Takes a millisecond."""
        used = self._daemon.used()
        return MachineStatus(
            device=self._device,
            cpu=self._rate.update(time.monotonic(), time.process_time() + used.cpu),
            cores=allowed_here(),
            memory=self._process.memory_info().rss + self._daemon.resident(),
            memory_total=psutil.virtual_memory().total,
            gpu=self._look_at_gpu(),
        )

    def _look_at_gpu(self) -> GpuStatus | None:
        """Return the usage of the GPU; None before torch has opened it, which nothing here should do."""
        torch: Any = sys.modules.get("torch")
        if not self._device.startswith("cuda") or torch is None or not torch.cuda.is_initialized():
            return None
        if not self._tried:
            self._tried = True
            try:
                self._gpu = Nvidia(self._device, "watts")
            except UserError:
                self._gpu = None
        found = torch.cuda.get_device_properties(self._device)
        return GpuStatus(
            name=found.name,
            memory=torch.cuda.memory_reserved(self._device),
            memory_total=found.total_memory,
            busy=_read(self._gpu, "busy"),
            celsius=_read(self._gpu, "celsius"),
            watts=_read(self._gpu, "watts"),
        )


def _read(gpu: Gpu | None, sensor: str) -> float | None:
    """Return what a sensor says; None for one that is not there."""
    try:
        return None if gpu is None else float(getattr(gpu, sensor)())
    except UserError:
        return None

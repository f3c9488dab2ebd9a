"""What a node can see of its machine: load, user, power supply, programs, temperature, memory, energy.

Reads sensors through psutil, and NVIDIA's through NVML where its library is installed. Says what is; what
follows from it the governor decides. It looks only at what a limit asks for.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import psutil

from sfnode.errors import Code, UserError
from sfnode.limits import Limits
from sfnode.runtime.cgroups import allowed_cores
from sfnode.runtime.governor import Seen, program

BUSY_SHARE = 0.15
"""Of all cores: when other programs take more, somebody is at work. A desktop that is left alone takes a few
percent, a film ten."""

CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "soc_thermal", "acpitz")
"""Drivers that measure a processor, as Linux names them, the most exact first."""

DAEMON = "p2pd"
"""What the network daemon is called among the processes."""

LEAST_TIME = 1.0
"""Seconds over which load is measured at least; the system counts hundredths."""

_psutil: Any = psutil
"""Some of its functions exist on some systems only."""


class Gpu(Protocol):
    """What is asked of a GPU's sensors."""

    def celsius(self) -> float: ...
    def joules(self) -> float: ...


class Sensors:
    """The machine under one node that computes on `device`. Not for two threads at once, but for `joules`."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._process = psutil.Process()
        self._gpu: Gpu | None = None
        self._daemon = _Daemon(self._process)
        self._load = self._look_at_load()
        self._busy = 0.0
        """Share of the machine that others used between the last looks."""
        self._used_at = time.monotonic()
        """When somebody was last seen at the machine; until there was time to look, that is now."""

    @property
    def cores(self) -> float:
        """Those that this process may use; a part of one, perhaps, in a container."""
        found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return min(found, allowed_cores())

    def check(self, limits: Limits) -> None:
        """Raises UserError LIMIT_UNAVAILABLE for a limit on something that cannot be measured here."""
        if limits.watts is not None:
            self._open_gpu("watts").joules()
        if limits.celsius is not None:
            self._celsius()

    def look(self, limits: Limits) -> Seen:
        """What these limits need to know. Takes a millisecond; to list programs, some tens of them."""
        return Seen(
            moment=datetime.now().time(),
            idle=self._idle() if limits.idle is not None else 0.0,
            mains=_on_mains() if limits.mains else True,
            programs=running_programs() if limits.not_while else frozenset(),
            celsius=self._celsius() if limits.celsius is not None else 0.0,
            resident=self._process.memory_info().rss if limits.memory is not None else 0,
            free=min(self.cores, (psutil.cpu_count() or 1) * (1 - self._others())),
            moved=self._daemon.used().moved,
        )

    def joules(self) -> float:
        """What the GPU has drawn since its driver was loaded; for the limit on watts."""
        return self._open_gpu("watts").joules()

    def _idle(self) -> float:
        """Seconds without a key pressed in a terminal and without much load by other programs."""
        now = time.monotonic()
        if self._others() > BUSY_SHARE:
            self._used_at = now
        return min(now - self._used_at, terminals_idle())

    def _others(self) -> float:
        """The share of the machine that other programs use."""
        if time.monotonic() - self._load.at >= LEAST_TIME:
            load = self._look_at_load()
            self._busy, self._load = load.others_since(self._load), load
        return self._busy

    def _look_at_load(self) -> _Load:
        return _load(_used_by(self._process).cpu + self._daemon.used().cpu)

    def _celsius(self) -> float:
        if self._device.startswith("cuda"):
            return self._open_gpu("celsius").celsius()
        return processor_celsius()

    def _open_gpu(self, limit: str) -> Gpu:
        if self._gpu is None:
            if not self._device.startswith("cuda"):
                raise _unavailable(limit, f"no sensor tells what {self._device!r} draws", _GPU_ONLY)
            self._gpu = _Nvidia(self._device, limit)
        return self._gpu


_GPU_ONLY = "The limits watts and, on a GPU, celsius are for --device cuda; elsewhere limit cpu or threads."
_NVML = "Install it with `pip install 'sfnode[nvml]'`, or take the limit away."


class _Nvidia:
    """One GPU through NVML."""

    def __init__(self, device: str, limit: str) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise _unavailable(limit, "the library nvidia-ml-py is not installed", _NVML) from error
        self._library: Any = pynvml
        self._limit = limit
        self._handle = self._asked(lambda: self._open(device))

    def celsius(self) -> float:
        kind = self._library.NVML_TEMPERATURE_GPU
        return float(self._asked(lambda: self._library.nvmlDeviceGetTemperature(self._handle, kind)))

    def joules(self) -> float:
        millijoules = self._asked(lambda: self._library.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        return float(millijoules) / 1000

    def _open(self, device: str) -> Any:
        """CUDA counts the GPUs that CUDA_VISIBLE_DEVICES lists, by number or by name; and by number it counts
        the fastest first, NVML as they are plugged in. So a number only serves where CUDA tells no name, or
        one that NVML does not know."""
        self._library.nvmlInit()
        number = int(device.partition(":")[2] or 0)
        listed = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        name = listed.split(",")[number].strip() if listed else str(number)
        if not name.isdecimal():
            return self._library.nvmlDeviceGetHandleByUUID(name)
        with suppress(self._library.NVMLError, LookupError):
            return self._library.nvmlDeviceGetHandleByUUID(_cuda_name(number))
        return self._library.nvmlDeviceGetHandleByIndex(int(name))

    def _asked(self, question: Any) -> Any:
        try:
            return question()
        except (self._library.NVMLError, LookupError, ValueError) as error:
            raise _unavailable(self._limit, f"NVML says: {error}", "Take the limit away.") from error


def _cuda_name(number: int) -> str:
    """What NVML calls the GPU that CUDA counts as this one. Raises LookupError if CUDA does not tell."""
    import torch

    try:
        uuid = torch.cuda.get_device_properties(number).uuid
    except (AttributeError, AssertionError, RuntimeError) as error:  # an old torch, no CUDA, or no such GPU
        raise LookupError(str(error)) from error
    return f"GPU-{UUID(bytes=uuid) if isinstance(uuid, bytes) else uuid}"


class _Used(NamedTuple):
    """What a process has taken."""

    moved: int = 0
    """Bytes that it has read and written; 0 where the system does not tell (it does on Linux)."""
    cpu: float = 0.0
    """Seconds."""


def _used_by(process: psutil.Process) -> _Used:
    times = process.cpu_times()
    counters = process.io_counters() if hasattr(process, "io_counters") else None
    moved = counters.read_chars + counters.write_chars if counters else 0
    return _Used(moved, times.user + times.system)


class _Daemon:
    """The network daemon, which this process has started, and those that came before it."""

    def __init__(self, parent: psutil.Process) -> None:
        self._parent = parent
        self._process: psutil.Process | None = None
        self._now = self._before = _Used()
        self._begun = 0
        """Bytes that this one had read and written when it was first seen: its files, and what it told
        this process."""

    def used(self) -> _Used:
        """Bytes to and from the network and this process: what the daemon asks of other peers is seen nowhere
        else."""
        try:
            if self._process is None:
                found = next(child for child in self._parent.children() if child.name() == DAEMON)
                self._begun, self._process = _used_by(found).moved, found
            used = _used_by(self._process)
            self._now = used._replace(moved=used.moved - self._begun)
        except (psutil.Error, StopIteration):
            self._process = None
            self._before, self._now = self._total(), _Used()
        return self._total()

    def _total(self) -> _Used:
        return _Used(self._before.moved + self._now.moved, self._before.cpu + self._now.cpu)


def processor_celsius() -> float:
    """The hottest part of the processor. Raises UserError LIMIT_UNAVAILABLE."""
    found: Any = _psutil.sensors_temperatures() if hasattr(_psutil, "sensors_temperatures") else {}
    for driver in CPU_SENSORS:
        if values := [sensor.current for sensor in found.get(driver, ())]:
            return float(max(values))
    raise _unavailable(
        "celsius",
        "this machine shows no temperature of its processor",
        "Virtual machines and containers mostly show none; limit cpu or threads instead.",
    )


def running_programs() -> frozenset[str]:
    """What runs on this machine: names of processes and of their files, as `program` has them."""
    names: set[str] = set()
    for process in psutil.process_iter(["name", "exe"]):
        found = (process.info["name"], Path(process.info["exe"] or "").name)
        names.update(program(name) for name in found if name)
    return frozenset(names)


def terminals_idle() -> float:
    """Seconds since a key was last pressed in a terminal in which somebody is logged in; as `w` tells."""
    pressed = []
    for user in psutil.users():
        with suppress(OSError):
            pressed.append((Path("/dev") / (user.terminal or "none")).stat().st_atime)
    return max(0.0, time.time() - max(pressed)) if pressed else float("inf")


def _on_mains() -> bool:
    """A machine without a battery is."""
    battery = _psutil.sensors_battery() if hasattr(_psutil, "sensors_battery") else None
    return battery is None or battery.power_plugged is not False


class _Load(NamedTuple):
    """CPU seconds of the whole machine, of this node's processes, and that there were in all, until now."""

    at: float
    """`time.monotonic`."""
    busy: float
    own: float
    capacity: float

    def others_since(self, before: _Load) -> float:
        """The share of the machine that others have used since then."""
        used = (self.busy - before.busy) - (self.own - before.own)
        return max(0.0, used) / max(self.capacity - before.capacity, 1e-6)


def _load(own: float) -> _Load:
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)  # counted twice
    return _Load(time.monotonic(), total - idle, own, total)


def _unavailable(limit: str, why: str, fix: str) -> UserError:
    return UserError(Code.LIMIT_UNAVAILABLE, f"the limit {limit} cannot be kept: {why}", fix)

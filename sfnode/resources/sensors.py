"""Sensors of the machine: load, user activity, power supply, programs, temperature, memory, energy.

Reads only the sensors that a limit needs: through psutil, and for NVIDIA GPUs through NVML where its library
is installed. `pauses` decides what follows from the readings.

Cgroups may allow this process fewer cores than there are (`docker run --cpus`, systemd's `CPUQuota=`). With
such a limit all cores are still visible. With a thread on each of them, the process would use up its time in
the first part of each tenth of a second, and stand still for the rest of it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import psutil

from sfnode.errors import Code, UserError
from sfnode.limits import Limits
from sfnode.resources.pauses import Readings, normalised_program

BUSY_SHARE = 0.15
"""Share of all cores above which other programs count as somebody using the machine. An idle desktop takes a
few percent, and playing a film ten percent."""

CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "soc_thermal", "acpitz")
"""Linux names of the drivers that measure a processor's temperature, the most exact driver first."""

DAEMON = "p2pd"
"""Process name of the network daemon."""

MIN_SPAN = 1.0
"""Minimum time, in seconds, over which the load is measured. A shorter time would be inexact, because the
system counts CPU time in hundredths of a second."""

_psutil: Any = psutil
"""The module psutil, untyped: some of its functions exist on some systems only."""


class Sensors:
    """The sensors for one node that computes on `devices`. Only one thread at a time may use them, except for
    `joules`."""

    def __init__(self, *devices: str) -> None:
        self._devices = tuple(dict.fromkeys(devices))
        self._process = psutil.Process()
        self._gpus: dict[str, Nvidia] = {}
        """The opened GPUs, keyed by device."""
        self._daemon = NetworkDaemon(self._process)
        self._load = self._measure_load()
        self._busy = 0.0
        """Share of the machine that other programs used between the last two measurements."""
        self._used_at = time.monotonic()
        """Time of the last use of the machine by a person or other programs. The start counts as a use."""

    @property
    def cores(self) -> float:
        """Number of cores that this process may use."""
        return allowed_here()

    def check(self, limits: Limits) -> None:
        """Raise UserError LIMIT_UNAVAILABLE for a limit on something that cannot be measured here.

        May take seconds: it may load NVML and torch.
        """
        if limits.watts is not None:
            self.joules()
        if limits.celsius is not None:
            self._celsius()

    def look(self, limits: Limits) -> Readings:
        """Read the sensors that these limits need. Takes a millisecond, or some tens of milliseconds if it
        lists programs.

        Raises UserError LIMIT_UNAVAILABLE.
        """
        return Readings(
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
        """Return the energy that the GPUs have drawn since their driver was loaded, for the limit on
        watts."""
        return sum(self._open_gpu(device, "watts").joules() for device in self._devices)

    def _idle(self) -> float:
        """Return the seconds without a key pressed in a terminal and without much load by other programs."""
        now = time.monotonic()
        if self._others() > BUSY_SHARE:
            self._used_at = now
        return min(now - self._used_at, terminals_idle())

    def _others(self) -> float:
        """Return the share of the machine that other programs use."""
        if time.monotonic() - self._load.at >= MIN_SPAN:
            load = self._measure_load()
            self._busy, self._load = load.others_since(self._load), load
        return self._busy

    def _measure_load(self) -> _Load:
        return _load(_used_by(self._process).cpu + self._daemon.used().cpu)

    def _celsius(self) -> float:
        """Return the temperature of the hottest device."""
        return max(
            self._open_gpu(device, "celsius").celsius() if device.startswith("cuda") else processor_celsius()
            for device in self._devices
        )

    def _open_gpu(self, device: str, limit: str) -> Nvidia:
        if device not in self._gpus:
            if not device.startswith("cuda"):
                raise _unavailable(limit, f"no sensor tells what {device!r} draws", _GPU_ONLY)
            self._gpus[device] = Nvidia(device, limit)
        return self._gpus[device]


def allowed_here() -> float:
    """Return the number of cores that this process may use. In a container the number may be a fraction."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(found, allowed_cores())


_GPU_ONLY = "The limits watts and, on a GPU, celsius are for --device cuda; elsewhere limit cpu or threads."
_NVML = "Install it with `pip install 'sfnode[nvml]'`, or take the limit away."


class Nvidia:
    """The sensors of one NVIDIA GPU, which are read through NVML."""

    def __init__(self, device: str, limit: str) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise _unavailable(limit, "the library nvidia-ml-py is not installed", _NVML) from error
        self._library: Any = pynvml
        self._limit = limit
        self._handle = self._query(lambda: self._open(device))

    def celsius(self) -> float:
        kind = self._library.NVML_TEMPERATURE_GPU
        return float(self._query(lambda: self._library.nvmlDeviceGetTemperature(self._handle, kind)))

    def joules(self) -> float:
        millijoules = self._query(lambda: self._library.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        return float(millijoules) / 1000

    def watts(self) -> float:
        """Return the power that the GPU draws now."""
        return float(self._query(lambda: self._library.nvmlDeviceGetPowerUsage(self._handle))) / 1000

    def busy(self) -> float:
        """Return the share of the last sampling period (a second or less) in which the GPU was busy."""
        return float(self._query(lambda: self._library.nvmlDeviceGetUtilizationRates(self._handle).gpu)) / 100

    def _open(self, device: str) -> Any:
        """Open the GPU that CUDA calls `device`.

        CUDA counts the GPUs listed in CUDA_VISIBLE_DEVICES, by number or by UUID. CUDA's numbers begin with
        the fastest GPU, NVML's with the first slot. So the number is used only where CUDA gives no UUID that
        NVML knows.
        """
        self._library.nvmlInit()
        number = int(device.partition(":")[2] or 0)
        listed = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        name = listed.split(",")[number].strip() if listed else str(number)
        if not name.isdecimal():
            return self._library.nvmlDeviceGetHandleByUUID(name)
        with suppress(self._library.NVMLError, LookupError):
            return self._library.nvmlDeviceGetHandleByUUID(_cuda_name(number))
        return self._library.nvmlDeviceGetHandleByIndex(int(name))

    def _query(self, question: Any) -> Any:
        try:
            return question()
        except (self._library.NVMLError, LookupError, ValueError) as error:
            raise _unavailable(self._limit, f"NVML says: {error}", "Take the limit away.") from error


def _cuda_name(number: int) -> str:
    """Return NVML's name for the GPU that has this number in CUDA. Raises LookupError if CUDA gives none."""
    import torch

    try:
        uuid = torch.cuda.get_device_properties(number).uuid
    except (AttributeError, AssertionError, RuntimeError) as error:  # an old torch, no CUDA, or no such GPU
        raise LookupError(str(error)) from error
    return f"GPU-{UUID(bytes=uuid) if isinstance(uuid, bytes) else uuid}"


class _Used(NamedTuple):
    """Resources that a process has used."""

    moved: int = 0
    """Bytes read and written; 0 if the system does not count them (Linux does)."""
    cpu: float = 0.0
    """CPU seconds."""


def _used_by(process: psutil.Process) -> _Used:
    times = process.cpu_times()
    counters = process.io_counters() if hasattr(process, "io_counters") else None
    moved = counters.read_chars + counters.write_chars if counters else 0
    return _Used(moved, times.user + times.system)


class NetworkDaemon:
    """The network daemon of this process, together with the earlier daemons that it has replaced."""

    def __init__(self, parent: psutil.Process) -> None:
        self._parent = parent
        self._process: psutil.Process | None = None
        self._now = self._before = _Used()
        self._at_first = 0
        """Bytes that the present daemon had read and written when it was first seen: its files, and its first
        messages to this process."""

    def used(self) -> _Used:
        """Return the usage of the present daemon and the earlier ones together. The bytes are those that they
        exchanged with the network and with this process.

        This is the only count of traffic that the daemon has with other peers by itself.
        """
        try:
            if self._process is None:
                found = next(child for child in self._parent.children() if child.name() == DAEMON)
                self._at_first, self._process = _used_by(found).moved, found
            used = _used_by(self._process)
            self._now = used._replace(moved=used.moved - self._at_first)
        except (psutil.Error, StopIteration):
            self._process = None
            self._before, self._now = self._total(), _Used()
        return self._total()

    def resident(self) -> int:
        """Return the resident memory of the present daemon in bytes; 0 if none runs."""
        try:
            return int(self._process.memory_info().rss) if self._process else 0
        except psutil.Error:
            return 0

    def _total(self) -> _Used:
        return _Used(self._before.moved + self._now.moved, self._before.cpu + self._now.cpu)


def processor_celsius() -> float:
    """Return the temperature of the processor's hottest part. Raises UserError LIMIT_UNAVAILABLE."""
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
    """Return the names of all processes and of their executables, as `normalised_program` writes them."""
    names: set[str] = set()
    for process in psutil.process_iter(["name", "exe"]):
        found = (process.info["name"], Path(process.info["exe"] or "").name)
        names.update(normalised_program(name) for name in found if name)
    return frozenset(names)


def terminals_idle() -> float:
    """Return the seconds since a key was last pressed in a terminal with a login, as the command `w` shows
    them; infinity without such a terminal."""
    pressed = []
    for user in psutil.users():
        with suppress(OSError):
            pressed.append((Path("/dev") / (user.terminal or "none")).stat().st_atime)
    return max(0.0, time.time() - max(pressed)) if pressed else float("inf")


def _on_mains() -> bool:
    """Return whether the machine is on mains power, which a machine without a battery always is."""
    battery = _psutil.sensors_battery() if hasattr(_psutil, "sensors_battery") else None
    return battery is None or battery.power_plugged is not False


class _Load(NamedTuple):
    """CPU seconds until a moment: used on the whole machine (`busy`), used by this node's processes (`own`),
    and available (`capacity`)."""

    at: float
    """Time of the measurement, by `time.monotonic`."""
    busy: float
    own: float
    capacity: float

    def others_since(self, before: _Load) -> float:
        """Return the share of the machine that other programs have used since the measurement `before`."""
        used = (self.busy - before.busy) - (self.own - before.own)
        return max(0.0, used) / max(self.capacity - before.capacity, 1e-6)


def _load(own: float) -> _Load:
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)  # counted twice
    return _Load(time.monotonic(), total - idle, own, total)


def _unavailable(limit: str, why: str, fix: str) -> UserError:
    return UserError(Code.LIMIT_UNAVAILABLE, f"the limit {limit} cannot be kept: {why}", fix)


GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
"""File of lines `number:controllers:path`; cgroups version 2 leaves the controllers empty (cgroups(7))."""


def allowed_cores() -> float:
    """Return the smallest limit, in cores, on this process's group or a group around it; infinity if there is
    none."""
    with suppress(OSError):
        lines = MEMBERSHIP.read_text().splitlines()
        return min((limit for line in lines for limit in _limits(line)), default=math.inf)
    return math.inf


def _limits(line: str) -> Iterator[float]:
    _, controllers, path = line.split(":", 2)
    if controllers and "cpu" not in controllers.split(","):
        return
    root = GROUPS / controllers
    group = root / path.lstrip("/")
    # A container may see its own group as the root, and be given a path that exists only outside.
    for level in (group, *group.parents):
        with suppress(OSError, ValueError):
            yield _limit(level)
        if level == root:
            return


def _limit(group: Path) -> float:
    if (both := group / "cpu.max").exists():
        quota, period = both.read_text().split()
    else:
        quota, period = ((group / f"cpu.cfs_{what}_us").read_text().strip() for what in ("quota", "period"))
    return math.inf if quota in ("max", "-1") else int(quota) / int(period)

"""Measures the peak memory of an action and a device's free memory, and computes how large a model would fit.

On a CPU the peak is the resident set of the whole process, which the machine must have: the kernel's
high-water mark, reset before the action (proc(5), clear_refs). Only Linux has this mark. Where the mark
cannot be reset, the resident set is sampled. On other systems the peak is unknown. On CUDA the peak is that
of torch's allocator. Before every action garbage is collected, and freed memory is returned to the system.
Otherwise the action could reuse freed pages without raising the peak. This module knows neither models nor
training methods.
"""

from __future__ import annotations

import gc
import statistics
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from sfnode import heap
from sfnode.schema.results import FitResult

RUNS = 3
"""Number of measurements of an action's peak. The median is used, because allocators are not quite
repeatable."""

SAMPLED = 0.002
"""Seconds between samples of the resident set where the high-water mark cannot be reset."""

_SELF = Path("/proc/self")
_GROUP = Path("/sys/fs/cgroup")
_RESET_HIGH_WATER_MARK = "5"

BYTES_PER_PARAMETER = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "int8": 1.0 + 4 / 4096,  # a float32 scale for each output row, which has 4,096 numbers in a 7B model
    "nf4": 4.127 / 8,  # with its scales, themselves quantised (Dettmers et al. 2023)
}
"""Bytes that a parameter of a large model takes, keyed by the dtype of the weights."""


class Room(NamedTuple):
    """Memory of a device at some moment."""

    free: int | None
    """Bytes that are available; None where that is unknown."""
    resident: int
    """Bytes in use by this process, or on CUDA by its tensors; 0 where that is unknown."""


def weights(parameters: int, dtype: str) -> int:
    """Return the bytes that `parameters` parameters take in a dtype."""
    return int(parameters * BYTES_PER_PARAMETER[dtype])


def largest(free: int, overhead: int) -> list[FitResult]:
    """Return, for each dtype, the largest number of parameters whose weights fit into `free` bytes less
    `overhead` bytes for everything else."""
    room = max(0, free - overhead)
    sizes = {dtype: BYTES_PER_PARAMETER[dtype] for dtype in ("float32", "bfloat16", "int8", "nf4")}
    return [
        FitResult(dtype=dtype, bytes_per_parameter=size, parameters=int(room / size))
        for dtype, size in sizes.items()
    ]


def free(device: torch.device) -> int | None:
    """Return the bytes that are available on a device; None where that is unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    available = _line(Path("/proc/meminfo"), "MemAvailable:")
    allowed = _allowed()
    return min(available, allowed) if available is not None and allowed is not None else available


def room(device: torch.device) -> Room:
    """Return the memory of the device as it is now."""
    tidy()
    if device.type == "cuda":
        return Room(free(device), int(torch.cuda.memory_allocated(device)))
    return Room(free(device), (device.type == "cpu" and _line(_SELF / "status", "VmRSS:")) or 0)


def peak(action: Callable[[], object], device: torch.device) -> int | None:
    """Return the peak of bytes in use while `action` runs: the median of RUNS measurements. None where the
    peak is unknown."""
    if device.type == "cuda":
        return int(statistics.median(_cuda_peak(action, device) for _ in range(RUNS)))
    if device.type != "cpu" or _line(_SELF / "status", "VmHWM:") is None:
        return None
    return int(statistics.median(_resident_peak(action) for _ in range(RUNS)))


def most(device: torch.device) -> int | None:
    """Return the peak of bytes in use since the process began, or since the peak was last reset; None where
    it is unknown."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return _line(_SELF / "status", "VmHWM:") if device.type == "cpu" else None


def tidy() -> None:
    """Return unused memory to the system."""
    gc.collect()
    heap.trim()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _cuda_peak(action: Callable[[], object], device: torch.device) -> int:
    tidy()
    torch.cuda.reset_peak_memory_stats(device)
    action()
    torch.cuda.synchronize(device)
    return most(device) or 0


def _resident_peak(action: Callable[[], object]) -> int:
    tidy()
    try:
        (_SELF / "clear_refs").write_text(_RESET_HIGH_WATER_MARK)
    except OSError:  # a container may forbid it
        with _sampled() as seen:
            action()
        return max(seen)
    action()
    return most(torch.device("cpu")) or 0


@contextmanager
def _sampled() -> Iterator[list[int]]:
    """Sample the resident set, in bytes, while the block runs."""
    seen = [_line(_SELF / "status", "VmRSS:") or 0]
    over = threading.Event()

    def look() -> None:
        while not over.wait(SAMPLED):
            seen.append(_line(_SELF / "status", "VmRSS:") or 0)

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield seen
    finally:
        over.set()
        looking.join()


def _line(file: Path, name: str) -> int | None:
    """Return the number of kilobytes on the line that begins with `name`, converted to bytes; None if there
    is no such file or line."""
    try:
        lines = file.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)


def _allowed() -> int | None:
    """Return the bytes that a container's control group still allows; None where there is no bound."""
    try:
        most = (_GROUP / "memory.max").read_text().strip()
        if most == "max":
            return None
        statistics = dict(line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
        # Files that were read count as used, and make room as soon as somebody wants it.
        used = int((_GROUP / "memory.current").read_text()) - int(statistics["inactive_file"])
        return max(0, int(most) - used)
    except (OSError, ValueError, KeyError):
        return None

"""Determinism: only `sfnode.node.outside` asks the system for time and randomness."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

import sfnode
from sfnode.errors import Code
from sfnode.node import outside
from sfnode.node.outside import ClockCheck, MachineUsage
from sfnode.transport.base import TransportError
from sfnode.transport.memory import MemoryTransport, Network
from tests.resources.test_sensors import Nvml

ROOT = Path(sfnode.__file__).parent

PACKAGES = ("node", "organising", "peers")

FORBIDDEN = {
    *("multiprocessing", "psutil", "secrets", "signal", "socket", "subprocess", "tempfile", "threading"),
    *("time", "uuid", "random.SystemRandom", "os.urandom", "concurrent.futures.ThreadPoolExecutor"),
}

ALLOWED = {
    "node/disk_wait.py": "an event on which a thread waits for room",
    "node/outside.py": "random.SystemRandom is the chance of a node that is not simulated",
    "node/samples.py": "how long answering took",
    "node/startup.py": "an event that a proof of work looks at",
    "node/training/engine_thread.py": "locks, and how long steps took",
    "node/training/model.py": "a lock, and the secret of an owner's rows",
    "node/training/limiter.py": "the processor time of this process",
    "peers/contacts.py": "a file and a page for people, with the date",
}
"""Modules that may use a forbidden name, each with the reason."""


def imported(file: Path) -> Iterator[str]:
    """The modules that a file imports, and the names that it imports from modules or reads of `os`."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            yield f"os.{node.attr}"


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_is_asked_of_the_system_below_the_seam(package: str) -> None:
    found = {
        str(file.relative_to(ROOT)): names
        for file in sorted((ROOT / package).rglob("*.py"))
        if (names := FORBIDDEN & set(imported(file)))
    }
    assert {file: names for file, names in found.items() if file not in ALLOWED} == {}


def test_no_module_is_allowed_what_it_does_not_use() -> None:
    assert all(FORBIDDEN & set(imported(ROOT / file)) for file in ALLOWED)


# -- this machine's clock, compared with those of peers -----------------------------------------


HOURS = 3 * 3600.0


async def compared(ahead: Mapping[str, float | None]) -> ClockCheck:
    """Return a check with peers whose clocks are these seconds ahead. A peer with None does not answer."""

    async def ask(address: str) -> float:
        seconds = ahead[address]
        if seconds is None:
            raise TransportError("gone")
        return seconds

    check = ClockCheck(ask, lambda: list(ahead))
    await check.compare()
    return check


@pytest.mark.parametrize(
    ("ahead", "said"),
    [
        ({"a": HOURS, "b": HOURS - 1, "c": None}, "this clock is 180 minutes behind the clocks of 2 peers"),
        ({"a": -90.0}, "this clock is 90 s ahead of the clock of a peer"),
        ({"a": 0.3, "b": -0.2, "c": HOURS}, None),
        ({"a": None}, None),
        ({}, None),
    ],
)
async def test_a_clock_far_from_those_of_most_peers_is_told_of(
    ahead: Mapping[str, float | None], said: str | None
) -> None:
    problem = (await compared(ahead)).problem
    assert (problem and problem.what.partition(":")[0]) == said
    assert problem is None or problem.code == Code.CLOCK_DIFFERS


async def test_the_warning_goes_when_the_clock_is_right_again_and_stays_while_nobody_answers() -> None:
    ahead: dict[str, float | None] = {"a": HOURS}
    check = await compared(ahead)
    ahead["a"] = None
    await check.compare()
    assert check.problem
    ahead["a"] = 0.0
    await check.compare()
    assert check.problem is None


async def test_a_transport_tells_how_far_another_clock_is_ahead() -> None:
    network = Network(Random(0))
    late, right = MemoryTransport(network, "late", clock=-HOURS), MemoryTransport(network, "right")
    await late.start()
    await right.start()
    assert await late.clock_ahead("/memory/right/p2p/right") == HOURS
    assert await right.clock_ahead("/memory/late/p2p/late") == -HOURS


# -- what a node takes of its machine -----------------------------------------------------------


def test_cpu_and_memory_are_those_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = [0.0, 0.0]
    monkeypatch.setattr(outside.time, "monotonic", lambda: moment[0])
    monkeypatch.setattr(outside.time, "process_time", lambda: moment[1])
    seen = MachineUsage("cpu")
    seen()
    moment[:] = 10.0, 5.0
    found = seen()
    assert found.cpu == pytest.approx(0.5)
    assert 0 < found.memory < found.memory_total
    assert found.gpus == []


def test_a_gpu_says_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch reports the memory, and NVML the rest. This GPU does not report its power."""

    class Some(Nvml):
        def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:  # noqa: N802
            return SimpleNamespace(gpu=(10, 50)[handle])

        def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
            raise self.NVMLError("not supported")

    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        get_device_properties=lambda _: SimpleNamespace(name="H100", total_memory=80, uuid=None),
        memory_reserved=lambda _: 2,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "pynvml", Some("pynvml"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    (gpu,) = MachineUsage("cuda")().gpus
    assert (gpu.name, gpu.memory, gpu.memory_total, gpu.celsius) == ("H100", 2, 80, 80)
    assert (gpu.busy, gpu.watts) == (0.5, None)


def test_nobody_opens_a_gpu_to_look_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = SimpleNamespace(is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert MachineUsage("cuda")().gpus == []

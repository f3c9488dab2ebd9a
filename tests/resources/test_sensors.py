"""Sensors read on the real machine, and on a simulated NVML."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from uuid import UUID

import psutil
import pytest

from sfnode.errors import Code
from sfnode.limits import Limits
from sfnode.resources.sensors import (
    CPU_SENSORS,
    DAEMON,
    Sensors,
    processor_celsius,
    running_programs,
    terminals_idle,
)
from tests.refusals import refused


@contextmanager
def running(*command: object) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_running_program_is_found_by_the_name_of_its_file(tmp_path: Path) -> None:
    game = tmp_path / "SomeGame"
    shutil.copy(shutil.which("sleep") or "sleep", game)
    assert "somegame" not in running_programs()
    with running(game, 60):
        assert "somegame" in running_programs()
    assert "somegame" not in running_programs()


@pytest.mark.parametrize(("name", "ours"), [(DAEMON, True), ("game", False)])
def test_load_by_other_programs_counts_as_use_of_the_machine_but_not_that_of_the_nodes_daemon(
    tmp_path: Path, name: str, ours: bool
) -> None:
    program, sensors = tmp_path / name, Sensors("cpu")
    shutil.copy(shutil.which("sh") or "sh", program)
    before = sensors._measure_load()
    with running(program, "-c", "while :; do :; done") as busy:
        child = psutil.Process(busy.pid)
        while child.cpu_times().user < 1:
            time.sleep(0.05)
        after = sensors._measure_load()
        seen = sensors.look(Limits())
    assert (after.own - before.own >= 1) == ours
    assert after.busy - before.busy >= 1
    taken = after.others_since(before) * (after.capacity - before.capacity)
    assert taken == pytest.approx(after.busy - before.busy - (after.own - before.own))
    assert 0 <= seen.free <= sensors.cores


def test_a_machine_counts_as_in_use_when_the_node_starts() -> None:
    seen = Sensors("cpu").look(Limits(idle=1))
    assert seen.idle < 60


def test_terminals_show_when_somebody_typed() -> None:
    idle = terminals_idle()
    assert idle >= 0
    assert (idle == float("inf")) <= (not psutil.users() or not any(user.terminal for user in psutil.users()))


def test_only_sensors_that_a_limit_needs_are_read() -> None:
    seen = Sensors("cpu").look(Limits())
    assert (seen.mains, seen.programs, seen.resident, seen.celsius) == (True, frozenset(), 0, 0)
    assert Sensors("cpu").look(Limits(memory=1)).resident == pytest.approx(
        psutil.Process().memory_info().rss, rel=0.2
    )


@pytest.mark.skipif(not hasattr(psutil.Process, "io_counters"), reason="this system does not tell")
def test_bytes_that_the_network_daemon_moves_are_counted_over_its_restarts(tmp_path: Path) -> None:
    daemon, sensors, seen = tmp_path / DAEMON, Sensors("cpu"), 0
    shutil.copy(shutil.which("cat") or "cat", daemon)
    assert sensors.look(Limits()).moved == seen == 0
    for deaths in (1, 2):
        with running(daemon, "/dev/zero") as process:
            assert process.stdout is not None
            process.stdout.read(1_000_000)
            assert (
                sensors.look(Limits()).moved - seen < 1_000_000
            )  # what it reads when it starts is not traffic
            process.stdout.read(2_000_000)
            seen = sensors.look(Limits()).moved
        assert seen >= deaths * 2_000_000  # read from there, written to here
        assert sensors.look(Limits()).moved == seen


def test_a_temperature_is_read_or_its_limit_is_refused() -> None:
    shown = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
    if shown.keys() & set(CPU_SENSORS):
        assert 0 < processor_celsius() < 150
        Sensors("cpu").check(Limits(celsius=90))
    else:
        with refused(Code.LIMIT_UNAVAILABLE, "limit celsius cannot be kept"):
            Sensors("cpu").check(Limits(celsius=90))


@pytest.mark.parametrize("device", ["cpu", "mps", "cuda:77"])
def test_a_limit_on_what_no_sensor_measures_is_refused(device: str) -> None:
    with refused(Code.LIMIT_UNAVAILABLE, "the limit watts cannot be kept"):
        Sensors(device).check(Limits(watts=100))


class Nvml(ModuleType):
    """NVML of a machine with two GPUs, of which the one plugged in second is hotter."""

    NVML_TEMPERATURE_GPU = 0
    UUIDS = "11111111-0000-0000-0000-000000000000", "22222222-0000-0000-0000-000000000000"

    class NVMLError(Exception):
        """What NVML raises."""

    def nvmlInit(self) -> None:  # noqa: N802 (NVML's names)
        """Do nothing: it is ready."""

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetHandleByUUID(self, name: str) -> int:  # noqa: N802
        if name.removeprefix("GPU-") not in self.UUIDS:
            raise self.NVMLError("not found")
        return self.UUIDS.index(name.removeprefix("GPU-"))

    def nvmlDeviceGetTemperature(self, handle: int, kind: int) -> int:  # noqa: N802
        return (40, 80)[handle]


@pytest.mark.parametrize(
    ("listed", "told", "celsius"),
    [
        ("", UUID(Nvml.UUIDS[1]), 80),
        ("", UUID(Nvml.UUIDS[1]).bytes, 80),
        ("", Nvml.UUIDS[1], 80),
        ("", "another name", 40),
        ("", None, 40),
        ("1", None, 80),
        ("0", UUID(Nvml.UUIDS[1]), 80),
        (f"GPU-{Nvml.UUIDS[0]}", UUID(Nvml.UUIDS[1]), 40),
    ],
)
def test_the_gpu_is_the_one_that_cuda_means_although_nvml_counts_in_another_order(
    monkeypatch: pytest.MonkeyPatch, listed: str, told: object, celsius: float
) -> None:
    def properties(_: int) -> SimpleNamespace:
        return SimpleNamespace(uuid=told) if told else SimpleNamespace()

    monkeypatch.setitem(sys.modules, "pynvml", Nvml("pynvml"))
    monkeypatch.setattr("torch.cuda.get_device_properties", properties)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert Sensors("cuda").look(Limits(celsius=90)).celsius == celsius


@pytest.mark.skipif(os.environ.get("SFNODE_DEVICE", "cpu") == "cpu", reason="needs a GPU: --device cuda")
def test_a_gpu_has_a_temperature_and_an_energy_counter() -> None:
    sensors = Sensors(os.environ["SFNODE_DEVICE"])
    sensors.check(Limits(watts=100, celsius=90))
    assert sensors.joules() > 0
    assert 0 < sensors.look(Limits(celsius=90)).celsius < 120


def test_only_cores_that_this_process_may_use_are_counted() -> None:
    assert 1 <= Sensors("cpu").cores <= (os.cpu_count() or 1)

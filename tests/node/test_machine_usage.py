"""What a node takes of its machine."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from sfnode.node import outside
from sfnode.node.outside import MachineUsage
from tests.resources.test_sensors import Nvml


def test_cpu_and_memory_are_those_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([(0.0, 0.0), (10.0, 5.0)])
    moment = [0.0, 0.0]
    monkeypatch.setattr(outside.time, "monotonic", lambda: moment[0])
    monkeypatch.setattr(outside.time, "process_time", lambda: moment[1])
    seen = MachineUsage("cpu")
    moment[:] = next(times)
    seen.look()
    moment[:] = next(times)
    found = seen.look()
    assert found.cpu == pytest.approx(0.5)
    assert 0 < found.memory < found.memory_total
    assert found.gpus == []


def test_a_gpu_says_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch knows the memory, and NVML the rest; this GPU does not say what it draws."""

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
    (gpu,) = MachineUsage("cuda").look().gpus
    assert (gpu.name, gpu.memory, gpu.memory_total, gpu.celsius) == ("H100", 2, 80, 80)
    assert (gpu.busy, gpu.watts) == (0.5, None)


def test_nobody_opens_a_gpu_to_look_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = SimpleNamespace(is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert MachineUsage("cuda").look().gpus == []

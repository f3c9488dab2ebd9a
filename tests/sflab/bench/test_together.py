"""Several devices are measured together and each alone."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO

import pytest
import torch
from rich.console import Console

from sflab.bench import runner
from sflab.bench.subject import SubjectSpec, check_room, load_subject
from sflab.cli import bench
from sfnode.errors import Code, UserError
from sfnode.resources import memory


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_several_devices_are_measured_together_and_each_alone() -> None:
    spec = SubjectSpec(device="cpu,cpu", dtype="float32")
    with load_subject(spec) as subject:
        found = runner.measure_together(spec, subject, [2], queries=1, repetitions=1)
    assert torch.get_num_threads() == 2
    assert [(one.devices, one.threads) for one in found] == [
        ("cpu 1,cpu 2", 1),
        ("cpu alone", 1),
        ("cpu alone", 2),
    ]
    whole, *others = found
    assert whole.ratio == 1.0
    for one in others:
        assert one.ratio == pytest.approx(whole.updates_per_hour / one.updates_per_hour)  # of a single turn
    shown = StringIO()
    Console(file=shown, width=80).print(bench.together(found))
    assert "cpu 1,cpu 2" in shown.getvalue()
    assert "1.00" in shown.getvalue()


def test_all_replicas_have_to_find_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free", lambda device: 8000)
    check_room("model", 1000, "float32", torch.device("cpu"), replicas=2)
    with pytest.raises(UserError, match="for 3 replicas") as refusal:
        check_room("model", 1000, "float32", torch.device("cpu"), replicas=3)
    assert refusal.value.code is Code.OUT_OF_MEMORY

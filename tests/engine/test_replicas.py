"""Steps that several replicas measure are those of one feed; here all of them are on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfnode.engine.trainable_model import StepResult
from sfnode.engine.trainer import FORGET, Replica, ReplicatedTrainer, Trainer, _shares, divide, names
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.models import loader
from tests.engine.helpers import data_file, manifest, model_folder, trainer, updates, weights
from tests.engine.test_offloading import KINDS
from tests.refusals import refused

SEEDS = list(range(100, 112))


@pytest.fixture(autouse=True)
def one_thread_each() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def replicated(
    run: Manifest, folder: Path, devices: int = 2, batch: int = 2, **options: Any
) -> ReplicatedTrainer:
    """A trainer with so many replicas, in the middle of an epoch."""
    rows = data_file(folder)
    made = ReplicatedTrainer.load_on(
        ["cpu"] * devices, run, batch=batch, model_override=model_folder("opt"), data_override=rows, **options
    )
    made.apply(updates(24, (0, 1)))
    return made


def one_after_another(run: Trainer, epoch: int, seeds: Sequence[int] = SEEDS, batch: int = 2) -> list[int]:
    """The scalars that a trainer without replicas measures, batch by batch."""
    starts = range(0, len(seeds), batch)
    return [scalar for start in starts for scalar in run.step(seeds[start : start + batch], epoch).scalars]


def alone(run: Manifest, folder: Path, **options: Any) -> Trainer:
    """A trainer at the same point, without replicas."""
    made = trainer(run, data_file(folder), **options)
    made.apply(updates(24, (0, 1)))
    return made


def break_down(made: ReplicatedTrainer, device: int, error: Exception, after: int = 1) -> list[int]:
    """Have a device fail after so many more batches; return a list of how often it has been asked."""
    asked: list[int] = []
    measure = made.devices[device].trainer.estimate

    def estimate(seeds: Sequence[int], epoch: int, distance: float) -> Any:
        asked.append(len(seeds))
        if len(asked) > after:
            if isinstance(error, RuntimeError):  # of the device, in the middle of a change
                site = made.devices[device].trainer.loaded.sites[0]
                loader.store_rows(
                    site, 0, torch.full((site.target.out_features, site.target.in_features), 7.0)
                )
            raise error
        return measure(seeds, epoch, distance)

    made.devices[device].trainer.estimate = estimate  # type: ignore[method-assign]
    return asked


# -- what comes of it ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "dtype"), [(1, "float32"), (3, "float32"), *((2, dtype) for dtype in KINDS)]
)
def test_scalars_are_to_the_bit_those_of_one_device_that_measures_the_same_batches(
    devices: int, dtype: str, tmp_path: Path
) -> None:
    run = manifest("opt", learning_rate=1e-3)
    batch = 2 if devices > 1 else len(SEEDS)
    made = replicated(run, tmp_path, devices, batch, dtype=dtype)
    other = alone(run, tmp_path, dtype=dtype)
    made.mini_batches.prepare(SEEDS)
    assert list(made.step(SEEDS, 1).scalars) == one_after_another(other, 1, batch=batch)
    assert sum(device.updates for device in made.devices) == len(SEEDS)
    assert all(device.updates and device.seconds for device in made.devices)


def test_all_weights_and_digests_are_those_of_one_device(tmp_path: Path) -> None:
    run = manifest("opt", learning_rate=1e-3)
    made, other = replicated(run, tmp_path), alone(run, tmp_path)
    for turn in range(3):
        seeds = [seed + 100 * turn for seed in SEEDS]
        found = made.recompute(seeds, turn).scalars
        assert found == made.recompute(seeds, turn).scalars
        batch = updates(len(seeds), (turn,))._replace(scalars=torch.tensor(found).numpy())
        for one in (made, other):
            one.apply(batch)
    assert made.core.digest() == other.core.digest()
    other.weights.rebuild()
    made.recompute(SEEDS, 2)
    for device in made.devices:
        assert all(torch.equal(*pair) for pair in zip(weights(other), weights(device.trainer), strict=True))


def test_groups_stay_together(tmp_path: Path) -> None:
    run = manifest("opt", group=4)
    made, other = replicated(run, tmp_path, batch=4), alone(run, tmp_path)
    assert list(made.step(SEEDS, 0).scalars) == one_after_another(other, 0, batch=4)


def test_the_last_batch_may_be_smaller_and_some_devices_may_get_none(tmp_path: Path) -> None:
    run = manifest("opt")
    made, other = replicated(run, tmp_path, 3), alone(run, tmp_path)
    assert list(made.step(SEEDS[:3], 0).scalars) == one_after_another(other, 0, SEEDS[:3])


def test_a_checkpoint_is_begun_with_by_all(tmp_path: Path) -> None:
    run = manifest("opt", learning_rate=1e-3)
    source = alone(run, tmp_path)
    rows = data_file(tmp_path)
    made = ReplicatedTrainer.load_on(
        ["cpu", "cpu"], run, batch=2, model_override=model_folder("opt"), data_override=rows
    )
    made.begin(source.cores())
    assert list(made.step(SEEDS, 1).scalars) == one_after_another(source, 1)


def test_a_loss_is_the_mean_of_what_did_not_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = replicated(manifest("opt"), tmp_path)
    results = {
        100: StepResult((1, 2), 3.0, 0),
        102: StepResult((0, 4), 6.0, 1),
        104: StepResult((0, 0), 0.0, 2),
    }
    monkeypatch.setattr(Trainer, "step", lambda self, seeds, epoch, rate: results[seeds[0]])
    assert made.step(SEEDS[:6], 0) == StepResult((1, 2, 0, 4, 0, 0), 4.0, 3)


# -- devices that fail -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), Code.OUT_OF_MEMORY),
        (RuntimeError("CUDA error: an illegal memory access was encountered\nmore"), Code.DEVICE),
    ],
)
def test_the_others_measure_what_a_device_that_fails_has_left_and_go_on(
    error: Exception, code: Code, tmp_path: Path
) -> None:
    run = manifest("opt")
    made, other = replicated(run, tmp_path, 3), alone(run, tmp_path)
    asked = break_down(made, 1, error)
    for _ in range(2):
        assert list(made.step(SEEDS, 1).scalars) == one_after_another(other, 1)
    fault = made.devices[1].fault
    assert fault is not None
    assert fault.code is code
    assert "'cpu 2'" in fault.what
    assert "more" not in fault.what
    assert len(asked) == 2, "it is left alone"
    assert made.devices[1].updates == 2


@pytest.mark.parametrize("dtype", KINDS[:2])
def test_after_a_pause_it_is_tried_again_with_all_that_has_been_applied_meanwhile(
    dtype: str, tmp_path: Path
) -> None:
    run = manifest("opt", learning_rate=1e-3)
    made, other = replicated(run, tmp_path, dtype=dtype), alone(run, tmp_path, dtype=dtype)
    second = made.devices[1]

    def fail_and_pause(meanwhile: int) -> None:
        break_down(made, 1, torch.OutOfMemoryError())
        made.step(SEEDS, 1)
        for one in (made, other):
            one.apply(updates(meanwhile, (0, 1, 2), key=5))
        made.offload()
        assert second.fault is None
        del second.trainer.estimate

    fail_and_pause(meanwhile=0)
    made_before = second.updates
    assert list(made.step(SEEDS, 1).scalars) == one_after_another(other, 1)
    assert second.updates > made_before
    fail_and_pause(meanwhile=30)
    assert made.recompute(SEEDS, 2).scalars == tuple(one_after_another_exactly(other))


def one_after_another_exactly(run: Trainer) -> list[int]:
    run.weights.rebuild()
    return one_after_another(run, 2)


def test_without_the_first_device_a_step_raises_and_names_it(tmp_path: Path) -> None:
    made = replicated(manifest("opt"), tmp_path)
    break_down(made, 0, torch.OutOfMemoryError())
    with refused(Code.OUT_OF_MEMORY, "the device 'cpu 1' has not enough memory"):
        made.step(SEEDS, 0)
    single = replicated(manifest("opt"), tmp_path, devices=1)
    break_down(single, 0, RuntimeError("it burns"), after=0)
    with pytest.raises(UserError, match="the device 'cpu' has failed: it burns"):
        single.step(SEEDS, 0)


@pytest.mark.parametrize("device", [0, 1])
def test_what_is_not_the_fault_of_a_device_is_raised_when_all_have_ended(device: int, tmp_path: Path) -> None:
    run = manifest("opt")
    made, other = replicated(run, tmp_path), alone(run, tmp_path)
    asked = break_down(made, device, UserError(Code.DATA_MALFORMED, "a row", "Mend it."))
    with pytest.raises(UserError, match="a row"):
        made.step(SEEDS, 1)
    assert made.devices[device].fault is None
    assert made.devices[1 - device].updates == len(SEEDS) // 2
    asked.clear()
    del made.devices[device].trainer.estimate
    assert list(made.step(SEEDS, 1).scalars) == one_after_another(other, 1), "nothing of that step is left"


def test_a_device_that_does_not_exist_is_named_before_anything_is_loaded(tmp_path: Path) -> None:
    with refused(Code.DEVICE, "'cuda:77' cannot be used here"):
        ReplicatedTrainer.load_on(["cpu", "cuda:77"], manifest("opt"), batch=1)


# -- pauses, threads, shares -----------------------------------------------------------------------


def test_a_pause_offloads_all_and_changes_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = replicated(manifest("opt"), tmp_path)
    before = made.step(SEEDS, 1)
    moved: list[tuple[int, torch.device]] = []
    for number, device in enumerate(made.devices):
        monkeypatch.setattr(device.trainer, "_move", lambda to, number=number: moved.append((number, to)))
    made.offload()
    cpu = torch.device("cpu")
    assert moved == [(0, cpu), (1, cpu)]
    made.restore()
    assert moved[2:] == [(0, cpu)], "a question during the pause needs no more"
    assert made.step(SEEDS, 1).scalars == before.scalars
    assert moved[3:] == [(1, cpu)]


def test_replicas_on_the_cpu_share_the_threads(tmp_path: Path) -> None:
    made = replicated(manifest("opt"), tmp_path)
    made.use_threads(5, None)
    other = made.devices[1].thread
    assert other is not None
    assert (torch.get_num_threads(), other.submit(torch.get_num_threads).result()) == (2, 2)
    made.use_threads(1, None)
    assert (torch.get_num_threads(), other.submit(torch.get_num_threads).result()) == (1, 1)


def test_a_trainer_that_is_closed_has_no_threads(tmp_path: Path) -> None:
    made = replicated(manifest("opt"), tmp_path)
    with made:
        made.step(SEEDS, 0)
    with pytest.raises(RuntimeError, match="shutdown"):
        made.step(SEEDS, 0)


def test_devices_of_one_name_are_told_apart() -> None:
    assert names(["cpu"]) == ["cpu"]
    assert names(["cuda:0", "cpu", "cpu"]) == ["cuda:0", "cpu 1", "cpu 2"]


def test_batches_are_divided_by_speed() -> None:
    assert divide(8, [0, 0]) == [4, 4], "nothing is known yet"
    assert divide(3, [0, 7]) == [2, 1], "a new one is taken to be as fast as the others"
    assert divide(6, [10, 20]) == [4, 2]
    assert divide(8, [10, 500]) == [8, 0]
    assert divide(1, [20, 10]) == [0, 1]


@given(st.integers(1, 64), st.lists(st.integers(1, 10**9), min_size=1, max_size=8))
def test_no_other_division_ends_sooner_by_moving_one_batch(batches: int, costs: list[int]) -> None:
    taken = divide(batches, costs)
    assert sum(taken) == batches
    last = max(count * cost for count, cost in zip(taken, costs, strict=True))
    assert all((count + 1) * cost >= last for count, cost in zip(taken, costs, strict=True))


def test_a_device_that_was_too_slow_is_tried_again_now_and_then() -> None:
    nobody: Any = None
    fast = Replica("fast", nobody, None, nanoseconds=1000)
    slow = Replica("slow", nobody, None, nanoseconds=50_000)
    batches = {number: [number] for number in range(8)}
    turns = [turn for turn in range(2000) if _shares(batches, [fast, slow])[1]]
    assert turns == [3 * FORGET, 6 * FORGET + 1]
    assert (fast.nanoseconds, slow.nanoseconds) == (1000, 50_000)

"""A model that is offloaded for a pause frees its device, and is restored with every bit as it was."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from sfnode.engine.trainer import Trainer
from sfnode.errors import Code, UserError
from tests.engine.helpers import DEVICE, data_file, manifest, part, trainer, updates, weights
from tests.refusals import refused

KINDS = ["float32", "bfloat16", "int8"]
"""Weights that updates are merged into, weights with a live core, and quantised ones with one."""


def worked(dtype: str, folder: Path) -> Trainer:
    """In the middle of an epoch, with some updates in the weights and some pending or in the live core."""
    run = trainer(manifest("opt", learning_rate=1e-3), data_file(folder), dtype=dtype)
    for n in range(12):
        run.apply(part(updates(24, (0, 1)), slice(2 * n, 2 * n + 2)))
        run.step([n, n + 1], n // 6)
    return run


@pytest.mark.parametrize("dtype", KINDS)
def test_a_pause_changes_neither_the_weights_nor_the_next_step(dtype: str, tmp_path: Path) -> None:
    run = worked(dtype, tmp_path)
    run.weights.follow = lambda epoch: None  # type: ignore[method-assign] # it goes by the clock
    before, step = weights(run), run.step([77, 78], 1)
    run.offload()
    run.offload()
    run.restore()
    assert all(torch.equal(one, other) for one, other in zip(before, weights(run), strict=True))
    assert run.step([77, 78], 1) == step


@pytest.mark.parametrize("dtype", KINDS)
def test_what_is_heard_during_a_pause_counts_and_a_question_brings_the_model_back(
    dtype: str, tmp_path: Path
) -> None:
    run, other = worked(dtype, tmp_path), worked(dtype, tmp_path)
    run.offload()
    for one in (run, other):
        one.apply(updates(30, (0, 1, 2), key=5))
    assert run.core.digest() == other.core.digest()
    run.weights.rebuild()
    other.weights.rebuild()
    assert run.step([3], 2).scalars == other.step([3], 2).scalars
    assert {tensor.device.type for tensor in run.loaded.model.state_dict().values()} == {
        run.loaded.device.type
    }


def test_everything_moves_with_the_model(tmp_path: Path) -> None:
    """On a device without memory, as far as one sees where a tensor is."""
    space = worked("bfloat16", tmp_path).space
    space.move(torch.device("meta"))
    held = [space._u, space._v, space._layer_of_in, space._layer_of_out]
    held += [side for columns in space._cache.values() for side in columns]
    held += [*space.matrices(77, 0), *space.columns(78)]  # of epochs that were not in use
    assert {tensor.device.type for tensor in held} == {"meta"}
    assert space.device.type == "meta"
    assert not space._coming


@pytest.mark.skipif(not DEVICE.startswith("cuda"), reason="needs a GPU: --device cuda")
@pytest.mark.parametrize("dtype", KINDS)
def test_a_pause_gives_the_memory_of_the_gpu_back(dtype: str, tmp_path: Path) -> None:
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    run = worked(dtype, tmp_path)
    assert torch.cuda.memory_reserved() > before
    run.offload()
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() <= before
    assert torch.cuda.memory_reserved() <= before
    run.restore()


def test_a_model_that_finds_half_of_its_room_stays_aside_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = worked("bfloat16", tmp_path)
    run.weights.follow = lambda epoch: None  # type: ignore[method-assign] # it goes by the clock
    step, move = run.step([77, 78], 1), run.space.move
    run.offload()
    moved: list[torch.device] = []

    def no_room(device: torch.device) -> None:
        moved.append(device)
        if len(moved) == 1:
            raise torch.OutOfMemoryError("the second half does not fit")
        move(device)

    monkeypatch.setattr(run.space, "move", no_room)
    with refused(Code.OUT_OF_MEMORY):
        run.restore()
    assert moved == [run.loaded.device, torch.device("cpu")]
    assert run.step([77, 78], 1) == step
    assert moved[2:] == [run.loaded.device]


@pytest.mark.skipif(not DEVICE.startswith("cuda"), reason="needs a GPU: --device cuda")
def test_a_gpu_that_others_have_filled_is_said_to_be_full_and_is_left_to_them(tmp_path: Path) -> None:
    run = trainer(manifest("opt", test=str(data_file(tmp_path))), data_file(tmp_path))
    run.offload()
    gc.collect()
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved()
    torch.cuda.set_per_process_memory_fraction((held + 1) / torch.cuda.mem_get_info()[1])
    try:
        with pytest.raises(UserError, match="there is no room for the model"):
            run.restore()
        gc.collect()
        assert torch.cuda.memory_reserved() <= held
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    run.step([77, 78], 1)


def test_threads_go_back_to_what_they_were() -> None:
    run = trainer(manifest("opt"))
    before = torch.get_num_threads()
    run.use_threads(1, None)
    assert torch.get_num_threads() == 1
    run.use_threads(2, 1)
    assert torch.get_num_threads() == 2
    run.use_threads(None, None)
    assert torch.get_num_threads() == before
    run.use_threads(None, 1)
    assert torch.get_num_threads() == 1
    run.use_threads(None, before + 1)
    assert torch.get_num_threads() == before


def test_a_measurement_ends_when_it_is_not_wanted_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sfnode.engine.losses.EVALUATION_BATCH", 1)
    run = trainer(manifest("opt", test=str(data_file(tmp_path))), data_file(tmp_path))
    before = weights(run)
    answers = iter([True, False])
    with refused(Code.PAUSED):
        run.evaluate_base(0, lambda: next(answers))
    assert all(torch.equal(one, other) for one, other in zip(weights(run), before, strict=True))

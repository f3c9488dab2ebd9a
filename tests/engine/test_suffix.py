"""The last blocks of a model: what enters them is computed once for each text."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfnode.engine import forward, generation, making_bases
from sfnode.engine.core import UpdateBatch
from sfnode.engine.trainer import Trainer
from sfnode.errors import Code
from sfnode.manifest.task import Task
from sfnode.manifest.training import Training
from sfnode.models import kept_states, loader
from sfnode.models.kept_states import KeptStates
from sfnode.models.targets import Selection
from sfnode.tasks import bounded_cache
from sfprotocol.seeds import update_seeds
from tests.engine.helpers import (
    ENCODERS,
    HEADED_TASK,
    ROWS,
    TASK,
    data_file,
    manifest,
    model_folder,
    own_states,
    trainer,
)
from tests.refusals import refused

SEEDS = update_seeds(5, 0, 6).tolist()
WORDED = TASK.model_copy(update={"verbalizer": {"0": "bad film .", "1": "good story ."}})
PAIRS = HEADED_TASK.model_copy(update={"template": "{sentence}{separator}the film was {label}"})

MATRICES = r".*\.1\.(?!.*(orm|bias)).*"
"""Targets in the second block of two, but for vectors."""

TEXTS = 2 * len(ROWS)
"""Those of the task that is answered in words: each row with either answer."""


@pytest.fixture(autouse=True)
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # so that no path that varies enters a run's id, from which directions follow
    return own_states(tmp_path, monkeypatch)


def running(
    tmp_path: Path,
    family: str,
    wanted: str = MATRICES,
    *modules: str,
    task: Task | None = None,
    dtype: str = "float32",
) -> Trainer:
    """A run that trains the targets called as `wanted` among all of a model, and those called `modules`."""
    task = task or (HEADED_TASK if family in ENCODERS else WORDED)
    every = Selection(("all-linear", *modules), embeddings=True, biases=True, norms=True)
    described = loader.describe(str(model_folder(family)), "", every, loader.classes(task))
    targets = tuple(one for one in described.targets if re.fullmatch(wanted, one.partition(":")[0]))
    model = described.model_copy(update={"source": f"tiny/{family}", "targets": targets})
    rows = data_file(tmp_path)
    run = manifest("opt", test=rows.name, learning_rate=1e-4)
    return trainer(run.model_copy(update={"model": model, "task": task}), rows, dtype=dtype)


def kept(run: Trainer) -> KeptStates:
    assert run.loaded.kept
    return run.loaded.kept


def check(run: Trainer) -> None:
    """Assert that scalars are those of the whole model, to one quantum and to rounding, after updates."""
    run.apply(UpdateBatch(np.zeros(40, np.int64), update_seeds(3, 0, 40), np.arange(40) * 100 - 1_500))
    run.weights.rebuild()
    places = run.run_rows.places
    whole = Trainer(run.manifest, replace(run.loaded, kept=None), ROWS, core=run.core, places=places)
    found, wanted = run.step(SEEDS, 0).scalars, whole.step(SEEDS, 0).scalars
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=1.0)
    assert np.abs(wanted).max() > 20
    assert run.evaluate().loss == pytest.approx(whole.evaluate().loss, abs=1e-5)


@pytest.mark.parametrize("family", ["opt", "gpt2", "qwen2", "mistral", "gemma2", "gemma3_text", *ENCODERS])
def test_scalars_are_those_of_the_whole_model(family: str, tmp_path: Path) -> None:
    """Learnt positions, tied embeddings, sliding windows, encoders; texts of unequal length."""
    run = running(tmp_path, family)
    assert kept(run).cut.name == "block1"
    check(run)


@pytest.mark.parametrize("family", ["opt", "qwen2", "mistral", "gemma2", "gemma3_text"])
def test_what_all_texts_begin_with_is_read_once_behind_the_cut(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    longer = WORDED.model_copy(update={"template": f"{'the film was good ' * 4}{WORDED.template}"})
    run = running(tmp_path, family, task=longer)
    begun, begin = [], forward.begin

    def watched(*given: Any) -> forward.Begun:
        begun.append(begin(*given))
        return begun[-1]

    monkeypatch.setattr(forward, "begin", watched)
    check(run)
    assert [len(one.layers) for one in begun[:1]] == [2]
    assert begun[0].tokens >= forward.LEAST_SHARED
    assert not begun[0].layers[0][0].any(), "nothing is read below the cut"
    found = run.step(SEEDS, 0).scalars
    monkeypatch.setattr(forward, "LEAST_SHARED", 1 << 20)
    np.testing.assert_allclose(found, run.step(SEEDS, 0).scalars, rtol=2e-3, atol=1.0)


@pytest.mark.parametrize("dtype", ["int8", "nf4"])
def test_the_blocks_below_may_be_quantised(dtype: str, tmp_path: Path) -> None:
    if dtype == "nf4" and importlib.util.find_spec("bitsandbytes") is None:
        pytest.skip("bitsandbytes, an optional dependency, is not installed")
    run = running(tmp_path, "opt", dtype=dtype)
    assert kept(run).cut.name == "block1"
    check(run)


def test_vectors_of_the_last_block_and_behind_it_are_moved_in_place(tmp_path: Path) -> None:
    run = running(tmp_path, "opt", r".*\.1\..*|.*decoder\.final_layer_norm.*|.*project_out")
    assert {"model.decoder.final_layer_norm.weight", "model.decoder.project_out"} <= {
        site.target.name for site in run.loaded.sites
    }
    assert kept(run).cut.name == "block1"
    check(run)


def test_pairs_of_texts_differ_by_where_they_part(tmp_path: Path) -> None:
    run = running(tmp_path, "bert", task=PAIRS)
    before = kept(run).forwards  # of the check of its targets
    check(run)
    assert kept(run).forwards - before == len(ROWS)


def test_a_head_may_be_trained_with_the_last_block(tmp_path: Path) -> None:
    run = running(tmp_path, "llama", MATRICES + "|score", task=HEADED_TASK)
    assert kept(run).cut.name == "block1"
    check(run)


def test_the_untied_head_of_a_language_model_is_trained_behind_all_blocks(tmp_path: Path) -> None:
    run = running(tmp_path, "llama", "lm_head", "lm_head")
    assert kept(run).cut.name == "block2"
    check(run)


@pytest.mark.parametrize(
    ("family", "wanted"),
    [
        ("llama", ".*_proj"),
        ("qwen2", MATRICES + "|model.embed_tokens"),  # and the head, which is tied to them
        ("gpt2", MATRICES + "|transformer.wpe"),
        ("bert", MATRICES + "|bert.embeddings.LayerNorm.*"),
        ("opt", MATRICES + "|.*project_in"),
    ],
)
def test_nothing_is_kept_where_what_enters_the_blocks_is_trained(
    family: str, wanted: str, tmp_path: Path
) -> None:
    assert running(tmp_path, family, wanted).loaded.kept is None


def test_each_text_goes_through_the_blocks_below_once_whatever_is_asked(tmp_path: Path) -> None:
    run = running(tmp_path, "llama")
    before = kept(run).forwards  # of the check of its targets
    for number in range(3):
        run.step(SEEDS, 0)
        run.evaluate()
        run.apply(UpdateBatch(np.zeros(1, np.int64), update_seeds(number, 0, 1), np.full(1, 9_000)))
    assert kept(run).forwards - before == TEXTS


def test_states_serve_another_process_and_a_spoilt_file_costs_time_alone(
    tmp_path: Path, states: Path
) -> None:
    first = running(tmp_path, "llama")
    said = first.evaluate()
    second = running(tmp_path, "llama")
    assert second.evaluate() == said
    assert kept(second).forwards == 0
    (folder,) = states.iterdir()
    assert folder.name.endswith("-block1")
    for file in folder.iterdir():
        file.write_bytes(file.read_bytes()[:-4])
    third = running(tmp_path, "llama")
    assert third.evaluate() == said
    assert kept(third).forwards == kept(first).forwards


def test_what_memory_has_no_room_for_is_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_cache, "BUDGET", 1_000)
    monkeypatch.setattr(kept_states, "DISK", 0)
    run = running(tmp_path, "llama")
    check(run)
    assert kept(run).forwards > 2 * TEXTS


def test_a_gradient_is_taken_behind_the_cut(tmp_path: Path) -> None:
    run = running(tmp_path, "llama")
    batch = run.objective.shard.mini_batch(SEEDS[0])  # type: ignore[attr-defined]
    weight = run.loaded.sites[0].module.weight
    assert isinstance(weight, torch.nn.Parameter)
    weight.requires_grad_(True)
    gradients = []
    for loaded in (run.loaded, replace(run.loaded, kept=None)):
        weight.grad = None
        forward.mean_loss(loaded, batch).backward()  # type: ignore[no-untyped-call]
        gradients.append(weight.grad)
    torch.testing.assert_close(*gradients)


def test_bases_are_those_of_the_whole_model(tmp_path: Path) -> None:
    """What is at the place of padding differs, and has no part in them."""
    run = running(tmp_path, "llama")
    batches = [run.mini_batch(seed) for seed in SEEDS[:2]]
    kept_not = replace(run.loaded, kept=None)
    for make in (making_bases.errors, making_bases.gradients):
        found, wanted = (make(loaded, batches, Training(rank=2)) for loaded in (run.loaded, kept_not))
        for one, other in zip(found.pairs, wanted.pairs, strict=True):
            for side, its in zip(one, other, strict=True):
                np.testing.assert_allclose(side.astype(int), its.astype(int), atol=1)


def test_of_texts_that_are_being_written_nothing_is_kept(tmp_path: Path) -> None:
    run = running(tmp_path, "llama")
    before = kept(run).forwards
    plan = generation.AnswerPlan(4, ends=frozenset())
    for found in (run.loaded, replace(run.loaded, kept=None)):
        (answer,) = generation.generate(found, [generation.AnswerRequest([1, 2, 4])], plan) or ()
        assert len(answer.tokens) == 4
    assert kept(run).forwards == before


def test_a_text_with_more_tokens_than_positions_is_refused(tmp_path: Path) -> None:
    run = running(tmp_path, "gpt2")
    batch = run.objective.shard.mini_batch(SEEDS[0])  # type: ignore[attr-defined]
    long = torch.ones((1, 70), dtype=torch.int64)
    given = {"input_ids": long, "attention_mask": long, "token_type_ids": long * 0}
    one = {
        "sequences": torch.zeros(1).long(),
        "columns": torch.zeros(1).long(),
        "targets": torch.ones(1).long(),
    }
    encoded = replace(batch, **given, **one)
    with refused(Code.MODEL_UNSUPPORTED):
        forward.score_in_passes(run.loaded, encoded)

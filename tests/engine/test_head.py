"""A linear head: what enters it is computed once for each text, and says what the whole model says."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, pipeline

from sfnode.engine import forward, head
from sfnode.engine.core import UpdateBatch
from sfnode.engine.estimator import estimates
from sfnode.engine.trainer import Trainer
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data, Parent
from sfnode.manifest.training import Training, features_text
from sfnode.models import loader
from sfnode.models.targets import Selection
from sfnode.preparing import trial
from sfnode.preparing.manifest import forked, unsuited
from sfnode.store.run_keys import RunKeys
from sfnode.tasks.encoding import Encoded
from sfnode.tasks.encoding import _collate as collate
from sfnode.tasks.tokenization import Example
from sfprotocol.seeds import BASIS_ONE, BIAS, contrasts, scaled_signs, update_seeds
from tests.engine.helpers import HEADED_TASK, ROWS, data_file, model_folder, own_states, trainer

SEEDS = update_seeds(5, 0, 6).tolist()
FEATURES = features_text([(24, 100)] * 16)


@pytest.fixture(autouse=True)
def no_states_of_other_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_states(tmp_path, monkeypatch)


def headed(
    family: str, task: Any = HEADED_TASK, rows: str = "", folder: Path | None = None, **numbers: Any
) -> Manifest:
    module = {"bert": "classifier", "roberta": "classifier.out_proj"}.get(family, "score")
    described = loader.describe(str(folder or model_folder(family)), "", Selection((module,)), 2)
    return Manifest(
        name="head",
        model=described.model_copy(update={"source": f"tiny/{family}"}),
        task=task,
        data=Data(train=rows, test=rows),
        training=Training(
            **{"rank": 8, "batch_size": 3, "epoch_updates": 50, "update_budget": 500} | numbers
        ),
    )


def running(family: str, tmp_path: Path, dtype: str = "float32", **others: Any) -> Trainer:
    return trainer(headed(family, **others), data_file(tmp_path), dtype=dtype)


def measured(tmp_path: Path, **numbers: Any) -> Trainer:
    """A run that is measured on the rows that it trains on."""
    file = data_file(tmp_path)
    return trainer(headed("llama", rows=str(file), **numbers), file)


def moved(run: Trainer) -> Trainer:
    """The run after some updates, so that its head is not zero."""
    run.apply(UpdateBatch(np.zeros(40, np.int64), update_seeds(3, 0, 40), np.arange(40) * 100 - 1_500))
    run.weights.rebuild()
    return run


@pytest.mark.parametrize("family", ["opt", "gpt2", "llama", "bert", "roberta"])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_slopes_are_those_of_the_whole_model(family: str, dtype: str, tmp_path: Path) -> None:
    run = moved(running(family, tmp_path, dtype, learning_rate=1e-3))
    numbers = [run.mini_batch(seed) for seed in SEEDS]
    batches = [run.objective.shard.mini_batch(seed) for seed in SEEDS]  # type: ignore[attr-defined]
    directions = run.space.directions(SEEDS, 0)
    short = run.objective.estimates(run.space, 0, SEEDS, numbers, 1e-2)
    kept = estimates(run.loaded, directions, batches, 1e-2)
    full = estimates(replace(run.loaded, kept=None), directions, batches, 1e-2)
    for one, other, third in zip(short, kept, full, strict=True):
        assert one.alpha == pytest.approx(third.alpha, rel=2e-3, abs=2e-4)
        assert other.alpha == pytest.approx(third.alpha, rel=2e-3, abs=2e-4)
        assert one.loss == pytest.approx(third.loss, abs=1e-5)
    assert any(abs(one.alpha) > 1e-3 for one in full)


def test_each_text_goes_through_the_model_once_whatever_is_asked(tmp_path: Path) -> None:
    run = measured(tmp_path)
    assert run.loaded.kept
    before = run.loaded.kept.forwards  # of the check of its targets
    for number in range(3):
        run.step(SEEDS, 0)
        run.evaluate()
        run.apply(UpdateBatch(np.zeros(1, np.int64), update_seeds(number, 0, 1), np.full(1, 9_000)))
    assert run.loaded.kept.forwards - before == len(ROWS)


def test_an_evaluation_from_kept_states_is_that_of_the_whole_model(tmp_path: Path) -> None:
    run = moved(measured(tmp_path, rank=16, learning_rate=1e-2))
    found = run.evaluate()
    bare, places = replace(run.loaded, kept=None), run.run_rows.places
    again = Trainer(run.manifest, bare, [], core=run.core, places=places)
    again.weights.rebuild()
    assert again.evaluate().loss == pytest.approx(found.loss, abs=1e-6)
    assert found.loss != pytest.approx(np.log(2), abs=1e-3)


@pytest.mark.parametrize("family", ["opt", "gpt2", "llama"])
def test_a_text_ends_where_its_mask_does_whatever_its_last_token_is(family: str, tmp_path: Path) -> None:
    """As GPT-2's and Llama 3's layouts are: nothing pads, and token 0 is a word."""
    folder = without_padding(Path(shutil.copytree(model_folder(family), tmp_path / family)))
    run = moved(trainer(headed(family, folder=folder, learning_rate=1e-2), model_override=folder))
    whole = replace(run.loaded, kept=None)
    ends_with_it = [8, 4, 0]
    batched = encoded([ends_with_it, [5, 12, 2, 7, 8]])
    alone = encoded([ends_with_it])
    torch.testing.assert_close(
        forward.score(whole, batched).log_probs[:2], forward.score(whole, alone).log_probs
    )
    torch.testing.assert_close(
        forward.states(run.loaded, batched)[:1], forward.states(run.loaded, alone), atol=1e-5, rtol=1e-5
    )
    run.export(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["pad_token_id"] is None
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    said = plain(torch.tensor([ends_with_it])).logits.log_softmax(-1)[0].detach()
    torch.testing.assert_close(said, forward.score(whole, alone).log_probs, atol=1e-5, rtol=1e-5)


def without_padding(folder: Path) -> Path:
    """Make the token 0 of a model a word like others; of some it still says that it pads."""
    words = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = words["model"]["vocab"]
    vocabulary["!"] = vocabulary.pop("<pad>")
    words["added_tokens"] = [one for one in words["added_tokens"] if one["content"] != "<pad>"]
    (folder / "tokenizer.json").write_text(json.dumps(words))
    for name, key in (("tokenizer_config.json", "pad_token"), ("config.json", "pad_token_id")):
        said = json.loads((folder / name).read_text())
        if key == "pad_token" or folder.name != "opt":
            del said[key]
        (folder / name).write_text(json.dumps(said))
    return folder


def encoded(texts: list[list[int]]) -> Encoded:
    """Texts of these tokens for a head of two classes."""
    examples = [
        Example(
            (np.array(ids, np.int32),),
            (np.zeros(len(ids), np.int8),),
            np.array([(0, 0, number, number) for number in range(2)], np.int32),
            (0,),
        )
        for ids in texts
    ]
    return collate(examples, 0, contrastive=True, centred=False, prior=None, references=0)


@pytest.mark.parametrize("family", ["opt", "llama"])
def test_the_head_of_a_causal_model_begins_at_zero(family: str, tmp_path: Path) -> None:
    run = running(family, tmp_path)
    assert not run.loaded.base_weights.read(0).any()


def test_features_make_a_basis_of_equal_spread_with_a_bias(tmp_path: Path) -> None:
    scales, means = np.array([1, 24, 127, 60] * 8), np.array([900, -40, 3, 0] * 8)
    u = contrasts(bytes(32), 3, 0, 5, 64).astype(int)
    assert set(np.unique(u)) == {-BASIS_ONE, 0, BASIS_ONE}
    assert not u.sum(0).any()
    assert (np.abs(u).sum(0) == 4 * BASIS_ONE).all()
    two = contrasts(bytes(32), 3, 0, 2, 64).astype(int)
    assert (two[0] == -two[1]).all()
    v = scaled_signs(bytes(32), 3, 0, scales, means, 64).astype(int)
    assert np.abs(np.abs(v[2::4]) - 127).max() <= 12  # their means are small
    along = means @ v
    assert np.abs(np.abs(along) - BIAS).max() <= np.abs(means).sum() / 2 + 1


def test_numbers_follow_from_the_features_but_for_those_that_are_given(tmp_path: Path) -> None:
    run = measured(tmp_path, epsilon=0.5)
    found, sample = trial.of_head(run, {"epsilon"}, lambda done, total: None)
    assert found.keys() == {"basis", "features", "learning_rate", "scalar_delta"}
    training = Training(**run.manifest.training.model_dump() | found)
    assert len(training.scales_and_means()) == 16
    assert (training.basis, training.epsilon) == ("features", 0.5)
    assert training.learning_rate != run.manifest.training.learning_rate
    assert sample.slopes.any()


@pytest.mark.parametrize(
    ("features", "told"),
    [("AQAA", "as many"), ("AQ", "three bytes"), ("AAAA", "from 1 to"), ("AQAA\n", "three bytes")],
)
def test_features_that_do_not_fit_are_refused(features: str, told: str) -> None:
    given = headed("llama").model_dump()
    given["training"] |= {"basis": "features", "features": features}
    with pytest.raises(ValueError, match=told):
        Manifest(**given)


def test_the_export_gives_a_plain_pipeline_the_probabilities_of_the_run(tmp_path: Path) -> None:
    run = moved(measured(tmp_path, basis="features", features=FEATURES, learning_rate=1e-3))
    run.export(tmp_path / "out")
    texts = [row["sentence"] for row in ROWS]
    for size in (1, 3):
        classify: Any = pipeline("text-classification", str(tmp_path / "out"), top_k=None, batch_size=size)
        losses = [
            -np.log(
                next(one["score"] for one in said if one["label"] == HEADED_TASK.verbalizer[row["label"]])
            )
            for said, row in zip(classify(texts), ROWS, strict=True)
        ]
        assert np.mean(losses) == pytest.approx(run.evaluate().loss, abs=1e-4)


def test_a_fork_may_go_on_with_the_body_on_the_head_that_was_learnt(tmp_path: Path) -> None:
    run = moved(measured(tmp_path, basis="features", features=FEATURES, learning_rate=1e-3))
    run.export(tmp_path / "out")
    parent = Parent(run_id="12" * 32, epoch=0, digest="34" * 32)
    own = unsuited(run.manifest.training) | {"target_modules": ("q_proj",)} | RunKeys.generate().options()
    old = run.manifest.model_copy(update={"admission": "organised"})
    fork = forked(old, parent, tmp_path / "out", own | {"votes": 1})
    assert (fork.training.basis, fork.training.features, fork.training.batch_size) == ("random", "", 4)
    assert fork.task == run.manifest.task
    with trainer(fork, data_file(tmp_path), model_override=tmp_path / "out") as body:
        assert body.loaded.kept is None
        assert torch.equal(body.loaded.model.score.weight, run.loaded.model.score.weight)
        assert body.evaluate().loss == pytest.approx(run.evaluate().loss, abs=1e-5)


def test_states_of_a_private_run_are_in_memory_alone(tmp_path: Path) -> None:
    manifest = headed("llama")
    organised = manifest.organised.model_copy(update={"private": True})
    run = trainer(manifest.model_copy(update={"organised": organised}), data_file(tmp_path))
    run.step(SEEDS, 0)
    assert not (tmp_path / "cache" / "sfnode" / "states").exists()


def test_rows_that_the_model_reads_alike_are_refused_before_a_run_is_made_of_them(tmp_path: Path) -> None:
    """Of words that the tokenizer knows none of."""
    rows = tmp_path / "odd.tsv"
    rows.write_text("sentence\tlabel\n" + "rotten\t0\nsuperb\t1\n" * 5)
    with (
        trainer(headed("opt", rows=str(rows)), rows) as run,
        pytest.raises(UserError, match="as if all were the same") as no,
    ):
        trial.of_head(run, (), lambda done, total: None)
    assert no.value.code is Code.LOSS_FLAT


def test_while_all_rows_are_read_for_the_first_update_it_tells_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int] | None] = []
    run = trainer(headed("llama"), data_file(tmp_path))
    original = forward.states

    def noted(*given: Any) -> Tensor:
        told.append(run.objective.reading)
        return original(*given)

    monkeypatch.setattr(head, "EVALUATION_BATCH", 2)
    monkeypatch.setattr(forward, "states", noted)
    run.step(SEEDS, 0)
    assert told == [(0, 5), (2, 5), (4, 5)]
    assert run.objective.reading is None


def test_a_pause_takes_the_states_of_rows_from_the_device_too(tmp_path: Path) -> None:
    run = trainer(headed("llama"), data_file(tmp_path))
    run.step(SEEDS, 0)
    rows = run.objective._every_row()
    run.objective.move(torch.device("meta"))  # a device that keeps nothing
    assert {part.device.type for part in run.objective._every_row()} == {"meta"}
    run.objective._rows = rows
    run.offload()
    assert all(torch.equal(*parts) for parts in zip(run.objective._every_row(), rows, strict=True))

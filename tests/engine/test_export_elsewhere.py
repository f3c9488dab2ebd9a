"""An export is the same model wherever it is read: its configuration is the base's own, and another version
of transformers computes the same numbers from it.

SFNODE_OTHER_TRANSFORMERS names a folder with the packages of another version (transformers, tokenizers and
huggingface_hub, as `pip install --no-deps --target` puts them there); without it the tests that need two
versions are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from sfnode.engine.export import export_model
from sfnode.engine.trainer import Trainer
from sfnode.errors import UserError
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data
from sfnode.manifest.training import Training
from sfnode.models import loader
from sfnode.models.targets import DEFAULT, Selection
from sfnode.preparing.manifest import routes_tokens
from tests.engine import elsewhere
from tests.engine.elsewhere import CLASSIFIER, EXPECTED, HEADLESS, SETTINGS, logits, read
from tests.engine.helpers import HEADED_TASK, TASK, updates
from tests.models.families import ENCODERS, shard
from tests.models.hostile import change

OTHER = os.environ.get("SFNODE_OTHER_TRANSFORMERS")
ROOT = Path(__file__).parents[2]
CAUSAL = [family for family in SETTINGS if family not in (*ENCODERS, *HEADLESS)]

MAY_CHANGE = {"architectures", "dtype", "torch_dtype"}
OF_A_HEAD = {"id2label", "label2id", "num_labels", "problem_type", "pad_token_id"}
OLDER_NAMES = {
    *("rope_theta", "rope_scaling", "rope_local_base_freq", "partial_rotary_factor"),
    *("rotary_emb_base", "rotary_pct", "global_rope_theta", "local_rope_theta"),
    *("global_attn_every_n_layers", "num_experts", "num_local_experts", "transformers_version"),
}
"""Of a base that transformers 5 has written: what version 4 calls the same, and the mark of version 5."""


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bases")
    elsewhere.make(folder)
    return folder


def run_on(base: Path, *, head: bool = False) -> Trainer:
    task = HEADED_TASK if head or base.name in ENCODERS else TASK
    # of experts version 4 has linear layers that see some of the tokens alone
    chosen = Selection(("q_proj", "v_proj")) if routes_tokens(base) else DEFAULT
    described = loader.describe(str(base), "", chosen, loader.classes(task))
    numbers = Training(rank=4, batch_size=3, epoch_updates=50, update_budget=500, learning_rate=1e-3)
    run = Manifest(name="run", model=described, task=task, data=Data(), training=numbers)
    return Trainer.load(run, model_override=base, training=False)


def exported(base: Path, out: Path, *, trained: bool = False, head: bool = False) -> Path:
    """An export, with what the node itself answers."""
    return exported_of(run_on(base, head=head), out, trained=trained)


def exported_of(run: Trainer, out: Path, *, trained: bool = False) -> Path:
    out.parent.mkdir(exist_ok=True)
    if trained:
        run.apply(updates(60, (0, 0, 1, 4)))
    export_model(run, out)
    torch.save(logits(run.loaded.model), out / EXPECTED)
    if run.loaded.classifies:
        (out / CLASSIFIER).touch()
    return out


@pytest.fixture(scope="module")
def exports(bases: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every family untrained and trained, and the causal ones with a head as well; for reading only."""
    out = tmp_path_factory.mktemp("exports") / "out"
    for base in sorted(bases.iterdir()):
        run = run_on(base)
        untrained = exported_of(run, out / f"{base.name}-as-it-was")
        torch.testing.assert_close(
            torch.load(untrained / EXPECTED), torch.load(base / EXPECTED), atol=1e-5, rtol=0
        )
        exported_of(run, out / f"{base.name}-trained", trained=True)
        if base.name in CAUSAL:
            exported(base, out / f"{base.name}-head", trained=True, head=True)
    in_files = Path(shutil.copytree(bases / "llama", out.parent / "in-files"))
    shard(in_files)
    exported(in_files, out / "in-files", trained=True)
    return out


def other(*arguments: str) -> str:
    """What the program says under the other version."""
    assert OTHER
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.elsewhere", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([OTHER, str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def worst(found: Mapping[str, float]) -> dict[str, float]:
    return {name: difference for name, difference in found.items() if not difference <= 1e-5}


def settings(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "config.json").read_text()))


def changed(base: Path, out: Path) -> set[str]:
    one, two = settings(base), settings(out)
    return {key for key in {*one, *two} if one.get(key, KeyError) != two.get(key, KeyError)}


@pytest.mark.parametrize("family", SETTINGS)
def test_the_configuration_is_the_bases_own_but_for_what_has_to_change(
    family: str, bases: Path, exports: Path, tmp_path: Path
) -> None:
    base, out = bases / family, exports / f"{family}-as-it-was"
    head = OF_A_HEAD if family in ENCODERS else set()
    assert changed(base, out) <= MAY_CHANGE | OLDER_NAMES | head
    again = exported(out, tmp_path / "again", head=family in ENCODERS)
    assert not changed(out, again)


@pytest.mark.parametrize("family", CAUSAL)
def test_with_a_head_the_classes_are_named_and_padding_is_the_tokenizers(
    family: str, bases: Path, exports: Path
) -> None:
    out = exports / f"{family}-head"
    assert changed(bases / family, out) <= MAY_CHANGE | OLDER_NAMES | OF_A_HEAD
    assert settings(out)["id2label"] == {"0": "negative", "1": "positive"}
    assert settings(out)["pad_token_id"] == 0


def test_a_key_that_this_version_does_not_know_stays_and_one_that_names_code_does_not(
    bases: Path, tmp_path: Path
) -> None:
    base = Path(shutil.copytree(bases / "opt", tmp_path / "opt"))
    more = {"of_another_version": [1], "auto_map": {"AutoConfig": "own.Own"}, "_name_or_path": "/home/me"}
    change(base / "config.json", **more)
    assert changed(base, exported(base, tmp_path / "out")) == {"auto_map", "_name_or_path"}


def test_rotary_positions_are_written_as_either_version_calls_them(exports: Path) -> None:
    found = settings(exports / "llama-as-it-was")
    assert found["rope_theta"] == 500_000
    assert found["rope_scaling"]["factor"] == 4
    assert found["rope_scaling"]["rope_type"] == "llama3"


def test_a_base_of_version_4_keeps_its_own_names_alone(bases: Path, exports: Path, tmp_path: Path) -> None:
    base = Path(shutil.copytree(exports / "llama-as-it-was", tmp_path / "llama"))
    of_4 = {key: value for key, value in settings(base).items() if key != "rope_parameters"}
    (base / "config.json").write_text(json.dumps(of_4 | {"transformers_version": "4.30.0"}))
    out = exported(base, tmp_path / "out")
    assert not changed(base, out)
    torch.testing.assert_close(torch.load(out / EXPECTED), torch.load(bases / "llama" / EXPECTED))


def test_a_base_that_a_later_version_has_written_is_refused(bases: Path, tmp_path: Path) -> None:
    base = Path(shutil.copytree(bases / "llama", tmp_path / "llama"))
    change(base / "config.json", transformers_version="9.1.0")
    with pytest.raises(UserError, match="a later version of transformers"):
        loader.describe(str(base), "")


def test_every_export_is_read_here_as_the_node_computes_it(exports: Path) -> None:
    found = read(exports)
    assert len(found) == 2 * len(SETTINGS) + len(CAUSAL) + 1
    assert not worst(found)


@pytest.mark.skipif(not OTHER, reason="SFNODE_OTHER_TRANSFORMERS names no other version")
def test_every_export_is_read_by_the_other_version_as_the_node_computes_it(exports: Path) -> None:
    found = json.loads(other("read", str(exports)))
    assert len(found) == 2 * len(SETTINGS) + len(CAUSAL) + 1
    assert not worst(found)


@pytest.mark.skipif(not OTHER, reason="SFNODE_OTHER_TRANSFORMERS names no other version")
@pytest.mark.parametrize("family", SETTINGS)
def test_a_base_of_the_other_version_is_read_as_it_was_written_or_refused(
    family: str, others: Path, tmp_path: Path
) -> None:
    try:
        out = exported(others / family, tmp_path / "out")
    except UserError as refused:
        assert "a later version of transformers" in refused.what  # noqa: PT017 (either is right)
    else:
        torch.testing.assert_close(
            torch.load(out / EXPECTED), torch.load(others / family / EXPECTED), atol=1e-5, rtol=0
        )


@pytest.fixture(scope="module")
def others(bases: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("others")
    other("make", str(folder))
    for file in bases.glob("qwen2/tokenizer*"):  # version 4 has made that of another family
        shutil.copy(file, folder / "qwen2")
    return folder

"""What is exported is the live model, and others can load it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from sfnode.engine.export import export_lora, export_model
from sfnode.engine.model_card import model_card
from sfnode.engine.trainer import Trainer
from sfnode.errors import UserError
from sfnode.manifest import Data
from tests.engine.helpers import FAMILIES, data_file, manifest, model_folder, part, trainer, updates

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
"""PEFT asks transformers under a name that the latter is about to drop."""

IDS = torch.tensor([[1, 3, 4, 9, 13], [1, 5, 12, 2, 7]])


def trained(family: str, *, backwards: bool = False) -> Trainer:
    """After 60 updates in three epochs, taken in one by one or all at once from the last to the first."""
    run, batch = trainer(manifest(family, learning_rate=1e-3)), updates(60, (0, 0, 1, 4))
    if backwards:
        run.apply(part(batch, slice(None, None, -1)))
    else:
        for n in range(60):
            run.apply(part(batch, slice(n, n + 1)))
            run.weights.follow(4)
    return run


def logits(network: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = network(input_ids=IDS.to(next(network.parameters()).device)).logits
    return found.cpu()


@pytest.mark.parametrize("family", FAMILIES)
def test_an_exported_model_loads_and_answers_as_the_live_one(family: str, tmp_path: Path) -> None:
    run = trained(family)
    export_model(run, tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(logits(loaded), logits(run.loaded.model))
    base = AutoModelForCausalLM.from_pretrained(model_folder(family))
    assert not torch.allclose(logits(loaded), logits(base), atol=0.01)
    assert loaded.config.use_cache == base.config.use_cache
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("dull film").input_ids == [8, 4]


@pytest.mark.parametrize("family", FAMILIES)
def test_an_exported_adapter_on_the_base_equals_the_exported_model(family: str, tmp_path: Path) -> None:
    run = trained(family)
    export_lora(run, tmp_path / "out")
    base = AutoModelForCausalLM.from_pretrained(model_folder(family))
    adapted = peft.PeftModel.from_pretrained(base, str(tmp_path / "out"))
    run.weights.rebuild()
    torch.testing.assert_close(logits(adapted), logits(run.loaded.model), rtol=1e-5, atol=1e-5)
    merged = dict(adapted.merge_and_unload().state_dict())
    for name, tensor in run.loaded.model.state_dict().items():
        torch.testing.assert_close(merged[name], tensor.cpu(), rtol=1e-5, atol=1e-5)


def test_two_nodes_with_the_same_updates_export_the_same_weights(tmp_path: Path) -> None:
    for name, backwards in (("one", False), ("other", True)):
        export_model(trained("opt", backwards=backwards), tmp_path / name)
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "other"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_an_adapter_of_a_fresh_run_changes_nothing(tmp_path: Path) -> None:
    run = trainer(manifest("opt"))
    export_lora(run, tmp_path / "out")
    base = AutoModelForCausalLM.from_pretrained(model_folder("opt"))
    adapted = peft.PeftModel.from_pretrained(base, str(tmp_path / "out"))
    assert torch.equal(logits(adapted), logits(run.loaded.model))


@pytest.mark.parametrize("export", [export_model, export_lora])
def test_a_folder_that_holds_something_is_left_alone(export: object, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(UserError, match="exists already"):
        export(trainer(manifest("opt")), tmp_path)  # type: ignore[operator]
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_an_empty_folder_is_as_good_as_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    export_lora(trainer(manifest("opt")), tmp_path / "out")
    files = ["README.md", "adapter_config.json", "adapter_model.safetensors"]
    assert sorted(os.listdir(tmp_path / "out")) == files


@pytest.mark.parametrize("export", [export_model, export_lora])
def test_the_card_of_a_centred_run_says_what_is_to_be_subtracted_from_which_answer(
    export: Callable[[Trainer, Path], None], tmp_path: Path
) -> None:
    run = manifest("opt", learning_rate=1e-3)
    task = run.task.model_copy(update={"loss": "centred"})
    data = Data(train=str(data_file(tmp_path)))
    model = trainer(run.model_copy(update={"task": task, "data": data}))
    model.apply(updates(40))
    export(model, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    prior = model.prior() - model.prior().max()
    for word, nats in zip(("terrible", "great ."), prior, strict=True):
        written = re.search(rf'\| `"{re.escape(word)}"` \| (\S+) \|', card)
        assert written is not None
        assert float(written[1]) == pytest.approx(nats, abs=2e-5)  # in fixed point
    assert "measured with these weights" in card
    assert run.task.template in card


def test_the_card_says_where_the_prior_is_that_of_the_base_model() -> None:
    run = manifest("opt")
    task = run.task.model_copy(update={"loss": "centred", "prior": (0, -(1 << 15))})
    card = model_card(trainer(run.model_copy(update={"task": task})))
    assert '| `"great ."` | -0.50000 |' in card
    assert "It is the base model's" in card


def test_the_card_of_a_plain_run_asks_for_no_calibration() -> None:
    card = model_card(trainer(manifest("opt")))
    assert "The loss was plain" in card
    assert "prior" not in card


def test_an_export_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        export_model(trainer(manifest("opt")), tmp_path / "file" / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]

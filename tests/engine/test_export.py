"""What is exported is the live model, and others can load it."""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import peft
import pytest
import torch
from huggingface_hub.repocard import metadata_load
from markdown_it import MarkdownIt
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from sfnode.engine.export import AdapterFit, export_lora, export_model
from sfnode.engine.model_card import model_card
from sfnode.engine.trainer import Trainer
from sfnode.errors import UserError
from sfnode.manifest.sections import Data
from sfnode.schema.history import Contributor, EvaluatedModel, Provenance
from sfnode.schema.organising import EpochEvaluation
from tests.engine.helpers import FAMILIES, data_file, manifest, model_folder, part, trainer, updates

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
"""PEFT asks transformers under a name that the latter is about to drop."""

IDS = torch.tensor([[1, 3, 4, 9, 13], [1, 5, 12, 2, 7]])


def trained(family: str) -> Trainer:
    """After 60 updates in three epochs, taken in five by five."""
    run, batch = trainer(manifest(family, learning_rate=1e-3)), updates(60, (0, 0, 1, 4))
    for n in range(0, 60, 5):
        run.apply(part(batch, slice(n, n + 5)))
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


@pytest.mark.parametrize("family", ["opt", "gpt2", "gemma2"])
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


def change(folder: Path) -> dict[str, torch.Tensor]:
    """What an adapter adds to each matrix, by its name."""
    held = load_file(folder / "adapter_model.safetensors")
    found = {}
    for name in (name for name in held if name.endswith(".lora_A.weight")):
        matrix = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        found[matrix] = held[name.replace(".lora_A.", ".lora_B.")] @ held[name]
    return found


def many_subspaces(family: str = "opt") -> Trainer:
    """A run whose subspaces have more dimensions together than its matrices."""
    run = trainer(manifest(family, learning_rate=1e-3))
    run.apply(updates(300, range(20)))
    return run


@pytest.mark.parametrize("family", ["opt", "mistral"])
def test_an_adapter_has_no_more_rank_than_the_matrix_however_many_subspaces_there_were(
    family: str, tmp_path: Path
) -> None:
    """mistral has matrices of two ranks: keys of fewer heads."""
    run = many_subspaces(family)
    fit = export_lora(run, tmp_path / "out")
    held = load_file(tmp_path / "out" / "adapter_model.safetensors")
    ranks = {target.name: min(target.out_features, target.in_features) for target in run.space.targets}
    assert 20 * run.space.columns_of[0] > max(ranks.values())
    for name, most in ranks.items():
        assert len(held[f"base_model.model.{name}.lora_A.weight"]) == most
    assert fit == AdapterFit(max(ranks.values()), max(ranks.values()), 0.0, 0.0)
    base = AutoModelForCausalLM.from_pretrained(model_folder(family))
    adapted = peft.PeftModel.from_pretrained(base, str(tmp_path / "out"))
    run.weights.rebuild()
    torch.testing.assert_close(logits(adapted), logits(run.loaded.model), rtol=1e-5, atol=1e-5)


def test_subspaces_side_by_side_have_the_rank_of_their_sum(tmp_path: Path) -> None:
    run = trainer(manifest("opt", learning_rate=1e-3))
    run.apply(updates(2, (0, 1)))  # one entry of each core: one product of two vectors
    assert export_lora(run, tmp_path / "out") == AdapterFit(2, 2, 0.0, 0.0)


def test_an_adapter_of_a_capped_rank_says_what_it_leaves_out(tmp_path: Path) -> None:
    run = many_subspaces()
    export_lora(run, tmp_path / "whole")
    fit = export_lora(run, tmp_path / "out", rank=3)
    whole, cut = change(tmp_path / "whole"), change(tmp_path / "out")
    missed = {name: float((whole[name] - cut[name]).norm()) for name in whole}
    norms = {name: float(matrix.norm()) for name, matrix in whole.items()}
    assert fit.rank == 3
    assert fit.largest == pytest.approx(max(missed[name] / norms[name] for name in whole), rel=1e-3)
    total = math.hypot(*missed.values()) / math.hypot(*norms.values())
    assert fit.total == pytest.approx(total, rel=1e-3)
    assert 0 < fit.total < fit.largest < 1
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"rank 3 of {fit.full}; relative error {fit.largest:.2g} in the worst matrix" in card
    base = AutoModelForCausalLM.from_pretrained(model_folder("opt"))
    peft.PeftModel.from_pretrained(base, str(tmp_path / "out"))


@pytest.mark.parametrize("export", [export_model, export_lora])
def test_an_export_is_as_readable_as_any_new_file_and_names_no_folder_of_this_machine(
    export: Callable[[Trainer, Path], None], tmp_path: Path
) -> None:
    described = manifest("opt", test=str(data_file(tmp_path)))
    source = described.model.model_copy(update={"source": str(model_folder("opt"))})
    run = trainer(described.model_copy(update={"model": source}), model_override=model_folder("opt"))
    run.apply(updates(10))
    before = os.umask(0o027)
    try:
        export(run, tmp_path / "out")
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o640}
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o750
    written = b"".join(path.read_bytes() for path in files)
    for folder in (tmp_path, model_folder("opt").parent, Path.home()):
        assert bytes(folder) not in written
    assert f"`{model_folder('opt').name}`" in (tmp_path / "out" / "README.md").read_text()


ABOUT = Provenance(
    seal=7,
    digest="ab" * 32,
    updates=60,
    evaluations=(
        EvaluatedModel("this one, of epoch 7", EpochEvaluation(
            metric="accuracy", value=0.61, low=0.58, high=0.64, loss=0.5, count=256, epoch=7, base=False
        )),
    ),
    contributors=(Contributor("cd" * 32, "A|b <i>", 50), Contributor("ef" * 32, "", 10)),
)  # fmt: skip


def test_the_card_says_where_the_model_comes_from_and_how_to_compute_it_anew(tmp_path: Path) -> None:
    run = trained("opt")
    export_model(run, tmp_path / "out", ABOUT)
    card = (tmp_path / "out" / "README.md").read_text()
    digest = hashlib.sha256((tmp_path / "out" / "model.safetensors").read_bytes()).hexdigest()
    for said in (
        f"in the run `{run.manifest.run_id.hex()}`",
        f"The model after round 7 of the run, 60 updates, fingerprint `{'ab' * 32}`.",
        "| model | metric | value | interval | loss | rows |",
        "| this one, of epoch 7 | accuracy | 0.610 | 0.580 to 0.640 | 0.5000 | 256 |",
        rf"| `{'cd' * 32}` | A\|b \<i\> | 50 |",
        f"| `{'ef' * 32}` |  | 10 |",
        "sfnode verify --data-dir NODE\nsfnode history checkout 7 --data-dir NODE\n",
        "sfnode export --data-dir NODE --out check --seal 7 --dtype float32\n",
        f"{digest}  check/model.safetensors",
    ):
        assert said in card
    amended = model_card(run, ABOUT._replace(amended=True), weights={"a": "b"})
    assert "sfnode history checkout" not in amended, "it has what counted when the seal was signed"
    assert "while that round is the last one" in amended
    for text in (card, amended):
        assert not re.search(r"(?<!--)\b(seal|digest)\b", text)


HOSTILE = "`` ` | </code><img src=x> [a](http://x.example) ``` **b** $(id) \n\n# c\n---\n\u202e|"
"""A text that ends code, cells and paragraphs, and has markup of its own."""


@pytest.mark.parametrize("loss", ["plain", "centred"])
def test_nothing_of_a_hostile_manifest_is_markup(loss: str, tmp_path: Path) -> None:
    words = {"0": f"terrible {HOSTILE}", "1": f"great . {HOSTILE}"}
    named = Contributor("ef" * 32, HOSTILE, 10)
    cards = []
    for hostile in ("", HOSTILE):
        run = manifest("opt", learning_rate=1e-3)
        task = run.task.model_copy(
            update={"loss": loss, "template": f"{{sentence}} {hostile}", "prior": (0, 0)}
            | ({"verbalizer": words} if hostile else {})
        )
        changed = {
            "task": task,
            "name": "__a__" if hostile else "a",
            "model": run.model.model_copy(update={"source": f"/models/{hostile}x"}),
            "data": Data(test=f"hf:/{hostile}x:test"),
        }
        about = ABOUT._replace(contributors=(named if hostile else ABOUT.contributors[0],))
        cards.append(
            model_card(trainer(run.model_copy(update=changed), model_override=model_folder("opt")), about)
        )
    usual, hostile_ = map(structure, cards)
    assert hostile_ == usual
    assert metadata(cards[1], tmp_path) == metadata(cards[0], tmp_path)


def structure(card: str) -> list[str]:
    """Return what the text of a card is made of, as GitHub and the hub read it, without its words."""
    text = card.split("---\n", 2)[2]
    found = []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        found += [token.type, *(child.type for child in token.children or () if child.type != "text")]
    return found


def metadata(card: str, folder: Path) -> object:
    (folder / "card.md").write_text(card)
    return metadata_load(folder / "card.md")


def test_of_many_contributors_a_card_lists_those_with_most_updates() -> None:
    many = tuple(Contributor(f"{n:064x}", "", 300 - n) for n in range(250))
    card = model_card(trainer(manifest("opt")), ABOUT._replace(contributors=many))
    assert f"| `{99:064x}` |  | 201 |" in card
    assert f"| 150 others | | {sum(300 - n for n in range(100, 250))} |" in card


@pytest.mark.parametrize("adapter", ["", "rank 4, nothing left out"])
def test_the_hub_reads_the_head_of_the_card(adapter: str, tmp_path: Path) -> None:
    described = manifest("opt", test="hf:nyu-mll/glue:sst2:validation")
    folder = shutil.copytree(model_folder("opt"), tmp_path / "base")
    (folder / "README.md").write_text("---\ntags:\n- x\nlicense: apache-2.0\n---\n# Base\n")
    card = model_card(trainer(described, model_override=folder), adapter=adapter)
    assert metadata(card, tmp_path) == {
        "library_name": "peft" if adapter else "transformers",
        "tags": ["sfnode", "decentralized-training", "zeroth-order-optimization"],
        "base_model": "tiny/opt",
        "base_model_relation": "adapter" if adapter else "finetune",
        "license": "apache-2.0",
        "datasets": ["nyu-mll/glue"],
        "pipeline_tag": "text-generation",
    }


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
    assert "calibrated" not in card


def test_an_export_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*out: no folder: .*file\b") as told:
        export_model(trainer(manifest("opt")), tmp_path / "file" / "out")
    assert "Errno" not in told.value.what
    assert [path.name for path in tmp_path.iterdir()] == ["file"]

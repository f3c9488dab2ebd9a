"""What people bring as a base model: its own facts are read, and what cannot be trained is said in words."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForSeq2SeqLM,
    BertConfig,
    BertForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
    T5Config,
    ViTConfig,
    ViTForImageClassification,
)

from sfnode.cli.init_output import notes
from sfnode.errors import Code
from sfnode.manifest import Manifest
from sfnode.models import loader
from sfnode.models.model_files import broken
from sfnode.preparing.manifest import build
from tests.models import hostile
from tests.models.hostile import change
from tests.refusals import refusal

CPU = torch.device("cpu")
WEIGHTS = "model.safetensors"


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[str], Path]:
    return lambda family: hostile.copy(tmp_path / family, family)


@pytest.fixture
def run_of(tmp_path: Path) -> Callable[..., Manifest]:
    """The run that options make of a model and a table with two labels."""

    def built(folder: Path, labels: tuple[str, str] = ("negative", "positive"), **given: Any) -> Manifest:
        rows = tmp_path / "rows.tsv"
        lines = [f"dull film\t{labels[0]}", f"bright film\t{labels[1]}"] * 20
        rows.write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
        usual = {"kind": "sequence-classification", "template": "{sentence}", "label_field": "label"}
        verbalizer = {label: label for label in sorted(labels)}
        return build({"model": str(folder), "train": str(rows), "verbalizer": verbalizer} | usual | given)

    return built


# -- a classifier's own classes --------------------------------------------------------------------------


def test_the_names_of_a_classifiers_classes_are_matched_to_the_labels(
    copied: Callable[[str], Path], run_of: Callable[..., Manifest], tmp_path: Path
) -> None:
    base = change(copied("bert") / "config.json", id2label={"0": "POSITIVE", "1": "NEGATIVE"})
    (tmp_path / "run.toml").write_text(run_of(base).to_toml())
    run = Manifest.from_toml(tmp_path / "run.toml")
    assert (list(run.task.verbalizer), run.model.outputs) == (["negative", "positive"], (1, 0))
    loaded = loader.load(run, override=base, device=CPU).model.classifier
    stored = load_file(base / WEIGHTS)
    assert torch.equal(loaded.weight, stored["classifier.weight"].flip(0))
    assert torch.equal(loaded.bias, stored["classifier.bias"].flip(0))
    assert not any("begins anew" in note for note in notes(run, base, True))


@pytest.mark.parametrize("labels", [("0", "1"), ("1", "0")])
def test_classes_without_names_are_matched_to_labels_that_are_their_numbers(
    labels: tuple[str, str], copied: Callable[[str], Path], run_of: Callable[..., Manifest]
) -> None:
    run = run_of(copied("bert"), labels)
    assert (list(run.task.verbalizer), run.model.outputs) == (["0", "1"], ())


def test_a_run_of_before_has_the_outputs_in_their_own_order(
    copied: Callable[[str], Path], run_of: Callable[..., Manifest]
) -> None:
    base = change(copied("bert") / "config.json", id2label={"0": "POSITIVE", "1": "NEGATIVE"})
    run = run_of(base)
    old = run.model_copy(update={"model": run.model.model_copy(update={"outputs": ()})})
    assert "outputs" not in old.fields()["model"]
    loaded = loader.load(old, override=base, device=CPU).model.classifier
    assert torch.equal(loaded.weight, load_file(base / WEIGHTS)["classifier.weight"])


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
def test_the_head_of_a_classifier_of_other_classes_begins_anew_and_init_says_so(
    family: str, copied: Callable[[str], Path], run_of: Callable[..., Manifest]
) -> None:
    base = change(copied(family) / "config.json", id2label={"0": "joy", "1": "anger"})
    run = run_of(base)
    assert any("begins anew" in note for note in notes(run, base, True))
    one, other = (loader.load(run, override=base, device=CPU).model for _ in range(2))
    stored, prefix = load_file(base / WEIGHTS), f"{one.base_model_prefix}."
    for name, parameter in one.named_parameters():
        assert torch.equal(parameter, other.get_parameter(name))
        anew = not name.startswith(prefix) and len(parameter) == 2
        assert torch.equal(parameter, stored[name]) is not anew


# -- how long a text may be ------------------------------------------------------------------------------


def no_bound(folder: Path) -> None:
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("model_max_length", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.mark.parametrize("pad", [0, 1])
def test_positions_that_begin_behind_padding_are_as_many_as_can_be_read(
    pad: int, copied: Callable[[str], Path], run_of: Callable[..., Manifest]
) -> None:
    base = copied("roberta")
    no_bound(base)
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40}
    settings = RobertaConfig(vocab_size=19, max_position_embeddings=50, pad_token_id=pad, **small)
    RobertaForSequenceClassification(settings).save_pretrained(base)
    run = run_of(base)
    assert run.task.max_tokens == 50 - pad - 1
    loaded = loader.load(run, override=base, device=CPU).model
    ids = torch.full((1, run.task.max_tokens), 5)
    assert loaded(input_ids=ids).logits.shape == (1, 2)


@pytest.mark.parametrize("family", ["opt", "gpt2", "bert", "llama"])
def test_other_models_read_as_many_tokens_as_they_say(
    family: str, copied: Callable[[str], Path], run_of: Callable[..., Manifest]
) -> None:
    base = copied(family)
    no_bound(base)
    assert run_of(base).task.max_tokens == 64


def test_a_key_that_promises_more_than_the_table_has_is_found_out(
    copied: Callable[[str], Path], run_of: Callable[..., Manifest]
) -> None:
    base = copied("bert")
    no_bound(base)
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40}
    BertForSequenceClassification(
        BertConfig(vocab_size=19, max_position_embeddings=48, **small)
    ).save_pretrained(base)
    change(base / "config.json", n_positions=2048)
    assert run_of(base).task.max_tokens == 48


# -- what is no base model -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (("adapter_config.json", "adapter_model.safetensors", "tokenizer.json"), "is an adapter"),
        (("model-q4.gguf",), "form of llama.cpp"),
        (("config.json", "model.onnx"), "form of ONNX"),
        (("config.json", "tf_model.h5"), "form of TensorFlow"),
        (("config.json", "flax_model.msgpack"), "form of JAX"),
        (("model.safetensors",), "lacks config.json"),
        (("config.json",), "lacks model.safetensors"),
        ((), "lacks config.json and model.safetensors"),
    ],
)
def test_a_folder_in_another_form_is_refused_by_its_name(
    files: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in files:
        (folder / name).write_text("{}")
    assert says in refusal(lambda: loader.describe(str(folder), "")).what


def test_a_file_in_the_place_of_a_folder_is_refused_as_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "llama.gguf").write_bytes(b"GGUF")
    assert "form of llama.cpp" in refusal(lambda: loader.describe(str(tmp_path / "llama.gguf"), "")).what


def t5() -> Any:
    return AutoModelForSeq2SeqLM.from_config(
        T5Config(vocab_size=20, d_model=16, d_ff=32, num_layers=2, num_heads=2, d_kv=8)
    )


def vit() -> Any:
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return ViTForImageClassification(ViTConfig(image_size=32, patch_size=16, **small))


@pytest.mark.parametrize(
    ("make", "kind", "says"),
    [
        (t5, "sequence-classification", "an encoder and a decoder"),
        (t5, "classification", "an encoder and a decoder"),
        (vit, "sequence-classification", "no classifier of texts"),
        (vit, "classification", "no language model"),
    ],
)
def test_a_model_of_another_kind_is_refused_in_words(
    make: Callable[[], Any],
    kind: str,
    says: str,
    copied: Callable[[str], Path],
    run_of: Callable[..., Manifest],
) -> None:
    folder = copied("opt")
    make().save_pretrained(folder)
    error = refusal(lambda: run_of(folder, kind=kind))
    assert error.code is Code.MODEL_UNSUPPORTED
    assert says in error.what


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_weights_that_are_no_numbers_are_named(number: float, copied: Callable[[str], Path]) -> None:
    folder = copied("opt")
    tensors = load_file(folder / WEIGHTS)
    name = next(one for one in tensors if one.endswith("fc1.weight"))
    tensors[name][3, 2] = number
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    error = refusal(lambda: loader.describe(str(folder), ""))
    assert error.code is Code.MODEL_UNSUPPORTED
    assert f"{name} holds NaN or infinity" in error.what


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert"])
def test_a_model_without_its_tokenizer_is_told_which_file_is_missing(
    family: str, copied: Callable[[str], Path]
) -> None:
    folder = copied(family)
    (folder / "tokenizer.json").unlink()
    error = refusal(lambda: loader.tokenizer_of(folder))
    assert "tokenizer.json" in error.what + error.fix
    assert "layers" not in error.fix


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", WEIGHTS])
def test_a_file_that_may_not_be_read_is_named_without_the_systems_number(
    file: str, copied: Callable[[str], Path]
) -> None:
    folder = copied("opt")
    (folder / file).chmod(0)
    error = refusal(lambda: loader.describe(str(folder), ""))
    assert f"{folder / file} cannot be read: Permission denied" in error.what


def test_what_the_system_says_of_a_file_is_told_without_its_number(tmp_path: Path) -> None:
    error = broken(tmp_path / WEIGHTS, "file", PermissionError(13, "Permission denied"))
    assert error.code is Code.MODEL_NOT_FOUND
    assert error.what == f"{tmp_path / WEIGHTS} cannot be read: Permission denied"

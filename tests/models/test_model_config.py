"""What a model's own files may choose: numbers, never code or other files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from sfnode.errors import Code, UserError
from sfnode.models import loader, model_config, model_files, shapes
from tests.engine.helpers import manifest
from tests.models.hostile import change
from tests.refusals import refusal

CPU = torch.device("cpu")


def load(folder: Path) -> loader.LoadedModel:
    """Load a model as a node of a run does whose manifest was made from this very folder."""
    run = manifest("opt").model_copy(update={"model": loader.describe(str(folder), "")})
    return loader.load(run, override=folder, device=CPU)


def contents(settings: Any) -> dict[str, Any]:
    """What a configuration says, but for where it came from."""
    found: dict[str, Any] = settings.to_dict()
    found.pop("_name_or_path", None)
    return found


def test_a_configuration_names_no_other_file_of_weights(copy: Path) -> None:
    others = {name: tensor + 1 for name, tensor in load_file(copy / model_files.SINGLE).items()}
    save_file(others, copy / "other.safetensors", {"format": "pt"})
    change(copy / "config.json", transformers_weights="other.safetensors")
    error = refusal(load, copy)
    assert error.code is Code.MODEL_UNSAFE
    assert "config.json sets transformers_weights" in error.what


@pytest.mark.parametrize(
    "key", [*model_config.CHOOSES, "_attn_implementation", "_attn_implementation_internal"]
)
@pytest.mark.parametrize("place", ["here", "within"])
def test_a_key_that_chooses_code_or_files_is_refused_by_name(copy: Path, key: str, place: str) -> None:
    value = {key: {"quant_method": "any"}}
    change(copy / "config.json", **(value if place == "here" else {"text_config": {"layers": [value]}}))
    error = refusal(load, copy)
    assert error.code is Code.MODEL_UNSAFE
    assert f"sets {key}, which chooses" in error.what
    with pytest.raises(UserError, match=f"sets {key}"):
        model_config.configuration(copy)


def test_a_key_that_chooses_nothing_is_no_reason_to_refuse_a_model(copy: Path) -> None:
    change(copy / "config.json", quantization_config=None, _attn_implementation_autoset=True)
    load(copy)


def test_a_key_that_the_models_class_does_not_declare_has_no_effect(copy: Path) -> None:
    plain = contents(load(copy).model.config)
    shadows = {"to_dict": 1, "get_text_config": "x", "attribute_map": {"hidden_size": "vocab_size"}}
    plans = {"base_model_tp_plan": {"*": "colwise"}, "sub_configs": {"text_config": {}}, "_auto_class": "x"}
    left_over = {"_name_or_path": "/etc/passwd", "transformers.js_config": {}, "is_llama_config": True}
    change(copy / "config.json", **shadows, **plans, **left_over)
    assert contents(load(copy).model.config) == plain


def test_what_the_models_class_declares_or_takes_under_an_old_name_is_kept(tmp_path: Path) -> None:
    old = {
        "model_type": "llama",
        "rope_theta": 5e5,
        "torch_dtype": "float16",
        "num_labels": 3,
        "head_dim": 32,
    }
    change(tmp_path / "config.json", **old, vocab_size=77)
    found, wanted = model_config.configuration(tmp_path), AutoConfig.from_pretrained(tmp_path)
    assert contents(found) == contents(wanted)
    assert (found.vocab_size, found.num_labels, found.head_dim) == (77, 3, 32)
    assert contents(shapes.describe(str(tmp_path))) == contents(wanted)


@pytest.mark.parametrize(
    ("kind", "key"), [("mamba", "intermediate_size"), ("qwen3_moe", "num_local_experts"), ("gpt2", "n_embd")]
)
def test_what_is_stored_under_a_name_that_the_class_computes_or_maps_is_kept(
    tmp_path: Path, kind: str, key: str
) -> None:
    change(tmp_path / "config.json", model_type=kind, **{key: 8})
    assert getattr(model_config.configuration(tmp_path), key) == 8


@pytest.mark.parametrize("kind", ["llama", "bert", "mamba", "qwen3_moe", "falcon", "gemma3", "mpt"])
def test_what_transformers_itself_writes_is_read_as_it_was(tmp_path: Path, kind: str) -> None:
    wanted = AutoConfig.for_model(kind)
    wanted.save_pretrained(tmp_path)
    assert contents(model_config.configuration(tmp_path)) == contents(AutoConfig.from_pretrained(tmp_path))


def test_a_configuration_inside_another_is_vetted_by_its_own_class(tmp_path: Path) -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 48, "to_dict": "a shadow", "sliding_window": 16}
    change(tmp_path / "config.json", model_type="gemma3", text_config=text)
    inside = model_config.configuration(tmp_path).text_config
    assert (inside.hidden_size, inside.sliding_window) == (48, 16)
    assert inside.to_dict()["hidden_size"] == 48


def test_code_in_the_folder_of_a_model_that_transformers_knows_is_not_run(copy: Path) -> None:
    (copy / "own.py").write_text("raise SystemExit('code of a model was run')")
    change(copy / "config.json", auto_map={"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"})
    change(copy / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Own", "own.Own"]})
    load(copy)


@pytest.mark.parametrize("name", ["../other/model-1.safetensors", "/model-1.safetensors", "model.bin", 7])
def test_an_index_names_safetensors_beside_it_and_nothing_else(copy: Path, name: object) -> None:
    weights = load_file(copy / model_files.SINGLE)
    (copy.parent / "other").mkdir()
    others = {key: tensor + 1 for key, tensor in weights.items()}
    save_file(others, copy.parent / "other" / "model-1.safetensors", {"format": "pt"})
    shutil.copy(copy / model_files.SINGLE, copy / "model.bin")
    (copy / model_files.SINGLE).rename(copy / "model-1.safetensors")  # what the digest would be taken of
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, name)}
    (copy / model_files.INDEX).write_text(json.dumps(index))
    assert refusal(load, copy).code is Code.MODEL_UNSUPPORTED


@pytest.mark.parametrize("file", model_config.TOKENIZER_SETTINGS)
@pytest.mark.parametrize("key", ["tokenizer_file", "vocab_file", "fast_tokenizer_files"])
def test_a_tokenizer_is_read_from_no_file_that_the_digest_does_not_cover(
    copy: Path, file: str, key: str
) -> None:
    other = copy / "tokenizer.4.0.json"
    other.write_text((copy / "tokenizer.json").read_text().replace('"film"', '"sinful"'))
    change(copy / file, **{key: [str(other)] if key.endswith("s") else str(other)})
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    settings.pop("added_tokens_decoder", None)  # with it special_tokens_map.json is not read at all
    (copy / "tokenizer_config.json").write_text(json.dumps(settings))
    assert "film" in loader.tokenizer_of(copy).get_vocab()


def test_a_template_that_the_digest_does_not_cover_is_not_read(copy: Path) -> None:
    (copy / "additional_chat_templates").mkdir()
    (copy / "additional_chat_templates" / "default.jinja").write_text("{{ 'uncovered' }}")
    assert not loader.tokenizer_of(copy).chat_template


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("name", ["AutoModelForCausalLM", "pipeline", ["GPT2Tokenizer"]])
def test_only_a_tokenizer_is_made_as_the_tokenizer(copy: Path, file: str, name: object) -> None:
    change(copy / file, tokenizer_class=name)
    assert refusal(load, copy).code is Code.MODEL_UNSAFE


def test_generation_takes_numbers_from_the_model_and_nothing_else(copy: Path) -> None:
    ways = {
        "custom_generate": "someone/code",
        "cache_implementation": "static",
        "compile_config": {"mode": "x"},
    }
    change(copy / "generation_config.json", eos_token_id=[1, 2], temperature=0.5, **ways)
    found = load(copy).model.generation_config
    assert (found.eos_token_id, found.temperature) == ([1, 2], 0.5)
    assert not found.cache_implementation
    assert not hasattr(found, "custom_generate")


@pytest.mark.parametrize("content", ["", "[]", "[" * 100_000, '"text"'])
@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_a_configuration_that_is_none_is_refused(copy: Path, file: str, content: str) -> None:
    (copy / file).write_text(content)
    assert refusal(load, copy).code is Code.MODEL_UNSUPPORTED


def test_transformers_reads_the_same_numbers_from_what_it_is_shown(copy: Path) -> None:
    change(copy / "config.json", unknown=1)
    wanted: Any = AutoModelForCausalLM.from_pretrained(copy)
    for name, parameter in load(copy).model.named_parameters():
        assert torch.equal(parameter, wanted.get_parameter(name))

"""A stranger's model is read in a process of its own first: it is sound, or it is refused with its number."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sfnode.bounded_process import BoundedProcess
from sfnode.errors import Code, UserError
from sfnode.models import examination, loader, model_files, shapes
from sfnode.models.examination import ModelPart, require_sound
from tests import refusals
from tests.models import hostile
from tests.models.families import model_folder
from tests.models.hostile import added, change, configured, nested, sequence
from tests.refusals import refused

LITTLE = 512 << 20
"""Bytes that an examination may take here: its libraries take most of it."""


@pytest.fixture
def nobody_examines(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on who examines a model gets no answer, and who remembers one needs none."""

    def end() -> None:
        monkeypatch.setattr(examination, "_process", BoundedProcess("sfnode.nothing", 1.0, LITTLE))

    return end


def refusal(folder: Path) -> UserError:
    """The error of whoever starts a run with a model, and of whoever joins it."""
    return refusals.refusal(lambda: (loader.describe(str(folder), ""), loader.tokenizer_of(folder)))


XLM = {"model_type": "xlm", "emb_dim": 64, "n_heads": 2, "n_layers": 1, "sinusoidal_embeddings": True}
GPT_NEO = {"model_type": "gpt_neo", "num_layers": 2, "attention_types": [[["global"], 2]]}

CONFIGURATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "layers without end": ({"num_hidden_layers": 300_000}, "num_hidden_layers to 300,000"),
    "layers that the files have no room for": ({"num_hidden_layers": 100, "ffn_dim": 100_000}, "describes"),
    "a vocabulary that fills the memory": ({"vocab_size": 10**10}, "vocab_size to 10,000,000,000"),
    "one that is still too large": ({"vocab_size": 10**7}, "describes"),
    "positions without end": ({"max_position_embeddings": 10**12}, "max_position_embeddings to 1,000"),
    "more of them than the files have": ({"max_position_embeddings": 10**7}, "describes"),
    "positions that are computed": ({**XLM, "max_position_embeddings": 10**7}, "describes"),
    "masks of all positions": ({**GPT_NEO, "max_position_embeddings": 10**5}, "describes"),
    "a number within": ({"id2label": {"0": "a"}, "label2id": {"a": 10**9}}, "sets a to 1,000,000,000"),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_configuration_larger_than_its_weights_is_refused(name: str, tmp_path: Path) -> None:
    settings, says = CONFIGURATIONS[name]
    error = refusal(configured(tmp_path / "model", **settings))
    assert error.code is Code.MODEL_UNSAFE
    assert says in error.what


SENSELESS: dict[str, dict[str, Any]] = {
    "sizes that are negative": {"hidden_size": -5},
    "sizes that are none": {"hidden_size": 1e300},
    "sizes that are text": {"hidden_size": "9" * 9_999},
    "code of its own": {"model_type": "mine", "auto_map": {"AutoConfig": "own.Own"}},
    "a type that is none": {"model_type": [["opt"]]},
}


@pytest.mark.parametrize("name", SENSELESS)
def test_a_configuration_that_makes_no_model_is_refused(name: str, tmp_path: Path) -> None:
    assert refusal(configured(tmp_path / "model", **SENSELESS[name])).code is Code.MODEL_UNSUPPORTED


def test_a_configuration_without_weights_is_examined_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "opt", "num_hidden_layers": 300000}')
    with refused(Code.MODEL_UNSAFE):
        shapes.describe(str(tmp_path))
    change(tmp_path / "config.json", num_hidden_layers=3)
    assert shapes.describe(str(tmp_path)).num_hidden_layers == 3


TOKENIZERS: dict[str, dict[str, Any]] = {
    "a token that the rules make large": {
        "normalizer": hostile.NORMALISERS["one rule, again and again"],
        "added_tokens": [added(18, hostile.SENTENCE)],
    },
    "a token on which the library panics": {
        "normalizer": hostile.NORMALISERS["an expression that never ends"],
        "added_tokens": [added(18, hostile.SENTENCE)],
    },
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_that_breaks_a_bound_when_it_is_read_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = BoundedProcess("sfnode.models.examination_process", 60.0, LITTLE, idle=20.0)
    monkeypatch.setattr(examination, "_process", process)
    model = hostile.tokenizer(tmp_path / "model", **TOKENIZERS[name])
    with refused(Code.MODEL_UNSAFE, "cannot be read as a tokenizer: it "):
        loader.tokenizer_of(model)
    process.close()


def test_what_a_library_says_of_a_tokenizer_is_quoted_and_no_more(tmp_path: Path) -> None:
    unknown = {"type": "sfnode: ignore all that\n\x1b[2Jand delete the folder"}
    error = refusal(hostile.tokenizer(tmp_path / "model", normalizer=unknown))
    assert error.code is Code.MODEL_UNSUPPORTED
    assert error.what.isprintable()


def test_rules_within_rules_without_end_are_refused(tmp_path: Path) -> None:
    model = hostile.copy(tmp_path / "model")
    within = '{"type":"Sequence","normalizers":[' * 9_999 + "]}" * 9_999
    (model / "tokenizer.json").write_text(f'{{"normalizer": {within}}}')
    assert refusal(model).code is Code.MODEL_UNSUPPORTED


def test_a_file_larger_than_that_of_any_model_is_not_even_read(tmp_path: Path) -> None:
    model = hostile.copy(tmp_path / "model")
    for name in ("generation_config.json", "tokenizer.json", "chat_template.jinja", "config.json"):
        with (model / name).open("r+b" if (model / name).exists() else "wb") as file:
            file.truncate(model_files.most_bytes(name) + 1)
        error = refusal(model)
        assert error.code is Code.MODEL_TOO_LARGE
        (model / name).unlink()


def test_headers_larger_than_those_of_any_model_are_not_even_read(tmp_path: Path) -> None:
    model = hostile.copy(tmp_path / "model")
    with (model / model_files.SINGLE).open("wb") as file:
        file.write((model_files.MAX_HEADERS + 1).to_bytes(8, "little"))
        file.truncate(1 << 30)
    error = refusal(model)
    assert error.code is Code.MODEL_UNSUPPORTED
    assert "longer than the file, or than a model's may be" in error.what


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a": ' * 100_000])
def test_a_header_within_headers_without_end_is_refused(content: str, tmp_path: Path) -> None:
    model = hostile.copy(tmp_path / "model")
    (model / model_files.SINGLE).write_bytes(len(content).to_bytes(8, "little") + content.encode())
    assert refusal(model).code is Code.MODEL_UNSUPPORTED


@pytest.mark.parametrize("part", [ModelPart.TOKENIZER, ModelPart.LANGUAGE_MODEL, ModelPart.SHAPE])
def test_a_sound_model_is_examined_once_wherever_it_lies(
    part: ModelPart, tmp_path: Path, nobody_examines: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    require_sound(model_folder("llama"), part)
    nobody_examines()
    require_sound(Path(shutil.copytree(model_folder("llama"), tmp_path / "copy")), part)
    monkeypatch.setattr(examination, "_sound", set())  # as in the next program
    require_sound(tmp_path / "copy", part)


CHANGES: dict[str, Callable[[Path], object]] = {
    "its configuration": lambda model: change(model / "config.json", attention_dropout=0.1),
    "its tokenizer": lambda model: change(model / "tokenizer.json", truncation=None, version="1.1"),
    "its generation": lambda model: change(model / "generation_config.json", top_k=3),
    "its template": lambda model: (model / "chat_template.jinja").write_text("{{ 1 }}"),
    "its weights": lambda model: save_file(
        load_file(model / model_files.SINGLE) | {"more": torch.zeros(3)},
        model / model_files.SINGLE,
        {"format": "pt"},
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_model_of_which_something_is_other_is_examined_anew(
    name: str, tmp_path: Path, nobody_examines: Callable[[], None]
) -> None:
    model = hostile.copy(tmp_path / "copy")
    require_sound(model, ModelPart.TOKENIZER)
    nobody_examines()
    require_sound(model, ModelPart.TOKENIZER)
    CHANGES[name](model)
    with pytest.raises(UserError, match="brings down the process"):
        require_sound(model, ModelPart.TOKENIZER)


def test_where_nothing_can_be_remembered_a_model_is_examined_every_time(
    tmp_path: Path, nobody_examines: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(examination, "_sound", set())
    require_sound(model_folder("opt"), ModelPart.TOKENIZER)
    monkeypatch.setattr(examination, "_sound", set())
    nobody_examines()
    with pytest.raises(UserError):
        require_sound(model_folder("opt"), ModelPart.TOKENIZER)


def test_what_came_with_the_package_is_not_examined(nobody_examines: Callable[[], None]) -> None:
    nobody_examines()
    for model in model_files.EMBEDDED.iterdir():
        require_sound(model, ModelPart.TOKENIZER)


def test_a_deep_but_finite_tokenizer_is_sound(tmp_path: Path) -> None:
    """Its rules are not applied yet; `tests/tasks/test_tokenizer_calls` applies them."""
    require_sound(
        hostile.tokenizer(tmp_path / "model", normalizer=sequence([nested(9)])), ModelPart.TOKENIZER
    )

"""Shapes are those of the published models, and what is written from one is a model like any other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from sfnode.models import loader, model_files, shapes

PUBLISHED = {
    "opt-125m": 125.2,
    "opt-1.3b": 1315.8,
    "gpt2": 124.4,
    "pythia-160m": 162.3,
    "llama-160m": 162.4,
    "smollm2-135m": 134.5,
    "tinyllama-1.1b": 1100.0,
    "llama-2-7b": 6738.4,
    "mistral-7b": 7241.7,
    "qwen2.5-0.5b": 494.0,
    "gemma-2b": 2506.2,
    "phi-1.5": 1418.3,
    "bert-base": 109.5,
}
"""Millions of parameters, as the models' own pages and papers have them."""


@pytest.mark.parametrize("name", shapes.SHAPES)
def test_a_shape_has_as_many_parameters_as_the_model_of_that_name(name: str) -> None:
    millions = shapes.parameters(shapes.describe(f"shape:{name}")) / 1e6
    assert millions == pytest.approx(PUBLISHED[name], abs=0.05)


def test_what_is_written_is_a_model_with_a_tokenizer_that_reads_token_numbers(tmp_path: Path) -> None:
    settings = shapes.describe("shape:opt-125m")
    settings.num_hidden_layers, settings.vocab_size = 1, 100
    shapes.write(settings, tmp_path)
    assert len(loader.describe(str(tmp_path), "").targets) == 6
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer("17 4 99", add_special_tokens=False).input_ids == [17, 4, 99]


def test_a_shape_is_the_same_model_every_time(tmp_path: Path) -> None:
    settings = shapes.describe("shape:opt-125m")
    settings.num_hidden_layers, settings.vocab_size = 1, 100
    digests = []
    for folder in (tmp_path / "one", tmp_path / "other"):
        torch.manual_seed(len(digests))
        shapes.write(settings, folder)
        digests.append(model_files.digest(folder))
    assert digests[0] == digests[1]


def test_only_a_folder_without_weights_is_a_shape(tmp_path: Path) -> None:
    assert shapes.is_shape("shape:whatever")
    assert not shapes.is_shape("builtin:tiny")
    assert not shapes.is_shape(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert shapes.is_shape(str(tmp_path))
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert not shapes.is_shape(str(tmp_path))

"""Models of real shapes with random weights, for measuring time and memory without a download.

They are written as folders like any other (config.json, safetensors, tokenizer), so that they are loaded like
real models. The tokenizer reads token numbers: "17 4 99" is three tokens. This module knows what models look
like, and neither how they are trained nor what is measured on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from sfnode.errors import Code, UserError
from sfnode.models import examination, files, vetting

PREFIX = "shape:"
"""Prefix that marks the source of a model as the name of a shape."""

STORED = torch.bfloat16
"""Dtype of the files: that of most published models, and half the disk space of float32."""

WORDS = 4096
"""Token numbers that the synthetic tokenizer knows: more than a mini-batch can hold, quick to build."""

HEADS = ("ForSequenceClassification", "ForMaskedLM")
"""Endings of the names of architectures that have, or get, a head for classifying whole sequences."""

_CausalModel: Any = AutoModelForCausalLM
_FastTokenizer: Any = PreTrainedTokenizerFast
_library_log: Any = logging
_HeadedModel: Any = AutoModelForSequenceClassification

_LLAMA: Mapping[str, Any] = {"model_type": "llama", "max_position_embeddings": 2048, "rms_norm_eps": 1e-5}

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "opt-125m": {
        "model_type": "opt",
        "vocab_size": 50_272,
        "hidden_size": 768,
        "word_embed_proj_dim": 768,
        "ffn_dim": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    },
    "opt-1.3b": {
        "model_type": "opt",
        "vocab_size": 50_272,
        "hidden_size": 2048,
        "word_embed_proj_dim": 2048,
        "ffn_dim": 8192,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
    },
    "gpt2": {"model_type": "gpt2"},  # the library's defaults are that model
    "pythia-160m": {
        "model_type": "gpt_neox",
        "vocab_size": 50_304,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    },
    "llama-160m": {
        **_LLAMA,
        "vocab_size": 32_000,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    },
    "smollm2-135m": {
        **_LLAMA,
        "vocab_size": 49_152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "tie_word_embeddings": True,
    },
    "tinyllama-1.1b": {
        **_LLAMA,
        "vocab_size": 32_000,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
    },
    "llama-2-7b": {
        **_LLAMA,
        "vocab_size": 32_000,
        "hidden_size": 4096,
        "intermediate_size": 11_008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "mistral-7b": {
        "model_type": "mistral",
        "vocab_size": 32_000,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "qwen2.5-0.5b": {
        "model_type": "qwen2",
        "vocab_size": 151_936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "gemma-2b": {
        "model_type": "gemma",
        "vocab_size": 256_000,
        "hidden_size": 2048,
        "intermediate_size": 16_384,
        "num_hidden_layers": 18,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "head_dim": 256,
    },
    "phi-1.5": {
        "model_type": "phi",
        "vocab_size": 51_200,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
    },
    "bert-base": {"model_type": "bert", "architectures": ["BertForMaskedLM"]},
}
"""config.json of published models by name, as far as it differs from its family's defaults."""


def is_shape(source: str) -> bool:
    """Return whether a source is a model without weights: `shape:NAME`, or a folder with config.json
    alone."""
    if source.startswith(PREFIX):
        return True
    path = Path(source)
    return (path / files.CONFIG).is_file() and not any(_weights(path))


def describe(source: str) -> Any:
    """Return the transformers configuration of such a source. Raises UserError BAD_OPTION or
    MODEL_UNSUPPORTED."""
    if source.startswith(PREFIX):
        return AutoConfig.for_model(**_named(source.removeprefix(PREFIX)))
    examination.require_sound(Path(source), examination.ModelPart.SHAPE)
    return read(Path(source))


def read(folder: Path) -> Any:
    """Return the configuration in a model's folder, with or without weights, whatever reading it takes.

    Raises UserError MODEL_UNSUPPORTED or MODEL_UNSAFE.
    """
    try:
        return vetting.configuration(folder)
    except UserError:
        raise
    except Exception as error:  # transformers documents no common base of what it raises
        raise _unsupported(str(folder), error) from error


def parameters(settings: Any) -> int:
    """Return the number of parameters of the model of this configuration, without allocating any."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in _random(settings).parameters())


def write(settings: Any, out: Path) -> None:
    """Write a model of this configuration with random weights, and its tokenizer, to the folder `out`.

    Raises UserError DISK_FULL.
    """
    _library_log.disable_progress_bar()
    try:
        _random(settings).save_pretrained(out)
        token_numbers(settings.get_text_config(decoder=True).vocab_size).save_pretrained(out)
    except OSError as error:
        raise UserError(
            Code.DISK_FULL,
            f"cannot write a model of that shape to {out}: {error}",
            "Make room, or let TMPDIR name a folder on another disk.",
        ) from error


def token_numbers(vocabulary: int) -> Any:
    """Return a tokenizer for which a text is a list of token numbers."""
    numbers = {str(number): number for number in range(min(vocabulary, WORDS))}
    words = Tokenizer(models.WordLevel(numbers, unk_token="0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _FastTokenizer(tokenizer_object=words, pad_token="0")


def has_head(settings: Any) -> bool:
    """Return whether the configuration is that of an encoder, which classifies sequences."""
    return any(name.endswith(HEADS) for name in vetting.architectures(settings.to_dict()))


def _random(settings: Any) -> Any:
    model = _HeadedModel if has_head(settings) else _CausalModel
    torch.manual_seed(0)
    try:
        return model.from_config(settings, dtype=STORED, trust_remote_code=False)
    except Exception as error:  # as above
        raise _unsupported(str(settings.model_type), error) from error


def _weights(path: Path) -> list[Path]:
    return [file for pattern in ("*.safetensors", *files.PICKLES) for file in path.glob(pattern)]


def _named(name: str) -> Mapping[str, Any]:
    if name not in SHAPES:
        raise UserError(
            Code.BAD_OPTION,
            f"there is no shape called {name}",
            f"There are: {', '.join(SHAPES)}; a folder with another model's config.json does as well.",
        )
    return SHAPES[name]


def _unsupported(source: str, error: Exception) -> UserError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return UserError(
        Code.MODEL_UNSUPPORTED,
        f"no model can be made from {source}: {reason}",
        "Use the config.json of a model that transformers knows without code of its own.",
    )

"""Models of real shapes with random weights, for measuring time and memory without a download.

They are written as folders (config.json, safetensors, tokenizer), and so loaded like real models. The
tokenizer reads token numbers: "17 4 99" is three tokens. This module knows the form of models. It knows
neither their training nor the measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, PreTrainedTokenizerFast

from sfnode.errors import Code, UserError
from sfnode.models import examination, loader, model_config, model_files
from sfnode.printable import first_line, read_toml

PREFIX = "shape:"
"""Prefix that marks the source of a model as the name of a shape."""

STORED = torch.bfloat16
"""Dtype of the files, as in most published models. It takes half the disk space of float32."""

WORDS = 4096
"""Maximum number of tokens in the vocabulary of the synthetic tokenizer: more than the texts of a mini-batch
need, and quick to build."""

_FastTokenizer: Any = PreTrainedTokenizerFast

SHAPES: Mapping[str, Mapping[str, Any]] = read_toml(Path(__file__).with_suffix(".toml").read_text("utf-8"))
"""config.json of published models, keyed by the shape's name, without keys that have the default value of
their family."""


def is_shape(source: str) -> bool:
    """Return whether a source is a model without weights: `shape:NAME`, or a folder with config.json
    alone."""
    if source.startswith(PREFIX):
        return True
    path = Path(source)
    weights = (file for pattern in ("*.safetensors", *model_files.PICKLES) for file in path.glob(pattern))
    return (path / model_files.CONFIG).is_file() and not any(weights)


def describe(source: str) -> Any:
    """Return the transformers configuration of a source that `is_shape` accepts. Raises UserError BAD_OPTION
    or MODEL_UNSUPPORTED."""
    if source.startswith(PREFIX):
        name = source.removeprefix(PREFIX)
        if name not in SHAPES:
            raise UserError(
                Code.BAD_OPTION,
                f"there is no shape called {name}",
                f"There are: {', '.join(SHAPES)}; a folder with another model's config.json does as well.",
            )
        return AutoConfig.for_model(**SHAPES[name])
    examination.require_sound(Path(source), examination.ModelPart.SHAPE)
    return read(Path(source))


def read(folder: Path) -> Any:
    """Return the configuration in a model's folder, with or without weights. The time that this takes is not
    bounded.

    Raises UserError MODEL_UNSUPPORTED or MODEL_UNSAFE.
    """
    try:
        return model_config.configuration(folder)
    except UserError:
        raise
    except Exception as error:  # transformers documents no common base of what it raises
        raise _unsupported(str(folder), error) from error


def parameters(settings: Any) -> int:
    """Return the number of parameters of the model of this configuration, without allocating them."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in _random(settings).parameters())


def write(settings: Any, out: Path) -> None:
    """Write a model of this configuration with random weights, and its tokenizer, to the folder `out`.

    Raises UserError DISK_FULL.
    """
    loader.silence_transformers()
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
    """Return a tokenizer whose texts are lists of token numbers."""
    numbers = {str(number): number for number in range(min(vocabulary, WORDS))}
    words = Tokenizer(models.WordLevel(numbers, unk_token="0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _FastTokenizer(tokenizer_object=words, pad_token="0")


def has_head(settings: Any) -> bool:
    """Return whether the configuration belongs to an encoder, which classifies texts and writes none."""
    return any(
        name.endswith(model_config.ENCODER_HEADS) for name in model_config.architectures(settings.to_dict())
    )


def _random(settings: Any) -> Any:
    torch.manual_seed(0)
    try:
        return loader.auto(has_head(settings)).from_config(settings, dtype=STORED, trust_remote_code=False)
    except Exception as error:  # as above
        raise _unsupported(str(settings.model_type), error) from error


def _unsupported(source: str, error: Exception) -> UserError:
    return UserError(
        Code.MODEL_UNSUPPORTED,
        f"no model can be made from {source}: {first_line(error)}",
        "Use the config.json of a model that transformers knows without code of its own.",
    )

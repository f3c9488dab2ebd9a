"""Tiny random models of three families, a run on each, and updates to feed it."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedTokenizerFast,
)

from sfnode import config
from sfnode.engine import model
from sfnode.engine.core import UpdateBatch
from sfnode.engine.trainer import Trainer
from sfprotocol.seeds import update_seeds

FAMILIES = ("opt", "gpt2", "llama")
SHARED = Path(__file__).parents[3] / "shared"

_STARTERS = ["<pad>", "<s>", "the", "a", "film", "story", "was", "is"]
WORDS = [*_STARTERS, "dull", "bright", "slow", "good", "bad", ".", "It", "terrible", "great"]
ROWS = [
    {"sentence": "the film was bright .", "label": "1"},
    {"sentence": "a dull story", "label": "0"},
    {"sentence": "the story was good . the film was slow", "label": "1"},
    {"sentence": "bad .", "label": "0"},
    {"sentence": "a slow dull film is a bad film", "label": "0"},
]
TASK = config.Task(
    kind="classification", template="{sentence} It was", verbalizer={"0": "terrible", "1": "great ."}
)

_home = tempfile.TemporaryDirectory(prefix="sfnode-engine-")
atexit.register(_home.cleanup)


@cache
def model_folder(family: str) -> Path:
    """A random model of the family with a word-level tokenizer, in Hugging Face format; do not change it."""
    folder = Path(_home.name) / family
    random_model(family).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="the"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    build: Any = PreTrainedTokenizerFast
    build(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>").save_pretrained(folder)
    return folder


def random_model(family: str) -> Any:
    """Weights large enough that every layer matters to the output."""
    torch.manual_seed(7)
    return _BUILDERS[family](**_COMMON)


def _opt(**common: Any) -> Any:
    sizes: dict[str, Any] = {"hidden_size": 16, "word_embed_proj_dim": 8, "ffn_dim": 40}
    depth: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64}
    # GELU: without ReLU's kinks derivatives can be compared sharply.
    return OPTForCausalLM(OPTConfig(**sizes, **depth, init_std=0.3, activation_function="gelu", **common))


def _gpt2(**common: Any) -> Any:
    return GPT2LMHeadModel(
        GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=64, initializer_range=0.3, **common)
    )


def _llama(**common: Any) -> Any:
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 40, "num_hidden_layers": 2}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, initializer_range=0.3, **common))


_COMMON = {"vocab_size": len(WORDS), "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
_BUILDERS = {"opt": _opt, "gpt2": _gpt2, "llama": _llama}


def manifest(family: str, test: str = "", **training: Any) -> config.Manifest:
    """A run on a tiny model; `training` as in the manifest. No path enters it, so its run id never varies."""
    numbers = {"rank": 4, "batch_size": 3, "epoch_updates": 50, "update_budget": 500} | training
    described = model.describe(str(model_folder(family)), "")
    return config.Manifest(
        model=described.model_copy(update={"source": f"tiny/{family}"}),
        task=TASK,
        data=config.Data(test=test),
        training=config.Training(**numbers),
    )


def data_file(folder: Path) -> Path:
    """ROWS as a TSV."""
    lines = ["sentence\tlabel", *(f"{row['sentence']}\t{row['label']}" for row in ROWS)]
    path = folder / "rows.tsv"
    path.write_text("\n".join(lines) + "\n")
    return path


def trainer(run: config.Manifest, rows: Path | None = None, **options: Any) -> Trainer:
    """A trainer of a run on a tiny model; it can make steps if it is given training rows."""
    folder = model_folder(run.model.source.removeprefix("tiny/"))
    return Trainer.load(run, model_override=folder, data_override=rows, training=rows is not None, **options)


def updates(count: int, epochs: Iterable[int] = (0,), key: int = 1) -> UpdateBatch:
    """`count` updates whose epochs go round through `epochs`, with scalars of every size up to 300."""
    cycle = np.resize(np.array(list(epochs), np.int64), count)
    scalars = (np.arange(count, dtype=np.int64) * 7919 + key) % 601 - 300
    return UpdateBatch(cycle, update_seeds(key, 0, count), scalars)


def part(batch: UpdateBatch, rows: Any) -> UpdateBatch:
    """The updates at these indices."""
    return UpdateBatch(batch.epochs[rows], batch.seeds[rows], batch.scalars[rows])


def weights(run: Trainer) -> list[torch.Tensor]:
    """A copy of every tensor of the live model."""
    return [tensor.clone() for tensor in run.loaded.model.state_dict().values()]

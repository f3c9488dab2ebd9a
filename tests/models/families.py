"""Tiny random models of every family that the engine must know, in folders as they come from the hub."""

from __future__ import annotations

import atexit
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
    Qwen2Tokenizer,
)

from sfnode.bounded_process import BoundedProcess
from sfnode.models import examination

_STARTERS = ["<pad>", "<s>", "the", "a", "film", "story", "was", "is"]
WORDS = [*_STARTERS, "dull", "bright", "slow", "good", "bad", ".", "It", "terrible", "great"]
MARKS = ["[CLS]", "[SEP]"]
"""Around every text of an encoder; they follow the WORDS."""

LABELS = 2
"""Classes that an encoder tells apart."""

POSITIONS = 64
"""The longest text that every one of the models can take."""

_WIDTHS = {
    "hidden_size": 16,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "max_position_embeddings": POSITIONS,
}
_HEADS = {"num_attention_heads": 2}
_GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 2}
"""Two queries share a key and a value."""
_GEMMA = {**_WIDTHS, **_GROUPED, "head_dim": 4}
_SMOOTH = {"hidden_act": "gelu"}
"""Without ReLU's kinks derivatives can be compared sharply."""
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

_CAUSAL: dict[str, dict[str, Any]] = {
    "opt": {
        **_HEADS,
        "hidden_size": 16,
        "word_embed_proj_dim": 8,
        "ffn_dim": 40,
        "num_hidden_layers": 2,
        "max_position_embeddings": POSITIONS,
        "activation_function": "gelu",
        "dropout": 0.0,
    },
    "gpt2": {
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": POSITIONS,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    },
    "gpt_neox": {**_WIDTHS, **_HEADS, **_SMOOTH, "hidden_dropout": 0.0, "attention_dropout": 0.0},
    "llama": {**_WIDTHS, **_GROUPED},
    "qwen2": {**_WIDTHS, **_GROUPED, "tie_word_embeddings": True},
    "qwen3": {**_WIDTHS, **_GROUPED, "head_dim": 4, "tie_word_embeddings": True},
    "mistral": {**_WIDTHS, **_GROUPED, "head_dim": 4, "sliding_window": 4},
    "gemma": _GEMMA,
    "gemma2": {**_GEMMA, "sliding_window": 4, "query_pre_attn_scalar": 4},
    "gemma3_text": {**_GEMMA, "sliding_window": 4, "query_pre_attn_scalar": 4},
    "phi": {**_WIDTHS, **_HEADS, **_SMOOTH, "resid_pdrop": 0.0, "embd_pdrop": 0.0},
    "phi3": {**_WIDTHS, **_GROUPED, "resid_pdrop": 0.0, "embd_pdrop": 0.0},
}
_ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {**_WIDTHS, **_HEADS, **_NO_DROPOUT},
    "roberta": {
        **_WIDTHS,
        **_HEADS,
        **_NO_DROPOUT,
        "max_position_embeddings": POSITIONS + 1,
    },  # counts from 1, after padding
    "modernbert": {**_WIDTHS, **_HEADS, "local_attention": 4},
}
FAMILIES = tuple(_CAUSAL)
ENCODERS = tuple(_ENCODERS)
SETTINGS = _CAUSAL | _ENCODERS

# The process that examines models never ends by itself here: every start loads transformers for seconds.
examination._process = BoundedProcess(
    "sfnode.models.examination_process", examination.SECONDS, examination.MEMORY
)

_home = tempfile.TemporaryDirectory(prefix="sfnode-engine-")
atexit.register(_home.cleanup)


@cache
def model_folder(family: str) -> Path:
    """A random model of the family with a word-level tokenizer, in Hugging Face format; do not change it."""
    folder = Path(_home.name) / family
    random_model(family).save_pretrained(folder)
    tokenizer(family).save_pretrained(folder)
    return folder


def shard(folder: Path) -> None:
    """Put the tensors of a model into two files with an index."""
    whole = folder / "model.safetensors"
    tensors = load_file(whole)
    files = {name: f"model-{1 + n % 2:05}-of-00002.safetensors" for n, name in enumerate(sorted(tensors))}
    for file in set(files.values()):
        some = {name: tensor for name, tensor in tensors.items() if files[name] == file}
        save_file(some, folder / file, {"format": "pt"})
    (folder / f"{whole.name}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    whole.unlink()


def random_model(family: str) -> Any:
    """Weights large enough that every layer, bias and norm matters to the output."""
    torch.manual_seed(7)
    model = empty_model(family)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # all zero or all one so far
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.eval()


def empty_model(family: str) -> Any:
    """The model as its configuration alone makes it."""
    build: Any = AutoModelForCausalLM if family in FAMILIES else AutoModelForSequenceClassification
    return build.from_config(AutoConfig.for_model(family, **SETTINGS[family], **common(family)))


def common(family: str) -> dict[str, Any]:
    """Settings of every family, and those of language models or of encoders."""
    spread = {"init_std": 0.3} if family == "opt" else {"initializer_range": 0.3}
    if family not in ENCODERS:
        return {"vocab_size": len(WORDS), "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0, **spread}
    begin, end = len(WORDS), len(WORDS) + 1
    marks = {"cls_token_id": begin, "bos_token_id": begin, "sep_token_id": end, "eos_token_id": end}
    return {"vocab_size": end + 1, "num_labels": LABELS, "pad_token_id": 0, **marks, **spread}


def tokenizer(family: str) -> Any:
    """A tokenizer of whole words, with the marks of an encoder around a text if the family is one."""
    if family == "qwen2":
        return _qwen2_tokenizer()
    vocabulary = {word: n for n, word in enumerate([*WORDS, *MARKS] if family in ENCODERS else WORDS)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="the"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    build: Any = PreTrainedTokenizerFast
    if family not in ENCODERS:
        return build(tokenizer_object=words, pad_token="<pad>", bos_token="<s>")
    begin, end = MARKS
    words.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {end} $B:1 {end}:1",
        special_tokens=[(mark, vocabulary[mark]) for mark in MARKS],
    )
    return build(
        tokenizer_object=words, pad_token="<pad>", cls_token=begin, sep_token=end, model_max_length=POSITIONS
    )


def _qwen2_tokenizer() -> Any:
    """transformers puts this class, which knows byte pairs only, in the place of any other for Qwen2."""
    build: Any = Qwen2Tokenizer
    marks = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "<s>", "unk_token": "<pad>"}
    tokenizer = build(vocab={word: n for n, word in enumerate(WORDS)}, **marks)
    tokenizer.add_tokens([AddedToken(word, lstrip=True, single_word=True) for word in WORDS])
    return tokenizer

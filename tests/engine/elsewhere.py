"""Models as another version of transformers makes and reads them: a program for a process of its own.

`python -m tests.engine.elsewhere make FOLDER` makes a base model of every family, `read FOLDER` says by how
much the models in its folders answer otherwise than they should. It imports no sfnode.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from tests.models import families

IDS = torch.tensor([[1, 3, 4, 9, 13, 5, 6, 7], [1, 5, 12, 2, 7, 8, 8, 3]])
TEXT = "a dull film ."
EXPECTED = "expected.pt"
CLASSIFIER = "classifier.txt"
"""Marks the folder of a model with a head."""
HEADLESS = ("gemma3_text", "olmoe")
"""Families for which not every version has a classifier."""

_THETA = {"rope_theta": 500_000.0}
_GROUPED = {**families.SETTINGS["llama"], **_THETA}
_EXPERTS = {**_GROUPED, "num_experts_per_tok": 2}
SETTINGS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {},
    "modernbert": {"global_rope_theta": 5_000.0, "local_rope_theta": 333.0},
    "opt": {},
    "gpt2": {},
    "gpt_neox": {"rotary_emb_base": 500_000, "rotary_pct": 0.5},
    "llama": {
        **_THETA,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
    "qwen2": _THETA,
    "qwen3": _THETA,
    "mistral": _THETA,
    "gemma": _THETA,
    "gemma3_text": {**_THETA, "rope_local_base_freq": 777.0},
    "phi": {**_THETA, "partial_rotary_factor": 0.25},
    "phi3": _THETA,
    "mixtral": {**_EXPERTS, "num_local_experts": 4},
    "qwen3_moe": {**_EXPERTS, "head_dim": 4, "num_experts": 4, "moe_intermediate_size": 12},
    "olmoe": {**_EXPERTS, "num_experts": 4},
}
"""What is other than usual of each family, so that a default in its place is noticed."""


def make(out: Path) -> None:
    """Make a random model of each family, with what it answers."""
    for family, own in SETTINGS.items():
        build: Any = AutoModelForCausalLM
        if family in families.ENCODERS:
            build = AutoModelForSequenceClassification
        usual = families.SETTINGS.get(family, {}) | families.common(family)
        torch.manual_seed(7)
        model = build.from_config(AutoConfig.for_model(family, **usual | own)).eval()
        model.save_pretrained(out / family)
        # version 4 makes this family's own tokenizer from files alone, and reads any other in its place
        named = "llama" if family == "qwen2" and transformers.__version__ < "5" else family
        families.tokenizer(named).save_pretrained(out / family)
        torch.save(logits(model), out / family / EXPECTED)


def logits(model: Any) -> torch.Tensor:
    """What a model answers to some texts."""
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=IDS.to(model.device)).logits
    return found.cpu()


def read(folder: Path) -> dict[str, float]:
    """By how much each model answers otherwise than it should."""
    found = {}
    for one in sorted(file.parent for file in folder.glob(f"*/{EXPECTED}")):
        build: Any = AutoModelForCausalLM
        if (one / CLASSIFIER).exists():
            build = AutoModelForSequenceClassification
        model = build.from_pretrained(one).eval()
        found[one.name] = float((logits(model) - torch.load(one / EXPECTED)).abs().max())
        if not one.name.startswith("qwen2-"):  # version 5 reads no other tokenizer than its own
            assert len(AutoTokenizer.from_pretrained(one)(TEXT).input_ids) in (4, 6)
    return found


if __name__ == "__main__":
    make(Path(sys.argv[2])) if sys.argv[1] == "make" else print(json.dumps(read(Path(sys.argv[2]))))

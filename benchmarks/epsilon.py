"""Measures how far the two-point slope is from the exact one, by epsilon and number format.

    python -m benchmarks.epsilon [--run FILE] [--family mixtral] [--seeds COUNT]

Exact is the central difference in float64 at 1e-6, of the same weights, the same mini-batch and the same
direction. What is off is truncation, which falls with epsilon, and the rounding of the losses, which grows as
epsilon falls. Where a mixture of experts sends a token to other experts at one point than at the other, the
loss jumps, and the slope is off even in float64. Results: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from sfnode.engine.trainer import Trainer
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data
from sfnode.manifest.training import Training
from sfnode.models import loader
from sfnode.models.manifest_builder import build
from sfprotocol.seeds import update_seeds
from tests.engine.helpers import TASK, WORDS, data_file, model_folder

EPSILONS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5, 1e-6)
EXACT = 1e-6
"""In float64 truncation is then about 1e-8 of the slope, and rounding 1e-9."""
QUERIES = 8

Load = Callable[..., Trainer]

EXPERTS: dict[str, dict[str, int]] = {
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2},
    "qwen2_moe": {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
    },
}
"""Families of mixtures of experts, with random weights."""


def mixture(family: str, folder: Path, spread: float) -> Load:
    """Write a small random mixture of experts to `folder`; return what loads a run on it. No path enters
    the run, so that its directions never vary."""
    torch.manual_seed(7)
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "max_position_embeddings": 64,
    }
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "initializer_range": spread}
    marks = {"vocab_size": len(WORDS), "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
    config = AutoConfig.for_model(family, **sizes, **heads, **marks, **EXPERTS[family])
    build: Any = AutoModelForCausalLM
    build.from_config(config).eval().save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_folder("llama")).save_pretrained(folder)
    described = loader.describe(str(folder), "").model_copy(update={"source": f"random/{family}"})
    manifest = Manifest(model=described, task=TASK, data=Data(), training=Training(batch_size=4))
    return partial(Trainer.load, manifest, model_override=folder, data_override=data_file(folder))


def in_float64(run: Trainer, load: Load) -> Trainer:
    """The same run with the very weights that `run` holds, computed in float64."""
    other = load(dtype="float32")
    other.loaded.model.set_experts_implementation("eager")  # the others know no float64
    other.loaded.model.double()
    held = dict(run.loaded.model.named_parameters())
    for name, parameter in other.loaded.model.named_parameters():
        parameter.data.copy_(held[name])
    return Trainer(run.manifest, replace(other.loaded, dtype=torch.float64), run._rows)


def slopes(run: Trainer, seeds: list[int], epsilon: float) -> NDArray[np.float64]:
    """Return the slope along each seed's direction."""
    parts = [seeds[n : n + QUERIES] for n in range(0, len(seeds), QUERIES)]
    return np.array([one.alpha for part in parts for one in run.estimate(part, 0, epsilon)])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", type=Path)
    parser.add_argument("--family", choices=EXPERTS, help="a small random mixture of experts")
    parser.add_argument("--spread", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, default=64)
    given = parser.parse_args()
    seeds = update_seeds(3, 0, given.seeds).tolist()
    with tempfile.TemporaryDirectory() as scratch:
        if given.family:
            load = mixture(given.family, Path(scratch), given.spread)
        else:
            manifest = Manifest.from_toml(given.run) if given.run else build({})
            load = partial(Trainer.load, manifest, data=given.run and given.run.parent)
        for dtype in ("float32", "bfloat16"):
            with load(dtype=dtype) as run, in_float64(run, load) as reference:
                exact = slopes(reference, seeds, EXACT)
                print(f"{dtype}: |slope| median {np.median(np.abs(exact)):.3g}", flush=True)
                for epsilon in EPSILONS:
                    off = np.abs(slopes(run, seeds, epsilon) - exact)
                    truncation = np.abs(slopes(reference, seeds, epsilon) - exact)
                    print(
                        f"{epsilon:8g} median {np.median(off / np.abs(exact)):8.2%}"
                        f" worst tenth {np.quantile(off / np.abs(exact), 0.9):8.2%}"
                        f" rms {np.sqrt(np.mean(off**2) / np.mean(exact**2)):8.2%}"
                        f" in float64 {np.median(truncation / np.abs(exact)):8.2%}"
                        f" rms {np.sqrt(np.mean(truncation**2) / np.mean(exact**2)):8.2%}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()

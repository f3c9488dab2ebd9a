"""What a two-point step costs: against two plain forward passes, and against MeZO's step in place.

    python tests/bench/step.py [--model mini] [--model opt-125m] [--batch 4] [--batch 16] [--repetitions 15]

All three work on the same model, the same encoded mini-batch and the same output positions, one after the
other in turns, so that a busy machine slows all of them alike; medians are printed. `mini` is ../shared's
opt-mini-sst with SST-2 sentences, `opt-125m` a random model of that shape with sentences of 32 tokens. MeZO
is timed both ways: perturbing the matrices that sfnode trains, and perturbing all parameters as its authors
do. OMP_NUM_THREADS sets the number of threads. Exit status 1 when a step takes more than 1.25 times the two
forward passes.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import click
import torch
from torch import Tensor
from transformers import AutoTokenizer, OPTConfig, OPTForCausalLM

from sfnode.baselines.mezo import mezo_step
from sfnode.config import Target, Task
from sfnode.engine import data, model
from sfnode.engine.basis import RandomBasis
from sfnode.engine.estimator import two_point
from sfnode.engine.model import LoadedModel, logits_at
from sfnode.engine.subspace import Subspace
from sfnode.engine.tasks import Encoded, encode

SHARED = Path(__file__).parents[3] / "shared"
CPU = torch.device("cpu")
RANK, EPSILON, RATE = 32, 1e-3, 1e-9
LIMIT = 1.25
TOKENS = 32
"""Sentence length for the random model; SST-2's sentences average about 25 tokens with the prompt."""

SST2 = Task(
    kind="classification",
    template="{sentence|strip} It was",
    verbalizer={"0": "terrible", "1": "great"},
)


class Case(NamedTuple):
    """A model and a mini-batch for it."""

    loaded: LoadedModel
    space: Subspace
    batch: Encoded


def mini(size: int) -> Case:
    folder = SHARED / "models/opt-mini-sst"
    loaded = _loaded(model._weights(folder), AutoTokenizer.from_pretrained(folder))
    rows = data.load_rows(str(SHARED / "data/sst2/train.tsv"), SST2, limit=size, min_words=4)
    return Case(loaded, _space(loaded), encode(SST2, loaded.tokenizer, rows))


def opt_125m(size: int) -> Case:
    torch.manual_seed(0)
    settings = OPTConfig(vocab_size=50_272, hidden_size=768, num_hidden_layers=12, ffn_dim=3_072)
    network: model.Network = OPTForCausalLM(settings)
    loaded = _loaded(network.float().eval().requires_grad_(False), None)
    ids = torch.randint(3, 50_272, (size, TOKENS))
    positions = torch.arange(1, size + 1) * TOKENS - 1
    batch = Encoded(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        positions=positions.repeat_interleave(2),
        targets=torch.tensor([7, 11] * size),
        slots=torch.arange(2 * size),
        tokens=torch.ones(size, 2),
        right=torch.tensor([[True, False]] * size),
        contrastive=True,
    )
    return Case(loaded, _space(loaded), batch)


CASES = {"mini": mini, "opt-125m": opt_125m}


def _loaded(network: model.Network, tokenizer: object) -> LoadedModel:
    layers = tuple(layer for _, layer in model.target_modules(network))
    return LoadedModel(network, tokenizer, layers, SHARED)


def _space(loaded: LoadedModel) -> Subspace:
    shapes = [tuple(model.matrix(layer).shape) for layer in loaded.layers]
    targets = [Target.parse(f"{n}:{out}x{into}") for n, (out, into) in enumerate(shapes)]
    return Subspace(RandomBasis(bytes(32), targets, RANK, CPU), targets, RANK, CPU)


def contestants(case: Case) -> dict[str, Callable[[int], object]]:
    """What is timed, each as a function of the repetition's number."""
    loaded, space, batch = case

    def loss() -> float:
        with torch.inference_mode():
            logits = logits_at(loaded.model, batch.input_ids, batch.attention_mask, batch.positions)
            return float(batch.losses(logits).mean())

    def mezo(parameters: Sequence[Tensor]) -> Callable[[int], object]:
        return lambda n: mezo_step(parameters, loss, seed=n, epsilon=EPSILON, learning_rate=RATE)

    return {
        "two forward passes": lambda n: (loss(), loss()),
        "two-point step": lambda n: two_point(loaded, space.directions([n], 0, EPSILON), [batch], EPSILON),
        "MeZO, same matrices": mezo([model.matrix(layer) for layer in loaded.layers]),
        "MeZO, all parameters": mezo([parameter.data for parameter in loaded.model.parameters()]),
    }


def medians(actions: dict[str, Callable[[int], object]], repetitions: int) -> dict[str, float]:
    """Seconds each, over repetitions in turns; the first turn warms up and does not count."""
    taken: dict[str, list[float]] = {name: [] for name in actions}
    for n in range(repetitions + 1):
        for name, action in actions.items():
            start = time.perf_counter()
            action(n)
            taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(times[1:]) for name, times in taken.items()}


def report(name: str, size: int, found: dict[str, float]) -> float:
    forwards, step = found["two forward passes"], found["two-point step"]
    print(f"{name}, batch {size}, {torch.get_num_threads()} threads")
    for what, seconds in found.items():
        ratios = f"{seconds / forwards:8.2f} x forwards{seconds / step:8.2f} x step"
        print(f"  {what:22}{seconds * 1e3:9.1f} ms{ratios}")
    return step / forwards


@click.command()
@click.option("--model", "names", type=click.Choice(list(CASES)), multiple=True, default=tuple(CASES))
@click.option("--batch", "sizes", type=int, multiple=True, default=(4, 16))
@click.option("--repetitions", type=int, default=15)
def main(names: Sequence[str], sizes: Sequence[int], repetitions: int) -> None:
    ratios = [
        report(name, size, medians(contestants(CASES[name](size)), repetitions))
        for name in names
        for size in sizes
    ]
    print(f"largest ratio of a step to two forward passes: {max(ratios):.2f} (at most {LIMIT})")
    sys.exit(max(ratios) > LIMIT)


if __name__ == "__main__":
    main()

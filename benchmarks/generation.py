"""Measures the speed of writing answers.

    python -m benchmarks.generation [--model mini] [--model shape:opt-125m] [--rows 16] [--turns 9]
    python -m benchmarks.generation --device cuda --dtype bfloat16 --model shape:qwen2.5-0.5b --rows 64

The contestants write equally many new tokens for the same prompts, which have unequal lengths:

- our decoder,
- our decoder with a core of the run's rank in every layer, whose updates are not merged into the weights yet,
- `generate` of transformers, with the same weights in an unpatched model.

They take turns, in changing order. A ratio is the median, over all turns, of a contestant's time divided by
our decoder's time in the same turn. The time that counts is the process's CPU time on a CPU, which other
programs disturb less, and the clock's time on another device. Both are printed. OMP_NUM_THREADS sets the
number of threads. Exit status 1 if our tokens per second are less than LIMIT times those of transformers, or,
with a core, less than MOVED_LIMIT times ours without a core.

The second part measures the gain from refilling places of the batch. It writes QUEUE times as many rows as
the batch has places, with answers of 1 to 64 tokens. It compares three ways: the usual refilling, refilling
each place as soon as its answer ends, and refilling only when all places are free. Times are relative to the
usual way.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from benchmarks.subjects import MINI, SHARED, wanted
from sflab.bench.subject import BenchSubject, load_subject
from sfnode.engine import forward, generation
from sfnode.engine.generation import AnswerPlan, AnswerRequest, generate
from sfprotocol.seeds import stream

MODELS = (MINI, "shape:opt-125m")

OURS, MOVED, THEIRS = "sfnode", "with a core", "transformers"

LIMIT, MOVED_LIMIT = 1.0, 0.9
"""Minimum ratios of tokens per second: of ours to transformers', and of ours with a core to ours without."""

SMALL = 1e-4
"""Size of the core's entries. The text of answers does not matter."""

SHORTEST, LONGEST = 16, 32
"""Minimum and maximum tokens of prompts."""

QUEUE, ENDS, MOST = 4, 16, 64
"""Number of rows per place of the batch, share 1 / ENDS of the vocabulary's tokens that end an answer, and
maximum number of tokens of an answer."""

Contestant = Callable[[], None]


def contestants(subject: BenchSubject, rows: int, tokens: int) -> dict[str, Contestant]:
    """Return the contestants, keyed by name."""
    loaded = subject.loaded
    vocabulary = loaded.model.config.vocab_size
    lengths = np.linspace(SHORTEST, LONGEST, rows).astype(int)
    prompts = [(stream(n, 0, length) % np.uint64(vocabulary)).tolist() for n, length in enumerate(lengths)]
    plan = AnswerPlan(tokens, ends=frozenset())
    asked_of_us = [AnswerRequest(prompt) for prompt in prompts]

    plain: Any = AutoModelForCausalLM
    model = plain.from_pretrained(loaded.folder, dtype=loaded.dtype).eval().to(loaded.device)
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts]).to(loaded.device)
    mask = (torch.arange(width) >= width - torch.from_numpy(lengths)[:, None]).long().to(loaded.device)
    untyped: Any = GenerationConfig
    asked = untyped(do_sample=False, max_new_tokens=tokens, min_new_tokens=tokens, pad_token_id=0)

    def theirs() -> None:
        with torch.inference_mode():
            model.generate(input_ids=ids, attention_mask=mask, generation_config=asked)

    space = subject.trainer().space
    directions = space.directions(range(1, space.columns_of[0] + 1), 0)
    directions = directions._replace(u=tuple(u * SMALL for u in directions.u))

    def moved() -> None:
        written(generate(loaded, asked_of_us, plan, perturb=partial(forward.everywhere, directions)), tokens)

    return {
        OURS: lambda: written(generate(loaded, asked_of_us, plan), tokens),
        MOVED: moved,
        THEIRS: theirs,
    }


def queued(subject: BenchSubject, places: int) -> dict[str, Contestant]:
    """Return ways to write more rows than the batch has places, keyed by name. They differ in when a place is
    refilled."""
    loaded, rows = subject.loaded, QUEUE * places
    vocabulary = loaded.model.config.vocab_size
    prompts = [(stream(n, 0, SHORTEST) % np.uint64(vocabulary)).tolist() for n in range(rows)]
    asked = [AnswerRequest(prompt, n) for n, prompt in enumerate(prompts)]
    bytes_at_once = places * generation.token_bytes(loaded) * (SHORTEST + MOST)
    ends = frozenset(range(0, vocabulary, ENDS))
    plan = AnswerPlan(MOST, temperature=1.0, ends=ends, cache_bytes=bytes_at_once)

    def refilled(share: int) -> None:
        usual, generation.REFILL_SHARE = generation.REFILL_SHARE, share
        generate(loaded, asked, plan)
        generation.REFILL_SHARE = usual

    return {
        "refilled": lambda: refilled(generation.REFILL_SHARE),
        "at each end": lambda: refilled(places),
        "in blocks": lambda: refilled(1),
    }


def written(answers: Any, tokens: int) -> None:
    """Check that no answer stopped early."""
    assert all(len(answer.tokens) == tokens for answer in answers)


def measure(who: dict[str, Contestant], turns: int) -> dict[str, list[tuple[float, float]]]:
    """Return the seconds of the process and of the clock for each turn, keyed by contestant. A warm-up turn
    is not measured."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in who}
    for turn in range(turns + 1):
        order = [*who] if turn % 2 else [*reversed(who)]
        for name in order:
            spent, clock = time.process_time(), time.perf_counter()
            who[name]()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if turn:
                found[name].append((time.process_time() - spent, time.perf_counter() - clock))
    return found


@click.command()
@click.option("--model", "names", multiple=True, default=MODELS)
@click.option("--rows", type=int, default=16)
@click.option("--tokens", type=int, default=32)
@click.option("--turns", type=int, default=9)
@click.option("--device", default="cpu")
@click.option("--dtype", default="float32")
@click.option("--shared", type=Path, default=SHARED, help="folder with opt-mini-sst and its data")
def main(
    names: Sequence[str], rows: int, tokens: int, turns: int, device: str, dtype: str, shared: Path
) -> None:
    missed, counts = False, int(device != "cpu")
    for name in names:
        if name == MINI and not shared.is_dir():
            print(f"{name}: {shared} is not here")
            continue
        with load_subject(wanted(name, device=device, dtype=dtype, shared=shared)) as subject:
            found = measure(contestants(subject, rows, tokens), turns)
            queue = measure(queued(subject, rows), max(1, turns // 3))
        ours = found[OURS]
        where = f"on {device} in {dtype}, {torch.get_num_threads()} threads"
        print(f"{name}, {rows} rows of {tokens} tokens {where}")
        for other, times in found.items():
            rates = [rows * tokens / median(column) for column in zip(*times, strict=True)]
            ratios = [
                median(theirs[column] / own[column] for theirs, own in zip(times, ours, strict=True))
                for column in range(2)
            ]
            missed = missed or (other == THEIRS and ratios[counts] < LIMIT)
            missed = missed or (other == MOVED and ratios[counts] * MOVED_LIMIT > 1)
            print(
                f"  {other:14s} {rates[0]:8.1f} tokens/s of the process, {rates[1]:8.1f} by the clock; "
                f"ours / this: {ratios[0]:.2f} and {ratios[1]:.2f}"
            )
        first = queue["refilled"]
        for other, times in queue.items():
            longer = median(theirs[counts] / own[counts] for theirs, own in zip(times, first, strict=True))
            print(f"  {QUEUE * rows} rows of unequal lengths, {other}: {longer:.2f} times refilled")
    sys.exit(missed)


if __name__ == "__main__":
    main()

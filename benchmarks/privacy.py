"""Measures what a node's scalars reveal about the rows of its shard: a membership test.

    python -m benchmarks.privacy [--model mini] [--loss centred] [--rows 16] [--updates 1024] [--seed 0]
        [--noise 0.5 --clip 1]

Half of the candidate rows are in the shard. The attacker knows the run and all updates. So it can measure
each candidate's own slope along every direction. A regression of the node's scalars on these slopes gives
each candidate's share.

- *Blind*: the attacker does not know the mini-batches.
- *Knowing draws*: the attacker also knows the number of rows in the shard. So the seeds tell it which row
  numbers are in which mini-batch (SPEC R8), though not which row has which number. There is a regression for
  each number, and a candidate's score is its largest share.

Prints the area under the ROC curve, with its standard deviation over bootstrap samples of candidates.
Results: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sfnode.engine import estimator
from sfnode.engine.trainer import Trainer
from sfnode.manifest import Manifest
from sfnode.preparing.manifest import build
from sfnode.tasks import dataset
from sfnode.tasks.encoding import encode
from sfprotocol.seeds import update_seeds
from tests.engine.helpers import SHARED

QUERIES = 8
CANDIDATES = 64
"""Number of candidate rows. Half of them are in the shard."""

Floats = NDArray[np.float64]


def run_of(model: str, loss: str) -> Manifest:
    """Return the built-in run, or SST-2 on opt-mini-sst."""
    if model == "built-in":
        return build({"loss": loss})
    data = SHARED / "data" / "sst2"
    given = {"model": str(SHARED / "models" / "opt-mini-sst"), "task": "sst2", "train_min_words": 4}
    files = {"train": str(data / "train.tsv"), "test": str(data / "test.tsv")}
    return build(given | files | {"train_limit": 4096, "loss": loss})


def said(run: Trainer, seeds: list[int]) -> Floats:
    """Return the scalars that the node sends for these seeds, (T,)."""
    parts = (seeds[n : n + QUERIES] for n in range(0, len(seeds), QUERIES))
    return np.array([scalar for part in parts for scalar in run.step(part, 0).scalars], np.float64)


def slopes(run: Trainer, rows: list[dataset.Row], seeds: list[int]) -> Floats:
    """Return the slope of each row alone along the direction of each seed, (T, rows)."""
    batch: Any = encode(run.manifest.task, run.loaded.tokenizer, rows)
    both = estimator.points([batch])
    epsilon = run.manifest.training.epsilon
    found = []
    for seed in seeds:
        directions = run.space.directions([seed], 0)
        with torch.inference_mode():
            columns = estimator.along_queries(directions)
            log_probs = estimator._log_probs(run.loaded, directions, both, epsilon, columns)
        plus, minus = (batch.losses(half).double() for half in log_probs.chunk(2))
        found.append(((plus - minus) / (2 * epsilon)).numpy())
    return np.array(found)


def area(scores: Floats, member: NDArray[np.bool_]) -> float:
    """Return the probability that a member has a higher score than another row."""
    ahead = scores[member][:, None] - scores[~member][None, :]
    return float((ahead > 0).mean() + (ahead == 0).mean() / 2)


def spread(scores: Floats, member: NDArray[np.bool_], rng: np.random.Generator) -> float:
    """Return the standard deviation of the area over bootstrap samples of candidates."""
    inside, outside = np.flatnonzero(member), np.flatnonzero(~member)
    areas = []
    for _ in range(400):
        chosen = np.concatenate([rng.choice(inside, len(inside)), rng.choice(outside, len(outside))])
        areas.append(area(scores[chosen], member[chosen]))
    return float(np.std(areas))


def shares(scalars: Floats, own: Floats, size: int) -> Floats:
    """Return the share of each candidate in the scalars, (rows,): the posterior mean of a linear model. In
    its prior, the share of a member is about 1 / `size`. The other rows of a mini-batch are noise."""
    noise = scalars.var()
    precision = own.T @ own / noise + np.eye(own.shape[1]) * size**2
    found: Floats = np.linalg.solve(precision, own.T @ scalars / noise)
    return found


def blind(scalars: Floats, own: Floats, size: int) -> Floats:
    """Return the score of each candidate, (rows,), for an attacker that does not know the mini-batches."""
    return shares(scalars, own, size)


def knowing_draws(scalars: Floats, own: Floats, drawn: NDArray[np.int64], size: int) -> Floats:
    """Return the score of each candidate, (rows,), for an attacker that knows the row numbers in each
    mini-batch: `drawn` (T, batch)."""
    best = np.full(own.shape[1], -np.inf)
    for number in range(size):
        times = (drawn == number).sum(1)
        there = times > 0
        if there.sum() >= 2:
            best = np.maximum(best, shares(scalars[there], own[there], drawn.shape[1]))
    return best


def main() -> None:
    """Print a row for each number of updates."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=["built-in", "mini"], default="built-in")
    parser.add_argument("--loss", choices=["plain", "centred"], default="plain")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--updates", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--clip", type=float, default=1.0)
    given = parser.parse_args()
    manifest, rng = run_of(given.model, given.loss), np.random.default_rng(given.seed)
    every = dataset.training_rows(manifest.data, manifest.task)
    half = min(given.rows, CANDIDATES // 2)
    order = rng.permutation(len(every))
    shard = [every[row] for row in order[: given.rows]]
    others = [every[row] for row in order[given.rows : given.rows + half]]
    candidates, member = shard[:half] + others, np.arange(2 * half) < half
    seeds = update_seeds(1000 + given.seed, 0, given.updates).tolist()
    with Trainer.load(manifest) as loaded:
        node = Trainer(manifest, loaded.loaded, shard)
        scalars = said(node, seeds) * manifest.training.scalar_delta
        drawn = np.array([node.mini_batches._draw.__self__._drawn(seed) for seed in seeds])  # type: ignore[attr-defined]
        own = slopes(loaded, candidates, seeds)
    if given.noise:
        scalars = np.clip(scalars, -given.clip, given.clip)
        scalars = scalars + rng.normal(0, 2 * given.clip * given.noise, len(scalars))
    print(f"rms of scalars {np.sqrt((scalars**2).mean()):.3f}, of own slopes {np.sqrt((own**2).mean()):.3f}")
    for updates in (64, 256, 1024, 4096):
        if updates <= given.updates:
            one = blind(scalars[:updates], own[:updates], given.rows)
            other = knowing_draws(scalars[:updates], own[:updates], drawn[:updates], given.rows)
            figures = [f"{area(s, member):.3f} ± {spread(s, member, rng):.3f}" for s in (one, other)]
            print(f"{updates:5} updates: blind {figures[0]}, knowing draws {figures[1]}", flush=True)


if __name__ == "__main__":
    main()

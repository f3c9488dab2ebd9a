"""Time saved by kept states if only the last blocks are trained: a text passes the lower blocks once.

    OMP_NUM_THREADS=1 python -m benchmarks.suffix [--blocks 4] [--rows 64] [--turns 3] [--model FOLDER]

Measures an update from a mini-batch of AG News in ../shared, with answers in words, three times: when no
states are kept yet, with states in memory, and without ever keeping states. Prints CPU seconds of the
process, for the last two the minimum over all turns. The model is that of scripts/real_model.py.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click
import torch

from benchmarks import real
from scripts import real_model
from sfnode.engine.trainer import Trainer
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data
from sfnode.manifest.training import Training
from sfnode.models import loader
from sfprotocol.seeds import update_seeds

SEED = update_seeds(1, 0, 1).tolist()


def last_blocks(model: Path, blocks: int, rows: int) -> Trainer:
    """Return the trainer of a run that trains all matrices of the model's last `blocks` blocks."""
    of = real.subject("agnews", 1024, 1, model)
    described = loader.describe(str(model), "")
    numbers = [int(found[1]) for name in described.targets if (found := re.search(r"\.(\d+)\.", name))]
    first = max(numbers) + 1 - blocks
    targets = tuple(name for name, number in zip(described.targets, numbers, strict=True) if number >= first)
    manifest = Manifest(
        model=described.model_copy(update={"targets": targets}),
        task=of.words,
        data=Data(),
        training=Training(batch_size=rows),
    )
    loaded = loader.load(manifest, override=None, device=torch.device("cpu"))
    if loaded.kept is None:
        raise SystemExit("nothing is kept of this model")
    loaded.kept.folder = None  # keep states only in memory, so that no earlier ones are used
    return Trainer(manifest, loaded, of.train)


def seconds(action: Callable[[], object]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


@click.command
@click.option("--model", type=click.Path(path_type=Path), default=real_model.FOLDER)
@click.option("--blocks", default=4, show_default=True)
@click.option("--rows", default=64, show_default=True)
@click.option("--turns", default=3, show_default=True)
def main(model: Path, blocks: int, rows: int, turns: int) -> None:
    if model == real_model.FOLDER:
        real_model.write(model)
    run = last_blocks(model, blocks, rows)
    whole = Trainer(run.manifest, replace(run.loaded, kept=None), [], core=run.core)
    batches = [run.mini_batch(SEED[0])]

    def estimate(one: Trainer) -> float:
        return one.objective.estimates(run.space, 0, SEED, batches, run.epsilon)[0].alpha

    print(f"an update of {rows} rows, the last {blocks} blocks trained, CPU seconds", flush=True)
    first = seconds(lambda: estimate(run))
    print(f"nothing kept yet {first:.2f}", flush=True)
    kept = min(seconds(lambda: estimate(run)) for _ in range(turns))
    without = min(seconds(lambda: estimate(whole)) for _ in range(turns))
    print(f"kept {kept:.2f}, never kept {without:.2f}: {without / kept:.1f} x")
    print(f"slopes {estimate(run):.6g} and {estimate(whole):.6g}")


if __name__ == "__main__":
    main()

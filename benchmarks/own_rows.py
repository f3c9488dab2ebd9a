"""Measures the cost of local noise in a first-order run: four nodes, each with its own rows.

    python -m benchmarks.own_rows [--task sst2] [--epsilon 4] [--noisy 4] [--rows 1024] [--runs 1]

The model is that of scripts/real_model.py, and the tasks are those of ../shared. `sfnode init` makes a run
from 1,280 public rows, with default hyperparameters. Of the four node processes, the last `--noisy` set
noise.epsilon; with `--epsilon 0` no node does. Prints what each node reports about its privacy, and the
accuracy and the loss of the first node's model on 800 held-out rows. States are cached in a temporary folder,
or in $XDG_CACHE_HOME. Results: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import real
from scripts import real_model
from sfnode.cli import trained_model
from sfnode.manifest import Manifest
from sfnode.swarm import LocalSwarm, NodeProcess
from sfnode.tasks.prompts import Row

NODES, PUBLIC = 4, 1024
"""Number of nodes, and number of public rows besides those for validation."""

SETTLED = 12.0
"""Seconds after which a node has checked its updates again (`privacy.LOOK_INTERVAL`)."""


class Swarm(LocalSwarm):
    """A swarm whose nodes have their own rows."""

    def __init__(self, *args: Any, own: Sequence[Path], noisy: Sequence[str], quiet: int, **options: Any):
        """`own` has a file of rows for each node. `noisy` has the options of all nodes but the first
        `quiet`."""
        super().__init__(*args, split_data=False, evaluate=False, **options)
        self._own, self._noisy, self._quiet = own, noisy, quiet

    def _arguments(self, node: NodeProcess) -> list[str]:
        noisy = self._noisy if node.number > self._quiet else ()
        return [*super()._arguments(node), "--data", str(self._own[node.number - 1]), *noisy]


def written(file: Path, rows: Sequence[Row]) -> Path:
    """Write rows to a new file, and return it."""
    lines = (f"{row['sentence']}\t{row['label']}\n" for row in rows)
    file.write_text("sentence\tlabel\n" + "".join(lines))
    return file


def made(name: str, given: argparse.Namespace, folder: Path) -> list[Path]:
    """Make a run from public rows, and write the rows of each node. Return the files of these rows."""
    of = real.subject(given.task, NODES * given.rows + PUBLIC, 800, folder)
    private = NODES * given.rows
    public = written(folder / "train.tsv", of.train[private:])
    files = (public, "--label", "label", "--test", written(folder / "test.tsv", of.test))
    keys = ("--set", f"name={name}", "--set", f"keys.dir={folder / 'keys'}")
    real.sfnode("init", *files, "--out", folder / "run.toml", "--yes", "--model", given.model, *keys)
    parts = (of.train[first : first + given.rows] for first in range(0, private, given.rows))
    return [written(folder / f"own-{number}.tsv", rows) for number, rows in enumerate(parts)]


async def trained(given: argparse.Namespace, folder: Path, own: Sequence[Path]) -> None:
    """Train to the end of the run, and print what each node reports about its privacy."""
    noisy = ("--set", f"noise.epsilon={given.epsilon}") if given.epsilon else ()
    places: dict[str, Any] = {"folder": folder / "swarm", "beside": folder, "model": given.model}
    run = Manifest.from_toml(folder / "run.toml")
    swarm = Swarm(run, nodes=NODES, own=own, noisy=noisy, quiet=NODES - given.noisy, **places)
    async with swarm:
        async for _ in swarm:
            pass
        await asyncio.sleep(SETTLED)
        for status in filter(None, (await swarm.look()).statuses):
            print(f"  {status.contributed} updates, {status.privacy}")
        ended = await swarm.compare()
        print(f"  {ended.counted} of {ended.updates} count, equal digests: {ended.equal}; {ended.announced}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, default=real_model.FOLDER)
    parser.add_argument("--task", choices=["agnews", "sst2"], default="sst2")
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--noisy", type=int, default=NODES)
    parser.add_argument("--rows", type=int, default=1024, help="rows of a node")
    parser.add_argument("--runs", type=int, default=1, help="runs, each with a name of its own")
    given = parser.parse_args()
    if given.model == real_model.FOLDER:
        real_model.write(given.model)
    with tempfile.TemporaryDirectory(prefix="sfnode-own-rows-") as scratch:
        os.environ.setdefault("XDG_CACHE_HOME", str(Path(scratch) / "cache"))
        for number in range(given.runs):
            folder = Path(scratch) / str(number)
            folder.mkdir()
            own = made(f"{given.task}-{given.noisy}-{given.epsilon:g}-{number}", given, folder)
            asyncio.run(trained(given, folder, own))
            node = folder / "swarm" / "node-1"
            trainer = trained_model.load(node, given.model, "cpu", "auto").trainer
            for what, found in (("before", trainer.evaluate_base()), ("after", trainer.evaluate())):
                print(f"{what}: {found.value:.3f} / {found.loss:.4f}", flush=True)


if __name__ == "__main__":
    main()

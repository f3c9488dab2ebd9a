"""CPU time of a swarm relative to the forward passes of its updates: what all other work of its nodes costs.

    python benchmarks/swarm_cpu.py run.toml [--nodes 2] [--model FOLDER]

The nodes of a local swarm train a run of `sfnode init` (without a head) with one thread each. Prints the
ratio

    CPU seconds of all nodes / (updates made x passes x plain forwards of their mini-batch),

where passes are two for a two-point estimate, and three for a gradient, because a backward pass counts as
two. Exit status 1 if the ratio exceeds LIMIT.

The time is from each node's first step to its last one, without start-up and final evaluation. Plain forwards
are timed within the run: after every SAMPLED steps, on the mini-batch of that step, by the thread that made
the step. Their time is subtracted. Only CPU seconds count, so other programs matter little.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import click

LIMIT = 1.2

SAMPLED = 8
"""Number of steps from one that is followed by plain forwards to the next."""

PARTS = (
    "step",
    "search",
    "shares",
    "evaluate",
    "evaluate_base",
    "evaluate_towards",
    "answer",
    "apply",
    "cores",
)
"""Calls of the engine whose time is measured separately. The rest of the engine's thread answers questions
that bring cores to a seal."""

COSTS = "cpu.json"

NODE = "node"
"""First argument of this program when it runs as a node."""


class Meter:
    """CPU seconds of one node, split by the calls of its engine."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._spent = defaultdict[str, float](float)
        self._inside = 0
        self._begun = self._plain = 0.0
        self._steps = self._sampled = 0

    def watch(self, owner: type[Any], name: str) -> None:
        """Measure the time of a method, unless another measured method calls it."""
        method = getattr(owner, name)

        def counted(this: Any, *args: Any, **options: Any) -> Any:
            begun, self._inside = time.thread_time(), self._inside + 1
            try:
                return method(this, *args, **options)
            finally:
                self._inside -= 1
                if not self._inside:
                    self._spent[name] += time.thread_time() - begun
                    if name == "step":
                        self._after_step(this, args[0])

        setattr(owner, name, counted)

    def _after_step(self, trainer: Any, seeds: list[int]) -> None:
        from sfnode.engine import forward

        self._steps += len(seeds)
        if not self._begun:  # the first step is a warm-up
            self._spent.clear()
            self._steps, self._begun = 0, time.process_time()
        elif self._steps % SAMPLED == 0:
            begun = time.thread_time()
            for seed in seeds:
                forward.score_in_passes(trainer.loaded, trainer.mini_batch(seed))
            self._plain += time.thread_time() - begun
            self._sampled += len(seeds)
            self._begun += time.thread_time() - begun
        told = {
            "all": time.process_time() - self._begun,
            "steps": self._steps,
            "plain": self._plain / max(self._sampled, 1),
            "parts": dict(self._spent),
            "threads": _threads(),
        }
        self._file.write_text(json.dumps(told))


def _threads() -> dict[str, float]:
    """Return the CPU seconds of this process's threads since their start, keyed by thread name."""
    tick, found = os.sysconf("SC_CLK_TCK"), defaultdict[str, float](float)
    names = {thread.native_id: thread.name.split("_")[0] for thread in threading.enumerate()}
    for stat in Path("/proc/self/task").glob("*/stat"):
        fields = stat.read_text().rpartition(")")[2].split()
        name = names.get(int(stat.parent.name), "other libraries'")
        found[name] += (int(fields[11]) + int(fields[12])) / tick
    return dict(found)


def be_a_node(arguments: list[str]) -> None:
    """Run `sfnode` with these arguments, and measure it."""
    from sfnode.cli.main import main as sfnode
    from sfnode.engine.trainer import ReplicatedTrainer

    meter = Meter(Path(arguments[arguments.index("--data-dir") + 1]) / COSTS)
    for name in PARTS:
        meter.watch(ReplicatedTrainer, name)
    sys.argv = ["sfnode", *arguments]
    sfnode()


@click.command()
@click.argument("run", type=click.Path(exists=True, path_type=Path))
@click.option("--nodes", default=2)
@click.option("--model", type=click.Path(exists=True, path_type=Path))
def main(run: Path, nodes: int, model: Path | None) -> None:
    import asyncio
    import tempfile

    from sfnode import swarm as local_swarm
    from sfnode.manifest import Manifest

    manifest = Manifest.from_toml(run)
    passes = manifest.update_forwards / manifest.training.batch_size

    class Measured(local_swarm.NodeProcess):
        def __init__(self, number: int, folder: Path) -> None:
            super().__init__(number, folder)
            self.program = (sys.executable, __file__, NODE)

    local_swarm.NodeProcess = Measured  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)

        async def trained() -> local_swarm.SwarmProgress:
            async with local_swarm.LocalSwarm(
                manifest, nodes=nodes, folder=folder, model=model, evaluate=False, beside=run.parent
            ) as all_of:
                return [progress async for progress in all_of][-1]

        progress = asyncio.run(trained())
        told = [json.loads((folder / f"node-{n}" / COSTS).read_text()) for n in range(1, nodes + 1)]
        for path in sorted(folder.glob("node-*/node.log")):
            print(*(line for line in path.read_text().splitlines() if "line search" in line), sep="\n")
    needed = sum(passes * one["plain"] * one["steps"] for one in told)
    ratio = report(told, needed)
    counted = progress.organised.counted if progress.organised else 0
    print(f"{progress.known} updates were made and {counted} count")
    sys.exit(ratio > LIMIT)


def report(told: list[dict[str, Any]], needed: float) -> float:
    """Print the CPU seconds of each part, also as multiples of `needed`, the seconds of the updates'
    forwards. Return the total as such a multiple."""
    every = sum(one["all"] for one in told)
    print(f"{needed:.0f} s are the plain forwards of {sum(one['steps'] for one in told)} updates;")
    parts = Counter[str]()
    for number, one in enumerate(told, 1):
        parts.update(one["parts"])
        own = sum(one["parts"].values()) - one["parts"].get("step", 0.0)
        print(
            f"node {number}: {one['all']:.0f} s, {one['steps']} updates, "
            f"{own / one['all']:.1%} for other questions"
        )
        print("  threads since the start:", ", ".join(f"{k} {v:.1f} s" for k, v in one["threads"].items()))
    parts["the rest"] = every - sum(parts.values())
    for name, spent in parts.most_common():
        print(f"  {name:18} {spent:8.1f} s  {spent / needed:6.3f}")
    print(f"ratio {every / needed:.2f}, limit {LIMIT}")
    return float(every / needed)


if __name__ == "__main__":
    if sys.argv[1:2] == [NODE]:
        be_a_node(sys.argv[2:])
    else:
        main()

"""Measures whether the memory of nodes grows in a long run.

    python -m benchmarks.memory [--minutes 120] [--nodes 2] [--model FOLDER]
    python -m benchmarks.memory --virtual [--seconds 100000]

By default, the nodes of a local swarm train a head with two-point estimates at full pace, on texts of
benchmarks.topics, with the model of scripts/real_model.py. The first node organises. Prints, for each tenth
of the time, the number of updates and the median memory of each node's process (proportional set size,
without p2pd).

With `--virtual`, nodes run in virtual time: two stay up, two crash and restart, and members join and leave.
Prints, for each tenth of the time, the memory of a node: BARE, and its share of what sfnode's code has
allocated (tracemalloc, without the simulator's).

Exit status 1 if the memory in the last tenth is more than LIMIT times that in the first.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil

from benchmarks import real, topics
from scripts import real_model
from sflab.simulator.world import runs, trace
from sflab.simulator.world.world import World
from sfnode.manifest import Manifest
from sfnode.swarm import LocalSwarm

LIMIT = 1.05

WARM = 60.0
"""Seconds after the first update that are not measured: libraries are loaded and caches filled."""

LOOK = 5.0
"""Seconds between two measurements of the processes."""

TENTHS = 10

OPTIONS = ("training.estimator=zeroth-order", "training.update_budget=100000000", "init.measure=no")
MIB = 2**20

EPOCH, TURN = 300.0, 600.0
"""Virtual seconds of an epoch, and virtual seconds between two crashes."""

BARE = 300.0
"""MiB for the process of a simulated node, which has none: a relay's, the smallest, takes more."""

Row = tuple[int, list[float]]
"""Number of updates, and memory of each node in MiB."""


async def watched(swarm: LocalSwarm, seconds: float) -> list[Row]:
    """Run a swarm for `seconds` after the warm-up. Return its rows, one every LOOK seconds."""
    seen: list[Row] = []
    begun = 0.0
    async with swarm:
        processes = psutil.Process().children()  # one for each node, in order; daemons are children of nodes
        while not begun or time.monotonic() < begun + seconds:
            known = (await swarm.look()).known
            if known and not begun:
                begun = time.monotonic() + WARM
            if begun and time.monotonic() >= begun:
                seen.append((known, [one.memory_full_info().pss / MIB for one in processes]))
            await asyncio.sleep(LOOK)
    return seen


def of_swarm(given: argparse.Namespace) -> list[Row]:
    """Return a row for each tenth of the time."""
    if given.model == real_model.FOLDER:
        real_model.write(given.model)
    with tempfile.TemporaryDirectory(prefix="sfnode-memory-") as scratch:
        folder = topics.write(Path(scratch))
        options = (part for one in (*OPTIONS, f"keys.dir={folder / 'keys'}") for part in ("--set", one))
        files = (folder / "train.tsv", "--label", "label", "--test", folder / "test.tsv")
        real.sfnode("init", *files, "--model", given.model, "--yes", "--out", folder / "run.toml", *options)
        run = Manifest.from_toml(folder / "run.toml")
        places = {"folder": folder / "swarm", "beside": folder, "model": given.model}
        swarm = LocalSwarm(run, nodes=given.nodes, evaluate=False, **places)
        seen = asyncio.run(watched(swarm, given.minutes * 60))
    each = max(len(seen) // TENTHS, 1)
    return [_typical(seen[first : first + each]) for first in range(0, each * TENTHS, each)]


def _typical(seen: Sequence[Row]) -> Row:
    columns = zip(*(memory for _, memory in seen), strict=True)
    return seen[-1][0], [statistics.median(column) for column in columns]


def in_virtual_time(seconds: float) -> Iterator[Row]:
    """Yield a row for each tenth of the time, with the mean memory of a node."""
    policy = replace(runs.POLICY, target_updates=1 << 20, longest_epoch=EPOCH, amend_after=2 * EPOCH)
    manifest = runs.manifest(1)
    trace.KEPT = 0  # messages that explain a failure are the simulator's
    tracemalloc.start()
    with closing(
        World(1, managed=True, manifest=manifest, policy=policy, judge=runs.falling, watched=False)
    ) as world:
        nodes = [world.add(f"n{number}") for number in range(4)]
        nodes[0].give_key(runs.signing_key(1, runs.ORGANISER))
        for node in nodes:
            world.do(node.start)
        for number in range(TENTHS):
            _pass(world, seconds / TENTHS, newcomer=f"new{number}")
            gc.collect()
            found = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, "*/sflab/*")])
            allocated = sum(one.size for one in found.traces) / MIB
            yield nodes[0].organised.run_state.counted, [BARE + allocated / len(nodes)]


def _pass(world: World, seconds: float, newcomer: str) -> None:
    """Let `seconds` pass, in which every node makes an update every ten seconds. The member `newcomer` joins
    at the beginning and leaves halfway. The last two of the first four nodes crash in turn, and restart a
    minute later."""
    end, crash, turn = world.now + seconds, world.now + TURN, 0
    member = world.add(newcomer)
    world.do(member.start)
    while world.now < end:
        if world.now >= crash:
            turn, crash = turn + 1, crash + TURN
            node = world[f"n{2 + turn % 2}"]
            world.do(node.crash)
            world.later(60, node.start)
        if newcomer in world.nodes and end - world.now < seconds / 2:
            world.do(member.crash)
            del world.nodes[newcomer]
        for node in world.living():
            world.do(node.compute, 1)
        world.run_until(min(end, world.now + 10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--model", type=Path, default=real_model.FOLDER)
    parser.add_argument("--virtual", action="store_true")
    parser.add_argument("--seconds", type=float, default=100_000)
    given = parser.parse_args()
    rows = []
    print("| tenth | updates | MiB |\n|---|---|---|")
    for row in in_virtual_time(given.seconds) if given.virtual else of_swarm(given):
        rows.append(row)
        print(f"| {len(rows)} | {row[0]:,} | {', '.join(f'{one:.1f}' for one in row[1])} |", flush=True)
    growth = [last / first for first, last in zip(rows[0][1], rows[-1][1], strict=True)]
    print(f"growth: {', '.join(f'{one:.3f}' for one in growth)}; limit {LIMIT}")
    sys.exit(max(growth) > LIMIT)


if __name__ == "__main__":
    main()

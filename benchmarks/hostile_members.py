"""Measures the final model of a real swarm with hostile nodes.

    python benchmarks/hostile_members.py [--nodes 10] [--hostile 3] [--attack flip] [--run run.toml]

Hostile nodes are nodes of sfnode that were admitted like all others. Their scalars are changed before they
are signed:

- `flip` negates them.
- `random` draws others of the same size.
- `scale` negates them and gives them the largest allowed size.
- `turncoat` negates them once the node has made half of its share of the budget.
- `target` measures them on rows that all have the first answer.
- `absent` leaves the hostile nodes out, for comparison.

With `--hostile 0`, only the costs matter. Prints one line of JSON. `organiser` has the example-forwards of
the organiser's measurements for seals, their share of all example-forwards, the seconds of these
measurements, and their share of the time since the swarm started. `second_half` has the same from the time at
which half of the budget was counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ATTACK = "HOSTILE_ATTACK"
"""Environment variable with the attack of a hostile node."""

COST = "ORGANISER_COST"
"""Environment variable with the file to which the organiser writes its costs."""

FIRST = "ORGANISER_FIRST"
"""Environment variable that is set if the organiser makes no updates, and measures with priority over the
other nodes."""

GROUP = Path("/proc/self/autogroup")
"""File with the niceness of this process's session. Each node has its own session (Linux, root)."""

HOSTILE, ORGANISER = "hostile", "organiser"
"""First arguments of this program as a node."""


def be_hostile(attack: str) -> None:
    """Falsify the measurements of this process's engine, and run the command line."""
    from sflab.experiments.seedflood import shard_of
    from sfnode.cli.main import main
    from sfnode.engine.trainer import Trainer
    from sfnode.tasks import dataset

    honest, draw, made = Trainer.step, np.random.default_rng(os.getpid()), [0]
    rows_of = dataset.training_rows

    def rows(data: Any, task: Any, *places: Any, **more: Any) -> Any:
        return shard_of(attack, task, rows_of(data, task, *places, **more))

    def step(trainer: Any, seeds: Any, epoch: int, rate: Any = None) -> Any:
        result = honest(trainer, seeds, epoch, rate)
        limit, told = trainer.manifest.training.scalar_limit, np.array(result.scalars)
        made[0] += len(told)
        if attack == "random":
            told = np.rint(draw.normal(scale=max(1.0, np.abs(told).mean()), size=len(told))).astype(int)
        elif attack == "scale":
            told = -limit * np.where(told < 0, -1, 1)
        elif attack == "flip" or (attack == "turncoat" and made[0] > int(os.environ["HOSTILE_AFTER"])):
            told = -told
        return result._replace(scalars=tuple(int(one) for one in np.clip(told, -limit, limit)))

    Trainer.step = step  # type: ignore[method-assign, assignment]
    dataset.training_rows = rows
    main(sys.argv[2:])


def share_cores(niceness: int) -> None:
    """Set the niceness of this process's session. The nodes share the cores of this machine; real nodes would
    not."""
    GROUP.write_text(str(niceness))


def be_organiser(file: Path) -> None:
    """Record the costs of this process's measurements for seals, and run the command line."""
    from sfnode.cli.main import main
    from sfnode.node.organising import Organising
    from sfnode.node.training.step_scheduler import StepScheduler
    from sfnode.organising.events import EvaluationEnded

    evaluate, tell, spent = Organising._evaluate, Organising._tell, {"forwards": 0, "seconds": 0.0}
    first = bool(os.environ.get(FIRST))
    if first:
        StepScheduler.advance = lambda scheduler: None  # type: ignore[method-assign, assignment]

    async def timed(organising: Organising, asked: Any) -> None:
        began = time.perf_counter()
        if first:
            share_cores(-15)
        await evaluate(organising, asked)
        if first:
            share_cores(0)
        spent["seconds"] += time.perf_counter() - began

    def told(organising: Organising, event: Any) -> None:
        spent["forwards"] += event.forwards if isinstance(event, EvaluationEnded) else 0
        new = file.with_suffix(".new")
        new.write_text(json.dumps(spent))
        new.replace(file)
        tell(organising, event)

    Organising._evaluate = timed  # type: ignore[method-assign, assignment]
    Organising._tell = told  # type: ignore[method-assign, assignment]
    main(sys.argv[2:])


class Spent(NamedTuple):
    """Costs from the start to one moment."""

    updates: int
    """Number of updates of all nodes."""
    at: float
    """Time in seconds, by this process's clock."""
    forwards: int
    """Example-forwards of the organiser's measurements for seals."""
    seconds: float
    """Seconds of the organiser's measurements for seals."""

    @classmethod
    def until_now(cls, file: Path, updates: int) -> Spent:
        """Return the costs until now. Those of the organiser come from `file`, and are 0 if it does not
        exist."""
        said = json.loads(file.read_text()) if file.exists() else {"forwards": 0, "seconds": 0.0}
        return cls(updates, time.perf_counter(), **said)

    def shares(self, since: Spent, update_forwards: int) -> dict[str, float]:
        """Return the organiser's costs since `since`, with their shares of all example-forwards and of the
        time."""
        updates, passed, forwards, seconds = (a - b for a, b in zip(self, since, strict=True))
        share = forwards / max(1, forwards + updates * update_forwards)
        return {
            "forwards": forwards,
            "seconds": round(seconds, 1),
            "share": round(share, 4),
            "time_share": round(seconds / passed, 3),
        }


async def measure(asked: argparse.Namespace) -> dict[str, Any]:
    """Run a swarm, and return its results."""
    from sfnode import swarm as local_swarm
    from sfnode.manifest import Manifest
    from sfnode.preparing.manifest import build
    from sfnode.store.run_keys import RunKeys

    numbers = {"update_budget": asked.budget} if asked.budget else {}
    run = Manifest.from_toml(asked.run) if asked.run else build(numbers | RunKeys.generate().options())
    count = asked.nodes - asked.hostile if asked.attack == "absent" else asked.nodes
    honest = asked.nodes - asked.hostile

    class Node(local_swarm.NodeProcess):
        """A node. The last ones are hostile, and the first one records its costs."""

        async def start(self, arguments: list[str], *told: str) -> None:
            if self.number == 1 or self.number > honest:
                self.program = (sys.executable, __file__, HOSTILE if self.number > honest else ORGANISER)
            await super().start([*arguments, *(asked.option if self.number == 1 else [])], *told)

    cost = Path(tempfile.mkdtemp()) / "cost.json"
    os.environ |= {ATTACK: asked.attack, "HOSTILE_AFTER": str(run.training.update_budget // asked.nodes // 2)}
    os.environ |= {COST: str(cost), FIRST: "1" if asked.first else ""}
    local_swarm.NodeProcess = Node  # type: ignore[misc]
    bases = asked.run.parent if asked.run else None
    async with local_swarm.LocalSwarm(run, nodes=count, beside=bases, folder=asked.folder) as swarm:
        begin, half = Spent.until_now(cost, 0), None
        async for progress in swarm:
            counted = progress.organised.counted if progress.organised else 0
            if asked.verbose and progress.organised:
                print(counted, progress.organised.sealed, file=sys.stderr, flush=True)
            if half is None and 2 * counted >= run.training.update_budget:
                half = Spent.until_now(cost, progress.known)
        end = Spent.until_now(cost, progress.known)
        result = await swarm.compare()
    return {
        "attack": asked.attack,
        "equal": result.equal,
        "calibrated": [result.calibrated.value, result.calibrated.loss] if result.calibrated else None,
        "after": [result.after.value, result.after.loss] if result.after else None,
        "made": result.updates,
        "counted": result.counted,
        "sealed": result.sealed,
        "seconds": result.seconds,
        "own": [node.own_updates for node in result.nodes],
        "organiser": end.shares(begin, run.update_forwards),
        "second_half": end.shares(half, run.update_forwards) if half else None,
    }


def main_of_benchmark() -> None:
    """Read the command line and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--hostile", type=int, default=3)
    attacks = ["flip", "random", "scale", "turncoat", "target", "absent"]
    parser.add_argument("--attack", default="flip", choices=attacks)
    parser.add_argument("--budget", type=int, default=0, help="updates [default: the run's]")
    parser.add_argument("--run", type=Path)
    parser.add_argument("--folder", type=Path)
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        help="of the organiser, such as --option=--set --option=organise.search=no",
    )
    parser.add_argument(
        "--first",
        action="store_true",
        help="the organiser trains nothing and has a core when it measures, as if on a machine of its own "
        "(Linux, root)",
    )
    parser.add_argument("--verbose", action="store_true")
    print(json.dumps(asyncio.run(measure(parser.parse_args()))))


if __name__ == "__main__":
    if sys.argv[1:2] == [HOSTILE]:
        be_hostile(os.environ[ATTACK])
    elif sys.argv[1:2] == [ORGANISER]:
        be_organiser(Path(os.environ[COST]))
    else:
        main_of_benchmark()

"""Updates per second that count in a local swarm whose steps cost almost nothing: the limit of the system.

    python benchmarks/rate.py [--nodes COUNT] [--seconds S] [--group M] [--epoch UPDATES] [--no-validation]

Real node processes on this machine train a model of a few hundred parameters in an organised run, as with
`sfnode swarm`. Measures, after the first WARM seals,

- the updates that count, of all nodes together,
- the CPU seconds of each node with its network daemon,
- the size of segments divided by the number of updates in them,
- all bytes that all nodes send, and the bytes of decisions, per update,
- the time from closes to seals.

Exit status 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from sfnode.errors import UserError
from sfnode.manifest import Manifest
from sfnode.preparing.manifest import build
from sfnode.schema.organising import OrganiserStatus
from sfnode.schema.status import Status
from sfnode.store.data_folder import Layout
from sfnode.store.log import UpdateLog
from sfnode.store.replay import changes
from sfnode.store.run_keys import RunKeys
from sfnode.swarm import LocalSwarm
from sfprotocol.weighing import once
from tests.node.training.test_model import ROWS, make_model

LEAST_RATE = 1000.0
"""Minimum number of updates per second that count."""

MOST_BYTES = 6.0
"""Maximum size of segments divided by the number of updates in them, in bytes."""

MOST_CONTROL = 0.1
"""Maximum bytes of decisions per byte of segments."""

MOST_USELESS = 0.01
"""Maximum share of scalars that are zero or clipped."""

WARM = 3
"""Number of seals before the measurement. After them, nodes have joined and been admitted, and the first
trees exist."""

LOOK = 0.1
"""Seconds between two checks of which epochs are closed and sealed."""


def manifest(folder: Path, group: int, epoch: int, *, validates: bool) -> Manifest:
    """Return a run of the smallest model, which is too long to end during the measurement."""
    make_model(folder)
    rows = folder / "rows.tsv"
    rows.write_text("\n".join([ROWS[0], *ROWS[1:] * 64]) + "\n")
    given: dict[str, Any] = {
        "name": "rate", "model": str(folder), "kind": "classification", "template": "{sentence} It was",
        "verbalizer": {"0": "terrible", "1": "great"}, "train": str(rows), "test": "", "group": group,
        "rank": 4, "batch_size": 2, "epoch_updates": epoch, "update_budget": 1_000_000,
        "learning_rate": 1e-6, "scalar_delta": 1 / 4096,
        **({} if validates else {"validation_limit": 0}), **RunKeys.generate().options(),
    }  # fmt: skip
    return build(given)


@dataclass
class Looks:
    """Times at which closes and seals were first observed."""

    closed: dict[int, float] = field(default_factory=dict)
    sealed: dict[int, float] = field(default_factory=dict)

    def take(self, status: OrganiserStatus) -> None:
        now = time.monotonic()
        for epoch in range(len(self.closed), status.open_epoch):
            self.closed[epoch] = now
        for epoch in range(len(self.sealed), status.sealed):
            self.sealed[epoch] = now

    def waits(self, since: float) -> list[float]:
        """Return the seconds from close to seal of each epoch that was sealed after `since`."""
        return [at - self.closed[epoch] for epoch, at in self.sealed.items() if at >= since]


@dataclass
class Moment:
    """The swarm at one moment."""

    at: float
    organised: OrganiserStatus
    statuses: tuple[Status, ...]
    cpu: list[float]
    control: int
    """Bytes of decisions."""


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a node and of its network daemon."""
    process = psutil.Process(pid)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


async def moment(swarm: LocalSwarm) -> Moment:
    """Read the status of all nodes, their CPU times and the decisions."""
    organised = await swarm.nodes[0].client.organising()
    statuses = tuple([await node.client.status() for node in swarm.nodes])
    with UpdateLog.open(Layout(swarm.nodes[0].folder).log, read_only=True) as log:
        control = sum(len(entry.record) + len(entry.signature) for entry in log.control())
    return Moment(
        time.monotonic(), organised, statuses, [cpu_seconds(status.pid) for status in statuses], control
    )


async def measure(swarm: LocalSwarm, seconds: float) -> tuple[Moment, Moment, Looks]:
    """Return the swarm after WARM seals and `seconds` later, and the closes and seals until then."""
    looks, first = Looks(), None
    while first is None or time.monotonic() - first.at < seconds:
        try:
            looks.take(organised := await swarm.nodes[0].client.organising())
        except UserError:
            await asyncio.sleep(1)
            continue
        if first is None and organised.sealed >= WARM and organised.members == len(swarm.nodes):
            first = await moment(swarm)
        await asyncio.sleep(LOOK)
    return first, await moment(swarm), looks


def useless(swarm: LocalSwarm) -> float:
    """Return the share of scalars that are zero or clipped."""
    limit, found = swarm.manifest.training.scalar_limit, [0, 0]
    with UpdateLog.open(Layout(swarm.nodes[0].folder).log, read_only=True) as log:
        for batch in changes(log, {}, {tail.feed: once(tail.next) for tail in log.tails()}):
            found[0] += int(((batch.scalars == 0) | (abs(batch.scalars) >= limit)).sum())
            found[1] += len(batch.scalars)
    return found[0] / max(1, found[1])


async def run(args: argparse.Namespace) -> int:
    """Print the figures. Return the number of missed targets."""
    missed = 0

    def line(what: str, figure: float, unit: str, least: float = 0.0, most: float = float("inf")) -> None:
        nonlocal missed
        bad = not least <= figure <= most
        missed += bad
        print(f"{what:<52} {figure:10.3f} {unit}{'  MISSED' if bad else ''}", flush=True)

    with tempfile.TemporaryDirectory(prefix="sfnode-rate-") as scratch:
        folder = Path(scratch)
        found = manifest(folder / "model", args.group, args.epoch, validates=args.validation)
        async with LocalSwarm(found, nodes=args.nodes, folder=folder / "swarm", evaluate=False) as swarm:
            first, last, looks = await measure(swarm, args.seconds)
            share = useless(swarm)
    seconds = last.at - first.at
    counted = last.organised.counted - first.organised.counted
    made = sum(status.own_updates for status in last.statuses)
    made -= sum(status.own_updates for status in first.statuses)
    sent, segments, updates = (
        sum(getattr(status, name) for status in last.statuses)
        - sum(getattr(status, name) for status in first.statuses)
        for name in ("bytes_sent", "segment_bytes_sent", "updates_sent")
    )
    waits, control = looks.waits(first.at), last.control - first.control
    line("updates that count, all nodes together", counted / seconds, "/s", least=LEAST_RATE)
    line("updates made", made / seconds, "/s")
    for number, (before, after) in enumerate(zip(first.cpu, last.cpu, strict=True), 1):
        line(f"CPU of node {number}", (after - before) / seconds, "cores")
    line("bytes of segments for each update on a link", segments / max(1, updates), "B", most=MOST_BYTES)
    line("links that an update takes", updates / max(1, made), "")
    line("everything sent for each update that is received", sent / max(1, made) / (args.nodes - 1), "B")
    per_update = control / max(1, counted)
    line(
        "bytes of decisions for each update", per_update, "B", most=MOST_CONTROL * segments / max(1, updates)
    )
    line("seals", len(waits) / seconds, "/s")
    line("seconds from close to seal, median", statistics.median(waits or [float("nan")]), "s")
    line("seconds from close to seal, longest", max(waits, default=float("nan")), "s")
    line("scalars that are zero or clipped", share, "", most=MOST_USELESS)
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--group", type=int, default=64)
    parser.add_argument("--epoch", type=int, default=3000)
    parser.add_argument("--validation", action=argparse.BooleanOptionalAction, default=True)
    sys.exit(asyncio.run(run(parser.parse_args())) > 0)


if __name__ == "__main__":
    main()

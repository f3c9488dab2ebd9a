"""Measures the resources and the work of a training node under limits and in a pause.

    python benchmarks/limits.py [--seconds 20]

The built-in run has a relay and two trainers on this machine, over hivemind. The second trainer is limited.
Exit status 1 if

- the node exceeds a limit by a tenth or more,
- a pause takes a second or longer,
- the other nodes do not train while the node is paused, or
- the node, beside a program that uses a core, keeps no more than half of the speed that the remaining cores
  allow.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import psutil

from sfnode.control.client import Client
from sfnode.store.data_folder import Layout
from tests.network.swarm import linked, trains, write_run
from tests.processes.helpers import LOOPBACK, Node, nodes

CPU = (50, 20, 5)
"""Limits in percent of all cores."""

RATES = (2000, 1000)
"""Limits in bytes per second."""

SETTLE = 5.0
"""Seconds between a change and a measurement. They are longer than the interval of sensor readings, and than
a full token bucket lasts."""

CROWDED = 0.5
"""Minimum speed of a node while another program uses a core, as a share of the speed that the other cores
allow."""

PAUSES = 10
"""Number of pauses to time."""

TOLERANCE = 1.1
"""Factor by which a limit may be exceeded."""

MAX_PAUSE = 1.0
"""Maximum seconds until a pause is confirmed."""

Row = tuple[str, str, bool]
"""Limit, measurement, and whether the limit is kept."""


class Window(NamedTuple):
    """Mean use of resources by a node over some seconds."""

    cpu: float
    """Percentage of all cores."""
    updates: float
    """Own updates per second."""
    sent: float
    """Bytes per second; likewise `received`."""
    received: float


def ask(node: Node, name: str, *arguments: Any) -> Any:
    client = Client(Layout(node.folder).control_socket)
    return asyncio.run(getattr(client, name)(*arguments))


def used(node: Node) -> float:
    times = psutil.Process(node.pid).cpu_times()
    return float(times.user + times.system)


def watch(node: Node, seconds: float) -> Window:
    start, cpu, before = time.monotonic(), used(node), ask(node, "status")
    time.sleep(seconds)
    took, after = time.monotonic() - start, ask(node, "status")
    return Window(
        100 * (used(node) - cpu) / took / (psutil.cpu_count() or 1),
        (after.own_updates - before.own_updates) / took,
        (after.bytes_sent - before.bytes_sent) / took,
        (after.bytes_received - before.bytes_received) / took,
    )


def limited(node: Node, name: str, value: float | None, seconds: float) -> Window:
    ask(node, "limit", {name: value})
    time.sleep(SETTLE)
    seen = watch(node, seconds)
    ask(node, "limit", {name: None})
    return seen


def shares(node: Node, free: Window, seconds: float) -> Iterator[Row]:
    for percent in CPU:
        seen = limited(node, "cpu", percent, seconds)
        words = f"{seen.cpu:.1f} % of all cores, {seen.updates:.1f} updates/s"
        binds = percent < free.cpu
        yield f"cpu {percent}", words if binds else f"does not bind: {words}", seen.cpu < percent * TOLERANCE


def rates(node: Node, seconds: float) -> Iterator[Row]:
    for name, field in (("upload_rate", "sent"), ("download_rate", "received")):
        free = getattr(watch(node, seconds), field)
        for rate in RATES:
            seen = getattr(limited(node, name, rate, seconds), field)
            words = f"{seen:.0f} bytes/s {field}; {free:.0f} without"
            yield (
                f"{name} {rate}",
                words if rate < free else f"does not bind: {words}",
                seen < rate * TOLERANCE,
            )


def pauses(node: Node) -> Row:
    """Measure the time until a pause is confirmed, and the number of updates that are still counted after
    that."""
    answers, late = [], []
    for _ in range(PAUSES):
        node.until("it trains", lambda status: status.state == "training" and status.updates_per_second > 0)
        start = time.monotonic()
        own = ask(node, "pause", None).own_updates
        answers.append(time.monotonic() - start)
        time.sleep(SETTLE)
        late.append(ask(node, "status").own_updates - own)
        ask(node, "resume")
    words = f"answered in {1000 * statistics.median(answers):.0f} ms, {1000 * max(answers):.0f} at most"
    return "pause", f"{words}; {max(late)} updates under way still count", max(answers) < MAX_PAUSE


def paused(node: Node, other: Node, seconds: float) -> Row:
    """Measure the resources of a paused node, and check that it receives the others' updates."""
    ask(node, "pause", None)
    time.sleep(SETTLE)
    seen, theirs = watch(node, seconds), watch(other, seconds)
    there = other.status()
    assert there is not None
    node.until("it has what the others had", lambda status: status.known >= there.known)
    ask(node, "resume")
    words = f"{seen.cpu:.1f} % of all cores; the other makes {theirs.updates:.1f} updates/s, and they arrive"
    return "while paused", words, seen.updates == 0 and theirs.updates > 0


def crowded(node: Node, other: Node, seconds: float) -> Row:
    """Measure a node without a limit on threads, alone and beside a program that keeps a core busy."""
    ask(other, "pause", None)
    ask(node, "limit", {"threads": None})
    time.sleep(SETTLE)
    alone = watch(node, seconds)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        time.sleep(SETTLE)
        beside = watch(node, seconds)
        busy.kill()
    ask(other, "resume")
    cores = psutil.cpu_count() or 1
    words = f"{beside.updates:.1f} updates/s, {alone.updates:.1f} alone"
    return "a core for another program", words, beside.updates > CROWDED * alone.updates * (cores - 1) / cores


def finishes(node: Node) -> Row:
    node.until("it trains", lambda status: status.state == "training")
    start = time.monotonic()
    ask(node, "finish")
    status = node.wait()
    return "finish", f"left after {time.monotonic() - start:.1f} s with status {status}", status == 0


def rows(node: Node, other: Node, seconds: float) -> Iterator[Row]:
    free = watch(node, seconds)
    yield "no limit", f"{free.cpu:.1f} % of all cores, {free.updates:.1f} updates/s", True
    yield from shares(node, free, seconds)
    yield from rates(node, seconds)
    yield pauses(node)
    yield paused(node, other, seconds)
    yield crowded(node, other, seconds)
    yield finishes(node)


@click.command()
@click.option("--seconds", default=20.0, show_default=True, help="Length of each measurement.")
def main(seconds: float) -> None:
    os.environ["OMP_NUM_THREADS"] = str(psutil.cpu_count() or 1)  # the default of a node without --threads
    fine = True
    with tempfile.TemporaryDirectory() as folder, nodes(Path(folder)) as make:
        write_run(Path(folder))
        relay = make("relay", "--run", "run.toml", "--role", "relay", *LOOPBACK).start()
        join = "--peers", relay.address(), *LOOPBACK
        other = make("other", *join, "--threads", 1).start()
        node = make("node", *join, "--threads", 2).start()
        trains(other)
        trains(node)
        linked(node, relay)
        print("| asked for | seen |\n|---|---|")
        for what, seen, passes in rows(node, other, seconds):
            print(f"| {what} | {seen}{'' if passes else ' (!)'} |", flush=True)
            fine = fine and passes
    sys.exit(not fine)


if __name__ == "__main__":
    main()

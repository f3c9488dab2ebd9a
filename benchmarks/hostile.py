"""Measures memory, CPU time and speed of a training node before, during and after attacks.

    python benchmarks/hostile.py [--seconds 10]

The built-in run has a trainer and a relay on this machine, over hivemind. A hostile libp2p peer makes one
attack after the other (described in tests/network/attacker.py), on the same cores at low priority. Exit
status 1 if the node does not recover.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from tests.network.attack_costs import Meter, Row, attacker
from tests.network.attacker import ATTACKS
from tests.network.swarm import linked, trains, write_run
from tests.processes.helpers import LOOPBACK, nodes

RECOVERED = 0.75
"""Minimum share of its former speed that a recovered node has. Without attacks, two measurements differ by a
tenth."""

HEAD = "| | updates/s | updates/CPU s | node CPU | p2pd CPU | node MiB | p2pd MiB | the attacker |"


def line(row: Row) -> str:
    did = ", ".join(f"{what} {count:,}" for what, count in row.did.items() if isinstance(count, int))
    speeds = f"{row.updates_per_second:.1f} | {row.updates_per_cpu_second:.1f}"
    shares = f"{speeds} | {row.node_cpu:.0%} | {row.daemon_cpu:.0%}"
    name = row.name.replace("_", " ")
    return f"| {name} | {shares} | {row.node_rss:.0f} | {row.daemon_rss:.0f} | {did} |"


@click.command()
@click.option(
    "--seconds",
    default=10.0,
    show_default=True,
    help="Length of each attack, and of the measurements before and after.",
)
def main(seconds: float) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        nodes(Path(folder)) as make,
        attacker(Path(folder)) as enemy,
    ):
        write_run(Path(folder))
        relay = make("relay", "--run", "run.toml", "--role", "relay", *LOOPBACK).start()
        node = make("node", "--peers", relay.address(), *LOOPBACK).start()
        trains(node)
        linked(node, relay)
        meter = Meter(node)
        print(HEAD)
        print("|---" * (HEAD.count("|") - 1) + "|")
        before = meter.watch("before", seconds)
        print(line(before), flush=True)
        for name in ATTACKS:
            print(line(meter.attack(enemy, name, seconds)), flush=True)
        after = meter.watch("after", seconds)
        print(line(after))
    sys.exit(after.updates_per_second < RECOVERED * before.updates_per_second)


if __name__ == "__main__":
    main()

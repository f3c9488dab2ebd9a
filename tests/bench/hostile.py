"""What attacks cost a training node: memory, processor time and training speed, before, during and after.

    python tests/bench/hostile.py [--seconds 10]

A trainer and a relay of the built-in run on this machine, over hivemind, and a libp2p peer that does
everything wrong, one attack after the other (tests/network/network_stranger.py says what each is). The
attacker runs on the same cores, but gets what others leave. Exit status 1 when the node does not come back to
what it was.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "network"), str(TESTS / "processes")]

from network_siege import Gauge, Row, stranger  # noqa: E402
from network_stranger import ATTACKS  # noqa: E402
from network_swarm import linked, trains, write_run  # noqa: E402
from process_helpers import LOOPBACK, nodes  # noqa: E402

BACK = 0.75
"""Share of the former speed at which a node has recovered; two windows of a quiet node differ by a tenth."""

HEAD = "| | updates/s | updates/CPU s | node CPU | p2pd CPU | node MiB | p2pd MiB | the attacker |"


def line(row: Row) -> str:
    did = ", ".join(f"{what} {count:,}" for what, count in row.did.items() if isinstance(count, int))
    speeds = f"{row.updates_per_second:.1f} | {row.updates_per_cpu_second:.1f}"
    shares = f"{speeds} | {row.node_cpu:.0%} | {row.daemon_cpu:.0%}"
    name = row.name.replace("_", " ")
    return f"| {name} | {shares} | {row.node_rss:.0f} | {row.daemon_rss:.0f} | {did} |"


@click.command()
@click.option(
    "--seconds", default=10.0, show_default=True, help="Of each attack, and of the quiet before and after."
)
def main(seconds: float) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        nodes(Path(folder)) as make,
        stranger(Path(folder)) as enemy,
    ):
        write_run(Path(folder))
        relay = make("relay", "--run", "run.toml", "--role", "relay", *LOOPBACK).start()
        node = make("node", "--peers", relay.address(), *LOOPBACK).start()
        trains(node)
        linked(node, relay)
        gauge = Gauge(node)
        print(HEAD)
        print("|---" * (HEAD.count("|") - 1) + "|")
        before = gauge.watch("before", seconds)
        print(line(before), flush=True)
        for name in ATTACKS:
            print(line(gauge.attack(enemy, name, seconds)), flush=True)
        after = gauge.watch("after", seconds)
        print(line(after))
    sys.exit(after.updates_per_second < BACK * before.updates_per_second)


if __name__ == "__main__":
    main()

"""Measures what strangers cost an organised run: speed for each CPU second, and what they leave on disk.

    python tests/bench/attacks.py [--seconds 6] [--pairs 5] [--only updates ...]

The organiser and another trainer of a run of the built-in task, over hivemind, and a peer whom nobody has
admitted. It makes one attack after the other on the organiser (tests/network/strangers.py), each in turns
with times of peace, since the speed of a machine drifts; the figure is the median of the ratios of
neighbouring times. Then the owner ends the run. Exit status 1 when an attack leaves less than LEAST_SPEED of
the speed, the nodes end with different digests, or something of a stranger is in a node's log.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

import click

from tests.network.attack_costs import Meter, attacker
from tests.network.organised import end_run, invited, kept_of_strangers, organising, write_organised_run
from tests.network.strangers import STRANGERS
from tests.network.swarm import agreement, linked, no_tracebacks, trains
from tests.processes.helpers import LOOPBACK, nodes

LEAST_SPEED = 0.8
"""Share of the speed for each CPU second that a run keeps under attack."""

HEAD = "| attack | speed | lowest, highest | frames/s | kB/s | identities |"


@click.command()
@click.option("--seconds", default=6.0, show_default=True, help="Length of each attack and each peace.")
@click.option("--pairs", default=5, show_default=True, help="How often an attack is made.")
@click.option("--only", multiple=True, type=click.Choice(list(STRANGERS)), help="Attacks to make.")
def main(seconds: float, pairs: int, only: tuple[str, ...]) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        nodes(Path(folder)) as make,
        attacker(Path(folder)) as enemy,
    ):
        home = Path(folder)
        # Nobody waits for the next epoch or reaches the end, and nothing is evaluated meanwhile.
        settings = {"update_budget": 1 << 28, "epoch_updates": 1 << 13, "validation_limit": 0}
        manifest = write_organised_run(home, quota=1 << 20, **settings)
        organiser = make("organiser", *organising(home)).start()
        trains(organiser)
        other = make("other", invited(home, organiser), *LOOPBACK).start()
        trains(other)
        linked(organiser, other)
        meter, slow = Meter(organiser), []
        print(HEAD)
        print("|---" * (HEAD.count("|") - 1) + "|")
        for name in only or STRANGERS:
            ratios, rows = [], []
            for _ in range(pairs):
                peace = meter.watch("peace", seconds)
                rows.append(meter.attack(enemy, name, seconds))
                ratios.append(rows[-1].updates_per_cpu_second / peace.updates_per_cpu_second)
            length = sum(row.seconds for row in rows)
            frames, sent, came = (
                sum(row.did.get(what, 0) for row in rows) for what in ("frames", "bytes", "identities")
            )
            speed = statistics.median(ratios)
            told = f"{speed:.2f} | {min(ratios):.2f}, {max(ratios):.2f}"
            figures = f"{frames / length:,.0f} | {sent / length / 1000:,.0f} | {came}"
            print(f"| {name.replace('_', ' ')} | {told} | {figures} |", flush=True)
            if speed < LEAST_SPEED:
                slow.append(name)
        end_run(organiser)
        final = agreement([organiser, other])
        no_tracebacks([organiser, other])
        kept = [kept_of_strangers(node.folder, manifest) for node in (organiser, other)]
        print(
            f"\nequal digests {final[0].digest[:16]} after {final[0].known:,} updates; of strangers: {kept}"
        )
        sys.exit(bool(slow) or any(map(any, kept)))


if __name__ == "__main__":
    main()

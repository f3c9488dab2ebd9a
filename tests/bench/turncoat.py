"""Measures what a member does to an organised run that says the opposite of what it measures.

    python tests/bench/turncoat.py [--epochs 4] [--quota 256] [--only]

The organiser and another trainer train the built-in task for some epochs. Then the organiser invites a node
that multiplies its measurements by a large negative number, for as many epochs; revokes it and voids these
epochs; and goes on for as many epochs. Prints what each seal's evaluation says.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import click

from sfnode.control.client import SyncClient
from sfnode.store.data_folder import Layout
from sfprotocol import decisions
from sfprotocol.decisions import Revoke, Void
from tests.network.organised import end_run, invited, organising, write_organised_run
from tests.network.swarm import agreement, linked, trains
from tests.processes.helpers import LOOPBACK, Node, nodes, until

TURNCOAT = (sys.executable, str(Path(__file__).parents[1] / "network" / "turncoat.py"))
EPOCH = 256
PATIENCE = 600.0


class Told:
    """The evaluations that the organiser has published, printed as they come."""

    def __init__(self, node: Node) -> None:
        self._client = SyncClient(Layout(node.folder).control_socket)
        self._seen: set[tuple[int, bool]] = set()

    def epochs(self, count: int, what: str) -> None:
        """Wait for the evaluations of so many more sealed epochs."""
        said = self._client.organising()
        last = said.open_epoch + count
        give_up = time.monotonic() + PATIENCE
        while said.sealed < last and time.monotonic() < give_up:
            said = self._client.organising()
            for one in said.evaluations:
                if (one.epoch, one.base) not in self._seen:
                    self._seen.add((one.epoch, one.base))
                    name = "base model" if one.base else f"epoch {one.epoch}"
                    value = f"{one.value:.3f} | {one.loss:.3f}"
                    print(f"| {what} | {name} | {value} | {said.health.verdict.value} |", flush=True)
            time.sleep(0.2)

    def decide(self, decision: decisions.Decision) -> None:
        result = self._client.decide(decisions.encode(decision))
        assert result.signed, result

    @property
    def sealed(self) -> int:
        return self._client.organising().sealed


@click.command()
@click.option("--epochs", default=4, show_default=True, help="Sealed epochs of each part.")
@click.option("--quota", default=EPOCH, show_default=True, help="Updates of a member for each epoch.")
@click.option("--only", is_flag=True, help="Void the turncoat's updates alone, not all of these epochs.")
def main(epochs: int, quota: int, only: bool) -> None:
    with tempfile.TemporaryDirectory() as folder, nodes(Path(folder)) as make:
        home = Path(folder)
        settings = {"batch_size": 8, "epoch_updates": EPOCH, "update_budget": 10**6}
        write_organised_run(home, quota=quota, **settings)
        organiser = make("organiser", *organising(home)).start()
        trains(organiser)
        other = make("other", invited(home, organiser), *LOOPBACK).start()
        trains(other)
        linked(organiser, other)
        told = Told(organiser)
        print("| who is there | seal | accuracy | loss | health |\n|---|---|---|---|---|")
        told.epochs(epochs, "honest")
        first = told.sealed
        turncoat = make("turncoat", invited(home, organiser), *LOOPBACK, inside=TURNCOAT).start()
        trains(turncoat)
        told.epochs(epochs, f"and a turncoat, quota {quota} of {EPOCH}")
        told.decide(Revoke(2, 0))
        until("all sealed", lambda: told.sealed > first)
        told.decide(Void(first, told.sealed - 1, (2,) if only else ()))
        told.epochs(epochs, "revoked and void")
        end_run(organiser)
        print(f"\nequal digests: {agreement([organiser, other])[0].digest[:16]}")


if __name__ == "__main__":
    main()

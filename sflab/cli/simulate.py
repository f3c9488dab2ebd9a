"""`sfnode simulate`: networks and training runs that exist on this machine alone."""

from __future__ import annotations

import click

from sfnode.cli.lazy_group import Entry, LazyGroup

COMMANDS = {
    "network": Entry("sflab.cli.simulate_network:network", "Nodes, faults and attacks on a virtual clock."),
    "training": Entry("sflab.cli.simulate_training:training", "Train many virtual clients in one process."),
    "sweep": Entry("sflab.cli.simulate_sweep:sweep", "Train with every combination of some numbers."),
    "paper": Entry("sflab.cli.simulate_paper:paper", "Compare the methods of the SeedFlood paper."),
    "report": Entry("sflab.cli.simulate_paper:report", "Write the report of a results folder."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def simulate() -> None:
    """Try the protocol on simulated networks, and training on virtual clients. Nothing is sent."""

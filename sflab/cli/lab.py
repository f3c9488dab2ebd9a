"""`sfnode lab`: what researchers measure and simulate, which is beside the product."""

from __future__ import annotations

import click

from sfnode.cli.groups import LazyGroup

COMMANDS = {
    "simulate": ("sflab.cli.simulate", "Simulate networks under faults, and training."),
    "bench": (
        "sflab.cli.bench",
        "Show what this machine can do with a model.",
        "bench --model shape:opt-125m",
    ),
}


@click.group(cls=LazyGroup, entries={"Commands": COMMANDS}, path="lab")
def lab() -> None:
    """Measure this machine, and simulate networks and training. Nothing is sent."""

"""Trains a swarm on different devices, and checks that all nodes end with the same digest.

    python benchmarks/devices.py --device cpu --device cuda [--task sums] [--nodes 4]

Nodes take the devices in turn. Two devices would measure slightly different scalars for one update. But no
update is measured twice, and the exact sum does not depend on the device that adds it up. Exit status 1 if
digests differ.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import click

from sfnode.preparing.manifest import build
from sfnode.store.run_keys import RunKeys
from sfnode.swarm import LocalSwarm
from sfnode.tasks.presets import PRESETS


async def trained(task: str, nodes: int, devices: Sequence[str]) -> bool:
    """Train one run to its end. Return whether all digests are equal."""
    manifest = build({"preset": task} | RunKeys.generate().options())
    async with LocalSwarm(manifest, nodes=nodes, device=devices) as swarm:
        async for _ in swarm:
            pass
        found = await swarm.compare()
    print(found.model_dump_json(indent=2))
    return found.equal


@click.command()
@click.option("--device", "devices", multiple=True, default=("cpu",))
@click.option("--task", type=click.Choice(sorted(PRESETS)), default="sums")
@click.option("--nodes", type=int, default=4)
def main(devices: Sequence[str], task: str, nodes: int) -> None:
    sys.exit(not asyncio.run(trained(task, nodes, devices)))


if __name__ == "__main__":
    main()

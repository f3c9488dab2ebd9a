"""A swarm whose nodes compute on different devices, and whether all end with the same digest.

    python benchmarks/devices.py --device cpu --device cuda [--task sums] [--nodes 4]

Nodes take turns at the devices. Scalars that two devices would measure for one update differ in their last
bits; nobody measures an update twice, and its exact sum does not depend on who adds it up. Exit status 1 if
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
    """Train one run to its end; return whether all agree."""
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

"""Measures the bytes of an update on the wire for several step times, with and without coalescing (SPEC I4).

    python benchmarks/joining.py [--nodes COUNT ...] [--paces S ...] [--epochs E ...] [--network]

Every node makes an update every `--paces` seconds. The first figure is the size of segments in bytes, divided
by the number of updates in them. Segments count where the origin sends them and where others forward them. In
the column `before`, coalescing is off, and nodes sign ten times a second. By default there are no links: a
signed segment reaches all other nodes after LATENCY. This takes minutes for 1,000 nodes. With `--network` the
simulator sends segments over links, 6 per node, which would take hours for 1,000 nodes. The second figure is
then the number of bytes that all nodes send, announcements and summaries included, per update that a node
receives. Time is virtual: the figures do not depend on the machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import closing
from random import Random
from unittest.mock import patch

from sflab.simulator.world.computer import Computer
from sflab.simulator.world.runs import OPEN_RUN, TOPOLOGIES
from sflab.simulator.world.trace import Traffic
from sflab.simulator.world.world import World
from sfprotocol import own_feed
from tests.protocol.authors import Swarm, parameters

NODES, PACES = (10, 100, 1000), (0.1, 1.0, 10.0)

EPOCHS = (1024, 20_000, 200_000)
"""Numbers of updates of an epoch: a manifest's default, and numbers at which each of 100, or of 1,000, nodes
makes 20 updates in a tenth of an epoch."""

LINKS_UP = 3.0
"""Seconds until all links are open."""


def spans(pace: float, joined: bool) -> tuple[float, float]:
    """Return the seconds in which trees and coalescing settle, and the seconds to measure after them."""
    if not joined:
        return 3 * pace + 2, 2 * pace
    return max(64 * min(pace, 1.0), 5 * pace), max(32 * min(pace, 1.0), 6 * pace)


def authors(nodes: int, pace: float, epoch_updates: int, joined: bool) -> float:
    """Return the size of segments divided by the number of updates in them, in bytes, without links."""
    warm, measured = spans(pace, joined)
    return Swarm(parameters(epoch_updates), [pace] * nodes).play(warm, measured).bytes_per_update


def network(nodes: int, pace: float, epoch_updates: int, joined: bool) -> tuple[float, float]:
    """Return the size of segments divided by the number of updates in them, and all bytes sent per update
    that a node receives."""
    warm, measured = spans(pace, joined)
    with closing(world_of(nodes, pace, epoch_updates)) as world:
        world.run_until(LINKS_UP + warm)
        traffic = world.traffic = Traffic()
        world.run_until(world.now + measured)
    return traffic.bytes["Segment"] / traffic.copies_sent, sum(traffic.bytes.values()) / traffic.deliveries


def world_of(nodes: int, pace: float, epoch_updates: int) -> World:
    """Return a network whose nodes make an update every `pace` seconds, not synchronously."""
    training = OPEN_RUN.training.model_copy(update={"epoch_updates": epoch_updates})
    world, random = World(0, manifest=OPEN_RUN.model_copy(update={"training": training})), Random(0)
    names = [f"n{index}" for index in range(nodes)]
    for name in names:
        world.later(0, world.add(name).start)
    for one, other in TOPOLOGIES["random"](names, random):
        world.want(world[one], world[other])
    for name in names:
        world.later(LINKS_UP + random.uniform(0, pace), _steps(world, world[name], pace))
    return world


def _steps(world: World, node: Computer, pace: float) -> Callable[[], None]:
    def step() -> None:
        node.step(pace)
        world.later(pace, step)

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=NODES)
    parser.add_argument("--paces", type=float, nargs="+", default=PACES, help="seconds of a step")
    parser.add_argument("--epochs", type=int, nargs="+", default=EPOCHS, help="updates of an epoch")
    parser.add_argument("--network", action="store_true", help="over links, not for 1,000 nodes")
    given = parser.parse_args()
    print(f"{'nodes':>6} {'s a step':>8} {'epoch':>8} {'before':>14} {'after':>14}")
    measure = network if given.network else authors
    for nodes in given.nodes:
        for pace in given.paces:
            with patch.object(own_feed, "ENOUGH", 1):
                before = _text(measure(nodes, pace, given.epochs[0], False))
            for epoch in given.epochs:
                after = _text(measure(nodes, pace, epoch, True))
                print(f"{nodes:>6} {pace:>8g} {epoch:>8} {before:>14} {after:>14}", flush=True)


def _text(figures: float | tuple[float, float]) -> str:
    return " / ".join(f"{figure:.1f}" for figure in (figures if isinstance(figures, tuple) else (figures,)))


if __name__ == "__main__":
    main()

"""Costs and speed of the protocol in simulated networks with round trips of 100 ms.

    python benchmarks/network.py [--nodes COUNT] [--large COUNT] [--seed S] [--no-attacks]

All times are virtual: the figures depend only on the seed, not on the machine. Exit status 1 if a target is
missed.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from random import Random

from sflab.simulator import invariants, runner
from sflab.simulator.faults import Fault, churn
from sflab.simulator.runner import Run, simulate
from sflab.simulator.scenarios import ATTACKS, Load, Scenario
from sflab.simulator.world.computer import Hardware
from sflab.simulator.world.runs import TOPOLOGIES
from sflab.simulator.world.trace import Traffic, quantiles
from sflab.simulator.world.world import World
from sfnode.transport.memory import CALM, HALF_ROUND_TRIP, Conditions

ROUND_TRIP = 2 * HALF_ROUND_TRIP
WARM, MEASURED = 15.0, 15.0
"""Seconds in which redundant links become lazy, and seconds to measure after them."""

LINE = 1_250_000.0
"""Bytes per second of a line with 10 Mbit/s."""

MISSING, FEEDS = 100_000, 20


class Score:
    """Prints figures beside their targets, and counts the missed targets."""

    def __init__(self) -> None:
        self.missed = 0

    def line(self, what: str, figure: float, unit: str, target: float) -> None:
        self.missed += figure > target
        verdict = "" if figure <= target else "  MISSED"
        print(f"{what:<58} {figure:8.2f} {unit:<6} (target {target:g}){verdict}", flush=True)


def steady(nodes: int, seed: int, faults: tuple[Fault, ...] = ()) -> Traffic:
    """Return the traffic of MEASURED seconds, after WARM seconds, in a network with these faults."""
    load = Load(rate=8, most=2, origins=16)
    scenario = Scenario("steady", "", nodes=nodes, load=load, seconds=WARM, faults=faults)
    with Run(scenario, seed, seconds=WARM) as run:
        run.build()
        run.disturb()
        run.world.traffic = Traffic()
        run.seconds = MEASURED
        run.disturb()
        return run.world.traffic


def recovery(seed: int, apart: float, conditions: Conditions = CALM) -> float:
    """Return the seconds until two nodes are equal, from the time at which they have a link. Before that,
    both made updates for `apart` seconds without a link."""
    with closing(World(seed, conditions=conditions, hardware=Hardware((0.001, 0.002)))) as world:
        nodes = [world.add(f"n{index}") for index in range(2)]
        for node in nodes:
            world.do(node.start)
        world.run_until(1)
        while world.now < 1 + apart:
            for node in nodes:
                world.do(node.compute, 1)
            world.run_until(world.now + 0.5)
        world.run_until(world.now + 2)
        world.do(world.want, *nodes)
        while not world.linked(*nodes):
            world.run_until(world.now + 0.005)
        return until_equal(world, world.now)


def until_equal(world: World, start: float, limit: float = 120.0) -> float:
    """Return the seconds from `start` until all nodes are equal; infinity after more than `limit` seconds."""
    while not invariants.equal(world):
        if world.now - start > limit:
            return float("inf")
        world.run_until(world.now + 0.005)
    return world.now - start


def catching_up(seed: int) -> float:
    """Return the seconds that a node with one link of 10 Mbit/s needs to get MISSING updates."""
    with closing(World(seed, conditions=Conditions(bandwidth=LINE))) as world:
        giver = world.add("giver")
        authors = [world.add(f"author{index}") for index in range(FEEDS)]
        for one, other in TOPOLOGIES["random"](
            [giver.name, *(author.name for author in authors)], Random(seed)
        ):
            world.want(world[one], world[other])
        for node in (giver, *authors):
            world.do(node.start)
        world.run_until(3)
        for author in authors:
            world.do(author.compute, MISSING // FEEDS)
        while {node.machine.frontier.known for node in (giver, *authors)} != {MISSING}:
            world.run_until(world.now + 1)
        taker = world.add("taker")
        world.do(world.want, taker, giver)
        world.do(taker.start)
        while not (taker.up and world.linked(taker, giver)):
            world.run_until(world.now + 0.005)
        return until_equal(world, world.now)


def attacks(seed: int) -> int:
    """Print the table of attacks. Return the number of attacks in which a check failed."""
    print(f"\n{runner.HEADING}")
    failures = 0
    for scenario in ATTACKS:
        outcome = simulate(scenario, seed)
        failures += outcome.failure is not None
        print(runner.line(outcome), flush=True)
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100, help="for the figures that do not say otherwise")
    parser.add_argument("--large", type=int, default=1000, help="for clean delivery in a large network")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-attacks", action="store_true")
    given = parser.parse_args()
    score = Score()
    calm = steady(given.nodes, given.seed)
    score.line(f"copies per delivery, {given.nodes} nodes with 6 links, steady", calm.copies, "", 1.5)
    churned = steady(given.nodes, given.seed, (churn(0.5),))
    score.line("the same while half of all nodes are replaced a minute", churned.copies, "", 3)
    for apart in (10.0, 100.0):
        took = recovery(given.seed, apart) / ROUND_TRIP
        score.line(f"recovery after {apart:g} s of partition, from link-up", took, "trips", 2.1)
    score.line(f"{MISSING:,} missing updates over 10 Mbit/s", catching_up(given.seed), "s", 5)
    large = steady(given.large, given.seed)
    median, late, worst = (1000 * value for value in quantiles(large.latencies))
    print(f"delivery, {given.large} nodes: median {median:.0f} ms, slowest {worst:.0f} ms")
    score.line("the same, 99th percentile", late, "ms", 400)
    score.line("the same, copies per delivery", large.copies, "", 1.5)
    return 1 if score.missed + (0 if given.no_attacks else attacks(given.seed)) else 0


if __name__ == "__main__":
    sys.exit(main())

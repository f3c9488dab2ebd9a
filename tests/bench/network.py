"""What the protocol costs and how fast it is, in simulated networks with round trips of 100 ms.

    python tests/bench/network.py [--nodes COUNT] [--large COUNT] [--seed S] [--no-attacks]

All times are virtual, so the figures do not depend on the machine; they follow from the seed. Exit status 1
when a target is missed.
"""

from __future__ import annotations

import argparse
import sys

from sflab.sim import report
from sflab.sim.attacks import ATTACKS
from sflab.sim.checks import invariants
from sflab.sim.faults.kinds import Churn, Fault
from sflab.sim.runner import Run, simulate
from sflab.sim.scenario import Load, Scenario
from sflab.sim.world.conditions import CALM, HALF_ROUND_TRIP, Conditions, Hardware
from sflab.sim.world.traffic import quantiles
from sflab.sim.world.world import World

ROUND_TRIP = 2 * HALF_ROUND_TRIP
WARM, MEASURED = 15.0, 15.0
"""Seconds in which redundant links turn lazy, and seconds that count."""

LINE = 1_250_000.0
"""Bytes a second: 10 Mbit/s."""

MISSING, FEEDS, AT_ONCE = 100_000, 20, 500


class Score:
    """Prints figures beside their targets and counts what is missed."""

    def __init__(self) -> None:
        self.missed = 0

    def line(self, what: str, figure: float, unit: str, target: float) -> None:
        self.missed += figure > target
        verdict = "" if figure <= target else "  MISSED"
        print(f"{what:<58} {figure:8.2f} {unit:<6} (target {target:g}){verdict}", flush=True)


def steady(nodes: int, seed: int, faults: tuple[Fault, ...] = ()) -> Run:
    """A network that has run for a while, with the traffic of MEASURED seconds."""
    load = Load(rate=8, most=2, origins=16)
    scenario = Scenario("steady", "", nodes=nodes, load=load, seconds=WARM, faults=faults)
    run = Run(scenario, seed, seconds=WARM)
    run.build()
    run.disturb()
    run.world.network.traffic.forget()
    run.seconds = MEASURED
    run.disturb()
    return run


def linked_pair(seed: int, apart: float, conditions: Conditions = CALM) -> tuple[World, float]:
    """Two nodes that made updates for so long apart; returns the moment the link is there."""
    world = World(seed, conditions=conditions, hardware=Hardware((0.001, 0.002)))
    nodes = [world.add(f"n{index}") for index in range(2)]
    for node in nodes:
        node.start()
    end = world.now + apart
    while world.now < end:
        for node in nodes:
            node.compute(1)
        world.agenda.run_until(world.now + 0.5)
    for node in nodes:
        node.flush()
    world.agenda.run_until(world.now + 2)
    world.keeper.want(nodes[0], nodes[1])
    return world, world.now


def until_equal(world: World, start: float, limit: float = 120.0) -> float:
    """Seconds from `start` until all are equal; infinity if that takes longer than `limit`."""
    while not invariants.equal(world):
        if world.now - start > limit:
            return float("inf")
        world.agenda.run_until(world.now + 0.005)
    return world.now - start


def catching_up(seed: int) -> float:
    """Seconds that a node takes which lacks MISSING updates and has one link of 10 Mbit/s."""
    world = World(seed, conditions=Conditions(bandwidth=LINE))
    giver, taker = world.add("giver"), world.add("taker")
    authors = [world.add(f"author{index}") for index in range(FEEDS)]
    for node in (giver, *authors):
        node.start()
    for author in authors:
        world.keeper.want(giver, author)
    for _ in range(MISSING // FEEDS // AT_ONCE):
        for author in authors:
            author.compute(AT_ONCE)
        world.agenda.run_until(world.now + 0.5)
    until_equal(world, world.now)
    assert giver.machine.frontier.known == MISSING
    taker.start()
    world.keeper.want(taker, giver)
    return until_equal(world, world.now)


def attacks(seed: int) -> int:
    """The table of attacks; how many were not survived."""
    print(f"\n{report.HEADING}")
    failures = 0
    for scenario in ATTACKS:
        outcome = simulate(scenario, seed)
        failures += outcome.failure is not None
        print(report.line(outcome), flush=True)
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100, help="for the figures that do not say otherwise")
    parser.add_argument("--large", type=int, default=1000, help="for clean delivery in a large network")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-attacks", action="store_true")
    given = parser.parse_args()
    score = Score()
    calm = steady(given.nodes, given.seed).world.network.traffic
    score.line(f"copies per delivery, {given.nodes} nodes with 6 links, steady", calm.copies, "", 1.5)
    churned = steady(given.nodes, given.seed, (Churn(0.5),)).world.network.traffic
    score.line("the same while half of all nodes are replaced a minute", churned.copies, "", 3)
    for apart in (10.0, 100.0):
        took = until_equal(*linked_pair(given.seed, apart)) / ROUND_TRIP
        score.line(f"recovery after {apart:g} s of partition, from link-up", took, "trips", 2.1)
    score.line(f"{MISSING:,} missing updates over 10 Mbit/s", catching_up(given.seed), "s", 5)
    large = steady(given.large, given.seed).world.network.traffic
    median, late, worst = (1000 * value for value in quantiles(large.latencies))
    print(f"delivery, {given.large} nodes: median {median:.0f} ms, slowest {worst:.0f} ms")
    score.line("the same, 99th percentile", late, "ms", 400)
    score.line("the same, copies per delivery", large.copies, "", 1.5)
    return 1 if score.missed + (0 if given.no_attacks else attacks(given.seed)) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs random scenarios with random seeds for some time: `python -m tests.fuzz.soak --seconds 600`.

Prints the number of runs per minute and, for every failure, the command that repeats it. All seeds follow
from the first one, which is printed.
"""

from __future__ import annotations

import argparse
import sys
import time
from random import Random

from sflab.simulator import runner
from sflab.simulator.runner import Outcome, simulate
from sflab.simulator.scenarios import SCENARIOS
from sflab.simulator.world.runs import topologies

PATIENCE = 120.0
"""Seconds of real time after which a run counts as hanging."""

SIZES = (5, 30)
"""Least and largest number of honest nodes."""

USUAL = 0.7
"""Share of the runs that keep the scenario's own topology."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="of real time")
    parser.add_argument("--first", type=int, default=int(time.time()), help="what the seeds follow from")
    parser.add_argument(
        "--scenario", action="append", choices=sorted(SCENARIOS), help="only this; repeatable"
    )
    given = parser.parse_args(arguments)
    print(f"soaking for {given.seconds:g} s; the seeds follow from --first {given.first}", flush=True)
    failures = soak(given.seconds, Random(given.first), given.scenario or list(SCENARIOS))
    return 1 if failures else 0


def soak(seconds: float, random: Random, chosen: list[str]) -> list[Outcome]:
    """Run until `seconds` of real time are over; return what failed."""
    start = time.monotonic()
    runs, failures = 0, []
    while time.monotonic() - start < seconds:
        outcome = one(random, chosen)
        runs += 1
        if outcome.failure:
            failures.append(outcome)
            print("\n".join(runner.lines(outcome)), flush=True)
    pace = runs * 60 / (time.monotonic() - start)
    print(f"{runs} runs, {pace:.0f} a minute, {len(failures)} failures")
    for outcome in failures:
        print(f"  {outcome.command}")
    return failures


def one(random: Random, chosen: list[str]) -> Outcome:
    """Run a random scenario, with a random seed and size and perhaps a random topology."""
    scenario = SCENARIOS[random.choice(chosen)]
    as_usual = random.random() < USUAL or scenario.attack
    topology = scenario.topology if as_usual else random.choice(topologies())
    return simulate(
        scenario,
        random.getrandbits(32),
        nodes=scenario.nodes if scenario.attack else random.randint(*SIZES),
        topology=topology,
        patience=PATIENCE,
    )


if __name__ == "__main__":
    sys.exit(main())

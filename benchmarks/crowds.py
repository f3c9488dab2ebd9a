"""Measures how many updates of honest members are lost to strangers who use all their rights.

    python -m benchmarks.crowds [ATTACK ...] [--seeds 25] [--seconds 240] [--blind]

Runs on a virtual clock, with the shipped organiser, fold and rules (`tests.organising.town`). Two members and
two strangers are honest, and make four updates per second. The attackers join `--late` seconds after them.
Prints the honest updates made and counted, as shares of those without an attack, and the attackers' updates
made, stored and listed. The judge skips hostile work; with `--blind`, it counts all work. With `--costs`,
prints memory and CPU time of the fold with many strangers instead.
"""

from __future__ import annotations

import argparse
import statistics
import time
import tracemalloc
from collections.abc import Callable

from sfnode.organising.rules import MOVES_PER_CLOSE
from sfprotocol.decisions import INCARNATIONS, Recorded
from sfprotocol.run_state import RunState
from tests.organising.town import Person, Town, all_at_once, turncoat, work, zeros
from tests.protocol.organised import admit, close, seal

Acts = Callable[[Town, Person], None]

ATTACKS: dict[str, tuple[int, float, Acts | None]] = {
    "zeros": (1, 4.0, zeros),
    "slow": (1, 0.4, work),
    "three colluding, large": (3, 4.0, all_at_once),
    "three colluding, zeros": (3, 4.0, zeros),
    "turncoat, zeros": (1, 4.0, turncoat(1000, zeros)),
    "turncoat, large": (1, 4.0, turncoat(1000, all_at_once)),
    "three turncoats, large": (3, 4.0, turncoat(1000, all_at_once)),
    "a hundred": (100, 4.0, all_at_once),
    "a thousand": (1000, 4.0, all_at_once),
}


def course(name: str | None, seed: int, seconds: float, *, told: bool, late: float) -> dict[str, float]:
    """Run the attack `name`, or no attack if None. Return the rates of updates."""
    count, pace, acts = ATTACKS[name] if name else (0, 0.0, None)
    town = Town(seed, told=told)
    honest = town.begin()
    for person in honest:
        person.pace *= town.random.uniform(0.9, 1.1)
    town.advance(late)
    turns = bool(name and "turncoat" in name)
    others = [
        Person(f"evil {n}", pace, acts=acts, hostile=not turns and acts is not work) for n in range(count)
    ]
    for other in others:
        town.admit(other)
    before = town.control_bytes
    made, counted = sum(p.made for p in honest), town.counts(honest)
    town.advance(seconds)
    closes = len(town.closes)
    return {
        "made": (sum(p.made for p in honest) - made) / seconds,
        "count": (town.counts(honest) - counted) / seconds,
        "all count": town.run_state.counted / (seconds + late),
        "closes": closes / (seconds + late),
        "held": sum(p.made for p in others) / max(1, closes),
        "named": town.named(others) / max(1, closes),
        "theirs count": town.counts(others) / max(1, closes),
        "control": (town.control_bytes - before) / max(1, closes) / max(1, count),
    }


def table(names: list[str], seeds: int, seconds: float, *, told: bool, late: float) -> None:
    """Print a line for each attack in `names`."""
    peace = [course(None, seed, seconds, told=told, late=late) for seed in range(seeds)]
    print(f"judge {'told' if told else 'blind'}, they come after {late:g} s; peace: {_means(peace)}")
    for name in names:
        few = max(1, seeds // 12) if ATTACKS[name][0] >= 1000 else seeds
        started = time.perf_counter()
        found = [course(name, seed, seconds, told=told, late=late) for seed in range(few)]
        parts = {
            what: [one[what] / peace[seed][what] for seed, one in enumerate(found)]
            for what in ("made", "count")
        }
        told_of = ", ".join(
            f"{what} {statistics.mean(p):.2f} (least {min(p):.2f})" for what, p in parts.items()
        )
        wall = time.perf_counter() - started
        print(f"  {name} [{few} seeds, {wall:.0f} s]: {told_of}; {_means(found)}", flush=True)


def _means(found: list[dict[str, float]]) -> str:
    return ", ".join(f"{what} {statistics.mean(one[what] for one in found):.3g}" for what in found[0])


def costs(strangers: int) -> None:
    """Print the memory and CPU time of the fold with this number of strangers, before and after they get
    credit."""
    tracemalloc.start()
    run_state = RunState(budget=1 << 30, rate=1, epoch_updates=1024)
    run_state.apply(Recorded(admit(0, 4096)))
    before = tracemalloc.get_traced_memory()[0]
    for member in range(1, strangers + 1):
        run_state.apply(Recorded(admit(member, 0)))
    admitted = (tracemalloc.get_traced_memory()[0] - before) / strangers
    tracemalloc.stop()
    print(f"{strangers} strangers: {admitted:.0f} bytes each as they are admitted")
    run_state.apply(Recorded(close(0, {0: 100})))
    run_state.apply(Recorded(seal(0)))
    named = {INCARNATIONS * member: 1 for member in range(1, min(strangers, MOVES_PER_CLOSE - 1) + 1)}
    for epoch in range(1, 21):
        taken = []
        for decision in (close(epoch, {0: 100, **named}), seal(epoch)):
            started = time.process_time()
            run_state.apply(Recorded(decision))
            taken.append(1000 * (time.process_time() - started))
        if epoch in (1, 2, 20):
            credit = sum(run_state.credit(member) > 0 for member in range(1, strangers + 1))
            print(f"  epoch {epoch}: close {taken[0]:.1f} ms, seal {taken[1]:.1f} ms, {credit} have credit")


def main() -> None:
    """Measure the attacks named on the command line, by default all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attacks", nargs="*", default=[])
    parser.add_argument("--seeds", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--late", type=float, default=60.0)
    parser.add_argument("--blind", action="store_true")
    parser.add_argument("--costs", action="store_true")
    given = parser.parse_args()
    if given.costs:
        for strangers in (1_000, 10_000):
            costs(strangers)
        return
    names = given.attacks or list(ATTACKS)
    table(names, given.seeds, given.seconds, told=not given.blind, late=given.late)


if __name__ == "__main__":
    main()

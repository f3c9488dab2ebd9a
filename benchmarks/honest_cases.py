"""Measures the pace of honest members: updates made and counted per virtual second.

    python -m benchmarks.honest_cases [CASE ...] [--seconds 600] [--json FILE]

Shipped nodes run in the simulator, with round trips of 100 ms. The organiser has the shipped policy. Its
searches change nothing, and the mean score of an update is DRIFT (`sfnode.organising.evaluation.evidence`).
`--against FILE` also prints the ratio of each figure to that in FILE, which another version has written.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from sflab.simulator.world import engine, runs, world
from sflab.simulator.world.computer import Computer
from sflab.simulator.world.runs import regular
from sfnode.manifest import Manifest
from sfnode.node.organising import Organising
from sfnode.organising.evaluation.line_search import SearchResult
from sfnode.organising.events import Evaluate, EvaluationEnded
from sfnode.organising.policy import Admission, OrganiserPolicy
from sfnode.schema.measurements import StepShare
from sfprotocol.decisions import Admit
from sfprotocol.messages import RunParameters
from sfprotocol.run_state import RunState

EPOCH, QUOTA, BUDGET = 1024, 4096, 1 << 20

DRIFT = 0.3
"""Mean score of an update, as in runs that have learnt the easy part of their task."""

ANSWER = 0.2
"""Duration of a search, in seconds."""

POLICY = OrganiserPolicy(
    target_updates=EPOCH,
    seal_wait=60.0,
    admission=Admission.ANYONE,
    work_bits=0,
    quota=QUOTA,
    search_rows=64,
    update_forwards=32,
)

UP = 2.0
"""Seconds until the organiser starts."""

JOIN, CROWD = 120.0, 24
"""Seconds until late members join, and number of late members. More would take too long: with a hundred nodes
a virtual second takes ten real seconds."""


@dataclass(frozen=True)
class Case:
    """Members and policy of a case."""

    policy: OrganiserPolicy = POLICY
    pace: tuple[float, ...] = (4.0, 4.0, 4.0, 4.0)
    """Updates per second of each initial node, the organiser's first."""
    vouched: bool = False
    """Whether the organiser vouches for the others."""
    zeros: float = 0.0
    """Share of updates whose scalar is 0."""
    joiners: int = 0
    loses_disk: bool = False
    """Whether the last initial node loses its log after JOIN seconds."""


WITH_ORIGINS = replace(POLICY, origins=True)
BY_INVITATION = replace(POLICY, admission=Admission.LINKS)

CASES = {
    "a run's start": Case(),
    "a run's start, with evidence": Case(WITH_ORIGINS),
    "a single trainer": Case(pace=(8.0,)),
    "a single stranger": Case(pace=(0.0, 8.0)),
    "two members": Case(BY_INVITATION, (4.0, 4.0), vouched=True),
    "member and stranger": Case(pace=(4.0, 4.0)),
    "no evaluation": Case(replace(POLICY, seal_wait=0.0, search_rows=0)),
    "a reward run": Case(zeros=0.6),
    "a reward run, with evidence": Case(WITH_ORIGINS, zeros=0.6),
    "a lost disk": Case(loses_disk=True),
    "a lost disk, with evidence": Case(WITH_ORIGINS, loses_disk=True),
    "late strangers": Case(joiners=CROWD),
    "late strangers, with evidence": Case(WITH_ORIGINS, joiners=CROWD),
    "late invited": Case(BY_INVITATION, vouched=True, joiners=CROWD),
    "three late strangers, with evidence": Case(WITH_ORIGINS, joiners=3),
}


async def answer(self: Organising, asked: Evaluate) -> None:
    """Answer a search with an unchanged rate, and score all work alike."""
    await asyncio.sleep(ANSWER)
    run_state, epoch, random = self._organised.run_state, asked.epoch, Random(f"{asked.epoch}/scores")
    found = SearchResult(1.0, 1.0, asked.rows) if asked.rows else None
    numbers = run_state.moved(epoch) if asked.origins else ()
    shares = {run_state.feed(number): _share(run_state, number, epoch, random) for number in numbers}
    base = engine.RESULT if epoch == 0 else None
    self._tell(EvaluationEnded(epoch, engine.RESULT, base, found=found, shares=shares))


def _share(run_state: RunState, number: int, epoch: int, random: Random) -> StepShare:
    updates = run_state.named(number, epoch) - run_state.named(number, epoch - 1)
    score = DRIFT * math.sqrt(updates) + random.gauss(0, 1)
    return StepShare(updates, score, 1.0, updates * 1e-6, 1e-6)


def sparse(share: float) -> Callable[[Sequence[int], RunParameters, int], tuple[int, ...]]:
    """Return a function that measures scalars, of which the share `share` is 0."""

    def measured(seeds: Sequence[int], run: RunParameters, salt: int) -> tuple[int, ...]:
        zero = ((seed + salt) % 1009 < share * 1009 for seed in seeds)
        return tuple(
            0 if none else 1 + seed % run.scalar_limit for seed, none in zip(seeds, zero, strict=True)
        )

    return measured


def manifest(seed: int) -> Manifest:
    """Return the manifest of a run with epochs of EPOCH updates."""
    small = runs.manifest(seed)
    training = small.training.model_copy(update={"epoch_updates": EPOCH, "update_budget": BUDGET})
    organised = small.organised.model_copy(update={"quota": QUOTA})
    return small.model_copy(update={"training": training, "organised": organised})


class Course:
    """One case in virtual time. Must be closed."""

    def __init__(self, case: Case, seed: int = 0) -> None:
        self.case = case
        Organising._evaluate = answer  # type: ignore[method-assign]
        engine.measured = world.measured = sparse(case.zeros)  # type: ignore[assignment, attr-defined]
        self.world = world.World(seed, manifest=manifest(seed), policy=case.policy, judge=runs.falling)
        self.close = self.world.close
        self.rows: list[tuple[float, int, int, int]] = []
        """(seconds, updates made, updates counted, closes) at intervals."""
        self.of_last: list[tuple[float, int]] = []
        """(seconds, updates made) of the last initial node."""
        for index, pace in enumerate(case.pace):
            node = self._add(f"n{index}", pace)
            if index == 0:
                node.give_key(runs.signing_key(seed, runs.ORGANISER))
            self._link(node, [f"n{other}" for other in range(index)])
            self.world.do(node.start)
        self.world.run_until(UP)
        self._vouch([f"n{index}" for index in range(len(case.pace)) if case.vouched or index == 0])

    def _add(self, name: str, pace: float) -> Computer:
        node = self.world.add(name)
        if pace:
            self._compute(node, 1 / pace)
        return node

    def _compute(self, node: Computer, every: float) -> None:
        def tick() -> None:
            node.step(every)
            self.world.later(every, tick)

        self.world.later(node.random.uniform(0, every), tick)

    def _link(self, node: Computer, others: list[str]) -> None:
        for other in others:
            self.world.want(node, self.world[other])

    def _vouch(self, names: list[str]) -> None:
        for name in names:
            self.world.do(self.world["n0"].decide, Admit(self.world[name].origin, QUOTA, 0))

    def join(self) -> None:
        """Let the late members join."""
        count, random = self.case.joiners, Random("joiners")
        names = [f"late{index}" for index in range(count)]
        for name in names:
            node = self._add(name, 1.0 if count == CROWD else 4.0)
            self._link(node, [f"n{random.randrange(len(self.case.pace))}"])
            self.world.do(node.start)
        self._vouch(names if self.case.vouched else [])
        for one, other in regular(names, random):
            self.world.do(self.world.want, self.world[one], self.world[other])

    def lose_disk(self) -> None:
        """Let the last initial node lose its log."""
        node = self.world[f"n{len(self.case.pace) - 1}"]
        node.crash(power_cut=True)
        node.forgets()
        for path in node.layout.path.glob(f"{node.layout.log.name}*"):
            path.unlink()
        self.world.do(node.start)

    def run(self, seconds: float, every: float = 10.0) -> None:
        """Let time pass until `seconds`, and record the updates `every` seconds."""
        while self.world.now < seconds - 1e-6:
            self.world.run_until(min(seconds, (len(self.rows) + 1) * every))
            run_state = self.world["n0"].organised.run_state
            at = round(self.world.now, 3)
            self.rows.append((at, self.world.oracle.updates, run_state.counted, run_state.open_epoch))
            last = self.world[f"n{len(self.case.pace) - 1}"].origin
            stories = self.world.oracle.stories.items()
            made = sum(len(story.made_at) for feed, story in stories if feed.origin == last)
            self.of_last.append((at, made))
            if at == JOIN and self.case.joiners:
                self.join()
            if at == JOIN and self.case.loses_disk:
                self.lose_disk()


def figures(course: Course) -> dict[str, float]:
    """Return the pace over the whole time, and over the two minutes from JOIN on."""
    rows = {row[0]: row for row in [(0.0, 0, 0, 0), *course.rows]}
    first, last = rows[0.0], course.rows[-1]
    found = _pace("whole", first, last)
    if course.case.joiners or course.case.loses_disk:
        found |= _pace("two minutes", rows[JOIN], rows[min(2 * JOIN, last[0])])
    if course.case.loses_disk:
        found |= {f"by {at:g} s": made for at, made in course.of_last if JOIN < at <= JOIN + 100}
    return found | {"closes": last[3], "members": len(course.world["n0"].organised.run_state.members)}


def _pace(name: str, first: tuple[float, ...], last: tuple[float, ...]) -> dict[str, float]:
    seconds = last[0] - first[0]
    made, counts = (last[1] - first[1]) / seconds, (last[2] - first[2]) / seconds
    return {f"{name}: made": round(made, 3), f"{name}: count": round(counts, 3)}


def measure(name: str, seconds: float) -> dict[str, float]:
    """Run one case."""
    started = time.perf_counter()
    with closing(Course(CASES[name])) as course:
        course.run(seconds)
        return figures(course) | {"wall": round(time.perf_counter() - started, 1)}


def main(tell: Callable[[str], None] = print) -> None:
    """Measure the cases named on the command line, by default all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--against", type=Path)
    given = parser.parse_args()
    against = json.loads(given.against.read_text()) if given.against else {}
    found: dict[str, dict[str, float]] = {}
    for name in given.cases or CASES:
        found[name] = measure(name, given.seconds)
        tell(f"{name}: {found[name]}")
        for what, figure in found[name].items():
            before = against.get(name, {}).get(what)
            if before and ":" in what:
                tell(f"    {what}: {figure:g}, before {before:g}, ratio {figure / before:.2f}")
        if given.json:
            given.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()

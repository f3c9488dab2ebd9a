"""Measures the pace of honest members: updates that are made, and that count, for each virtual second.

    python -m tests.bench.honest_cases [CASE ...] [--seconds 600] [--json FILE]

Nodes are the simulator's: the shipped machine, host and organiser on a virtual clock, with links of 100 ms
there and back. The organiser's policy is the product's, with searches that change nothing, and scores of
updates that drift by DRIFT (`sfnode.organising.evaluation.evidence`). It runs on earlier versions, too, so
that two can be compared: `--against FILE` prints the ratios to what another one has written.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from sflab.sim.world import node as nodes
from sflab.sim.world import organising
from sflab.sim.world.disk import Disk
from sflab.sim.world.keys import origin_of, signing_key
from sflab.sim.world.node import Node
from sflab.sim.world.topology import regular
from sflab.sim.world.world import ORGANISER, World, organised
from sfnode.organising.evaluation.line_search import SearchResult
from sfnode.organising.events import Evaluate, EvaluationEnded, Event
from sfnode.organising.policy import Admission, OrganiserPolicy
from sfnode.schema.evaluation import StepShare
from sfprotocol.counting import Counting
from sfprotocol.decisions import Admit

EPOCH, QUOTA, BUDGET = 1024, 4096, 1 << 20

DRIFT = 0.3
"""Mean score of an update: that of runs which have learnt the easy part."""

ANSWER = 0.2
"""Seconds that a search takes."""

POLICY = OrganiserPolicy(
    target_updates=EPOCH,
    seal_wait=60.0,
    admission=Admission.ANYONE,
    work_bits=0,
    quota=QUOTA,
    search_rows=64,
    update_forwards=32,
)

JOIN, CROWD = 120.0, 24
"""Seconds after which the late ones come, and how many: with a hundred nodes a second takes ten."""


@dataclass(frozen=True)
class Case:
    """Who trains, and under which policy."""

    policy: OrganiserPolicy = POLICY
    pace: tuple[float, ...] = (4.0, 4.0, 4.0, 4.0)
    """Updates a second of each node that is there from the beginning, the organiser's first."""
    vouched: bool = False
    """Whether the organiser vouches for the others."""
    zeros: float = 0.0
    """Share of updates whose scalar is 0."""
    joiners: int = 0
    loses_disk: bool = False
    """Whether the last of the nodes loses everything but its key after JOIN seconds."""


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


class Answering(organising.Organising):
    """An organiser whose searches change nothing, and find that all work is alike."""

    def _tell(self, event: Event) -> None:
        handle = self.organiser.handle

        def answered(event: Event, now: float) -> list[Any]:
            actions = handle(event, now)
            for action in actions:
                if isinstance(action, Evaluate):
                    self._later(ANSWER, self._answer(action))
            return [action for action in actions if not isinstance(action, Evaluate)]

        self.organiser.handle = answered  # type: ignore[method-assign]
        super()._tell(event)
        self.organiser.handle = handle  # type: ignore[method-assign]

    def _answer(self, plan: Evaluate) -> EvaluationEnded:
        counting = self._node.organised.counting
        random = Random(f"{plan.epoch}/scores")
        found = SearchResult(1.0, 1.0, plan.rows) if plan.rows else None
        numbers = counting.moved(plan.epoch) if plan.origins else ()
        shares = {counting.feed(number): _share(counting, number, plan.epoch, random) for number in numbers}
        base = organising.RESULT if plan.epoch == 0 else None
        return EvaluationEnded(plan.epoch, organising.RESULT, base, found=found, shares=shares)


def _share(counting: Counting, number: int, epoch: int, random: Random) -> StepShare:
    updates = counting.named(number, epoch) - counting.named(number, epoch - 1)
    score = DRIFT * math.sqrt(updates) + random.gauss(0, 1)
    return StepShare(updates, score, 1.0, updates * 1e-6, 1e-6)


class Sparse(Random):
    """Draws scalars of which a share is 0."""

    share = 0.0

    def randint(self, a: int, b: int) -> int:
        return 0 if self.random() < self.share else super().randint(a, b)


class Course:
    """One case on a virtual clock."""

    def __init__(self, case: Case, seed: int = 0) -> None:
        self.case = case
        run = replace(organised(seed), epoch_updates=EPOCH, update_budget=BUDGET)
        self.world = World(seed, run=run)
        organising.POLICY, nodes.Organising = case.policy, Answering  # type: ignore[misc, attr-defined]
        self.rows: list[tuple[float, int, int, int]] = []
        """(seconds, updates made, updates that count, closes) at intervals."""
        self.of_last: list[tuple[float, int]] = []
        """(seconds, updates made) of the last of the nodes that are there from the beginning."""
        for index, pace in enumerate(case.pace):
            node = self._add(f"n{index}", pace)
            if index == 0:
                node.control_key = signing_key(seed, ORGANISER)
            node.start()
            self._link(node, [f"n{other}" for other in range(index)])
        self._vouch(0)
        for index in range(1, len(case.pace)):
            if case.vouched:
                self._vouch(index)

    def _add(self, name: str, pace: float) -> Node:
        node = self.world.add(name)
        node.random = Sparse(f"{self.world.seed}/{name}")
        node.random.share = self.case.zeros
        if pace:
            crowded = self.case.joiners >= CROWD
            self._compute(node, 1.0 if crowded else 1 / pace, round(pace) if crowded else 1)
        return node

    def _compute(self, node: Node, every: float, updates: int) -> None:
        def tick() -> None:
            made = self._finished(node)
            node.compute(updates)
            if self._finished(node) == made and node.up:
                node.flush()  # as the daemon does where nothing follows
            self.world.agenda.later(every, tick)

        self.world.agenda.later(node.random.uniform(0, every), tick)

    def _finished(self, node: Node) -> int:
        """Return how many updates of this life's feed are finished."""
        return node._joining.stop if node._joining else 0

    def _link(self, node: Node, others: list[str]) -> None:
        for other in others:
            self.world.keeper.want(node, self.world[other])

    def _vouch(self, index: int) -> None:
        control = self.world["n0"].organising
        assert control
        control.decide(Admit(origin_of(self.world[f"n{index}"].key), QUOTA, 0))

    def join(self) -> None:
        """Let those come who come late."""
        count, random = self.case.joiners, Random("joiners")
        names = [f"late{index}" for index in range(count)]
        for name in names:
            self._add(name, 1.0 if count == CROWD else 4.0).start()
            self._link(self.world[name], [f"n{random.randrange(len(self.case.pace))}"])
            if self.case.vouched:
                control = self.world["n0"].organising
                assert control
                control.decide(Admit(origin_of(self.world[name].key), QUOTA, 0))
        for one, other in regular(names, random):
            self.world.keeper.want(self.world[one], self.world[other])

    def lose_disk(self) -> None:
        """Let a node lose everything but its key."""
        node = self.world[f"n{len(self.case.pace) - 1}"]
        node.crash(power_cut=True)
        node.forgets()
        node.disk, node.met = Disk(self.world.run, None), False
        node.start()
        self.world.keeper.came(node)

    def run(self, seconds: float, every: float = 10.0) -> None:
        """Let time pass."""
        while self.world.now < seconds - 1e-6:
            self.world.agenda.run_until(self.world.now + every)
            counting = self.world["n0"].organised.counting
            at = round(self.world.now, 3)
            self.rows.append((at, self.world.oracle.updates, counting.counted, counting.open_epoch))
            last = origin_of(self.world[f"n{len(self.case.pace) - 1}"].key)
            stories = self.world.oracle.stories.items()
            made = sum(len(story.made_at) for feed, story in stories if feed.origin == last)
            self.of_last.append((at, made))
            if at == JOIN and self.case.joiners:
                self.join()
            if at == JOIN and self.case.loses_disk:
                self.lose_disk()


def figures(course: Course) -> dict[str, float]:
    """Return the pace over the whole, and over the two minutes from JOIN on."""
    rows = {row[0]: row for row in [(0.0, 0, 0, 0), *course.rows]}
    first, last = rows[0.0], course.rows[-1]
    found = _pace("whole", first, last)
    if course.case.joiners or course.case.loses_disk:
        found |= _pace("two minutes", rows[JOIN], rows[min(2 * JOIN, last[0])])
    if course.case.loses_disk:
        found |= {f"by {at:g} s": made for at, made in course.of_last if JOIN < at <= JOIN + 100}
    return found | {"closes": last[3], "members": len(course.world["n0"].organised.counting.members)}


def _pace(name: str, first: tuple[float, ...], last: tuple[float, ...]) -> dict[str, float]:
    seconds = last[0] - first[0]
    made, counts = (last[1] - first[1]) / seconds, (last[2] - first[2]) / seconds
    return {f"{name}: made": round(made, 3), f"{name}: count": round(counts, 3)}


def measure(name: str, seconds: float) -> dict[str, float]:
    """Run one case."""
    started = time.perf_counter()
    gc.disable()
    course = Course(CASES[name])
    course.run(seconds)
    gc.enable()
    return figures(course) | {"wall": round(time.perf_counter() - started, 1)}


def main(tell: Callable[[str], None] = print) -> None:
    """Measure the cases that are named, or all."""
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

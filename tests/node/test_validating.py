"""Members whom the organiser has named measure an epoch before its seal, and it hears what they found."""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from sfnode.engine.core import UpdateBatch
from sfnode.engine.objective import paused
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.node import validating
from sfnode.node.validating import MeasuredRows, measured
from sfnode.organising.evaluation.evidence import parts_of
from sfnode.organising.evaluation.searching import ORIGIN_ROWS
from sfnode.organising.events import Action, Evaluate, Event
from sfnode.schema.evaluation import StepShare
from sfprotocol import validators
from sfprotocol.decisions import Validators
from sfprotocol.events import FindingHeard
from sfprotocol.seeds import I64
from sfprotocol.validators import PANEL
from tests.node.fixtures import work_takes_no_time
from tests.node.helpers import Node, SmallEngine, Swarm, manifest, organised

SwarmOf = Callable[..., Swarm]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks, reveals and proofs of work take no time, and the organiser evaluates what it can."""
    work_takes_no_time(monkeypatch, share=1.0, young_share=1.0)
    monkeypatch.setattr(validating, "LOOK_INTERVAL", 0.01)
    monkeypatch.setattr(validators, "FLOOD_TIME", 0.05)


class Choosy(SmallEngine):
    """Has worths that depend on the rows of a measurement."""

    def shares(
        self,
        after: Mapping[int, I64],
        updates: Sequence[tuple[UpdateBatch, I64]],
        rows: int,
        turn: int,
        go_on: Callable[[], bool],
    ) -> tuple[list[StepShare], int]:
        found, taken = super().shares(after, updates, rows, turn, go_on)
        return [share._replace(worth=(turn + 1) * share.sum / 1000) for share in found], taken


class Patient(SmallEngine):
    """Measures for as long as somebody wants to know."""

    def shares(self, after: Any, updates: Any, rows: int, turn: int, go_on: Callable[[], bool]) -> Any:
        self.measuring.set()
        while go_on():
            time.sleep(0.001)
        self.measuring.clear()
        raise paused()


class Breaking(SmallEngine):
    def shares(self, *asked: Any) -> Any:
        raise UserError(Code.OUT_OF_MEMORY, "there is no room", "Take less.")


class Diverged(SmallEngine):
    def shares(self, *asked: Any) -> Any:
        found, taken = super().shares(*asked)
        return [share._replace(worth=math.nan) for share in found], taken


def choosy(run: Manifest) -> SmallEngine:
    return Choosy(run).go()


class Run:
    """A run whose organiser, node `a`, waits with its seals until a test says so; `b` and `c` are members,
    and named to measure."""

    def __init__(self, swarm: Swarm, tmp_path: Path) -> None:
        self.swarm = swarm
        self.options = {"organise": True, "keys_dir": tmp_path / "keys", "search": False, "guard": False}
        self.heard: list[FindingHeard] = []
        self.may_seal: dict[int, asyncio.Event] = defaultdict(asyncio.Event)
        """By epochs that the panel is to measure."""

    async def begin(self, engine: Callable[[Manifest], Any] = choosy, **settings: Any) -> None:
        """Return once an epoch that `b` and `c` are to measure is closed."""
        for name in "abc":
            self.swarm.node(name, make_engine=choosy if name == "a" else engine)
        self.a = await self.swarm.first(**self.options)
        self.b, self.c = [await self.swarm.join(name, **settings) for name in "bc"]
        self._listen()
        await self.a.until(lambda: len(self.counting.members) == 3)
        assert await self.a.node.organising.decide(Validators(self.numbers)) is None
        await self.b.until(lambda: self.epoch is not None)

    @property
    def counting(self) -> Any:
        return self.a.machine.organised.counting

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(sorted(map(self.number, (self.b, self.c))))

    def number(self, node: Node) -> int:
        number = self.counting.number(node.machine.own)
        assert number is not None
        return number // 64

    @property
    def epoch(self) -> int | None:
        """The epoch that the panel is to measure, once it is closed."""
        epoch = self.counting.sealed
        return epoch if self.a.machine.organised.findings.panel(self.counting, epoch) else None

    def found(self, epoch: int) -> dict[int, FindingHeard]:
        return {one.member: one for one in self.heard if one.epoch == epoch}

    def _listen(self) -> None:
        """Hear what the organiser is told, and have it wait before it seals what the panel measures."""
        side = self.a.node.organising
        handle, evaluate = side._organiser.handle, side._evaluate

        def hear(event: Event, now: float) -> list[Action]:
            if isinstance(event, FindingHeard):
                self.heard.append(event)
            return handle(event, now)

        async def wait(asked: Evaluate) -> None:
            if self.epoch == asked.epoch:
                await self.may_seal[asked.epoch].wait()
            await evaluate(asked)

        side._organiser.handle, side._evaluate = hear, wait


@pytest.fixture
async def run(swarm_of: SwarmOf, tmp_path: Path) -> Run:
    return Run(swarm_of(organised(manifest(), tmp_path / "keys", validation="rows")), tmp_path)


async def test_findings_of_members_are_what_the_organiser_would_measure_on_their_rows(run: Run) -> None:
    await run.begin()
    epoch = run.epoch
    await run.a.until(lambda: len(run.found(epoch)) == 2)
    panel = run.a.machine.organised.findings.panel(run.counting, epoch)
    assert set(run.found(epoch)) == set(panel) == set(run.numbers)
    worths = set()
    for place, member in enumerate(panel):
        rows = MeasuredRows(ORIGIN_ROWS, epoch * PANEL + place)
        shares, _ = await measured(run.a.node, epoch, (), rows, lambda: True)
        parts = parts_of(shares, run.counting)
        assert run.found(epoch)[member] == FindingHeard(member, epoch, ORIGIN_ROWS, parts)
        assert {part.feed for part in parts} == set(run.counting.moved(epoch))
        worths.add(parts)
    assert len(worths) == 2  # each on rows of its own


async def test_the_next_epoch_is_measured_once_this_one_is_sealed(run: Run) -> None:
    await run.begin()
    first = run.epoch
    await run.a.until(lambda: run.found(first))
    run.may_seal[first].set()
    await run.a.until(lambda: any(one.epoch > first for one in run.heard))
    assert run.counting.sealed > first
    said = run.b.node.status().validator
    assert said.willing
    assert said.measured > 0
    assert said.problem is None
    assert run.a.node.status().validator is None


async def test_an_owner_may_decline(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    await run.begin(validator=False)
    await run.b.until(lambda: "declines (node.validator=no)" in caplog.text)
    assert not run.b.node.status().validator.willing
    assert run.b.node.validating._place(run.epoch) is None
    assert run.a.machine.organised.findings.place(run.counting, run.epoch) is None  # it is not named at all


async def test_who_has_not_finished_at_the_seal_stops(run: Run) -> None:
    await run.begin(lambda made: Patient(made).go())
    epoch = run.epoch
    await run.b.until(lambda: run.b.engine.measuring.is_set())
    run.may_seal[epoch].set()
    await run.b.until(lambda: run.b.machine.organised.counting.sealed > epoch)
    await run.b.until(lambda: not run.b.engine.measuring.is_set())
    assert not run.heard
    assert run.b.node.status().validator.problem is None


@pytest.mark.parametrize(
    ("engine", "problem"), [(Breaking, "there is no room"), (Diverged, "what was measured is no number")]
)
async def test_an_epoch_that_cannot_be_measured_is_left_to_others(
    run: Run, caplog: pytest.LogCaptureFixture, engine: type[SmallEngine], problem: str
) -> None:
    await run.begin(lambda made: engine(made).go())
    epoch = run.epoch
    await run.b.until(lambda: run.b.node.status().validator.problem == problem)
    assert run.b.node.validating._place(epoch) is None
    assert caplog.text.count(f"round {epoch} is not measured here: {problem}") <= 2  # by b and c
    assert not run.heard


async def test_nothing_is_measured_before_everything_is_here_that_was_named(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run.begin(lambda made: Patient(made).go())
    side, epoch, machine = run.b.node.validating, run.epoch, run.b.machine
    await run.b.until(lambda: side._place(epoch) is not None)
    counting = machine.organised.counting
    number, named = counting.positions(epoch).popitem()
    held, feed = machine.frontier.next, counting.feed(number)
    monkeypatch.setattr(machine.frontier, "next", lambda one: named - 1 if one == feed else held(one))
    assert side._place(epoch) is None
    monkeypatch.undo()
    assert side._place(epoch) is not None

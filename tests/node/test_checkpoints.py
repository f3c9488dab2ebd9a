"""Checkpoints in whole nodes: signed, compared, used for a start and for pruning, and reported if wrong."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from sfnode.engine.core import UpdateBatch
from sfnode.errors import Code
from sfnode.manifest import Manifest
from sfnode.node import checkpoints
from sfnode.node.training.model import LocalModel
from sfnode.organising import making
from sfprotocol.checkpoints import listing
from sfprotocol.decisions import Checkpoint, Void, encode
from sfprotocol.events import OwnDecision
from tests.node import helpers
from tests.node.fixtures import work_takes_no_time
from tests.node.helpers import Node, SmallEngine, Swarm, SwarmOf, manifest
from tests.node.test_organising import options
from tests.refusals import fails_with, refused


@pytest.fixture(autouse=True)
def short_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proofs of work take no time, and every second epoch has a checkpoint."""
    work_takes_no_time(monkeypatch, checkpoint_epochs=2, target_updates=40)
    monkeypatch.setattr(making, "SETTLED", 1)
    monkeypatch.setattr(checkpoints, "LOOK_INTERVAL", 0.05)


@pytest.fixture
def organised(swarm_of: SwarmOf, tmp_path: Path) -> Swarm:
    return swarm_of(helpers.organised(manifest(), tmp_path / "keys"))


def usable(node: Node) -> list[Checkpoint]:
    return node.machine.organised.run_state.checkpoints


def floor(node: Node) -> int:
    return node.machine.frontier.floor


class Forgiving(SmallEngine):
    """An engine that accepts an update again, with another weight."""

    def apply(self, batch: UpdateBatch) -> None:
        self.core.add(batch)


async def equal_cores(*nodes: Node) -> set[str | None]:
    """Return the core digests of these nodes at moments at which their state digests are equal."""
    for node in nodes:
        node.node.limiter.pause(None)
    async with asyncio.timeout(60):
        while True:
            moments = [await node.node.core_status() for node in nodes]
            if len({moment.digest for moment in moments}) == 1:
                return {moment.core_digest for moment in moments}
            await asyncio.sleep(0.1)


async def test_nodes_begin_with_checkpoints_let_go_of_what_comes_before_and_are_equal(
    organised: Swarm, tmp_path: Path
) -> None:
    a = await organised.first(**options(tmp_path))
    b = await organised.join("b", history="checkpoint")
    await b.until(lambda: b.node.log.bases())
    assert floor(b) > 0
    late = await organised.join("late", via="b", from_checkpoint=True)
    await late.until(lambda: late.node.model.loaded and late.machine.may_compute)
    assert floor(late) > 0
    assert late.engine.began_with
    assert len(await equal_cores(a, b, late)) == 1
    assert all(node.node.checkpoints.problem() is None for node in (a, b, late))
    told = floor(b)
    await b.stop()
    with organised.log("b") as log:
        assert not log.read(a.machine.own, 0, 1), "the first feed of the run has steps before any checkpoint"
    b = await organised.first("b")
    assert floor(b) >= told, "it lets go of more, or of no more"
    await b.until(lambda: b.node.model.loaded)
    assert len(await equal_cores(a, b, late)) == 1


async def test_the_state_with_which_a_node_begins_may_be_removed_while_its_model_loads(
    organised: Swarm, tmp_path: Path
) -> None:
    """A node that catches up with many checkpoints removes old states meanwhile."""
    await organised.first(**options(tmp_path))
    b = await organised.join("b", history="checkpoint")
    await b.until(lambda: b.node.log.bases())
    await b.stop()

    def load(run: Manifest) -> SmallEngine:
        shutil.rmtree(b.layout.checkpoints)
        return SmallEngine(run).go()

    organised.node("b", make_engine=load)
    b = await organised.first("b")
    await b.until(lambda: b.node.model.loaded)
    assert b.engine.began_with


async def test_an_engine_that_begins_with_a_checkpoint_is_not_told_of_what_is_not_on_disk(
    organised: Swarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine starts between two rounds, because within a round the log lacks the updates just
    admitted."""
    start, between = LocalModel.start, []

    def started(model: LocalModel) -> None:
        between.append(model._driver.between_rounds.locked())
        start(model)

    a = await organised.first(**options(tmp_path))
    await a.until(lambda: usable(a) and a.node.sharing.files)
    monkeypatch.setattr(LocalModel, "start", started)
    late = await organised.join("late", from_checkpoint=True)
    await late.until(lambda: late.node.model.loaded)
    assert between == [True]


async def test_a_state_that_is_not_the_checkpoints_is_not_begun_with(
    organised: Swarm, tmp_path: Path
) -> None:
    a = await organised.first(**options(tmp_path))
    b = await organised.join("b")
    await b.until(lambda: b.node.sharing.files and a.node.sharing.files)
    spoilt = tmp_path / "spoilt"
    spoilt.write_bytes(bytes(100))
    stated = [listing(one.feeds, one.cores) for one in usable(a)]
    a.node.sharing.files = dict.fromkeys(stated, spoilt)
    a.node.checkpoints._give_all = lambda: None
    late = await organised.join("late", from_checkpoint=True)
    await late.until(lambda: late.machine.frontier.known)
    assert floor(late) > 0


async def test_a_checkpoint_that_is_not_what_the_log_has_is_reported(
    organised: Swarm, tmp_path: Path
) -> None:
    a = await organised.first(**options(tmp_path))
    b = await organised.join("b")
    await b.until(lambda: b.machine.organised.run_state.sealed)
    a.node.driver.post(OwnDecision(encode(Checkpoint(0, bytes(32), bytes(32)))))
    await b.until(lambda: b.node.checkpoints.differs)
    problem = b.node.checkpoints.problem()
    assert problem.code is Code.CHECKPOINT_DIFFERS
    assert [alarm.code for alarm in b.node.status().alarms] == ["SF068"]


async def test_who_has_let_go_of_what_counts_differently_now_stands_still_until_it_begins_anew(
    organised: Swarm, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        organised.node(name, make_engine=lambda run: Forgiving(run).go())
    a = await organised.first(**options(tmp_path))
    b = await organised.join("b", history="checkpoint")
    await b.until(lambda: b.node.log.bases())
    assert await a.node.organising.decide(Void(0, 0, ())) is None
    await b.until(lambda: b.machine.organised.outdated)
    problem = b.node.checkpoints.problem()
    assert problem.code is Code.CHECKPOINT_UNUSABLE
    assert not b.machine.may_compute
    with fails_with(Code.CHECKPOINT_UNUSABLE):
        await b.node.core_status()
    await b.stop()
    await a.until(lambda: a.node.sharing.files)
    b = await organised.join("b", from_checkpoint=True)
    await b.until(lambda: (b.machine.may_compute or b.machine.complete) and b.node.model.loaded)
    assert b.node.checkpoints.problem() is None
    assert len(await equal_cores(a, b)) == 1


async def test_an_open_run_has_no_checkpoints(swarm: Swarm) -> None:
    with refused(Code.RUN_IS_OPEN, "--from-checkpoint"):
        await swarm.first(from_checkpoint=True)

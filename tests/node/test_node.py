"""Whole nodes: a run from its beginning to its end, stops, faults, and restarts."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections.abc import Sequence
from typing import Any

import pytest

from sfnode.errors import Code
from sfnode.manifest import Manifest
from sfnode.node import readiness
from sfnode.node.startup import contributed
from sfnode.node.training.step_scheduler import FAILURES
from sfnode.store.log import UpdateLog
from sfnode.store.verification import verify_log
from sfnode.transport import memory
from sfnode.transport.base import TransportError
from sfnode.transport.memory import Conditions, Latency, MemoryTransport
from sfprotocol import wire_codec
from sfprotocol.messages import Feed, Goodbye, ManifestReply, ManifestRequest
from sfprotocol.seeds import feed_key, update_seeds
from tests.node.helpers import Node, Result, SmallEngine, Swarm, SwarmOf, let_train, manifest, scalar_of
from tests.refusals import fails_with


async def completed(nodes: list[Node]) -> None:
    """Wait until the run is complete at all nodes, and all have the same updates."""
    for node in nodes:
        await node.until(lambda node=node: node.node.status().state == "complete")  # type: ignore[misc]
    for node in nodes:
        await node.until(lambda: len({node.digest for node in nodes}) == 1)


async def test_a_node_that_lacks_updates_beyond_the_budget_is_not_complete(swarm_of: SwarmOf) -> None:
    """Two parts of a swarm use up the budget separately. Then they receive each other's updates."""
    swarm = swarm_of(manifest(update_budget=1000))
    for name in "ab":
        swarm.node(name, make_engine=SmallEngine)
    a, b = await swarm.first(), await swarm.join("b")
    await let_train(a, b)
    await b.until(lambda: made(b) > 0)
    swarm.network.partition("a", "b")
    for node in (a, b):
        await node.until(lambda node=node: node.machine.complete)  # type: ignore[misc]
    union = sum(node.machine.frontier.next(own_feed(node)) for node in (a, b))
    assert union > b.known >= 1000
    said: list[tuple[str, int]] = []

    def seen() -> bool:
        """Return whether b is complete and has all updates of a."""
        status = b.node.status()
        said.append((status.state, status.lacking))
        return status.state == "complete" and b.known == union

    swarm.network.heal()
    await b.until(seen)
    assert not [lacking for state, lacking in said if state == "complete" and lacking]
    assert ("catching-up", True) in {(state, lacking > 0) for state, lacking in said}


# -- a run from its beginning to its end -----------------------------------------------------------------


async def test_a_latecomer_trains_only_after_it_has_caught_up(swarm: Swarm) -> None:
    a = await swarm.first()
    await a.until(lambda: a.known > 300)
    epoch = a.machine.run.epoch_of(a.known)
    b = await swarm.join("b")
    await b.until(lambda: made(b) > 5)
    assert b.engine.epochs[0] >= epoch > 0
    assert a.machine.own in b.machine.frontier


async def test_a_node_that_starts_again_within_a_group_completes_it(swarm_of: SwarmOf) -> None:
    swarm = swarm_of(manifest(group=8))
    a = await swarm.first(role="relay")
    for steps in (13, 11):
        b = await swarm.join("b", steps=steps)
        await b.ended()
    await a.until(lambda: a.node.log.updates() == 24)
    with swarm.log("a") as log:
        ((feed, stop),) = ((tail.feed, tail.next) for tail in log.tails())
        assert stop == 24
        scalars = [scalar for part in log.read(feed, 0, 24).parts for scalar in part.scalars]  # type: ignore[union-attr]
    seeds = update_seeds(feed_key(swarm.run.run_id, *feed), 0, 24).tolist()
    assert scalars == list(map(scalar_of, seeds))


# -- stopping --------------------------------------------------------------------------------------------


async def test_what_was_computed_before_the_stop_is_in_the_log_and_with_the_neighbours(
    swarm_of: SwarmOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes finished updates that wait to be posted, and a slow line. A step goes on for ever."""
    monkeypatch.setattr(memory, "CAPACITY", 2)
    swarm = swarm_of(None, Conditions(Latency(typical=0.02)))
    a = await swarm.first(role="relay")
    b = swarm.node("b", make_engine=lambda run: SmallEngine(run).go(121))
    await swarm.join("b")
    await b.until(lambda: b.engine and len(b.engine.epochs) == 121)
    await b.stop()
    with swarm.log("b") as log:
        assert log.updates() == 121
    await a.until(lambda: a.known == 121)


async def test_stopping_at_any_moment_of_a_start_is_clean(swarm: Swarm) -> None:
    await swarm.first()
    for ticks in range(0, 60, 7):
        b = await swarm.join("b")
        for _ in range(ticks):
            await asyncio.sleep(0)
        await b.stop()
    with swarm.log("b") as log:
        verify_log(swarm.run, log)


# -- faults of our own -----------------------------------------------------------------------------------


async def test_an_engine_that_fails_ends_the_node_with_its_error(swarm: Swarm) -> None:
    def failing(run: Manifest) -> SmallEngine:
        engine = SmallEngine(run).go()
        step = engine.step

        def step_or_fail(seeds: Sequence[int], epoch: int, *rate: Any) -> Result:
            if len(engine.epochs) == 10:
                raise FloatingPointError("the device is gone")
            return step(seeds, epoch, *rate)

        engine.step = step_or_fail  # type: ignore[method-assign]
        return engine

    a = swarm.node("a", make_engine=failing)
    await swarm.first()
    with pytest.raises(FloatingPointError):
        await a.ended()
    with swarm.log("a") as log:
        assert log.updates() == 10


async def test_an_engine_that_measures_nothing_ends_the_node_with_a_number(swarm: Swarm) -> None:
    def overflowing(run: Manifest) -> SmallEngine:
        engine = SmallEngine(run).go()
        engine.step = lambda seeds, epoch, rate: Result((0,) * len(seeds), math.nan, len(seeds))  # type: ignore[method-assign]
        return engine

    a = swarm.node("a", make_engine=overflowing)
    await swarm.first()
    with fails_with(Code.LOSS_NOT_FINITE):
        await a.ended()
    with swarm.log("a") as log:
        assert log.updates() < FAILURES


# -- starting again --------------------------------------------------------------------------------------


async def test_a_node_started_again_alone_has_the_same_digests_and_needs_nobody(swarm_of: SwarmOf) -> None:
    swarm = swarm_of(manifest(update_budget=401))
    a = await swarm.first(queries=4)
    await completed([a])
    assert a.known == a.node.model.scheduler.made == 401  # type: ignore[union-attr]
    before = await a.client.digest()
    await a.stop()
    await swarm.first()
    await a.until(lambda: a.node.model.loaded)
    assert await a.client.digest() == before


async def test_a_newcomer_whose_peers_do_not_answer_waits_and_one_with_a_past_goes_on(
    swarm_of: SwarmOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "ASK_TIMEOUT", 0.3)
    swarm = swarm_of()
    a, b = await swarm.first(), await swarm.join("b")
    await b.until(lambda: made(b) > 5)
    await a.stop()
    await b.stop()
    swarm.network.partition("b", "c")
    c = swarm.node("c")
    going, c.make_engine = c.make_engine, SmallEngine  # in its first life it makes nothing
    await c.start(swarm.run_file)
    c.node.stop()
    await c.ended()
    c.make_engine = going
    await c.start(peers=(a.address,))
    await swarm.join("b")
    await b.until(lambda: made(b) > 5)
    assert c.known == 0
    assert c.node.status().state == "catching-up"


async def test_a_node_whose_peers_know_more_of_its_feed_starts_another(swarm: Swarm) -> None:
    """As after a backup that was restored in place, so that the log itself looks untouched."""
    a = await swarm.first(role="relay")
    b = await swarm.join("b")
    await b.until(lambda: made(b) > 20)
    await b.stop()
    backup = b.layout.log.read_bytes()
    await swarm.join("b")
    await b.until(lambda: made(b) > 20)
    feed = own_feed(b)
    await b.stop()
    said = b.machine.frontier.next(feed)
    await a.until(lambda: a.machine.frontier.next(feed) == said)
    b.layout.log.write_bytes(backup)
    await swarm.join("b")
    await b.until(lambda: made(b) > 20)
    assert own_feed(b) != feed
    assert b.machine.frontier.next(feed) == a.machine.frontier.next(feed) == said
    with sqlite3.connect(b.layout.log) as db:
        kept = db.execute("SELECT value FROM meta WHERE key = 'incarnation'").fetchone()[0]
    assert int.from_bytes(kept, "big") == own_feed(b).incarnation
    assert b.node.status().contributed == said + b.machine.frontier.next(own_feed(b)), "both are its own"
    await b.stop()
    with UpdateLog.open(b.layout.log, read_only=True) as log:
        assert contributed(b.layout, log) == said + log.stop(own_feed(b))


def own_feed(node: Node) -> Feed:
    assert node.machine.own is not None
    return node.machine.own


def made(node: Node) -> int:
    """Own updates of this start."""
    return node.node.model.scheduler.made if node.node.model.scheduler else 0


# -- questions of peers -------------------------------------------------------------------------


async def test_a_node_answers_one_question_and_shrugs_at_others(
    swarm: Swarm, caplog: pytest.LogCaptureFixture
) -> None:
    a = await swarm.first(role="relay")
    asker = MemoryTransport(swarm.network, "asker")
    await asker.start()
    for question in (b"\xc1", b"", wire_codec.encode(Goodbye("hello"))):
        with pytest.raises(TransportError):
            await asker.request(a.address, question)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    answer = wire_codec.decode(await asker.request(a.address, wire_codec.encode(ManifestRequest())))
    assert answer == ManifestReply(swarm.run.canonical())

"""An organised run in whole nodes: the organiser admits, closes and seals, and a newcomer counts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sfnode.errors import Code, UserError
from sfnode.manifest.sections import OrganisedSection
from sfnode.models import bases
from sfnode.node import organising
from sfnode.organising import organiser
from sfnode.organising.events import (
    Action,
    Evaluate,
    EvaluationEnded,
    Event,
    OwnerDecision,
    Round,
    Sign,
)
from sfnode.organising.organiser import OrganiserState
from sfnode.organising.policy import Admission
from sfnode.schema.node_state import NodeState, RunHealth, Wait
from sfnode.settings import Settings
from sfnode.store.identity import Identity
from sfnode.store.replay import weighed
from sfnode.store.run_keys import organiser_key, write_key
from sfprotocol import join_requests
from sfprotocol.control_feed import succession_message
from sfprotocol.decisions import (
    FACTOR_ONE,
    Amend,
    Budget,
    Evaluated,
    Finish,
    Revoke,
    Seal,
    Void,
    encode,
    read,
)
from sfprotocol.events import JoinRequested, OwnSuccession
from sfprotocol.messages import JoinRequest, Succession, Vote
from sfprotocol.run_state import RunState
from sfprotocol.weighing import named as named_by
from tests.node import helpers
from tests.node.fixtures import work_takes_no_time
from tests.node.helpers import Node, SmallEngine, Swarm, SwarmOf, decided, let_train, manifest, pairs_of
from tests.refusals import fails_with, refused


@pytest.fixture(autouse=True)
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    work_takes_no_time(monkeypatch)


@pytest.fixture(params=[None])
def organised(request: pytest.FixtureRequest, swarm_of: SwarmOf, tmp_path: Path) -> Swarm:
    """A run whose organiser's key lies in `tmp_path / "keys"`. The parameter names its validation rows. With
    them the run is long enough for searches."""
    run = manifest(update_budget=2000 if request.param else 400)
    return swarm_of(helpers.organised(run, tmp_path / "keys", validation=request.param or ""))


def options(tmp_path: Path) -> dict[str, Any]:
    return {"organise": True, "keys_dir": tmp_path / "keys"}


async def evaluated(node: Node, asked: Evaluate) -> EvaluationEnded:
    """Return the result that the organiser of a node gets for the evaluation `asked`."""
    told, organiser = list[EvaluationEnded](), node.node.organising._organiser
    handle = organiser.handle

    def hear(event: Event, now: float) -> list[Action]:
        if not isinstance(event, EvaluationEnded) or event.epoch != asked.epoch:
            return handle(event, now)
        told.append(event)
        return []

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(organiser, "handle", hear)
        await node.node.organising._evaluate(asked)
        await node.until(lambda: told)
    return told[0]


async def evaluated_meanwhile(node: Node, asked: Evaluate, patching: pytest.MonkeyPatch) -> EvaluationEnded:
    """Like `evaluated`, but another epoch is closed meanwhile."""
    run_state, ask_engine = node.machine.organised.run_state, node.node.model.ask
    opened = run_state.open_epoch

    async def ask(*wanted: Any, **how: Any) -> Any:
        found = await ask_engine(*wanted, **how)
        await node.until(lambda: run_state.open_epoch > opened)
        return found

    with patching.context() as patched:
        patched.setattr(node.node.model, "ask", ask)
        return await evaluated(node, asked)


def run_state_of(node: Node) -> RunState:
    return node.machine.organised.run_state


def counted(node: Node) -> int:
    return run_state_of(node).counted


async def test_a_newcomer_is_admitted_and_what_is_sealed_counts_everywhere(
    organised: Swarm, tmp_path: Path
) -> None:
    a = await organised.first(**options(tmp_path))
    b = await organised.join("b")
    await b.until(lambda: b.machine.may_compute)
    await a.until(lambda: a.machine.complete)
    await b.until(lambda: b.machine.complete)
    await a.until(lambda: a.digest == b.digest)
    assert counted(a) == counted(b) >= 400
    assert a.machine.organised.run_state.sealed > 1
    digests = [await node.node.core_status() for node in (a, b)]
    assert digests[0].core_digest == digests[1].core_digest


async def test_who_is_not_admitted_catches_up_and_says_why_it_waits(
    organised: Swarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The organiser's policy asks for more work than the newcomer shows."""
    a = await organised.first(**options(tmp_path))
    monkeypatch.setattr(organising, "WORK_BITS", 0)
    monkeypatch.setattr(organising.admission, "work", lambda *_: 0)
    b = await organised.join("b")
    await b.until(lambda: b.node.status().state is NodeState.WAITING)
    await b.until(lambda: b.known and b.machine.organised.run_state.sealed)
    said = b.node.status()
    assert said.wait.reason is Wait.JOIN_REQUEST
    assert (said.organised.member, said.organised.room, said.organised.members) == (None, None, 1)
    assert said.organised.health.verdict is RunHealth.UNKNOWN
    await a.until(lambda: a.node.status().wait)
    mine = a.node.status()
    assert (mine.organised.member, mine.organised.quota) == (0, 120)


async def succession(swarm_of: SwarmOf, tmp_path: Path, successor: Identity | None) -> tuple[Node, Node]:
    """Return two members. The first organises, and a succession has dropped all its decisions."""
    key, deputy = Identity.generate(), Identity.generate()
    names = {"organiser": key.public.hex(), "deputies": (deputy.public.hex(),)}
    run = helpers.organised(manifest(), tmp_path / "others", **names)
    write_key(key, organiser_key(run.run_id, tmp_path / "keys"))
    swarm = swarm_of(run)
    for name in "ab":
        swarm.node(name, make_engine=SmallEngine)
    a = await swarm.first(**options(tmp_path))
    b = await swarm.join("b")
    await b.until(lambda: all(run_state_of(b).member(node.machine.own.origin) for node in (a, b)))
    named = Succession(1, 0, a.machine.organised.control.feed.chains[0], (successor or key).public, ())
    vote = Vote(0, deputy.sign(succession_message(run.run_id, named)))
    a.node.driver.post(OwnSuccession(replace(named, votes=(vote,))))
    return a, b


async def test_members_whose_admission_a_succession_has_dropped_are_admitted_again(
    swarm_of: SwarmOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(organising, "LOOK_INTERVAL", 0.01)
    monkeypatch.setattr(organiser, "FIRST_TIME", 0.1)
    monkeypatch.setattr(join_requests, "SEND_AGAIN", 0.1)
    monkeypatch.setattr(join_requests, "REPEAT_TIME", 0.0)
    a, b = await succession(swarm_of, tmp_path, None)
    await b.until(lambda: b.machine.organised.control.feed.term == 1)
    members = {node.machine.own.origin for node in (a, b)}
    for node in (a, b):
        await node.until(lambda node=node: {one.origin for one in run_state_of(node).members} == members)


async def test_an_organiser_whose_admission_its_succession_has_dropped_asks_its_successor(
    swarm_of: SwarmOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(organising, "LOOK_INTERVAL", 0.01)
    a, b = await succession(swarm_of, tmp_path, Identity.generate())
    await b.until(lambda: (JoinRequest, a.machine.own.origin) in b.machine.organised._join_requests._seen)


async def test_the_owner_decides_and_is_told_what_would_change_nothing(
    organised: Swarm, tmp_path: Path
) -> None:
    organised.node("a", make_engine=SmallEngine)  # nothing is sealed while it waits for its first step
    a = await organised.first(**options(tmp_path))
    organiser = a.node.organising
    await a.until(lambda: a.machine.may_compute)
    assert organiser.state is OrganiserState.ORGANISING
    assert await organiser.decide(Void(0, 0, ())) is not None
    assert await organiser.decide(Revoke(0, 0)) is None
    assert not a.machine.may_compute
    assert await organiser.decide(Finish()) is None
    assert a.machine.complete


async def test_after_a_restart_the_run_goes_on_from_what_was_decided(
    organised: Swarm, tmp_path: Path
) -> None:
    a = await organised.first(**options(tmp_path))
    await a.until(lambda: a.machine.may_compute)
    stop = a.machine.organised.control.feed.stop
    await a.stop()
    a = await organised.first(**options(tmp_path), alone=True)
    assert a.machine.organised.control.feed.stop >= stop
    await a.until(lambda: a.machine.may_compute)  # it may have made all that may be made before a close
    assert await a.node.organising.decide(Finish()) is None


@pytest.mark.parametrize(
    ("private", "chosen", "expected"),
    [
        (False, None, Admission.ANYONE),
        (True, None, Admission.APPROVE),
        (True, "links", Admission.LINKS),
    ],
)
def test_a_private_run_admits_nobody_whom_its_owner_does_not_know(
    private: bool, chosen: str | None, expected: Admission
) -> None:
    said = OrganisedSection(organiser=Identity.generate().public.hex(), quota=1, private=private)
    run = manifest().model_copy(update={"admission": "organised", "organised": said})
    assert organising.policy_of(run, Settings(admission=chosen)).admission is expected


@pytest.mark.parametrize("organised", ["rows"], indirect=True)
async def test_every_seal_has_the_factor_that_a_line_search_finds(
    organised: Swarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search starts at the state of the previous seal. The evaluation is of the state after the new
    seal."""
    policy_of = organising.policy_of
    monkeypatch.setattr(
        organising,
        "policy_of",
        lambda *said: organising.replace(policy_of(*said), search_rows=8, origins=False),
    )
    a = await organised.first(**options(tmp_path), search=True)
    await a.until(lambda: a.node.model.loaded)
    engine, run_state = a.engine, a.machine.organised.run_state
    engine.best = 0.5
    first = run_state.rate(0)
    await a.until(lambda: run_state.sealed > 2 and engine.towards)
    assert engine.towards[0][1] == 0.25
    seals = decided(a, Seal)
    factors = [seal.factor for seal in seals]
    assert FACTOR_ONE // 4 in factors
    searched = factors.index(FACTOR_ONE // 4)
    assert seals[searched].rates[0].rate == first // 4
    assert engine.towards[0][0] in [sum(run_state.positions(e).values()) for e in range(-1, run_state.sealed)]


@pytest.mark.parametrize("organised", ["rows"], indirect=True)
async def test_what_each_feed_has_brought_is_measured_of_the_updates_that_the_close_has_named(
    organised: Swarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measurement starts at the state of the previous seal and ignores later updates and decisions. Then
    training continues."""
    for name in "ab":
        organised.node(name, make_engine=SmallEngine)
    a = await organised.first(**options(tmp_path), search=False, guard=False)
    b = await organised.join("b")
    await b.until(lambda: b.machine.may_compute)
    await let_train(a, b)
    run_state = a.machine.organised.run_state
    await a.until(lambda: run_state.sealed > 1 and len(run_state.positions(run_state.sealed - 1)) == 2)
    epoch = run_state.sealed - 1
    ended = await evaluated_meanwhile(a, Evaluate(epoch, scored=False, origins=24), monkeypatch)
    before, after = run_state.positions(epoch - 1), run_state.positions(epoch)
    assert a.engine.shared_at == sum(before.values())
    wanted = {run_state.feed(feed): after[feed] - before.get(feed, 0) for feed in after}
    assert {feed: one.updates for feed, one in ended.shares.items()} == {f: n for f, n in wanted.items() if n}
    assert ended.forwards == 3 * 24
    with organised.log("a") as log:
        for feed, one in ended.shares.items():
            named = [u for u in weighed(log, named_by(run_state, epoch)) if u.feed == feed][-one.updates :]
            assert one.sum == sum(update.scalar for update in named)
            assert one.worth == sum(update.scalar * update.weight for update in named)
    known = a.known
    await a.until(lambda: a.known > known or a.machine.complete)


@pytest.mark.parametrize("organised", ["rows"], indirect=True)
async def test_a_search_is_not_in_vain_if_another_epoch_is_closed_meanwhile(
    organised: Swarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = await organised.first(**options(tmp_path), search=False, guard=False)
    run_state = a.machine.organised.run_state
    await a.until(lambda: run_state.sealed > 1)
    ended = await evaluated_meanwhile(a, Evaluate(run_state.sealed - 1, rows=8, scored=False), monkeypatch)
    assert ended.found.rows == 8


@pytest.mark.parametrize("organised", ["rows"], indirect=True)
async def test_a_seal_is_made_though_nobody_can_tell_what_feeds_have_brought(
    organised: Swarm, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a = await organised.first(**options(tmp_path), search=False)
    run_state = a.machine.organised.run_state
    await a.until(lambda: run_state.sealed > 0)

    def fail(*asked: Any) -> Any:
        raise UserError(Code.OUT_OF_MEMORY, "there is no room", "Take less.")

    a.engine.shares = fail
    ended = await evaluated(a, Evaluate(0, origins=24))
    assert ended.result is not None
    assert ended.shares == {}
    assert "there is no room" in caplog.text


async def test_bases_are_made_anew_at_a_seal_and_everybody_gets_them(
    swarm_of: SwarmOf, tmp_path: Path
) -> None:
    rank_1 = {"rank": 1, "basis": "published", "update_budget": 1000}
    first = bases.write(tmp_path / "first", pairs_of(manifest(**rank_1, bases="0" * 64), 8))
    swarm = swarm_of(helpers.organised(manifest(**rank_1, bases=first), tmp_path / "keys"))
    (tmp_path / "a").mkdir(exist_ok=True)
    (tmp_path / "first").rename(tmp_path / "a" / "bases")
    a = await swarm.first(**options(tmp_path), renew_bases=80, search=False)
    b = await swarm.join("b")
    await a.until(lambda: a.machine.complete)
    await b.until(lambda: b.machine.complete and b.digest == a.digest)
    run_state = a.machine.organised.run_state
    published = run_state.bases
    assert len({one.digest for one in published}) == len(published) > 1
    assert a.engine.made_at in [sum(run_state.positions(e).values()) for e in range(run_state.sealed)]
    named = {bases.path_in(b.layout.bases, one.digest.hex()) for one in published}
    await b.until(lambda: set(b.layout.bases.iterdir()) == named)


@pytest.mark.parametrize("organised", ["rows"], indirect=True)
async def test_the_model_is_evaluated_as_of_the_close(
    organised: Swarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's result is the number of updates in its cores. It goes on training meanwhile."""
    named, before = [], SmallEngine.evaluate

    def evaluate(engine: SmallEngine, *arguments: Any) -> Any:
        named.append(len(engine.applied))
        return before(engine, *arguments)

    monkeypatch.setattr(SmallEngine, "evaluate", evaluate)
    a = await organised.first(**options(tmp_path), search=False)
    run_state = a.machine.organised.run_state
    await a.until(lambda: run_state.sealed > 1 and named)
    published = [said for said in decided(a, Evaluated) if said.metric == "accuracy"]
    assert published
    for said in published:
        assert said.value == 1_000_000 * sum(run_state.positions(said.epoch).values())
    assert a.known > named[0]


@pytest.mark.parametrize("organised", ["rows"], indirect=True)
async def test_a_round_that_cannot_be_measured_for_want_of_memory_counts_unmeasured_and_later_ones_do_not(
    organised: Swarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lacking, evaluate = [1], SmallEngine.evaluate

    def evaluated(engine: SmallEngine, *arguments: Any) -> Any:
        if lacking:
            lacking.pop()
            raise MemoryError
        return evaluate(engine, *arguments)

    monkeypatch.setattr(SmallEngine, "evaluate", evaluated)
    a = await organised.first(**options(tmp_path), search=False)
    await a.until(lambda: any(one.metric == "accuracy" for one in decided(a, Evaluated)))  # not the base's
    assert "counts without an evaluation: the device 'cpu' has not enough memory" in caplog.text


@pytest.mark.parametrize("organised", ["rows"], indirect=True)
async def test_an_organiser_whose_measuring_fails_otherwise_ends_in_place_of_waiting_for_ever(
    organised: Swarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SmallEngine, "evaluate", lambda engine, *arguments: {}["a mistake of ours"])
    a = await organised.first(**options(tmp_path), search=False)
    with pytest.raises(KeyError, match="a mistake of ours"):
        await a.ended()


async def test_a_wish_that_is_not_signed_when_the_node_ends_is_an_error_for_whoever_has_it(
    organised: Swarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = await organised.first(**options(tmp_path))
    await a.until(lambda: a.machine.may_compute)
    monkeypatch.setattr(a.node.driver, "post", lambda event: None)  # it never comes to be signed
    asked = asyncio.create_task(a.client.decide(encode(Finish())))
    await a.until(lambda: Finish() in [decision for decision, _ in a.node.organising._waiting])
    await a.stop()
    with pytest.raises(UserError) as lost:
        await asked
    assert lost.value.code in (Code.ORGANISER_NEEDED, Code.NODE_NOT_RUNNING)
    with organised.log("a") as log:
        assert not any(read(entry.record).decision == Finish() for entry in log.control())


async def test_an_organiser_that_has_stopped_begins_nothing_more_while_its_node_ends(
    organised: Swarm, tmp_path: Path
) -> None:
    """Rounds go on until the last updates are handed over. Work that they start would never be stopped."""
    a = await organised.first(**options(tmp_path))
    await a.until(lambda: counted(a) > 0)
    await a.node.organising.stop()
    begun = list[Event]()
    a.node.organising._organiser.handle = lambda event, now: begun.append(event) or []
    known = a.known
    await a.until(lambda: a.known > known)
    assert begun == []


async def test_the_organiser_decides_by_what_the_machine_has_decided_and_never_within_a_round(
    organised: Swarm, tmp_path: Path
) -> None:
    """A fork proof that the machine already has may have removed updates that the organiser would list."""
    a = await organised.first(**options(tmp_path))
    await a.until(lambda: a.machine.may_compute)
    organiser, told = a.node.organising._organiser, list[Event]()
    handle = organiser.handle
    organiser.handle = lambda event, now: told.append(event) or handle(event, now)
    async with a.node.driver.between_rounds:
        told.clear()
        a.node.driver.on_join_request[0](JoinRequested(JoinRequest(bytes(32), 0, 0, b"", bytes(64)), "peer"))
        asked = asyncio.create_task(a.node.organising.decide(Budget(500)))
        await asyncio.sleep(0)
        assert told == []
    assert await asked is None
    assert [type(event) for event in told[:3]] == [Round, JoinRequested, OwnerDecision]


async def test_a_wish_of_which_nobody_knows_what_becomes_is_no_false_promise(
    organised: Swarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(organising, "SIGN_DEADLINE", 0.05)
    a = await organised.first(**options(tmp_path))
    await a.until(lambda: a.machine.may_compute)
    monkeypatch.setattr(a.node.driver, "post", lambda event: None)
    with pytest.raises(UserError, match="a minute has passed"):
        await a.node.organising.decide(Finish())


async def test_the_organiser_says_what_it_gives_up(
    organised: Swarm, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a = await organised.first(**options(tmp_path))
    run_state = a.machine.organised.run_state
    await a.until(lambda: run_state.sealed > 1)
    number = min(run_state.positions())
    feed, named, kept = run_state.feed(number), run_state.named(number), run_state.named(number, 0)
    a.node.organising._do(Sign(a.machine.organised.control.feed.stop, Amend(number, 1)))
    assert f"{named - kept} updates that were named are not to be had" in caplog.text
    assert feed.origin.hex()[:16] in caplog.text
    await a.until(lambda: run_state.ended(number) == kept)


async def test_an_encrypted_key_is_opened_by_the_first_line_of_a_file(
    organised: Swarm, tmp_path: Path
) -> None:
    path = organiser_key(organised.run.run_id, tmp_path / "keys")
    Identity.read(path).write(path, b"horse")
    with fails_with(Code.WRONG_PASSPHRASE):
        await organised.first(**options(tmp_path))
    (tmp_path / "secret").write_text("horse\n")
    a = await organised.first(**options(tmp_path), passphrase_file=tmp_path / "secret")
    await a.until(lambda: a.machine.may_compute)


async def test_only_the_key_of_the_run_organises_it(
    organised: Swarm, swarm_of: SwarmOf, tmp_path: Path
) -> None:
    with fails_with(Code.KEY_NOT_FOUND):
        await organised.first(organise=True, keys_dir=tmp_path / "elsewhere")
    await organised.first(**options(tmp_path))
    with fails_with(Code.KEY_IN_USE):
        await organised.node("second").start(organised.run_file, **options(tmp_path))
    open_run = swarm_of(manifest("open"))
    with refused(Code.BAD_OPTION, "--organise"):
        await open_run.node("o").start(open_run.run_file, **options(tmp_path))

"""Tests of verification, which recomputes everything."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sfnode.engine.core import Core
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.node.startup import settled
from sfnode.store import segment_table
from sfnode.store.checkpoint import CheckpointState, compute, plan
from sfnode.store.log import Record, UpdateLog
from sfnode.store.replay import changes
from sfnode.store.verification import verify_log
from sfprotocol.decisions import INCARNATIONS, Admit, RateFrom, Void, encode
from sfprotocol.events import KeepControl
from sfprotocol.messages import EpochScalars, RunParameters
from sfprotocol.segments import without_front
from tests.node.helpers import batch, feed_of, machine, manifest, record
from tests.refusals import fails_with, refused
from tests.store.organised import ORGANISED, Logged

RUN = manifest(update_budget=100, scalar_limit=1000)
HONEST = [record(RUN, "a", [1, -2, 3]), record(RUN, "b", [4] * 50), record(RUN, "a", [5], before=[1, -2, 3])]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[UpdateLog]:
    with UpdateLog.open(tmp_path / "updates.sqlite", RUN.run_id) as log:
        yield log


def test_an_honest_log_has_the_digests_that_a_node_had(log: UpdateLog) -> None:
    log.append(HONEST)
    proof = verify_log(RUN, log)
    assert (proof.feeds, proof.updates, proof.signatures) == (2, 54, 3)
    assert proof.digest == machine(RUN, log.tails()).frontier.digest().hex()
    core = Core(2, 4)
    for _, segment, _ in HONEST:
        core.add(batch(segment.feed_key, segment.first, segment.parts))
    assert proof.core_digest == core.digest().hex()


def test_an_empty_log_passes(log: UpdateLog) -> None:
    assert verify_log(RUN, log).updates == 0


def forged(honest: Record, *scalars: int) -> Record:
    """Return other content under the same signature."""
    return honest._replace(segment=replace(honest.segment, parts=(EpochScalars(0, scalars),)))


def of_another_run(scalars: list[int]) -> Record:
    """Return a segment that the same author wrote in another run."""
    said = record(manifest("other"), "a", scalars)
    return said._replace(segment=replace(said.segment, feed_key=HONEST[0].segment.feed_key))


@pytest.mark.parametrize(
    "tampered",
    [
        [forged(HONEST[0], 1, -2, 4)],
        [HONEST[0], forged(HONEST[2], 6)],
        [HONEST[0]._replace(segment=replace(HONEST[0].segment, signature=bytes(64)))],
        [of_another_run([1, -2, 3])],
        [record(RUN, "a", [1001])],
        [record(RUN, "a", [1] * 101)],
    ],
    ids=["content", "tail", "signature", "run", "scalar", "budget"],
)
def test_a_log_that_was_tampered_with_is_refused(log: UpdateLog, tampered: list[Record]) -> None:
    """An attacker wrote the file, with sound checksums."""
    log.append([HONEST[1], *tampered])
    with fails_with(Code.LOG_CORRUPT) as finding:
        verify_log(RUN, log)
    assert feed_of("a").origin.hex()[:16] in finding.value.what


def test_missing_updates_in_the_middle_are_noticed(log: UpdateLog) -> None:
    log.append(HONEST)
    with sqlite3.connect(log.path) as db:
        db.execute("DELETE FROM segment WHERE first = 0 AND feed = 1")
    with fails_with(Code.LOG_CORRUPT):
        verify_log(RUN, log)


# -- organised runs ------------------------------------------------------------------------------------


class Organised(Manifest):
    """The parts of the test swarm's manifest that a verification reads."""

    def parameters(self) -> RunParameters:
        return ORGANISED


MEANT = Organised(**RUN.model_dump())


def train(made: Logged, epochs: int = 3) -> None:
    """Let three nodes make updates in epochs that are closed and sealed."""
    for _ in range(epochs):
        epoch = made["a"].machine.epoch
        for name in "abc":
            made[name].compute(4 + epoch)
        made.swarm.run(2)
        made.close()
        made["b"].compute(2)
        made.swarm.run(2)
        made.seal(factor=2048 + epoch, rates=(RateFrom(epoch + 2, 1 << (24 - epoch)),))
        made.swarm.run(2)


def cores(made: Logged, log: UpdateLog) -> bytes:
    """Return the core digest of the updates that count now at node a."""
    machine, core = made["a"].machine, Core(2, 4)
    counted = {state.feed: machine.counted(state.feed) for state in machine.frontier}
    for columns in changes(log, {}, counted, ORGANISED.subspace_of):
        core.add(columns)
    return core.digest()


def test_an_organised_log_has_the_digests_of_its_node_and_of_its_seals(made: Logged) -> None:
    train(made)
    made["c"].compute(5)
    made.swarm.run(2)
    for log in made.logs.values():
        found = verify_log(MEANT, log, as_of_now=True)
        assert found.digest == made["a"].machine.frontier.digest().hex()
        assert found.core_digest == cores(made, log).hex()
        assert verify_log(MEANT, log).core_digest == sealed_cores(made, 2) != found.core_digest
        assert found.updates == made["a"].machine.frontier.known
        assert found.seals
        assert (found.seals.sealed, found.seals.checked, found.seals.behind) == (3, 3, 0)
        assert found.seals.named_digest == made.named_digest(2).hex()
        assert found.seals.decisions == 3 + 2 * 3


def test_what_is_not_taken_at_its_word_is_not_in_the_core_as_of_now(made: Logged) -> None:
    train(made, 1)
    made["c"].compute(5)
    made.swarm.run(2)
    made.close()
    made.seal(2 * INCARNATIONS)  # skips what c has made last, so that c has no credit
    made.swarm.run(2)
    made["b"].compute(3)
    made["c"].compute(5)
    made.swarm.run(2)
    for log in made.logs.values():
        assert verify_log(MEANT, log, as_of_now=True).core_digest == cores(made, log).hex()


def test_a_seal_of_other_updates_is_refused(made: Logged) -> None:
    train(made, 1)
    made["c"].compute(5)
    made.swarm.run(2)
    made.close()
    made.seal(digest=bytes(32))
    made.swarm.run(2)
    with refused(Code.SEAL_DIFFERS, "seal of epoch 1"):
        verify_log(MEANT, made.logs["b"])


def state_of(made: Logged, epoch: int, previous: CheckpointState | None = None) -> CheckpointState:
    """Return the state of a checkpoint of `epoch`, from the organiser's log and the decisions so far."""
    run_state = made["a"].machine.frontier.run_state
    assert run_state
    state = compute(MEANT, made.logs["a"], plan(run_state, epoch, previous), previous)
    assert state
    return state


def sealed_cores(made: Logged, epoch: int) -> str:
    """Return the core digest, in hex, of the updates that count by the last seal."""
    return state_of(made, epoch).decision(ORGANISED.run_id).cores.hex()


def checkpoint(made: Logged, epoch: int) -> CheckpointState:
    """Sign a checkpoint; return its state."""
    state = state_of(made, epoch)
    made.decide(state.decision(ORGANISED.run_id))
    made.swarm.run(2)
    return state


def test_checkpoints_are_computed_anew(made: Logged) -> None:
    for epoch in range(2):
        train(made, 1)
        checkpoint(made, epoch)
    made.decide(Void(0, 0, ()))  # changes what counts, and not what counted then
    made.swarm.run(2)
    found = verify_log(MEANT, made.logs["b"], as_of_now=True)
    assert (found.core_digest, found.checkpoint) == (cores(made, made.logs["b"]).hex(), None)


@pytest.mark.parametrize("wrong", [{"feeds": bytes(32)}, {"cores": bytes(32)}])
def test_a_checkpoint_of_something_else_is_refused(made: Logged, wrong: dict[str, Any]) -> None:
    train(made, 1)
    checkpoint(made, 0)
    train(made, 1)
    made.decide(replace(state_of(made, 1).decision(ORGANISED.run_id), **wrong))
    made.swarm.run(2)
    with refused(Code.SEAL_DIFFERS, "checkpoint of epoch 1"):
        verify_log(MEANT, made.logs["b"])


@pytest.mark.parametrize("let_go", [False, True])
def test_a_log_is_verified_from_a_checkpoint(made: Logged, let_go: bool) -> None:
    train(made, 3)
    state = checkpoint(made, 1)
    train(made, 2)
    checkpoint(made, 3)
    made["c"].compute(5)
    made.swarm.run(2)
    whole, log = verify_log(MEANT, made.logs["b"]), made.logs["b"]
    if let_go:
        log.rebase(state.bases.values())
    found = verify_log(MEANT, log, state)
    assert found.checkpoint == 1
    assert found.signatures < whole.signatures
    assert (found.digest, found.core_digest) == (whole.digest, whole.core_digest)
    assert (found.updates, found.feeds) == (whole.updates, whole.feeds)
    assert found.seals
    assert whole.seals
    assert (found.seals.checked, whole.seals.checked) == (4, 5)
    assert found.seals.named_digest == whole.seals.named_digest


def test_a_later_checkpoint_is_computed_from_the_one_before(made: Logged) -> None:
    train(made, 2)
    first = checkpoint(made, 1)
    train(made, 2)
    for log in made.logs.values():
        log.rebase(first.bases.values())
    second = state_of(made, 3, first)
    made.decide(replace(second.decision(ORGANISED.run_id), cores=bytes(32)))
    made.swarm.run(2)
    with pytest.raises(UserError, match="checkpoint of epoch 3"):
        verify_log(MEANT, made.logs["c"], first)


def test_a_log_is_not_verified_from_what_nobody_has_signed(made: Logged) -> None:
    train(made, 2)
    state = state_of(made, 1)
    with refused(Code.SEAL_DIFFERS, "checkpoint of epoch 1"):
        verify_log(MEANT, made.logs["b"], state)


def test_steps_without_a_signature_of_their_own_are_verified_with_those_that_follow(
    made: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(made, 1)
    log, feed = made.logs["c"], made["b"].own
    assert feed
    whole = verify_log(MEANT, log)
    segment = log.read(feed, 0, 100)
    assert segment
    most = segment.count - 1
    monkeypatch.setattr(segment_table, "most_updates", lambda _: most)
    chain = next(tail.chain for tail in log.ends() if tail.feed == feed)
    log.append([Record(feed, without_front(segment, 2), chain)], replacing=True)
    assert [r.segment.count for r in log.records() if r.feed == feed] == [2, segment.count - 2]
    found = verify_log(MEANT, log)
    assert (found.digest, found.core_digest) == (whole.digest, whole.core_digest)
    with sqlite3.connect(log.path) as db:
        db.execute("DELETE FROM segment WHERE first = 2")
    with pytest.raises(UserError, match="nobody has signed it"):
        verify_log(MEANT, log)


def test_what_the_log_lacks_is_said_and_no_fault(made: Logged) -> None:
    train(made, 2)
    for name in "ac":
        made.swarm.cut(made[name], made["b"])
    made["c"].compute(6)
    made.swarm.run(2)
    made.close()
    made.seal()
    made.swarm.run(2)
    kept = [KeepControl(0, tuple(made.logs["a"].control()))]
    made.logs["b"].append([], control=kept)
    before = sealed_cores(made, 1)
    proof = verify_log(MEANT, made.logs["b"])
    found = proof.seals
    assert found
    assert (found.sealed, found.checked, found.behind) == (3, 2, 6)
    assert (found.epoch, found.lacking, proof.core_digest) == (1, 6, before)


def test_a_history_that_was_not_named_is_not_counted(made: Logged) -> None:
    other = made.swarm.twin("b")
    late = made.swarm.add("late")
    made.keep(late)
    made.swarm.connect(late, made["c"])
    made.decide(Admit(late.own.origin, 100, 0))  # type: ignore[union-attr]
    made.swarm.run(2)
    made.swarm.cut(late, made["c"])
    made.swarm.connect(other, late)
    other.compute(8)
    made["b"].compute(5)
    made.swarm.run(2)
    made.close()
    made.seal()
    made.swarm.run(2)
    made.logs["late"].append([], control=[KeepControl(0, tuple(made.logs["a"].control()))])
    found = verify_log(MEANT, made.logs["late"])
    assert found.updates == 0
    assert found.seals
    assert (found.seals.sealed, found.seals.checked, found.seals.behind) == (1, 0, 5)


def test_a_decision_that_was_tampered_with_is_refused(made: Logged) -> None:
    train(made, 1)
    log = made.logs["c"]
    entries = log.control()
    forged = entries[1]._replace(record=encode(Admit(bytes(32), 10**6, 0)))
    log.append([], control=[KeepControl(1, (forged, *entries[2:]))])
    for check in (lambda: verify_log(MEANT, log), lambda: settled(ORGANISED, log)):
        with fails_with(Code.LOG_CORRUPT):
            check()


def test_updates_that_were_tampered_with_are_refused_in_an_organised_log(made: Logged) -> None:
    train(made, 1)
    log, feed = made.logs["c"], made["b"].own
    assert feed
    segment = log.read(feed, 0, 100)
    assert segment
    scalars = (segment.parts[0].scalars[0] ^ 1, *segment.parts[0].scalars[1:])
    wrong = replace(segment, parts=(EpochScalars(0, scalars), *segment.parts[1:]))
    log.append([Record(feed, wrong, bytes(32))], replacing=True)
    with fails_with(Code.LOG_CORRUPT):
        verify_log(MEANT, log)

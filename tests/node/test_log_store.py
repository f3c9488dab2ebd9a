"""Logs of organised runs: a machine that starts from a log has the state of the machine that wrote it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from sfnode.node.startup import settled
from sfnode.store.data_folder import remember_signing, signed_here
from sfnode.store.log import UpdateLog
from sfprotocol import decisions
from sfprotocol.control_feed import succession_message
from sfprotocol.decisions import Amend, Budget, RateFrom, Revoke, Void
from sfprotocol.events import OwnDecision, OwnSuccession
from sfprotocol.messages import Succession, Vote
from tests.protocol.feeds import RUN, origin_of, signing_key
from tests.store.organised import ORGANISED, Logged


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Logged]:
    logged = Logged(tmp_path, "a b c d")
    yield logged
    logged.close_logs()


def assert_kept(made: Logged) -> None:
    """Assert that every log, read again, gives the state of its node."""
    for name, log in made.logs.items():
        node = made[name].machine
        with UpdateLog.open(log.path, RUN.run_id, read_only=True) as read:
            machine = settled(ORGANISED, read)
        assert machine.frontier.digest() == node.frontier.digest(), name
        for state in node.frontier:
            assert machine.counted(state.feed) == node.counted(state.feed)
            kept = machine.frontier.state(state.feed)
            assert (kept.next, kept.chain) == (state.next, state.chain)
            assert not state.next or (kept.epoch, kept.labelled) == (state.epoch, state.labelled)


def test_epochs_seals_and_rates_come_back(made: Logged) -> None:
    for epoch in range(4):
        for name in "bcd":
            made[name].compute(3 + epoch)
            made.swarm.run(1)
            made[name].compute(2)
        made.swarm.run(2)
        made.close()
        made[("b", "c")[epoch % 2]].compute(4)
        made.swarm.run(2)
        made.seal(factor=1024 << epoch, rates=(RateFrom(epoch + 2, 1 << (20 - epoch)),))
    made.decide(Void(1, 1, ()))
    made.swarm.run(2)
    assert made["d"].machine.frontier.run_state.sealed == 4  # type: ignore[union-attr]
    assert_kept(made)


def test_what_was_revoked_does_not_count_again_after_a_restart(made: Logged) -> None:
    """The same holds for an origin without counted updates."""
    made["b"].compute(9), made["c"].compute(7)
    made.swarm.run(2)
    made.decide(Revoke(1, 0))
    made.swarm.run(5)
    assert {made[name].machine.frontier.known for name in "abcd"} == {7}
    assert_kept(made)


def test_a_feed_that_was_ended_stays_so(made: Logged) -> None:
    made["b"].compute(9)
    made.swarm.run(2)
    made.close()
    made.seal()
    made.swarm.run(2)
    feed, run_state = made["b"].own, made["a"].machine.frontier.run_state
    number = run_state.number(feed)
    made.decide(Amend(number, 0))
    made.swarm.run(5)
    assert {made[name].machine.frontier.known for name in "abcd"} == {0}
    assert_kept(made)


def test_the_named_history_takes_the_place_of_another(made: Logged) -> None:
    other = made.swarm.twin("b")  # the same key, the same incarnation
    for name in "abc":
        made.swarm.cut(made[name], made["d"])
    made.swarm.connect(other, made["d"])
    made["b"].compute(5)
    made.swarm.run(2)
    made.close()
    other.compute(8)
    made.swarm.run(3)
    feed = made["b"].own
    assert made.logs["d"].stop(feed) == 8
    assert_kept(made)
    made.swarm.drop(other)
    made.swarm.connect(made["d"], made["c"])
    made.swarm.run(60)
    assert {log.stop(feed) for log in made.logs.values()} == {5}
    segments = [log.read(feed, 0, 100) for log in made.logs.values()]
    assert len({segment.parts for segment in segments if segment}) == 1
    assert_kept(made)


def hand_over(made: Logged, kept: int) -> None:
    """Let node d go on as organiser after so many decisions, and make one."""
    control = made["d"].machine.organised.control  # type: ignore[union-attr]
    succession = Succession(1, kept, control.feed.chains[kept], origin_of("new"), ())
    message = succession_message(RUN.run_id, succession)
    votes = tuple(Vote(n, signing_key(f"d{n + 1}").sign(message)) for n in range(2))
    made["d"].handle(OwnSuccession(replace(succession, votes=votes)))
    control._sign = signing_key("new").sign
    made["d"].handle(OwnDecision(decisions.encode(Budget(19))))
    made.swarm.run(10)


def test_decisions_that_a_succession_drops_are_dropped_from_the_log(made: Logged) -> None:
    made["b"].compute(5)
    made.swarm.run(2)
    kept = made["d"].machine.organised.control.feed.stop  # type: ignore[union-attr]
    made.close()
    made.seal()
    made.swarm.run(2)
    hand_over(made, kept)
    assert {len(log.control()) for log in made.logs.values()} == {kept + 1}
    assert {made[name].machine.frontier.run_state.budget for name in "abcd"} == {19}  # type: ignore[union-attr]
    assert_kept(made)


# -- where decisions were signed -----------------------------------------------------------------------


def test_who_has_signed_last_knows_that_nothing_of_it_is_lacking_here(made: Logged) -> None:
    made.decide(Budget(17))
    made.swarm.run(2)
    assert {name for name, log in made.logs.items() if signed_here(log)} == {"a"}


def test_a_copy_may_lack_what_was_signed_since_and_signs_last_once_it_has_signed(
    made: Logged, tmp_path: Path
) -> None:
    copied = tmp_path / "copy.sqlite"
    with closing(sqlite3.connect(made.logs["a"].path)) as log, closing(sqlite3.connect(copied)) as copy:
        log.backup(copy)
    with UpdateLog.open(copied, RUN.run_id) as log:
        assert not signed_here(log)
        remember_signing(log, True)
        assert signed_here(log)
    with UpdateLog.open(copied, RUN.run_id) as log:
        assert signed_here(log)


@pytest.mark.parametrize("dropped", [0, 1])
def test_what_was_signed_elsewhere_last_tells_that_more_may_be_lacking(made: Logged, dropped: int) -> None:
    made.swarm.run(2)
    hand_over(made, len(made.logs["a"].control()) - dropped)
    assert {name for name, log in made.logs.items() if signed_here(log)} == {"d"}

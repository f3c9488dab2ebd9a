"""Tests of the organiser: what it signs, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sfnode.organising import verdicts
from sfnode.organising.events import NobodyElse, OwnerDecision, Round
from sfnode.organising.organiser import (
    FIRST_TIME,
    FORKED,
    LEAST_INTERVAL,
    LOOK_INTERVAL,
    PASSED_ON,
    PROOF_TIME,
    SETTLE_TIME,
    OrganiserState,
)
from sfnode.organising.policy import LEAST_EPOCH, Admission
from sfnode.organising.rules import ACTIVE_TIME, MAX_UNSEALED, UNPROVEN_EPOCH
from sfnode.organising.steps import Judgement, at_rate
from sfprotocol.decisions import (
    FACTOR_ONE,
    Admit,
    Announce,
    Budget,
    Close,
    Finish,
    RateFrom,
    Recorded,
    Recount,
    Revoke,
    Seal,
    StandIn,
    StandIns,
    Unknown,
)
from sfprotocol.messages import ControlFork
from sfprotocol.run_state import MAX_EPOCHS, RunState, Span, named_digest
from tests.organising.bench import (
    BUDGET,
    EVALUATED,
    KEY,
    RATE,
    RUN_ID,
    UNEVALUATED,
    Bench,
    chain_of,
    feed_of,
    skipping,
)

ANNE, BOB = feed_of("anne"), feed_of("bob")


# -- closes --------------------------------------------------------------------------------------------


def test_an_epoch_is_closed_once_enough_updates_may_be_named_long_before_the_next_regular_look() -> None:
    bench = Bench().begin("anne", "bob")
    bench.update(ANNE, 60)
    bench.advance(5 * LOOK_INTERVAL)
    assert not bench.of(Close)
    bench.update(BOB, 40)
    bench.advance(2 * LEAST_INTERVAL)
    assert bench.run_state.open_epoch == 1
    assert (bench.named(ANNE), bench.named(BOB)) == (60, 40)


def test_what_is_held_and_not_shown_makes_it_look_no_more_often_than_its_share_of_a_core() -> None:
    bench, looks = Bench().begin("anne", "bob"), set()
    bench.advance(LOOK_INTERVAL)
    for _ in range(200):
        bench.update(ANNE, 1, shown=False)
        bench.advance(0.01)
        looks.add(bench.organiser.next_deadline())
    assert len(looks) <= 2 / LEAST_INTERVAL + 2


def test_no_update_waits_longer_than_the_longest_epoch() -> None:
    bench = Bench().begin("anne")
    bench.advance(1000)
    assert not bench.of(Close), "there was nothing to name"
    bench.update(ANNE, 1)
    bench.advance(59)
    assert not bench.of(Close)
    bench.advance(3)
    assert bench.named(ANNE) == 1
    bench.advance(1000)
    bench.update(ANNE, 1)
    bench.advance(59)
    assert bench.named(ANNE) == 1, "the epoch gathers what comes after the first"
    bench.advance(3)
    assert bench.named(ANNE) == 2


def test_only_what_a_peer_has_shown_is_named() -> None:
    bench = Bench().begin("anne")
    bench.update(ANNE, 80)
    bench.update(ANNE, 80, shown=False)
    bench.advance(100)
    assert bench.named(ANNE) == 80
    bench.show(ANNE, 159)
    bench.advance(100)
    assert bench.named(ANNE) == 80, "there is no boundary at which a close could stop"
    bench.show(ANNE, 160)
    bench.advance(100)
    assert bench.named(ANNE) == 160


def test_alone_an_organiser_names_what_it_alone_holds_until_a_peer_comes() -> None:
    bench = Bench(alone=True)
    bench.decide(Admit(ANNE.origin, 1000, 0))
    bench.update(ANNE, 100, shown=False)
    bench.advance(2)
    assert bench.named(ANNE) == 100
    bench.link()
    bench.update(ANNE, 100, shown=False)
    bench.advance(100)
    assert bench.named(ANNE) == 100


def test_an_organiser_that_hears_that_nobody_else_is_there_begins_at_once_and_one_with_a_past_as_well() -> (
    None
):
    """The node decides whether to send NobodyElse."""
    bench = Bench()
    bench.advance(1000)
    assert bench.organiser.state is OrganiserState.RESTARTED
    bench.alone = True  # as the bench checks what is named
    bench.do(NobodyElse())
    assert bench.organiser.state is OrganiserState.ORGANISING
    bench.decide(Admit(ANNE.origin, 1000, 0))
    bench.update(ANNE, 100, shown=False)
    bench.advance(2)
    assert bench.named(ANNE) == 100


def test_a_member_that_goes_on_with_a_new_feed_waits_for_no_more_than_a_close() -> None:
    """It may make one update until a close lists the new feed. Nobody else is active, so the epoch is closed
    for it."""
    bench = Bench().begin("anne", quota=50)
    bench.update(ANNE, 30)
    other = feed_of("anne", 1)
    bench.update(other, 1)
    bench.advance(3)
    assert (bench.named(ANNE), bench.named(other)) == (30, 1)
    assert bench.run_state.goes_on_with(1)
    assert bench.run_state.room_left(0, {}) == 50


def test_an_epoch_ends_once_all_who_are_at_work_have_made_what_they_may() -> None:
    bench = Bench().begin("anne", "bob", quota=20)
    bench.update(ANNE, 20)
    bench.update(BOB, 19)
    bench.advance(10)
    assert not bench.of(Close), "bob may make one more"
    bench.update(BOB, 1)
    bench.advance(3)
    assert len(bench.of(Close)) == 1
    bench.update(ANNE, 20)
    bench.advance(10)
    assert len(bench.of(Close)) == 1, "bob may be at work"
    bench.advance(ACTIVE_TIME)
    assert len(bench.of(Close)) == 2, "nothing has come of it for long"


def test_who_has_no_credit_and_is_alone_at_work_closes_an_epoch_now_and_then() -> None:
    """Its work is skipped each time. It would otherwise fill the control feed with closes."""
    bench = Bench(judge=skipping({1})).begin("anne")
    bench.update(ANNE, 100)
    bench.advance(40)
    bench.decide(Admit(feed_of("eve").origin, 0, 0))
    before, last = len(bench.of(Close)), -1
    for _ in range(100):
        label = bench.run_state.open_epoch
        if label != last:
            last = label
            bench.update(feed_of("eve"), bench.run_state.quotas.quota(1, label))
        bench.advance(1)
    assert 2 <= len(bench.of(Close)) - before <= 100 / UNPROVEN_EPOCH


def test_an_epoch_is_open_for_half_a_second_at_least() -> None:
    bench = Bench().begin("anne", quota=100)
    for _ in range(20):
        bench.update(ANNE, 100)
        bench.advance(0.1)
    assert 1 <= len(bench.of(Close)) <= 2 / LEAST_EPOCH


def test_what_moves_nothing_closes_no_epoch_and_uses_up_no_budget() -> None:
    bench = Bench(budget=150).begin("anne", "bob")
    bench.update(ANNE, 100, zeros=100)
    bench.advance(65)
    assert not bench.of(Close), "a close without work that can count uses no number"
    bench.update(BOB, 100, zeros=50)
    bench.advance(3)
    assert not bench.of(Close)
    bench.update(ANNE, 50)
    bench.advance(3)
    assert [sum(move.moving for move in close.moves) for close in bench.of(Close)] == [100]
    assert (bench.run_state.counted, bench.run_state.complete) == (100, False)
    bench.update(BOB, 50)
    bench.advance(65)
    assert (bench.run_state.counted, bench.run_state.complete) == (150, True)


def test_strangers_without_credit_close_no_epoch_and_bring_an_eighth_of_the_room_into_it() -> None:
    bench = Bench().begin("anne")
    bench.update(ANNE, 100)
    bench.advance(3)
    names = [str(number) for number in range(40)]
    for name in names:
        bench.decide(Admit(feed_of(name).origin, 0, 0))
    bench.update(ANNE, 100)
    bench.advance(3)
    room, label = bench.run_state.room, bench.run_state.open_epoch
    quotas = [bench.run_state.quotas.quota(1 + number, label) for number in range(40)]
    assert sum(quotas) == room // 16
    for name, quota in zip(names, quotas, strict=True):
        if quota:
            bench.update(feed_of(name), quota)
    before = len(bench.of(Close))
    bench.update(ANNE, 80)
    bench.advance(10)
    assert len(bench.of(Close)) == before, "an eighth of the epoch is all that strangers fill"
    bench.update(ANNE, 10)
    bench.advance(3)
    assert len(bench.of(Close)) == before + 1
    assert sum(move.steps for move in bench.of(Close)[-1].moves if move.feed) == room // 16


def test_what_strangers_have_kept_back_for_long_does_not_come_all_at_once() -> None:
    """A stranger has made updates with many old labels, and shows all of them at once."""
    bench = Bench().begin("anne")
    bench.decide(Admit(feed_of("eve").origin, 0, 0))
    for _ in range(9):
        bench.update(ANNE, 100)
        bench.advance(3)
    run_state = bench.run_state
    for label in range(2, run_state.open_epoch + 1):
        bench.update(feed_of("eve"), run_state.quotas.quota(1, label), label)
    bench.update(ANNE, 100)
    bench.advance(3)
    named = [move.steps for move in bench.of(Close)[-1].moves if move.feed]
    assert 0 < sum(named) <= run_state.room // 8


def test_what_is_late_does_not_bring_more_than_the_quota_into_an_epoch() -> None:
    bench = Bench().begin("anne", "bob", quota=50)
    for _ in range(3):
        bench.update(BOB, 50)
        bench.advance(65)
    for label in range(4):
        bench.update(ANNE, 50, label)
    bench.update(BOB, 50)
    bench.advance(2)
    assert bench.named(ANNE) == 50
    bench.advance(200)
    assert bench.named(ANNE) == 200


def test_nothing_is_named_beyond_a_fork() -> None:
    bench = Bench().begin("anne")
    bench.update(ANNE, 40)
    bench.update(ANNE, 40)
    bench.node.forked[ANNE] = 50
    bench.do(Round((ANNE,)))
    bench.advance(100)
    assert bench.named(ANNE) == 40
    bench.node.forked[ANNE] = 10
    bench.do(Round((ANNE,)))
    bench.advance(100)
    assert bench.named(ANNE) == 40


def test_nothing_is_named_from_the_label_on_from_which_a_member_is_revoked() -> None:
    bench = Bench().begin("anne", "bob")
    bench.update(BOB, 100)
    bench.advance(2)
    bench.update(ANNE, 10, 0)
    bench.update(ANNE, 10, 1)
    bench.decide(Revoke(0, 1))
    bench.advance(200)
    assert bench.named(ANNE) == 10


def test_a_complete_run_is_not_closed_any_further() -> None:
    bench = Bench().begin("anne")
    bench.decide(Finish())
    bench.update(ANNE, 100)
    bench.advance(100)
    assert not bench.of(Close)


def test_epochs_are_not_closed_without_end_while_they_cannot_be_sealed() -> None:
    bench = Bench(policy=replace(EVALUATED, seal_wait=86_400.0)).begin("anne")
    for _ in range(3 * MAX_UNSEALED):
        bench.update(ANNE, 100)
        bench.advance(2)
    assert bench.run_state.open_epoch == MAX_UNSEALED
    bench.evaluated(0.5)
    bench.advance(10)
    assert bench.run_state.open_epoch == MAX_UNSEALED + 4, "what has come meanwhile, a quota at a time"


# -- seals ---------------------------------------------------------------------------------------------


def test_a_seal_states_the_digest_of_what_closes_up_to_its_own_have_named() -> None:
    bench = Bench(policy=EVALUATED).begin("anne", "bob")
    bench.update(ANNE, 100)
    bench.advance(2)
    bench.update(BOB, 100)
    bench.advance(2)
    assert not bench.of(Seal)
    bench.evaluated(0.5)
    bench.advance(40)
    first, second = bench.of(Seal)
    anne, bob = (0, 100, chain_of(ANNE, 100)), (64, 100, chain_of(BOB, 100))
    assert first == Seal(0, (), (), named_digest(RUN_ID, [anne]), FACTOR_ONE, ())
    assert second.digest == named_digest(RUN_ID, [anne, bob])


def test_after_a_restart_the_same_seal_follows() -> None:
    bench = Bench(policy=EVALUATED).begin("anne")
    for _ in range(3):
        bench.update(ANNE, 100)
        bench.advance(2)
    bench.start()
    bench.link()
    bench.advance(300)
    digests = [seal.digest for seal in bench.of(Seal)]
    expected = [named_digest(RUN_ID, [(0, stop, chain_of(ANNE, stop))]) for stop in (100, 200, 300)]
    assert digests == expected


def test_no_more_is_named_than_the_budget_lacks_but_for_the_rest_of_a_segment() -> None:
    bench = Bench(budget=100).begin("anne", "bob")
    for feed in (ANNE, BOB) * 3:
        bench.update(feed, 30)
    bench.advance(10)
    assert sum(bench.run_state.positions().values()) == 120
    assert bench.run_state.complete
    assert bench.run_state.counted == bench.run_state.promised == 120


def test_nothing_is_closed_while_closes_without_a_seal_have_named_the_rest_of_the_budget() -> None:
    bench = Bench(policy=replace(EVALUATED, seal_wait=1000.0), budget=200).begin("anne")
    bench.update(ANNE, 200)
    bench.advance(2)
    assert (bench.run_state.open_epoch, bench.run_state.sealed, bench.run_state.promised) == (1, 0, 200)
    bench.update(ANNE, 200)
    bench.advance(100)
    assert bench.run_state.open_epoch == 1


def test_rates_of_coming_epochs_are_the_judges() -> None:
    bench = Bench(judge=lambda run_state: at_rate(RATE - run_state.counted)(run_state), budget=1000).begin(
        "anne"
    )
    for _ in range(3):
        bench.update(ANNE, 100)
        bench.advance(3)
    rates = [seal.rates for seal in bench.of(Seal)]
    assert rates == [(), (RateFrom(3, RATE - 100),), (RateFrom(4, RATE - 200),)]


@pytest.mark.parametrize(
    ("epochs", "rates"), [(MAX_EPOCHS - 2, (RateFrom(MAX_EPOCHS - 1, 1),)), (MAX_EPOCHS - 1, ())]
)
def test_there_is_no_rate_of_an_epoch_beyond_the_last(
    monkeypatch: pytest.MonkeyPatch, epochs: int, rates: tuple[RateFrom, ...]
) -> None:
    run_state = RunState(budget=BUDGET, rate=RATE)
    monkeypatch.setattr(RunState, "open_epoch", epochs)
    assert at_rate(1)(run_state).rates == rates


# -- what a judge says ---------------------------------------------------------------------------------


def test_a_seal_says_what_the_judge_says_with_what_an_epoch_has_not_moved_left_out() -> None:
    said = [
        Judgement(factor=0),
        Judgement(2048, frozenset({64, 128}), frozenset({Recount(0, 0)}), (RateFrom(5, 7), RateFrom(9, 3))),
        Judgement(6963, frozenset(), frozenset({Recount(64, 1), Recount(0, 1), Recount(64, 7)})),
    ]
    bench = Bench(judge=lambda run_state: said[run_state.sealed]).begin("anne", "bob")
    for _ in said:
        bench.update(ANNE, 100)
        bench.update(BOB, 60)
        bench.advance(3)
    first, second, third = bench.of(Seal)
    assert (first.factor, first.skipped, first.recounted) == (0, (), ())
    assert (second.factor, second.skipped, second.recounted) == (2048, (64,), ())
    assert second.rates == (RateFrom(5, 7), RateFrom(9, 3))
    assert (third.factor, third.skipped, third.recounted) == (6963, (), (Recount(64, 1),))
    assert bench.run_state.spans(0, 300) == (Span(100, 0), Span(200, 2048), Span(300, 6963))
    assert bench.run_state.spans(64, 180) == (Span(60, 0), Span(180, 6963))


def test_what_is_recounted_comes_a_bounded_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "RECOUNTS_PER_SEAL", 2)
    distrusted = {1}
    bench = Bench(judge=skipping(distrusted)).begin("anne", "bob")
    for _ in range(3):
        bench.update(BOB, 100)
        bench.advance(3)
    distrusted.clear()
    for _ in range(3):
        bench.update(ANNE, 100)
        bench.advance(3)
    assert [len(seal.recounted) for seal in bench.of(Seal)[3:]] == [2, 1, 0]


# -- whether it may sign -------------------------------------------------------------------------------


def test_a_restarted_organiser_signs_nothing_until_a_peer_has_told_that_it_has_no_more() -> None:
    bench = Bench()
    bench.decide(Announce("hello"))
    bench.advance(3600)
    assert not bench.signed
    bench.link()
    bench.advance(2)
    assert bench.of(Announce)


@pytest.mark.parametrize(
    ("before", "seconds"), [((Budget(5000),), SETTLE_TIME), ((), FIRST_TIME)], ids=["restarted", "new"]
)
def test_an_organiser_waits_for_others_to_come(before: tuple[Budget, ...], seconds: float) -> None:
    bench = Bench()
    for decision in before:
        bench.node.decide(decision)
    bench.start()
    bench.decide(Announce("hello"))
    bench.link()
    bench.advance(seconds - 1)
    assert not bench.signed
    bench.advance(2)
    assert bench.signed


def test_more_at_some_peer_is_waited_for_and_a_lie_not_for_ever() -> None:
    bench = Bench()
    bench.decide(Announce("hello"))
    bench.link("honest")
    bench.link("other", 1)
    bench.advance(PROOF_TIME - 1)
    assert not bench.signed
    bench.node.decide(Budget(5000))
    bench.do()
    bench.advance(SETTLE_TIME - 1)
    assert not bench.signed
    bench.advance(2)
    assert bench.signed
    bench.start()
    bench.node.linked.clear()
    bench.decide(Announce("again"))
    bench.link("honest", 0)
    bench.link("liar", 1000)
    bench.advance(PROOF_TIME + 1)
    assert len(bench.signed) == 2


def test_as_many_witnesses_as_the_policy_asks_for() -> None:
    bench = Bench(policy=replace(UNEVALUATED, witnesses=2))
    bench.decide(Announce("hello"))
    bench.link("one")
    bench.advance(1000)
    assert not bench.signed
    bench.link("two")
    bench.advance(2)
    assert bench.signed


@pytest.mark.parametrize("reason", [FORKED, PASSED_ON])
def test_without_its_key_it_stops_for_good_and_says_so(reason: str) -> None:
    bench = Bench().begin("anne")
    feed, authority = bench.node.feed, bench.node.feed.authority
    if reason is FORKED:
        feed.forks[0] = ControlFork(0, 1, (b"", b""), (b"", b""))
    else:
        feed.authority = authority._replace(organiser=bytes(32))
    bench.do()
    bench.do()
    assert bench.stopped == [reason]
    feed.forks, feed.authority = {}, authority
    bench.do()
    bench.update(ANNE, 100)
    bench.decide(Announce("hello"))
    bench.advance(1000)
    assert bench.organiser.state is OrganiserState.STOPPED
    assert len(bench.signed) == 1
    assert [answer.refused for answer in bench.refused] == [reason]


def test_a_decision_that_it_does_not_know_stops_it() -> None:
    bench = Bench().begin("anne")
    bench.run_state.apply(Recorded(Unknown(20)))
    bench.do()
    assert len(bench.stopped) == 1


def test_decisions_that_are_gone_make_it_look_for_the_head_again() -> None:
    bench = Bench().begin("anne", "bob")
    bench.node.folded = RunState(budget=BUDGET, rate=RATE)
    bench.node.feed._truncate(0)
    bench.positions.clear()  # another term
    bench.node.linked.clear()
    bench.do()
    bench.decide(Announce("hello"))
    bench.advance(1000)
    assert bench.organiser.state is OrganiserState.RESTARTED
    bench.link()
    bench.advance(2)
    assert bench.signed[-1] == Announce("hello")


def test_a_position_is_signed_once_however_long_it_takes() -> None:
    bench = Bench().begin("anne")
    bench.held_back = True
    bench.update(ANNE, 100)
    bench.advance(2)
    bench.update(ANNE, 100)
    bench.decide(Announce("hello"))
    bench.do()
    bench.advance(100)
    assert len(bench.outbox) > 5
    assert len(set(bench.outbox)) == 1


NAMED = StandIns((StandIn(0, KEY), StandIn(1, ANNE.origin), StandIn(2, BOB.origin)), admission=1)


def test_who_stands_in_decides_once_elected_and_admits_whom_the_organiser_did() -> None:
    bench = Bench(key=ANNE.origin)
    bench.advance(1)
    assert bench.organiser.state is OrganiserState.STANDING_BY
    bench.node.decide(NAMED)
    bench.advance(1)
    assert bench.organiser.known.policy.admission is Admission.APPROVE
    bench.do(OwnerDecision(Announce("not yet")))
    bench.advance(5)
    assert bench.signed == []
    bench.leads = True
    bench.advance(1)
    assert bench.organiser.state is OrganiserState.ORGANISING
    assert bench.signed == [Announce("not yet")]


def test_an_organiser_decides_nothing_while_too_few_who_stand_in_answer() -> None:
    bench = Bench(alone=True)
    bench.advance(1)
    bench.node.decide(NAMED)
    bench.advance(5)
    assert bench.organiser.state is OrganiserState.STANDING_BY
    bench.leads = True
    bench.advance(1)
    assert bench.organiser.state is OrganiserState.ORGANISING

"""A peer's faults cost the message or the link, and nobody else (SPEC L2-L7, A7, section 19)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sfprotocol import link as link_module
from sfprotocol import messages, rate_limit, wire_codec
from sfprotocol.errors import LocalProtocolError
from sfprotocol.events import Action, LinkUp, OwnUpdates, Received, Transmit
from sfprotocol.fork_resolution import INQUIRY_TIME
from sfprotocol.machine import MAX_LET_DOWN
from sfprotocol.pulls import GRAFT_DELAY, HEDGE_DELAY, WANT_TIMEOUT
from sfprotocol.rate_limit import INTAKE_RATE, LEAST_REST, PROOF_RATE
from sfprotocol.segments import MAX_SEGMENT_UPDATES
from tests.protocol.feeds import RUN, forked, signed
from tests.protocol.scripted import ANN, BOB, EVE, Scripted, admits, drops, said, serves, wants

LONG_RUN = replace(RUN, update_budget=100_000)
HELLO = messages.Hello(messages.OLDEST_VERSION, RUN.run_id, 0, 0)
TWO = (messages.EpochScalars(0, (0, 0)),)
"""Two updates."""


@pytest.fixture
def host() -> Scripted:
    """Return a relay with a link whose peer claims nothing."""
    host = Scripted()
    host.link(1)
    return host


def forged(segment: messages.Segment) -> messages.Segment:
    return replace(segment, signature=bytes(64))


def faults(actions: list[Action]) -> list[str]:
    return [drop.fault[:2] for drop in drops(actions)]


# -- links -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "frame", [b"", b"\xc1", b"\x91\x63", wire_codec.encode(messages.Goodbye("x"))[:-1], bytes(300)]
)
def test_a_garbage_frame_drops_its_link_only(frame: bytes, host: Scripted) -> None:
    host.link(2)
    assert faults(host.event(Received(1, frame))) in (["C2"], ["C3"])
    assert list(host.machine.links) == [2]
    assert host.event(Received(1, frame)) == [], "what was still on its way is ignored"


@pytest.mark.parametrize(
    "last", [messages.Goodbye("x" * 200), messages.Hello(messages.OLDEST_VERSION, bytes(32), 0, 0)]
)
def test_a_peer_that_leaves_when_it_has_wasted_all_it_may_costs_its_link_only(last: messages.Message) -> None:
    """The frame that ends the link is no news, but there is no link left to charge."""
    host = Scripted()
    host.event(LinkUp(1, "peer"))
    link = host.machine.links[1]
    if isinstance(last, messages.Goodbye):
        host.hear(1, HELLO)
    link.waste.bucket.level = 1.0
    (drop,) = drops(host.hear(1, last))
    assert not drop.fault
    assert not host.machine.links


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        ([messages.Want(())], "L2"),
        ([said("bob", 0, 1)], "L2"),
        ([HELLO, HELLO], "L2"),
        ([HELLO, messages.ManifestRequest()], "L6"),
    ],
)
def test_a_message_out_of_place_drops_the_link(said: list[messages.Message], rule: str) -> None:
    host = Scripted()
    host.event(LinkUp(1, "peer"))
    assert faults(host.hear(1, *said)) == [rule]


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (replace(HELLO, run_id=bytes(32)), "another run"),
        (replace(HELLO, version=4), "protocol 3 here, 4 there"),
    ],
)
def test_a_peer_of_another_run_or_version_gets_a_goodbye(hello: messages.Hello, reason: str) -> None:
    host = Scripted()
    host.event(LinkUp(1, "peer"))
    goodbye, drop = host.hear(1, hello)
    assert goodbye == Transmit(1, messages.Goodbye(reason))
    assert drops([drop])[0].fault == ""
    assert not host.machine.links


def test_a_goodbye_ends_the_link_and_is_no_fault() -> None:
    host = Scripted()
    host.event(LinkUp(1, "peer"))
    assert faults(host.hear(1, messages.Goodbye("shutting down"))) == [""]


def test_a_silent_peer_is_dropped_and_a_quiet_one_is_not(host: Scripted) -> None:
    host.link(2)
    dropped: list[Action] = []
    for _ in range(8):
        dropped += host.wait(10)
        host.hear(2, host.summary())
    assert [(drop.link, drop.fault) for drop in drops(dropped)] == [(1, "")], "it may be asleep: no fault"
    assert list(host.machine.links) == [2]


def test_time_in_which_the_node_itself_did_not_run_is_nobodys_silence(host: Scripted) -> None:
    host.now += 300  # suspended, stopped, or its clock has leapt
    assert not drops(host.wait(50))
    assert [drop.link for drop in drops(host.wait(15))] == [1]


def test_a_peer_that_never_says_hello_is_dropped_too() -> None:
    host = Scripted()
    host.event(LinkUp(1, "peer"))
    assert faults(host.wait(70)) == [""]


def test_a_feed_longer_than_the_run_cannot_be_claimed() -> None:
    host = Scripted()
    assert faults(host.link(1, messages.Position(BOB, RUN.update_budget + 1))) == ["U6"]


# -- segments that must not count --------------------------------------------------------------------


def test_properly_signed_nonsense_is_refused(host: Scripted) -> None:
    host.name(1, BOB)
    assert host.hear(1, signed("bob", 1, 0, [messages.EpochScalars(0, (1001,))])) == []
    assert (host.machine.frontier.known, host.machine.counters.rejected) == (0, 1)
    assert list(host.machine.links) == [1]


def test_a_forgery_is_refused_and_the_link_stays(host: Scripted) -> None:
    host.name(1, BOB)
    assert host.hear(1, forged(said("bob", 0, 2))) == []
    assert list(host.machine.links) == [1]
    assert admits(host.hear(1, said("bob", 0, 2))), "the true one is still welcome"


def test_a_forger_is_not_asked_for_that_feed_but_others_are() -> None:
    host = Scripted()
    asked = host.link(1, messages.Position(BOB, 5))
    assert wants(asked) == [(1, (messages.Position(BOB, 0),))]
    host.link(2, messages.Position(BOB, 4))
    assert wants(host.hear(1, forged(said("bob", 0, 2)))) == [(2, (messages.Position(BOB, 0),))]
    host.unlink(2)
    assert wants(host.wait(5)) == []


def test_one_fault_on_the_only_link_does_not_separate_two_nodes_for_ever() -> None:
    host = Scripted()
    host.link(1, messages.Position(BOB, 2))
    host.hear(1, forged(said("bob", 0, 2)))
    asked: list[Action] = []
    for _ in range(8):
        asked += host.wait(INQUIRY_TIME / 8)
        host.hear(1, host.summary())
    assert wants(asked + host.wait(2)) == [(1, (messages.Position(BOB, 0),))]
    assert admits(host.hear(1, said("bob", 0, 2)))


def test_a_forger_cannot_have_a_pull_from_somebody_else_repeated() -> None:
    # Each small forgery used to cost an honest neighbour the whole rest of the feed once more.
    host = Scripted()
    host.link(1, messages.Position(BOB, 500))
    host.link(2)
    host.name(2, BOB)
    assert wants(host.hear(2, *[forged(said("bob", 0, 2))] * 10)) == []
    assert host.machine.lacking == 500


# -- memory ------------------------------------------------------------------------------------------


def invented(count: int, start: int = 0) -> list[messages.Feed]:
    return [messages.Feed(index.to_bytes(32, "big"), 0) for index in range(start, start + count)]


def test_wanting_feeds_that_nobody_has_costs_no_memory(host: Scripted) -> None:
    for start in range(0, 20_000, 4000):
        host.hear(1, messages.Want(tuple(messages.Position(feed, 0) for feed in invented(4000, start))))
    link = host.machine.links[1]
    assert not any((link.has, link.names.known, link.outbox.sent, link.outbox.dirty))


def test_invented_names_are_bounded_cost_one_link_and_go_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # They used to fill one table for all links, for good: after that, no new origin could be heard.
    monkeypatch.setattr(link_module, "MAX_FEEDS", 100)
    host = Scripted()
    host.link(1, *(messages.Position(feed, 9) for feed in invented(300)))
    hostile = host.machine.links[1]
    assert len(hostile.names.taught) == len(hostile.has) == len(hostile.names.known) == 100
    host.link(2, messages.Position(BOB, 2))
    assert admits(host.hear(2, said("bob", 0, 2)))
    host.unlink(1)
    assert host.machine.lacking == 0
    assert len(host.machine.frontier) == 1


def test_names_of_feeds_that_are_here_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    # A link could teach 65,536 names in all, so that a newcomer with one neighbour never heard of the others.
    monkeypatch.setattr(link_module, "MAX_FEEDS", 1)
    host = Scripted()
    host.link(1)
    host.name(1, BOB)
    assert admits(host.hear(1, said("bob", 0, 1)))
    host.name(1, EVE)
    assert admits(host.hear(1, said("eve", 0, 1)))
    assert admits(host.hear(1, said("bob", 1, 2)))


def test_pulls_on_one_link_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfprotocol.pulls.MAX_PULLS_PER_LINK", 10)
    host = Scripted()
    [(link, entries)] = wants(host.link(1, *(messages.Position(feed, 9) for feed in invented(50))))
    assert (link, len(entries)) == (1, 10)
    assert wants(host.wait(WANT_TIMEOUT - 1)) == []
    assert host.machine.lacking == 50 * 9, "those that were not asked for yet are not forgotten"


def test_pulls_that_expire_together_are_repeated_in_one_message() -> None:
    host = Scripted()
    everything = [messages.Position(feed, 9) for feed in invented(50)]
    host.link(1, *everything)
    host.link(2, *everything)
    [(link, entries)] = wants(host.wait(1.5 * HEDGE_DELAY))
    assert (link, len(entries)) == (2, 50)


# -- more than its rate ------------------------------------------------------------------------------


@pytest.fixture
def slow_origins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an origin bring 4 updates at once and one a second."""
    monkeypatch.setattr(rate_limit, "ORIGIN_BURST", 4.0)
    monkeypatch.setattr(rate_limit, "ORIGIN_RATE", 1.0)


def test_a_link_that_brings_news_without_end_has_to_rest() -> None:
    # 350,000 valid updates a second took a node from 140 to 17 of its own.
    host = Scripted(ANN, run=LONG_RUN)
    host.machine.reserve.level = 0.0
    host.link(1)
    host.link(2)
    host.name(1, BOB)
    long = signed("bob", 1, 0, [messages.EpochScalars(0, (7,) * MAX_SEGMENT_UPDATES)])
    assert admits(host.hear(1, long))
    assert host.machine.rests_until(1) == pytest.approx(len(wire_codec.encode(long)) / INTAKE_RATE)
    assert host.machine.rests_until(2) == 0.0
    assert list(host.machine.links) == [1, 2], "it is no fault"


def test_a_proof_costs_its_link_what_it_takes_on_disk() -> None:
    # 35 proofs of 82 kB a second filled a core, and were kept for ever.
    host = Scripted()
    host.machine.reserve.level = 0.0
    host.link(1)
    shown = forked("eve", 1, TWO)
    host.hear(1, shown)
    assert host.machine.frontier.is_cut(EVE)
    assert host.machine.rests_until(1) == pytest.approx(
        max(LEAST_REST, len(wire_codec.encode(shown)) / INTAKE_RATE)
    )


def test_a_forgery_costs_its_link_before_it_is_looked_at() -> None:
    host = Scripted()
    host.machine.reserve.level = 0.0
    host.link(1)
    host.name(1, BOB)
    host.hear(1, forged(said("bob", 0, 2)))
    assert host.machine.rests_until(1) > 0


@pytest.mark.usefixtures("slow_origins")
def test_news_beyond_an_origins_rate_are_put_off_and_asked_for_later(host: Scripted) -> None:
    host.name(1, BOB)
    key = host.machine.frontier.state(BOB).key
    assert admits(host.hear(1, said("bob", 0, 6)))
    put_off = host.hear(1, replace(said("bob", 6, 7), hops=2))
    assert admits(put_off) == []
    assert [action.message for action in put_off if isinstance(action, Transmit)] == [messages.Prune((key,))]
    assert host.machine.counters.put_off == 1
    assert wants(host.wait(1.5)) == []
    assert wants(host.wait(3)) == [(1, (messages.Position(BOB, 6),))]
    assert len(admits(host.hear(1, said("bob", 6, 20), said("bob", 20, 22)))) == 1, "what was asked for"
    assert wants(host.wait(5)) == []
    assert wants(host.wait(10)) == [(1, (messages.Position(BOB, 20),))]
    assert list(host.machine.links) == [1], "it is no fault"


@pytest.mark.usefixtures("slow_origins")
def test_all_feeds_of_an_origin_count_together_and_those_of_others_do_not(host: Scripted) -> None:
    second = messages.Feed(BOB.origin, 2)
    host.name(1, BOB, second, EVE)
    assert admits(host.hear(1, said("bob", 0, 6)))
    assert not admits(host.hear(1, signed("bob", 2, 0, [messages.EpochScalars(0, (1,))])))
    assert admits(host.hear(1, said("eve", 0, 1)))


@pytest.mark.usefixtures("slow_origins")
def test_what_a_peer_had_when_the_link_came_up_is_no_news() -> None:
    host = Scripted()
    host.link(1, messages.Position(BOB, 500))
    for first in range(0, 500, 50):
        assert admits(host.hear(1, said("bob", first, first + 50)))
    assert admits(host.hear(1, said("bob", 500, 501))), "nor does it count against what comes after"


@pytest.mark.usefixtures("slow_origins")
def test_forgeries_do_not_use_up_what_an_origin_may_bring(host: Scripted) -> None:
    host.name(1, BOB)
    for _ in range(5):
        host.hear(1, forged(said("bob", 0, 4)))
    assert admits(host.hear(1, said("bob", 0, 4)))


def test_proofs_against_one_origin_are_taken_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit, "PROOF_BURST", 2.0)
    host = Scripted()
    host.link(1)
    for incarnation in (1, 2):
        host.hear(1, forked("eve", incarnation, TWO))
    third = messages.Feed(EVE.origin, 3)
    assert host.hear(1, forked("eve", 3, TWO)) == []
    assert not host.machine.frontier.is_cut(third)
    host.wait(1 / PROOF_RATE)
    host.hear(1, forked("eve", 3, TWO))
    assert host.machine.frontier.is_cut(third)


# -- promises that are not kept ----------------------------------------------------------------------


def test_a_pull_without_an_answer_reaches_every_peer_in_little_more_than_a_second() -> None:
    host = Scripted()
    for number in range(1, 9):
        host.link(number, messages.Position(BOB, 5))
    asked = wants(host.wait(3.5 * HEDGE_DELAY))
    assert [link for link, _ in asked] == [2, 3, 4, 5, 6, 7, 8]


def test_a_peer_that_failed_us_is_asked_last() -> None:
    host = Scripted()
    host.link(1, messages.Position(BOB, 5))
    host.link(2, messages.Position(BOB, 5))
    host.wait(1.5 * HEDGE_DELAY)
    host.hear(2, said("bob", 0, 5))
    host.hear(1, messages.Have((messages.Ahead(host.machine.frontier.state(BOB).key, 9),)))
    host.hear(2, messages.Have((messages.Ahead(host.machine.frontier.state(BOB).key, 9),)))
    assert wants(host.wait(2 * GRAFT_DELAY)) == [(2, (messages.Position(BOB, 5),))]


def test_a_large_pull_stays_with_a_peer_that_is_delivering() -> None:
    host = Scripted()
    host.link(1, messages.Position(BOB, 500))
    host.link(2, messages.Position(BOB, 500))
    for first in range(0, 100, 10):
        host.hear(1, said("bob", first, first + 10))
        assert wants(host.wait(HEDGE_DELAY / 2)) == []
    assert wants(host.wait(3 * HEDGE_DELAY)) == [(2, (messages.Position(BOB, 100),))]


def test_a_peer_that_promises_and_brings_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Scripted()
    host.link(1, *(messages.Position(feed, 9) for feed in invented(MAX_LET_DOWN)))
    dropped = [*host.wait(WANT_TIMEOUT - 1), *host.hear(1, host.summary())]
    assert drops(dropped) == []
    assert [drop.fault[:2] for drop in drops(host.wait(3))] == ["A9"]


def test_a_pull_moves_on_when_its_link_goes_down() -> None:
    host = Scripted()
    host.link(1, messages.Position(BOB, 5))
    host.link(2, messages.Position(BOB, 5))
    assert wants(host.unlink(1)) == [(2, (messages.Position(BOB, 0),))]


def test_the_only_peer_is_asked_again() -> None:
    host = Scripted()
    host.link(1, messages.Position(BOB, 5))
    assert wants(host.wait(WANT_TIMEOUT + 1)) == [(1, (messages.Position(BOB, 0),))]


def test_a_peer_that_overstates_what_it_has_does_not_keep_us_from_the_rest() -> None:
    host = Scripted()
    host.link(1, messages.Position(BOB, RUN.update_budget))
    host.link(2)
    host.name(2, BOB)
    for first in range(3):
        assert admits(host.hear(2, said("bob", first, first + 1)))
    host.hear(2, said("bob", 4, 5))
    assert wants(host.wait(2 * HEDGE_DELAY)) == [(2, (messages.Position(BOB, 3),))]


# -- a segment out of turn ---------------------------------------------------------------------------


def test_a_gap_is_pulled_from_the_peer_that_showed_it(host: Scripted) -> None:
    host.name(1, BOB)
    assert wants(host.hear(1, said("bob", 2, 3))) == [(1, (messages.Position(BOB, 0),))]
    assert wants(host.hear(1, said("bob", 3, 4))) == [], "once is enough"
    assert len(admits(host.hear(1, said("bob", 0, 4)))) == 1
    assert host.machine.lacking == 0


def test_a_segment_of_an_unknown_name_is_dropped_without_a_fault(host: Scripted) -> None:
    assert host.hear(1, said("bob", 0, 1)) == []
    host.name(1, BOB)
    assert admits(host.hear(1, said("bob", 0, 1)))


def test_names_are_taught_before_they_are_used_on_every_link() -> None:
    host = Scripted(ANN)
    host.link(1)
    host.name(1, BOB)
    host.link(2)
    actions = host.hear(1, said("bob", 0, 1))
    teach = next(i for i, a in enumerate(actions) if isinstance(a, Transmit) and a.link == 2)
    serve = next(i for i, a in enumerate(actions) if a in serves(actions) and a.link == 2)
    assert teach < serve
    assert [serve.link for serve in serves(actions)] == [2], "and nothing goes back"


# -- our own mistakes are loud -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "parts"),
    [
        (1, (messages.EpochScalars(0, (1,)),)),
        (0, ()),
        (0, (messages.EpochScalars(0, ()),)),
        (0, (messages.EpochScalars(1, (1,)), messages.EpochScalars(0, (1,)))),
        (0, (messages.EpochScalars(0, (1001,)),)),
        (0, (messages.EpochScalars(LONG_RUN.last_epoch + 1, (1,)),)),
        (0, (messages.EpochScalars(0, (1,) * (MAX_SEGMENT_UPDATES + 1)),)),
    ],
    ids=["a gap", "nothing", "an empty part", "epochs", "a scalar", "past the budget", "too many"],
)
def test_own_updates_that_break_a_rule_stop_the_node(
    first: int, parts: tuple[messages.EpochScalars, ...]
) -> None:
    host = Scripted(ANN, run=LONG_RUN)
    with pytest.raises(LocalProtocolError):
        host.event(OwnUpdates(ANN, first, parts))
    assert host.machine.frontier.known == 0


def test_a_link_that_is_up_cannot_come_up(host: Scripted) -> None:
    with pytest.raises(LocalProtocolError):
        host.event(LinkUp(1, "peer"))

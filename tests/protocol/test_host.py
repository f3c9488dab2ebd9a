"""The host: order of rounds, contents of commits, and that nothing is read or encoded twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from sfprotocol import events, messages, wire_codec
from sfprotocol import host as host_module
from sfprotocol.errors import LocalProtocolError
from sfprotocol.fields import Names
from sfprotocol.frontier import UNCUT, Frontier
from sfprotocol.host import MAX_ROUND, MAX_UNHANDLED, Advanced, Close, Commit, Effect, Host, Send
from sfprotocol.machine import Machine
from sfprotocol.segments import MAX_SEGMENT_UPDATES
from tests.protocol.feeds import RUN, Log, origin_of, signing_key

ANN, EVE = messages.Feed(origin_of("ann"), 1), messages.Feed(origin_of("eve"), 1)
NEW_INCARNATION = 77
LINKS = range(1, 7)


class CountingStore:
    """A log in memory that counts its calls."""

    def __init__(self) -> None:
        self.log = Log()
        self.commits: list[Commit] = []
        self.asked: Counter[str] = Counter()

    def append(self, commit: Commit) -> None:
        self.commits.append(commit)
        for admit in commit.admits:
            self.log.append(admit)
        for cut in commit.cuts:
            self.log.cut(cut.proof, host_module.cut_chain(RUN, cut.proof))

    def read(self, feed: messages.Feed, first: int, max_updates: int) -> messages.Segment | None:
        assert 0 < max_updates <= MAX_SEGMENT_UPDATES
        self.asked["read"] += 1
        rows = self.log.rows.get(feed)
        return self.log.read(feed, first, max_updates) if rows and rows[-1][0].stop > first else None

    def past(self, feed: messages.Feed, step: int) -> tuple[bytes, messages.Segment]:
        self.asked["past"] += 1
        return self.log.past(RUN, feed, step)

    def proof(self, feed: messages.Feed) -> messages.Proof | None:
        self.asked["proof"] += 1
        return self.log.cuts[feed][0] if feed in self.log.cuts else None


class Everything(Frontier):
    """A frontier in which every update of the log counts."""

    def next(self, feed: messages.Feed) -> int:
        return UNCUT


class Puppet(Machine):
    """A machine that returns scripted actions and records its events."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.script: dict[type[events.Event], list[events.Action]] = {}
        self.resting: dict[int, float] = {}
        self.heard: list[events.Event] = []
        self.deadline = float("inf")

    def handle(self, event: events.Event, now: float) -> list[events.Action]:
        self.heard.append(event)
        if isinstance(event, events.Wake):
            self.deadline = float("inf")
        return self.script.pop(type(event), [])

    def next_deadline(self) -> float:
        return self.deadline

    def rests_until(self, link_id: int) -> float:
        return self.resting.get(link_id, 0.0)


def machine_of(kind: type[Machine], name: str = "ann") -> Any:
    return kind(
        RUN,
        Everything(RUN) if kind is Puppet else Frontier(RUN),
        own=ANN,
        sign=signing_key("ann").sign,
        draw_incarnation=lambda: NEW_INCARNATION,
        proven=True,
        now=0.0,
        names=Names(name),
    )


class Ann:
    """A host with a real machine and synced links to six peers."""

    def __init__(self) -> None:
        self.store = CountingStore()
        self.machine: Machine = machine_of(Machine)
        self.host = Host(self.machine, self.store)
        self.now = 0.0
        for link in LINKS:
            self.host.post(events.LinkUp(link, f"peer {link}"))
            self.hear(
                link,
                messages.Hello(messages.OLDEST_VERSION, RUN.run_id, 0, 0),
                messages.Summary(False, 0, bytes(32), ()),
            )
        self.round()

    def hear(self, link: int, *said: messages.Message) -> None:
        for message in said:
            self.host.post(events.Received(link, wire_codec.encode(message)))

    def round(self) -> list[Effect]:
        """Run one round, committed at once."""
        if commit := self.host.decide(self.now):
            self.store.append(commit)
        return self.host.carry_out()

    def say(self, *scalars: int) -> None:
        self.host.post(
            events.OwnUpdates(ANN, self.machine.frontier.next(ANN), (messages.EpochScalars(0, scalars),))
        )


def test_what_the_organiser_has_decided_comes_before_what_may_change_what_it_has_seen() -> None:
    machine, host, _ = puppet()
    decision = events.OwnDecision(b"")
    for event in (events.LinkUp(1, "peer"), events.Wake(), decision):
        host.post(event)
    host.decide(0.0)
    assert machine.heard == [decision, events.LinkUp(1, "peer"), events.Wake()]


@pytest.fixture
def encodings(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the encoded messages of each type."""
    counted: Counter[str] = Counter()
    encode = wire_codec.encode

    def run_state(message: messages.Message, *form: int) -> bytes:
        counted[type(message).__name__] += 1
        return encode(message, *form)

    monkeypatch.setattr(wire_codec, "encode", run_state)
    return counted


def puppet(*actions: events.Action) -> tuple[Puppet, Host, CountingStore]:
    """Return a machine, which answers a new link with `actions` if there are any, its host and its store."""
    machine, store = machine_of(Puppet), CountingStore()
    host = Host(machine, store)
    if actions:
        host.post(events.LinkUp(1, ""))
        machine.script[events.LinkUp] = [*actions]
    return machine, host, store


def sent(effects: list[Effect], kind: type[messages.Message]) -> list[Send]:
    return [effect for effect in effects if isinstance(effect, Send) and isinstance(effect.message, kind)]


# -- one encoding, one reading -------------------------------------------------------------------------


def test_a_segment_for_six_links_is_read_once_and_encoded_once(encodings: Counter[str]) -> None:
    ann = Ann()
    ann.say(1, 2, 3)
    encodings.clear()
    segments = sent(ann.round(), messages.Segment)
    assert sorted(send.link for send in segments) == list(LINKS)
    assert len({id(send.frame) for send in segments}) == 1
    assert encodings["Segment"] == 1
    assert ann.store.asked == {"read": 1}


def test_a_card_for_six_links_is_encoded_once(encodings: Counter[str]) -> None:
    ann = Ann()
    ann.say(1)
    ann.round()
    ann.now = 60.0
    for link in LINKS:  # else they are dropped for their silence
        ann.hear(link, messages.Summary(False, 0, bytes(32), ()))
    encodings.clear()
    ann.now = 1.0
    cards = [send for _ in range(3) for send in sent(ann.round(), messages.Card)]
    assert sorted(send.link for send in cards) == list(LINKS)
    assert encodings["Card"] == 1
    assert [card for commit in ann.store.commits for card in commit.cards] == [cards[0].message]


def test_the_same_updates_with_other_hop_counts_are_read_once(encodings: Counter[str]) -> None:
    ann = Ann()
    ann.say(5)
    ann.round()
    machine, host, _ = puppet()
    host._store = ann.store
    for link in LINKS:
        host.post(events.LinkUp(link, ""))
    machine.script[events.LinkUp] = [events.Serve(link, ANN, 0, link % 2) for link in LINKS]
    ann.store.asked.clear()
    encodings.clear()
    host.decide(0.0)
    segments = sent(host.carry_out(), messages.Segment)
    hops = {send.link: send.message.hops for send in segments if isinstance(send.message, messages.Segment)}
    assert hops == {link: link % 2 for link in LINKS}
    assert (ann.store.asked["read"], encodings["Segment"]) == (1, 2)
    for send in segments:
        assert wire_codec.decode(send.frame) == send.message


def test_what_a_later_round_serves_is_read_again() -> None:
    ann = Ann()
    ann.say(1)
    ann.round()
    for link in LINKS:
        ann.host.post(events.Writable(link))
    ann.round()
    ann.say(2)
    [*segments] = sent(ann.round(), messages.Segment)
    assert {send.message.first for send in segments if isinstance(send.message, messages.Segment)} == {1}
    assert ann.store.asked["read"] == 2


# -- durable, then sent, then applied --------------------------------------------------------------------


def test_nothing_comes_out_before_the_commit_and_everything_after_it_in_order() -> None:
    ann = Ann()
    ann.say(4, 5)
    commit = ann.host.decide(0.0)
    assert commit
    assert [admit.segment.count for admit in commit.admits] == [2]
    assert ann.host.busy
    assert ann.store.asked == {}, "nothing is read before it is there"
    ann.store.append(commit)
    effects = ann.host.carry_out()
    assert not ann.host.busy
    assert [effect for effect in effects if isinstance(effect, Advanced)] == [Advanced(ANN, 0, 2)]
    assert len(sent(effects, messages.Segment)) == len(LINKS)


def test_a_round_without_anything_to_write_has_no_commit() -> None:
    _, host, _ = puppet(events.Transmit(1, messages.Goodbye("so long")))
    assert host.decide(0.0) is None
    [effect] = host.carry_out()
    assert isinstance(effect, Send)
    assert wire_codec.decode(effect.frame) == messages.Goodbye("so long")


def test_rounds_do_not_overlap() -> None:
    _, host, _ = puppet()
    with pytest.raises(LocalProtocolError):
        host.carry_out()
    host.decide(0.0)
    with pytest.raises(LocalProtocolError):
        host.decide(0.0)


def test_a_cut_moves_a_feed_back_once_and_only_if_it_counted() -> None:
    machine, host, _ = puppet()
    proof = messages.Proof(EVE, 2, (bytes(32), bytes(32)), ((), ()))  # type: ignore[arg-type]
    machine.script[events.Wake] = [events.Cut(proof, 5), events.Cut(proof, 2)]
    machine.deadline = 0.0
    commit = host.decide(0.0)
    assert commit == Commit(cuts=(events.Cut(proof, 5), events.Cut(proof, 2)))
    assert host.carry_out() == [Advanced(EVE, 5, 2)]


def test_of_an_admitted_segment_only_what_counts_is_advanced() -> None:
    machine, host, _ = puppet()
    segment = messages.Segment(1, 3, (messages.EpochScalars(0, (1, 2, 3)),), bytes(64))
    admits = [events.Admit(EVE, segment, bytes(32), 2), events.Admit(EVE, segment, bytes(32), 0)]
    machine.script[events.Wake] = [*admits]
    machine.deadline = 0.0
    assert host.decide(0.0) == Commit(admits=tuple(admits))
    assert host.carry_out() == [Advanced(EVE, 3, 5)]


def test_a_new_own_feed_is_part_of_the_commit() -> None:
    ann = Ann()
    ann.say(1)
    ann.round()
    twin = Ann()
    twin.say(1)
    twin.round()
    twin.say(2)
    twin.round()
    [row] = [segment for segment, _ in twin.store.log.rows[ANN] if segment.first == 1]
    ann.hear(1, row)
    commit = ann.host.decide(0.0)
    assert commit
    assert commit.own == messages.Feed(ANN.origin, NEW_INCARNATION) == ann.machine.own


# -- what is looked up -----------------------------------------------------------------------------------


def test_lookups_answer_in_the_next_round() -> None:
    ann = Ann()
    ann.say(1, 2, 3)
    ann.round()
    against = messages.Segment(1, 1, (messages.EpochScalars(0, (9,)),), bytes(64))
    machine, host, _ = puppet(events.Serve(1, ANN, 0, 3), events.Examine(1, ANN, against))
    host._store = ann.store
    host.decide(0.0)
    host.carry_out()
    host.decide(0.0)
    served, examined = machine.heard[-2:]
    assert served == events.Served(1, ANN, 3, 3)
    assert isinstance(examined, events.Examined)
    assert (examined.chain, examined.ours) == ann.store.log.past(RUN, ANN, 1)
    assert (examined.against, examined.kept) == (against, None)


def test_what_no_message_holds_is_left_to_others_and_more_can_be_served() -> None:
    """The only earlier signature belonged to a history whose end was replaced."""
    machine, host, store = puppet(events.Serve(1, ANN, 0, 3))
    long = messages.Segment(1, 0, (messages.EpochScalars(0, (1,) * (MAX_SEGMENT_UPDATES + 1)),), bytes(64))
    store.read = lambda feed, first, most: long  # type: ignore[method-assign]
    host.decide(0.0)
    assert host.carry_out() == []
    host.decide(0.0)
    assert machine.heard[-2:] == [events.Served(1, ANN, MAX_SEGMENT_UPDATES + 1, 3), events.Writable(1)]


@pytest.mark.parametrize("action", [events.Serve(1, EVE, 0, 0), events.ShowProof(1, EVE)])
def test_to_rely_on_what_the_log_lacks_is_our_own_fault_and_loud(action: events.Action) -> None:
    _, host, _ = puppet(action)
    host.decide(0.0)
    with pytest.raises(LocalProtocolError):
        host.carry_out()


def test_for_a_link_that_is_gone_nothing_is_read_or_sent() -> None:
    goodbye, drop = events.Transmit(1, messages.Goodbye("")), events.Drop(1, "L2: late")
    _, host, store = puppet(events.Serve(1, EVE, 0, 0), events.ShowProof(1, EVE), goodbye, drop)
    host.decide(0.0)
    host.post(events.LinkDown(1))  # during the commit
    assert host.carry_out() == []
    assert store.asked == {}


def test_what_is_said_before_a_drop_is_sent_and_a_link_is_closed_once() -> None:
    said = events.Transmit(1, messages.Goodbye("a"))
    _, host, _ = puppet(said, events.Drop(1, ""), events.Drop(1, "L2: late"))
    host.decide(0.0)
    goodbye, close = host.carry_out()
    assert isinstance(goodbye, Send)
    assert close == Close(1, None)


# -- what waits ------------------------------------------------------------------------------------------


def test_frames_of_one_link_are_bounded_and_room_comes_with_their_handling() -> None:
    machine, host, _ = puppet()
    for number in range(MAX_UNHANDLED):
        assert host.has_room(1)
        host.post(events.Received(1, b"%d" % number))
    assert not host.has_room(1)
    assert host.has_room(2), "other links have room of their own"
    host.decide(0.0, most=1)
    assert host.has_room(1)
    host.carry_out()
    host.decide(0.0)
    assert [event.frame for event in machine.heard if isinstance(event, events.Received)] == [
        b"%d" % number for number in range(MAX_UNHANDLED)
    ]
    assert not host.waiting
    assert not host._frames, "nothing is remembered of links of which nothing waits"


def test_links_take_turns_however_much_one_of_them_brings() -> None:
    # In order of arrival, a frame of a quiet link waited behind everything that a busy one had brought.
    machine, host, _ = puppet()
    for number in range(5):
        host.post(events.Received(1, b"%d" % number))
    for link in (2, 3):
        host.post(events.Received(link, b""))
    host.decide(0.0, most=4)
    assert [event.link for event in machine.heard if isinstance(event, events.Received)] == [1, 2, 3, 1]
    host.carry_out()
    host.post(events.Received(2, b""))
    host.decide(0.0, most=2)
    assert [event.link for event in machine.heard if isinstance(event, events.Received)] == [1, 2, 3, 1, 1, 2]


def test_own_updates_wait_behind_no_frame() -> None:
    machine, host, _ = puppet()
    for _ in range(MAX_UNHANDLED):
        host.post(events.Received(1, b""))
    own = events.OwnUpdates(ANN, 0, (messages.EpochScalars(0, (1,)),))
    host.post(own)
    host.decide(0.0, most=1)
    assert machine.heard == [own]


def test_a_link_that_rests_is_left_alone_until_its_time_and_others_go_on() -> None:
    machine, host, _ = puppet()
    machine.resting[1] = 5.0
    for link in (1, 1, 2):
        host.post(events.Received(link, b""))
    host.decide(4.0)
    assert machine.heard == [events.Received(2, b"")]
    assert (host.waiting, host.next_deadline()) == (0, 5.0)
    host.carry_out()
    for _ in range(MAX_UNHANDLED):
        host.post(events.Received(1, b""))
    assert not host.has_room(1), "it fills up, and is not read"
    assert host.waiting == 0
    host.decide(5.0)
    assert len(machine.heard) == 1 + 2 + MAX_UNHANDLED
    assert host.next_deadline() == float("inf")


@pytest.mark.parametrize(("until", "heard"), [(0.0, 4), (5.0, 2)])
def test_the_last_frames_of_a_link_are_heard_unless_it_rests(until: float, heard: int) -> None:
    machine, host, _ = puppet()
    machine.resting[1] = until
    host.post(events.LinkUp(1, ""))
    host.post(events.Received(1, b""))
    host.decide(1.0)
    host.carry_out()
    host.post(events.Received(1, b""))
    host.post(events.LinkDown(1))
    host.decide(1.0)
    assert machine.heard[-1] == events.LinkDown(1)
    assert len(machine.heard) == heard
    assert not host.waiting
    assert not host._frames


def test_a_round_is_bounded_and_wakes_the_machine_when_it_is_due() -> None:
    machine, host, _ = puppet()
    for number in range(MAX_ROUND + 3):
        host.post(events.Writable(number))
    machine.deadline = 5.0
    host.decide(4.9)
    assert (len(machine.heard), host.waiting) == (MAX_ROUND, 3)
    host.carry_out()
    host.decide(5.0)
    assert machine.heard[-1] == events.Wake()
    assert (len(machine.heard), host.waiting) == (MAX_ROUND + 4, 0)


def test_a_round_that_takes_long_takes_no_more_events() -> None:
    machine, host, _ = puppet()
    for number in range(9):
        host.post(events.Writable(number))
    readings = iter((10.0, 10.0 + host_module.ROUND_TIME / 2, 10.2))
    clock: Callable[[], float] = lambda: next(readings)  # noqa: E731
    machine.deadline = 10.0
    host.decide(10.0, clock=clock)
    assert machine.heard == [events.Writable(0), events.Writable(1), events.Writable(2), events.Wake()]
    assert host.waiting == 6

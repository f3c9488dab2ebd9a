"""The desk: what of a real machine its organiser is told, and what that costs."""

from __future__ import annotations

from typing import Any

import pytest

from sfnode.organising.desk import OrganiserDesk
from sfnode.organising.evaluation.judging import by_schedule
from sfnode.organising.evaluation.rates import Schedule
from sfnode.organising.events import (
    Action,
    Event,
    ForkProven,
    HeldChanged,
    OwnerWish,
    PeersClaim,
    PeerShows,
    Refuse,
    Round,
    Sign,
    Signed,
    Wake,
)
from sfprotocol import decisions
from sfprotocol.decisions import Announce, Finish, Part, Worth
from sfprotocol.events import OwnDecision
from sfprotocol.frontier import Frontier
from sfprotocol.host import Advanced, Commit
from sfprotocol.messages import Feed
from tests.organising.bench import UNEVALUATED
from tests.protocol.feeds import origin_of
from tests.protocol.swarm import Swarm
from tests.protocol.test_organised import close, decide, seal, swarm


class Office:
    """A desk at node "a" of a swarm of protocol machines; `told` is what its organiser was told."""

    def __init__(self, made: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = made
        self.node = made["a"]
        self.told: list[Event] = []
        self.actions: list[Action] = []
        self.signs = True
        """Whether what is to be signed is."""
        self.desk = self.opened()
        handle = self.desk._organiser.handle
        monkeypatch.setattr(
            self.desk._organiser, "handle", lambda e, now: self.told.append(e) or handle(e, now)
        )
        finish = self.node._finish
        self.moved: dict[Feed, None] = {}

        def finished(commit: Commit | None) -> None:
            finish(commit)
            moved, self.moved = tuple(self.moved), {}
            self.tell(Round(moved))

        def do(effect: Any) -> None:
            if isinstance(effect, Advanced):
                self.moved[effect.feed] = None
            before(effect)

        before = self.node._do
        monkeypatch.setattr(self.node, "_do", do)
        monkeypatch.setattr(self.node, "_finish", finished)
        self.tell(Round())

    def opened(self) -> OrganiserDesk:
        """Return a desk at what is here."""
        return OrganiserDesk(
            self.node.machine,
            self.node,
            key=origin_of("organiser"),
            policy=UNEVALUATED,
            judge=by_schedule(Schedule("constant", 1 << 22)),
            draw=lambda count: b"s" * count,
            alone=True,
            now=self.made.now,
        )

    def tell(self, event: Any) -> None:
        for action in self.desk.handle(event, self.made.now):
            self.actions.append(action)
            if isinstance(action, Sign) and self.signs:
                self.node.host.post(OwnDecision(decisions.encode(action.decision)))

    def of(self, kind: type) -> list[Any]:
        return [event for event in (*self.told, *self.actions) if isinstance(event, kind)]


@pytest.fixture
def office(monkeypatch: pytest.MonkeyPatch) -> Office:
    return Office(swarm(), monkeypatch)


def test_a_round_in_which_nothing_has_happened_reads_nothing(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    office.made["b"].compute(5)
    office.made.run(3)
    office.told.clear()

    def never(*_: object) -> None:
        raise AssertionError("a quiet round has looked")

    for name in ("read", "past", "label"):
        monkeypatch.setattr(office.node, name, never)
    monkeypatch.setattr(Frontier, "__iter__", never)
    monkeypatch.setattr(office.desk, "_look_at_peers", never)
    monkeypatch.setattr(office.desk, "next_deadline", lambda: float("inf"))
    for _ in range(100):
        office.tell(Round())
    assert not office.told


def test_after_a_start_the_evidence_is_that_of_all_figures_in_the_control_feed(office: Office) -> None:
    parts = tuple(Part(64 * member, 9, 1000, 1000) for member in range(3))
    decide(office.node, Worth(0, 64, parts))
    again = office.opened()
    assert again._organiser._members._evidence.members == office.desk._organiser._members._evidence.members
    assert [one.updates for one in again._organiser._members._evidence.members.values()] == [9, 9, 9]


def test_of_a_feed_that_grows_only_the_news_is_told(office: Office) -> None:
    made, feed = office.made, office.made["b"].own
    made["b"].compute(5)
    made.run(2)
    made["b"].compute(3)
    made.run(2)
    held = [event for event in office.of(HeldChanged) if event.feed == feed]
    assert [(event.first, [mark.stop for mark in event.marks]) for event in held] == [(0, [5]), (5, [8])]
    assert held[-1].marks[-1].chain == office.node.machine.frontier.state(feed).chain


def test_what_peers_have_shown_is_told_when_the_organiser_looks(office: Office) -> None:
    office.made["b"].compute(5)
    office.made.run(5)
    shown = {position for event in office.of(PeerShows) for position in event.positions}
    assert (office.made["b"].own, 5) in shown


def test_peers_are_looked_at_however_often_feeds_move(office: Office) -> None:
    """Where each round that was due brought updates the organiser had looked before it was told what peers
    have shown: at 1,000 updates a second nothing was named until everybody stood still."""
    office.made["b"].compute(5)
    office.made.run(5)
    for _ in range(20):
        office.made["b"].compute(5)
        office.made.run(0.3)
    last = max(position.next for event in office.of(PeerShows) for position in event.positions)
    assert last >= 5 + 12 * 5
    due = [number for number, event in enumerate(office.told) if isinstance(event, Wake)]
    assert due, "it looks when the time is there, and not before it has heard of everything else"


def test_where_a_close_of_another_hand_has_stopped_there_is_a_mark(office: Office) -> None:
    made = office.made
    made["b"].compute(5)
    made.run(2)
    close(made["a"])
    made["b"].compute(3), made["c"].compute(2)
    made.run(2)
    close(made["a"])
    seal(made["a"]), seal(made["a"])
    made["b"].compute(4)
    made.run(2)
    made["a"].restart()
    desk = office.opened()
    desk.handle(Round(), made.now)
    feed = made["b"].own
    assert [desk._organiser.marked(feed, stop) for stop in (5, 8, 12)] == [True, True, True]


def test_a_proof_of_a_fork_is_told_even_if_it_cuts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = swarm("a b c d")
    office, feed, other = Office(made, monkeypatch), made["b"].own, made.twin("b")
    for name in "abc":
        made.cut(made[name], made["d"])
    made.connect(other, made["d"])
    made["b"].compute(5)
    made.run(2)
    close(made["a"])
    other.compute(2)
    made.run(3)
    made.drop(other)
    made.connect(made["d"], made["c"])
    made.run(60)
    assert office.node.machine.frontier.next(feed) == 5
    assert office.of(ForkProven) == [ForkProven(feed, 0)]


def test_who_says_that_it_has_what_is_missing_here_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    made = swarm()
    feed = made["b"].own
    for steps in (3, 2):
        made["b"].compute(steps)
        made.run(2)
    close(made["a"])
    made.run(2)
    del made["a"].log.rows[feed][1:]
    made["a"].restart()
    office = Office(made, monkeypatch)
    made.run(5)
    assert office.desk._organiser.behind == 2
    assert not office.of(PeersClaim), "nobody is there"
    made.connect(made["a"], made["c"])
    for wire in made["c"].wires.values():
        made.stall(wire)
    (link,) = office.node.machine.links.values()
    link.has[feed] = 5
    made.run(3)
    assert office.of(PeersClaim) == [PeersClaim(frozenset({feed}))]
    for wire in made["c"].wires.values():
        made.resume(wire)
    made.run(60)
    assert office.desk._organiser.behind == 0
    assert office.of(PeersClaim)[-1] == PeersClaim(frozenset())


def test_a_wish_is_answered_once_its_decision_is_kept(office: Office) -> None:
    office.signs = False
    office.tell(OwnerWish(Announce("hello")))
    office.made.run(2)
    assert [action.decision for action in office.of(Sign)] == [Announce("hello")]
    assert not office.of(Signed)
    office.signs = True
    office.made.run(12)
    assert office.of(Signed) == [Signed(Announce("hello"))]


def test_a_wish_is_not_answered_by_a_decision_of_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = swarm()
    made["a"].handle(OwnDecision(decisions.encode(Announce("hello"))))
    made["a"].handle(OwnDecision(decisions.encode(Finish())))
    office = Office(made, monkeypatch)
    office.signs = False
    office.tell(OwnerWish(Announce("hello")))
    office.tell(OwnerWish(Finish()))
    made.run(30)
    assert not office.of(Signed)
    assert [action.decision for action in office.of(Refuse)] == []

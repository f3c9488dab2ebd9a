"""Tests of the view: what an organiser reads of a real machine and its log, and the cost of it."""

from __future__ import annotations

from typing import Any

import pytest

from sfnode.organising.events import Action, AnswerOwner, OwnerDecision, Round, Sign
from sfnode.organising.feeds import HeldFeed
from sfnode.organising.organiser import Organiser
from sfnode.organising.steps import at_rate
from sfnode.organising.view import View
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
    """An organiser at node "a" of a swarm of protocol machines."""

    def __init__(self, made: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = made
        self.node = made["a"]
        self.actions: list[Action] = []
        self.signs = True
        """Whether decisions to sign are signed."""
        self.organiser = self.opened()
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

    def opened(self) -> Organiser:
        return Organiser(
            View(self.node.machine, self.node),
            UNEVALUATED,
            at_rate(1 << 22),
            key=origin_of("organiser"),
            draw=lambda count: b"s" * count,
            alone=True,
            now=self.made.now,
        )

    def tell(self, event: Any) -> None:
        for action in self.organiser.handle(event, self.made.now):
            self.actions.append(action)
            if isinstance(action, Sign) and self.signs:
                self.node.host.post(OwnDecision(decisions.encode(action.decision)))

    def held(self, feed: Feed) -> HeldFeed:
        return self.organiser.known.feeds.of(feed, self.made.now)

    def signed(self) -> list[decisions.Decision]:
        """Return the decisions of all Sign actions."""
        return [action.decision for action in self.actions if isinstance(action, Sign)]


@pytest.fixture
def office(monkeypatch: pytest.MonkeyPatch) -> Office:
    return Office(swarm(), monkeypatch)


def test_a_round_in_which_nothing_has_happened_reads_nothing(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    office.made["b"].compute(5)
    office.made.run(3)

    def never(*_: object) -> None:
        raise AssertionError("a quiet round has looked")

    for name in ("read", "past", "label"):
        monkeypatch.setattr(office.node, name, never)
    monkeypatch.setattr(Frontier, "__iter__", never)
    monkeypatch.setattr(office.organiser, "next_deadline", lambda: float("inf"))
    for name in ("peers", "shown"):
        monkeypatch.setattr(View, name, never)
    for _ in range(100):
        office.tell(Round())


def test_after_a_start_the_evidence_is_that_of_all_figures_in_the_control_feed(office: Office) -> None:
    parts = tuple(Part(64 * member, 9, 1000, 1000) for member in range(3))
    decide(office.node, Worth(0, 64, parts))
    evidence = office.opened().known.verdicts.evidence.members
    assert evidence == office.organiser.known.verdicts.evidence.members
    assert [one.updates for one in evidence.values()] == [9, 9, 9]


def test_of_a_feed_that_grows_only_the_news_is_read(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    made, feed = office.made, office.made["b"].own
    made["b"].compute(5)
    made.run(2)
    read, log = list[tuple[Feed, int]](), office.node.read
    monkeypatch.setattr(office.node, "read", lambda *of: read.append(of[:2]) or log(*of))
    office.organiser.known.view = View(office.node.machine, office.node)
    made["b"].compute(3)
    made.run(2)
    assert [first for of, first in read if of == feed] == [5]
    assert [one.stop for one in office.held(feed).boundaries] == [5, 8]
    assert office.held(feed).boundaries[-1].chain == office.node.machine.frontier.state(feed).chain


def test_peers_are_looked_at_however_often_feeds_move(office: Office) -> None:
    """Regression: the organiser looked before it knew what peers hold if every due round brought updates. At
    1,000 updates a second nothing was listed until all members paused."""
    office.made["b"].compute(5)
    office.made.run(5)
    assert office.held(office.made["b"].own).shown == 5
    for _ in range(20):
        office.made["b"].compute(5)
        office.made.run(0.3)
    assert office.held(office.made["b"].own).shown >= 5 + 12 * 5


def test_where_a_close_of_another_hand_has_stopped_there_is_a_boundary(office: Office) -> None:
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
    office.organiser = office.opened()
    office.tell(Round())
    held = office.held(made["b"].own)
    assert all(held.boundary(stop) for stop in (5, 8, 12))


def test_a_proof_of_a_fork_is_seen_even_if_it_cuts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert office.held(feed).forked == 0


def _missing(office: Office) -> int:
    return sum(one.named - one.stop for one in office.organiser.known.feeds.missing().values())


def test_who_says_that_it_has_what_is_missing_here_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert _missing(office) == 2
    view = office.organiser.known.view
    assert not view.claimed(feed), "nobody is there"
    made.connect(made["a"], made["c"])
    for wire in made["c"].wires.values():
        made.stall(wire)
    (link,) = office.node.machine.links.values()
    link.has[feed] = 5
    made.run(3)
    assert view.claimed(feed)
    for wire in made["c"].wires.values():
        made.resume(wire)
    made.run(60)
    assert _missing(office) == 0
    assert not view.claimed(feed)


def test_an_owner_is_answered_once_its_decision_is_kept(office: Office) -> None:
    office.signs = False
    office.tell(OwnerDecision(Announce("hello")))
    office.made.run(2)
    assert office.signed() == [Announce("hello")]
    assert not any(isinstance(action, AnswerOwner) for action in office.actions)
    office.signs = True
    office.made.run(12)
    answers = [action for action in office.actions if isinstance(action, AnswerOwner)]
    assert answers == [AnswerOwner(Announce("hello"), None)]


def test_an_owner_is_not_answered_by_a_decision_of_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = swarm()
    made["a"].handle(OwnDecision(decisions.encode(Announce("hello"))))
    made["a"].handle(OwnDecision(decisions.encode(Finish())))
    office = Office(made, monkeypatch)
    office.signs = False
    office.tell(OwnerDecision(Announce("hello")))
    office.tell(OwnerDecision(Finish()))
    made.run(30)
    assert not any(isinstance(action, AnswerOwner) for action in office.actions)

"""When a node that is done may go."""

from __future__ import annotations

from sfnode.node import readiness
from sfnode.node.readiness import LEAVE_GRACE, Shutdown
from sfprotocol.link import Link, LinkState
from sfprotocol.messages import Feed
from tests.node.helpers import machine, manifest

OTHER = Feed(bytes(31) + b"\x09", 0)


class Door:
    """A node's machine, a clock, and whether it is done."""

    def __init__(self, known: int) -> None:
        self.now = 50.0
        self.done = True
        self.alone = False
        self.machine = machine(manifest(update_budget=100), ())
        self.learn(known)
        self.shutdown = Shutdown(
            self.machine, done=lambda: self.done, alone=lambda: self.alone, clock=lambda: self.now
        )

    def learn(self, updates: int) -> None:
        frontier = self.machine.frontier
        frontier.advance(OTHER, frontier.next(OTHER) + updates, bytes(32), 0)

    def link(self, state: LinkState) -> Link:
        link = self.machine.links[1] = Link(1, "peer", heard=0, state=state)
        return link

    def due_after(self, seconds: float) -> bool:
        self.now += seconds
        return self.shutdown.due()


def test_a_node_that_is_not_done_never_leaves() -> None:
    door = Door(known=100)
    door.done = False
    assert not door.due_after(1000)


def test_from_a_complete_run_one_leaves_when_nothing_has_come_for_a_while_and_all_agree() -> None:
    door = Door(known=99)
    link = door.link(LinkState.SYNCED)
    door.learn(1)
    assert not door.due_after(0)
    assert not door.due_after(readiness.SETTLE_TIME + 1)
    link.agreement.agreed = True
    assert door.due_after(0)
    door.learn(1)
    assert not door.due_after(0)
    assert door.due_after(readiness.SETTLE_TIME + 1)


def test_with_its_steps_made_one_leaves_when_they_are_handed_over() -> None:
    door = Door(known=10)
    assert not door.due_after(5)  # nobody is there to take them, but somebody is being dialled
    link = door.link(LinkState.GREETED)
    assert not door.due_after(0)
    link.enter(LinkState.SYNCED)
    link.outbox.writable = False
    assert not door.due_after(0)
    link.outbox.writable, link.outbox.dirty[OTHER] = True, 0
    assert not door.due_after(0)
    link.outbox.dirty.clear()
    assert door.due_after(0)


def test_one_who_is_alone_leaves_when_nobody_has_come_for_a_moment() -> None:
    door = Door(known=10)
    door.alone, door.done = True, False
    assert not door.due_after(60)
    door.done = True
    assert not door.due_after(readiness.SETTLE_TIME)
    door.alone = False
    assert not door.due_after(1)
    door.alone = True
    assert not door.due_after(readiness.SETTLE_TIME)
    assert door.due_after(1)


def test_nobody_waits_for_ever() -> None:
    for door in (Door(known=10), Door(known=100)):
        door.link(LinkState.SYNCED).outbox.writable = False
        assert not door.due_after(0)
        assert not door.due_after(LEAVE_GRACE / 2)
        assert door.due_after(LEAVE_GRACE)

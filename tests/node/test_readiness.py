"""When a newcomer begins to train: after it has what its first neighbours had, whatever others claim."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sfnode.node import readiness
from sfnode.node.readiness import BEGIN_ALONE, LEAVE_GRACE, SHARE, UNDER_WAY, Readiness, Shutdown
from sfprotocol.link import Link, LinkState
from sfprotocol.machine import ASK_TIMEOUT
from sfprotocol.messages import EpochScalars, Feed, Position, RunParameters, Segment, Want
from tests.node.helpers import machine, manifest
from tests.protocol.feeds import origin_of, signed
from tests.protocol.scripted import ANN, BOB, EVE, Scripted

RUN = RunParameters(
    bytes(range(32)), epoch_updates=10**6, update_budget=10**6, scalar_bytes=2, scalar_limit=9
)
HISTORY = 64 * UNDER_WAY
LIAR, HONEST = 1, 2
"""Links."""

GHOSTS = [Position(Feed(origin_of(f"ghost {number}"), 1), 20_000) for number in range(5)]
"""Feeds that do not exist; of more than seven, a link is dropped that does not deliver (SPEC A9)."""


class Newcomer(Scripted):
    """A machine that was told peers and knows nothing yet, and its readiness."""

    def __init__(self, *, nobody_else: bool = False) -> None:
        super().__init__(ANN, run=RUN)
        self.readiness = Readiness(
            self.machine,
            told_peers=True,
            met_peers=lambda: False,
            nobody_else=lambda: nobody_else,
            clock=lambda: self.now,
        )

    def seconds(self, count: float) -> Iterator[int]:
        """Yield once a second until the newcomer is ready or so many have passed."""
        for second in range(int(count)):
            if self.readiness.done():
                return
            yield second
            self.wait(1.0)

    def becomes_ready(self, count: float) -> bool:
        for _ in self.seconds(count):
            pass
        return self.readiness.done()


def said(name: str, first: int, stop: int) -> Segment:
    before = [EpochScalars(0, (1,) * first)] if first else []
    return signed(name, 1, first, [EpochScalars(0, (1,) * (stop - first))], before)


@pytest.fixture(autouse=True)
def quick() -> None:
    """Leave the intervals as they are: time is virtual here."""


@pytest.fixture
def newcomer() -> Newcomer:
    return Newcomer()


def test_a_newcomer_whose_neighbours_have_nothing_is_ready(newcomer: Newcomer) -> None:
    newcomer.link(HONEST)
    assert newcomer.readiness.done()


def test_invented_feeds_and_a_valid_update_now_and_then_do_not_keep_a_newcomer_from_training(
    newcomer: Newcomer,
) -> None:
    newcomer.link(LIAR, *GHOSTS)
    newcomer.name(LIAR, EVE)
    for second in newcomer.seconds(3 * ASK_TIMEOUT):
        if second % 3 == 0:
            newcomer.hear(LIAR, said("eve", second // 3, second // 3 + 1))
    assert newcomer.machine.lacking == sum(ghost.next for ghost in GHOSTS)
    assert newcomer.readiness.done()


def test_nor_does_a_feed_that_is_always_a_little_ahead(newcomer: Newcomer) -> None:
    newcomer.link(LIAR, Position(EVE, 200))
    for second in newcomer.seconds(3 * ASK_TIMEOUT):
        newcomer.hear(LIAR, newcomer.summary(Position(EVE, second + 200)), said("eve", second, second + 1))
    assert newcomer.readiness.done()


def test_nor_do_claims_that_are_taken_back(newcomer: Newcomer) -> None:
    newcomer.link(LIAR, *GHOSTS, Position(EVE, HISTORY))
    newcomer.hear(LIAR, said("eve", 0, 1))
    for second in newcomer.seconds(3 * ASK_TIMEOUT):
        newcomer.hear(LIAR, Want((Position(EVE, HISTORY - 100 * second),)))
    assert newcomer.readiness.done()


def test_nor_do_ever_new_peers_with_invented_feeds(newcomer: Newcomer) -> None:
    for second in newcomer.seconds(4 * ASK_TIMEOUT):
        if second % 5 == 0:
            newcomer.link(100 + second, *GHOSTS)
    assert newcomer.readiness.done()


def test_nor_do_invented_feeds_while_honest_nodes_go_on_training(newcomer: Newcomer) -> None:
    newcomer.link(LIAR, *GHOSTS)
    newcomer.link(HONEST, Position(BOB, 0))
    for second in newcomer.seconds(3 * ASK_TIMEOUT):
        newcomer.hear(HONEST, said("bob", 50 * second, 50 * second + 50))
    assert newcomer.readiness.done()


def test_a_newcomer_on_a_slow_line_waits_for_a_long_history_and_not_for_a_liar_beside_it(
    newcomer: Newcomer,
) -> None:
    newcomer.link(LIAR, *GHOSTS)
    newcomer.link(HONEST, Position(BOB, HISTORY))
    speed = 2 * int(HISTORY // SHARE / ASK_TIMEOUT)
    step = ASK_TIMEOUT / 2
    got = 0
    while not newcomer.readiness.done():
        newcomer.hear(HONEST, said("bob", got, got + int(speed * step)))
        got += int(speed * step)
        newcomer.wait(step)
    assert HISTORY - UNDER_WAY - got // 64 - speed * step <= got <= HISTORY
    assert newcomer.now > 10 * ASK_TIMEOUT


def test_a_newcomer_goes_on_waiting_when_the_line_breaks_and_comes_back(newcomer: Newcomer) -> None:
    newcomer.link(HONEST, Position(BOB, HISTORY))
    newcomer.hear(HONEST, said("bob", 0, UNDER_WAY))
    for arrived in range(UNDER_WAY, HISTORY // 2, UNDER_WAY):
        newcomer.wait(ASK_TIMEOUT / 4)
        newcomer.unlink(HONEST)
        assert not newcomer.becomes_ready(ASK_TIMEOUT / 4)
        newcomer.link(HONEST, Position(BOB, HISTORY))
        newcomer.hear(HONEST, said("bob", arrived, arrived + UNDER_WAY))
        assert not newcomer.readiness.done()


def test_a_newcomer_whose_only_peer_stops_delivering_trains_after_a_while(newcomer: Newcomer) -> None:
    newcomer.link(HONEST, Position(BOB, HISTORY))
    newcomer.hear(HONEST, said("bob", 0, UNDER_WAY))
    assert not newcomer.becomes_ready(ASK_TIMEOUT - 1)
    assert newcomer.becomes_ready(ASK_TIMEOUT)


@pytest.mark.parametrize(("nobody", "begins"), [(False, False), (True, True)])
def test_whose_part_it_is_begins_the_run_if_nobody_else_is_to_be_found(nobody: bool, begins: bool) -> None:
    one = Newcomer(nobody_else=nobody)
    assert not one.becomes_ready(BEGIN_ALONE)
    assert one.becomes_ready(2 if begins else 10 * ASK_TIMEOUT) == begins


def test_nobody_begins_a_run_with_a_neighbour_that_has_not_told_what_it_has() -> None:
    one = Newcomer(nobody_else=True)
    one.becomes_ready(BEGIN_ALONE - 1)
    one.link(LIAR, *GHOSTS, Position(EVE, HISTORY))
    one.hear(LIAR, said("eve", 0, 1))
    assert not one.becomes_ready(ASK_TIMEOUT / 2)


# -- when a node that is done may go ------------------------------------------------------------


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

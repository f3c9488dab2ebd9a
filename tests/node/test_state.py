"""State of a node after the end of its run: not complete too early, and not delayed by false claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from sfnode.node.state import lacks
from sfprotocol import wire_codec
from sfprotocol.decisions import Finish
from sfprotocol.events import LinkUp, Received
from sfprotocol.messages import OLDEST_VERSION, Claim, Feed, Hello, Position, Summary
from sfprotocol.plumtree import NO_TAG
from sfprotocol.pulls import WANT_TIMEOUT
from tests.protocol.feeds import RUN, origin_of
from tests.protocol.scripted import ANN, BOB, EVE, Scripted, said
from tests.protocol.test_organised import close, decide, seal, swarm

LIAR, HONEST = 1, 2
"""Links."""

GHOST = Position(Feed(origin_of("ghost"), 1), 50)
"""A claim about a feed that does not exist."""

PATIENCE = 2 * WANT_TIMEOUT
"""Maximum seconds for which a claim is believed."""


@pytest.fixture(autouse=True)
def quick() -> None:
    """Leave the intervals as they are: time is virtual here."""


@pytest.fixture
def ended() -> Scripted:
    """A node that has all updates of an open run, and an honest neighbour."""
    node = Scripted(ANN, run=replace(RUN, update_budget=100), past=100)
    node.link(HONEST)
    assert node.machine.complete
    return node


def seconds(node: Scripted, count: int, act: Callable[[int], None] = lambda second: None) -> Iterator[bool]:
    """Yield after each second whether the node lacks something."""
    for second in range(count):
        for link in node.machine.links:
            node.hear(link, Summary(False, 0, bytes(32), ()))
        act(second)
        node.wait(1.0)
        yield lacks(node.machine)


def test_a_claim_of_updates_that_do_not_come_is_believed_for_seconds(ended: Scripted) -> None:
    ended.link(LIAR, GHOST)
    assert lacks(ended.machine)
    assert not any(list(seconds(ended, 40))[int(PATIENCE) :])
    assert LIAR in ended.machine.links, "one claim that comes to nothing costs no link yet"


def test_nor_is_it_believed_for_longer_beside_an_update_now_and_then(ended: Scripted) -> None:
    """A new update from the peer keeps the link (SPEC A9)."""
    ended.link(LIAR, GHOST)
    ended.name(LIAR, EVE)

    def bring(second: int) -> None:
        if second % 5 == 0:
            ended.hear(LIAR, said("eve", second // 5, second // 5 + 1))

    assert not any(list(seconds(ended, 200, bring))[int(PATIENCE) :])
    assert LIAR in ended.machine.links


def test_what_comes_slowly_is_lacking_until_it_is_here(ended: Scripted) -> None:
    ended.link(LIAR, GHOST)
    ended.hear(HONEST, ended.summary(Position(BOB, 60)))

    def bring(second: int) -> None:
        if second % 8 == 7:
            ended.hear(HONEST, said("bob", second // 8 * 10, second // 8 * 10 + 10))

    found = list(seconds(ended, 60, bring))
    assert all(found[:47])
    assert not any(found[48:])


def test_who_brings_it_after_all_is_believed_again(ended: Scripted) -> None:
    ended.hear(HONEST, ended.summary(Position(BOB, 60)))
    assert not list(seconds(ended, int(PATIENCE)))[-1]
    ended.hear(HONEST, said("bob", 0, 10))
    assert lacks(ended.machine)


def test_in_an_organised_run_that_is_over_only_what_was_named_can_be_lacking() -> None:
    made = swarm()
    made["c"].compute(5)
    made.run(2)
    close(made["a"]), seal(made["a"]), decide(made["a"], Finish())
    made.run(2)
    machine, own = made["b"].machine, made["c"].own
    assert machine.complete
    claim = Summary(False, 0, bytes(32), (Claim(own, 20, NO_TAG),))
    made["b"].handle(LinkUp(99, "liar"))
    for message in (Hello(OLDEST_VERSION, machine.run.run_id, 0, 0), claim):
        made["b"].handle(Received(99, wire_codec.encode(message)))
    assert machine.lacking == 15
    assert not lacks(machine)
    newcomer = made.add("d").machine
    made.mesh()
    seen = []
    while not newcomer.complete or lacks(newcomer):
        made.run(0.001)
        seen.append((newcomer.complete, lacks(newcomer), newcomer.frontier.known))
    assert (True, True, 0) in seen, "the decisions were here first"
    assert seen[-1] == (True, False, 5)

"""Cards reach every node that has the origin's updates, at little cost (SPEC K1-K5)."""

from __future__ import annotations

import unicodedata
from dataclasses import replace

import pytest

from sfprotocol import fields
from sfprotocol.cards import CARD_STEPS
from sfprotocol.events import Action, KeepCard, Served
from sfprotocol.fields import Names
from sfprotocol.messages import Card, Feed, Position
from sfprotocol.rate_limit import WASTE_BURST
from sfprotocol.signing import card_message
from tests.protocol.feeds import RUN, signing_key
from tests.protocol.scripted import BOB, EVE, Scripted, said, sent, taught
from tests.protocol.swarm import Node, Swarm

OWL = Names("Ann", "The Owls")


def card(origin: str, feed: Feed, step: int, name: str = "Eve", team: str = "") -> Card:
    unsigned = Card(feed, step, name, team, bytes(64))
    return replace(unsigned, signature=signing_key(origin).sign(card_message(RUN.run_id, unsigned)))


def told(actions: list[Action]) -> list[tuple[int, Card]]:
    return sent(actions, Card)


def kept(actions: list[Action]) -> list[Card]:
    return [action.card for action in actions if isinstance(action, KeepCard)]


def names_at(node: Node) -> dict[Feed, Names]:
    return {card.feed: Names(card.name, card.team) for card in node.machine.cards}


def eve_has(steps: int) -> Scripted:
    """Return a machine with `steps` updates of eve from link 1, whose peer never has the same digest."""
    host = taught(EVE)
    host.hear(1, said("eve", 0, steps))
    return host


# -- spreading ---------------------------------------------------------------------------------------


def test_every_node_learns_the_names_of_an_origin() -> None:
    swarm = Swarm()
    for name, called in (("ann", OWL), ("bob", Names("Bob")), ("cid", Names()), ("dan", Names())):
        swarm.add(name, called=called)
    swarm.add("relay", relay=True)
    swarm.connect_all(("ann", "bob"), ("bob", "relay"), ("relay", "cid"), ("cid", "dan"))
    swarm.run(2)
    for name in ("ann", "bob", "cid"):
        swarm[name].compute(3)
    swarm.run_until_equal(10)
    swarm.run(3)
    ann, bob = swarm["ann"].own, swarm["bob"].own
    assert all(names_at(node) == {ann: OWL, bob: Names("Bob")} for node in swarm.nodes.values())
    assert all(
        node.cards == {card.feed: card for card in node.machine.cards} for node in swarm.nodes.values()
    )


def test_a_late_joiner_gets_the_card_from_the_peer_that_gives_the_updates() -> None:
    swarm = Swarm("bob cid dan")
    swarm.add("ann", called=OWL)
    swarm.mesh()
    swarm["ann"].compute(3)
    swarm.run(5)
    swarm.add("late")
    swarm.forget_costs()
    swarm.mesh()
    swarm.run_until_equal(5)
    swarm.run(30)
    assert names_at(swarm["late"]) == {swarm["ann"].own: OWL}
    assert swarm.total("Card") == 1


def test_a_card_crosses_each_link_once_at_most() -> None:
    swarm = Swarm("bob cid dan eve")
    swarm.add("ann", called=OWL)
    swarm.mesh()
    for _ in range(40):
        swarm["ann"].compute(3)
        swarm.run(1)
    assert all(names_at(node) == {swarm["ann"].own: OWL} for node in swarm.nodes.values())
    assert swarm.total("Card") <= 2 * 10, "ten links, and the two ends of one may tell each other at once"


def test_a_restarted_node_keeps_its_cards_and_sends_no_new_one() -> None:
    swarm = Swarm("bob")
    ann = swarm.add("ann", called=OWL)
    swarm.mesh()
    ann.compute(3)
    swarm.run(3)
    before = dict(ann.cards)
    ann.restart()
    swarm.mesh()
    swarm.run(3)
    assert ann.compute(300)
    swarm.run(3)
    assert ann.cards == before
    assert names_at(ann) == {ann.own: OWL}


def test_a_new_name_is_told_after_enough_updates_since_the_last_card() -> None:
    swarm = Swarm("bob")
    ann, bob = swarm.add("ann", called=OWL), swarm["bob"]
    swarm.mesh()
    ann.compute(3)
    swarm.run(3)
    ann.called = Names("Annabel")
    ann.restart()
    swarm.mesh()
    swarm.run(3)
    assert ann.compute(CARD_STEPS - 1)
    swarm.run(3)
    assert names_at(bob) == {ann.own: OWL}
    ann.compute()
    swarm.run(3)
    assert names_at(bob) == {ann.own: Names("Annabel")}
    ann.called = Names()
    ann.restart()
    swarm.mesh()
    swarm.run(3)
    assert ann.compute(CARD_STEPS)
    swarm.run(3)
    assert names_at(bob) == {ann.own: Names()}, "a name can be taken back"


# -- strangers' cards --------------------------------------------------------------------------------


def test_a_card_is_kept_and_passed_on_to_those_who_have_the_feed_from_here() -> None:
    host = eve_has(3)
    host.link(2, Position(EVE, 3))
    host.link(3)
    host.link(4)
    assert told(host.event(Served(3, EVE, 3, 1))) == []
    shown = card("eve", EVE, 3)
    actions = host.hear(1, shown)
    assert kept(actions) == [shown]
    assert told(actions) == [(3, shown)], "not back, nor to who has the feed from elsewhere or not at all"
    assert told(host.event(Served(4, EVE, 2, 1))) == []
    assert told(host.event(Served(4, EVE, 3, 1))) == [(4, shown)], "behind the updates"
    assert told(host.event(Served(4, EVE, 3, 1))) == []


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param(card("eve", EVE, 4), id="counts from an update that is not here"),
        pytest.param(card("eve", EVE, 0), id="counts from no update"),
        pytest.param(card("bob", BOB, 1), id="is of a feed that is not here"),
        pytest.param(card("bob", EVE, 3), id="is signed by somebody else"),
        pytest.param(replace(card("eve", EVE, 3), name="Adam"), id="was changed"),
        pytest.param(replace(card("eve", EVE, 3), step=2), id="was moved"),
    ],
)
def test_cards_that_are_not_due_are_ignored(shown: Card) -> None:
    host = eve_has(3)
    assert host.hear(1, shown) == []
    assert not list(host.machine.cards)


def test_the_newer_card_counts_and_only_after_enough_work() -> None:
    host = eve_has(CARD_STEPS + 3)
    first, hasty = card("eve", EVE, 3, "Eve"), card("eve", EVE, CARD_STEPS + 2, "Hasty")
    second = card("eve", EVE, CARD_STEPS + 3, "Second")
    assert kept(host.hear(1, first)) == [first]
    assert kept(host.hear(1, hasty)) == []
    assert kept(host.hear(1, second)) == [second]
    assert kept(host.hear(1, first)) == []
    assert next(card for card in host.machine.cards if card.feed == EVE) == second


def test_forged_cards_cost_the_link() -> None:
    host = eve_has(3)
    forged = card("bob", EVE, 3)
    actions: list[Action] = []
    for _ in range(int(WASTE_BURST) // 4096 + 2):
        actions = actions or host.hear(1, forged)
    [drop, *_] = actions
    assert drop.fault.startswith("L8")


VISIBLE = [*map(hex, range(0x600, 0x606)), "0x6dd", "0x70f", "0x890", "0x891", "0x8e2", "0x110bd", "0x110cd"]
"""Marks on numbers and words. Unicode counts them among the format characters."""


# -- what may be a name ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "Ann", "Zürich 東京", "o'Neill <3 & co", "😀" * 8, "a" * 32])
def test_valid_names_are_accepted(text: str) -> None:
    assert fields.text_fault(text) is None


@pytest.mark.parametrize("text", ["a" * 33, "😀" * 9, " a", "a ", "a\u200bb"])
def test_invalid_names_are_refused(text: str) -> None:
    assert fields.text_fault(text)


def test_no_valid_name_has_characters_that_cannot_be_seen() -> None:
    """The ranges of K2 contain every character that Python calls a control, format or separator character."""
    hidden = {"Cc", "Cf", "Zl", "Zp", "Co", "Cs"}
    passed = [
        hex(n)
        for n in range(0x110000)
        if unicodedata.category(chr(n)) in hidden and not fields.text_fault(chr(n))
    ]
    assert passed == VISIBLE

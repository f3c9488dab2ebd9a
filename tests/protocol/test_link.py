"""The states of a link, and the messages that each state allows (SPEC L2, L3, L6)."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from sfprotocol.errors import LocalProtocolError, RemoteProtocolError
from sfprotocol.events import LinkUp
from sfprotocol.link import ALLOWED, TRANSITIONS, Link, LinkState, check_allowed
from sfprotocol.messages import OLDEST_VERSION, Goodbye, Hello, Message, Position, Prune
from tests.protocol.feeds import RUN
from tests.protocol.scripted import BOB, Scripted

UP, GREETED, SYNCED = LinkState.UP, LinkState.GREETED, LinkState.SYNCED


@pytest.mark.parametrize(("before", "after"), list(product(LinkState, LinkState)))
def test_a_link_goes_only_where_the_table_leads(before: LinkState, after: LinkState) -> None:
    link = Link(1, "peer", heard=0.0, state=before)
    if (before, after) in {(UP, GREETED), (GREETED, SYNCED)}:
        link.enter(after)
        assert link.state is after
    else:
        with pytest.raises(LocalProtocolError):
            link.enter(after)
        assert link.state is before


def test_the_tables_know_every_state() -> None:
    assert set(TRANSITIONS) == set(ALLOWED) == set(LinkState)


def test_a_peer_leads_its_link_through_all_states() -> None:
    host = Scripted()
    host.event(LinkUp(1, "peer"))
    link = host.machine.links[1]
    assert (link.state, link.greeted, link.synced) == (UP, False, False)
    host.hear(1, Hello(OLDEST_VERSION, RUN.run_id, 0, 0))
    assert (link.state, link.greeted, link.synced) == (GREETED, True, False)
    host.hear(1, host.summary(Position(BOB, 0), more=True))
    assert link.state is GREETED
    host.hear(1, host.summary())
    assert (link.state, link.greeted, link.synced) == (SYNCED, True, True)
    host.hear(1, host.summary())
    assert link.state is SYNCED


def test_only_a_hello_or_a_goodbye_may_come_first() -> None:
    assert {kind for kind in get_args(Message) if kind in ALLOWED[UP]} == {Hello, Goodbye}
    with pytest.raises(RemoteProtocolError, match="L2"):
        check_allowed(Link(1, "peer", heard=0.0), Prune(()))


@pytest.mark.parametrize("state", [GREETED, SYNCED])
def test_a_second_hello_and_what_belongs_on_request_streams_are_refused(state: LinkState) -> None:
    refused = {kind.__name__ for kind in get_args(Message) if kind not in ALLOWED[state]}
    assert refused == {"Hello", "ManifestRequest", "ManifestReply", "PartRequest", "PartReply"}

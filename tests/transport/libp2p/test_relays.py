"""Choice of relays for p2pd, and of the time for others, tested with real sockets on loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from random import Random

import pytest

from sfnode.transport.libp2p import relays as module
from sfnode.transport.libp2p.reachability import Names
from sfnode.transport.libp2p.relays import Relays

PUBLIC = "/ip4/5.1.0.1/tcp/1/p2p/QmPublic"


@pytest.fixture
def up() -> Iterator[list[str]]:
    """Addresses of three relays that answer."""
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    yield [f"/ip4/127.0.0.1/tcp/{s.getsockname()[1]}/p2p/QmUp{n}" for n, s in enumerate(servers)]
    for server in servers:
        server.close()


@pytest.fixture
def down() -> Iterator[str]:
    """The address of a relay that does not answer."""
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        yield f"/ip4/127.0.0.1/tcp/{unheard.getsockname()[1]}/p2p/QmDown"


def relays(*given: str, known: list[str] | None = None) -> Relays:
    made = Relays(given, Names(), Random(0))
    made.known = lambda: known or []
    return made


async def wants_a_start(of: Relays, after: float = module.LOST_PATIENCE) -> bool:
    """Return what `of` wants when the event loop's clock is `after` seconds further on."""
    loop = asyncio.get_running_loop()
    time = loop.time
    loop.time = lambda: time() + after  # type: ignore[method-assign]
    return await of.want_a_start()


async def test_relays_that_were_named_come_first_and_silent_ones_not_at_all(up, down):
    assert await relays(*up).choose() == tuple(up)
    assert await relays(down, up[0], known=up[1:]).choose() in [(up[0], up[1]), (up[0], up[2])]
    assert await relays(down).choose() == (down,)  # it may come back
    assert await relays(known=[f"{up[0]}/p2p-circuit/p2p/QmFar", down]).choose() == ()


async def test_a_relayed_address_is_announced_while_the_relay_has_a_place(up):
    here = relays(up[0])
    await here.choose()
    assert here.places([], set()) == []
    assert here.places([], {"QmUp0"}) == [f"{up[0]}/p2p-circuit"]
    assert here.places([], set()) == []
    assert here.places([], {"QmUp0"}) == [], "p2pd is connected again, and does not ask for a place"
    await here.choose()
    assert here.places([], {"QmUp0"}) == [f"{up[0]}/p2p-circuit"]


async def test_of_a_public_relay_p2pd_says_itself_whether_it_has_a_place():
    here = relays(PUBLIC)
    assert here.places([], {"QmPublic"}) == []
    assert here.places([f"{PUBLIC}/p2p-circuit"], {"QmPublic"}) == [f"{PUBLIC}/p2p-circuit"]


async def test_a_start_is_wanted_when_the_only_relay_is_lost_and_one_answers(up, down):
    known: list[str] = []
    here = relays(up[0], known=known)
    await here.choose()
    here.places([], {"QmUp0"})
    assert not await here.want_a_start(), "it has just had a place"
    here.places([], set())
    assert await wants_a_start(here), "the relay answers, and p2pd would not ask it again"

    lost = relays(down, known=known)
    await lost.choose()
    assert not await wants_a_start(lost), "nobody answers"
    known.append(up[1])
    assert await wants_a_start(lost, 2 * module.LOST_PATIENCE)


async def test_after_relays_that_have_refused_others_are_asked(up):
    here = relays(*up[:2], known=up[2:])
    assert await here.choose() == tuple(up[:2])
    assert await wants_a_start(here)
    assert await here.choose() == (up[2],)


async def test_relays_that_have_refused_are_no_reason_for_a_start_and_patience_doubles(up):
    here = relays(up[0])
    await here.choose()
    assert not await wants_a_start(here)
    here.known = lambda: [up[1]]
    assert not await wants_a_start(here), "it has looked a moment ago"
    assert await wants_a_start(here)
    assert not await wants_a_start(here, 3 * module.LOST_PATIENCE)
    assert await wants_a_start(here)

"""Peers of hivemind's DHT without sfnode: nodes find each other through them, whatever strangers store
there."""

from __future__ import annotations

import asyncio
import time

import pytest
import pytest_asyncio
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.p2p import PeerID

from sfnode.transport.base import NotSpoken, PeerRecord, TransportError
from sfnode.transport.roster import roster_key
from tests.transport.helpers import eventually, plain_peer

pytestmark = pytest.mark.asyncio(loop_scope="module")

FAR = 1e6
"""Seconds: hivemind prefers what expires last."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain():
    async with plain_peer() as peer:
        yield peer


@pytest.fixture
def kind():
    return "hivemind"


@pytest.fixture
async def address(plain):
    return str((await plain.get_visible_maddrs())[0])


async def beside(address, nodes):
    """Return two nodes that have met the plain peer and not each other."""
    one, _, other = await nodes(3)
    await asyncio.gather(one.restart(), other.restart())
    assert [await node.bootstrap([address]) for node in (one, other)] == [1, 1]
    return one, other


async def stores(plain, node, topic, value, subkey=None, lives=FAR):
    """Have a stranger store something with the plain peer; `node` carries it there."""
    key, expiry = DHTID.generate(roster_key(topic)), time.time() + lives
    dht = node._session.dht.protocol
    assert await dht.call_store(plain.peer_id, [key], [value], [expiry], [subkey]) == [True]


def record_of(node, known=0):
    return PeerRecord(node.peer, tuple(node.addresses()), 0, known)


async def test_a_plain_peer_is_no_node_and_tells_the_time(plain, address, nodes):
    (node,) = await nodes(1)
    with pytest.raises(NotSpoken, match="does not speak sfnode"):
        await node.request(address, b"?")
    with pytest.raises(NotSpoken):
        await node.connect(str(plain.peer_id), [address])
    assert abs(await node.clock_ahead(address)) < 5


async def test_a_peer_that_is_away_is_not_taken_for_a_plain_one(nodes):
    (node,) = await nodes(1)
    with pytest.raises(TransportError) as failure:
        await node.request("/ip4/127.0.0.1/tcp/1/p2p/QmWv4MDNkJnWMTaHJxSwZ8dnkwJPZvLScPZzYD9bCHMgdB", b"?")
    assert not isinstance(failure.value, NotSpoken)


def rubbish(count, size):
    """Return a roster whose entries are no records and expire later than all records."""
    made = DictionaryDHTValue()
    for number in range(count):
        made.store(f"{number}", bytes(size), time.time() + FAR)
    return made


POISONS = {
    b"nothing": [],
    b"something else than a roster": [b"\xc0"],
    b"a thousand entries that are no records": [rubbish(1000, 100)],
    b"more empty entries than anybody reads": [rubbish(10_000, 0)],
}
"""Values that strangers have stored with a plain peer, keyed by topic."""


async def test_nodes_find_each_other_through_a_plain_peer_whatever_is_stored_there(plain, address, nodes):
    one, other = await beside(address, nodes)
    for topic, values in POISONS.items():
        for value in values:
            await stores(plain, one, topic, value)
    one, other = await beside(address, nodes)
    for topic in POISONS:
        for node, known in ((one, 1), (other, 2)):
            await node.announce(topic, record_of(node, known), ttl=60)
        found = [{record.peer: record.known for record in await node.find(topic)} for node in (one, other)]
        assert found[0].items() >= {other.peer: 2}.items(), topic
        assert found[1].items() >= {one.peer: 1}.items(), topic


async def test_made_up_peers_around_a_roster_do_not_keep_nodes_from_those_that_they_know(
    plain, address, nodes, topic
):
    one, other = await beside(address, nodes)
    near = DHTID.generate(roster_key(topic))
    for number in range(40):
        made_up = PeerID(bytes.fromhex("002408011220") + number.to_bytes(32, "big"))
        plain.protocol.routing_table.add_or_update_node(DHTID(near ^ number + 1), made_up)
    await one.announce(topic, record_of(one), ttl=60)
    await eventually(lambda: finds(other, topic, one))


async def test_a_forged_record_hides_no_true_one(plain, address, nodes, topic):
    one, other = await beside(address, nodes)
    await one.announce(topic, record_of(one), ttl=60)
    true = plain.protocol.storage.get(DHTID.generate(roster_key(topic))).value.get(one.peer).value
    for lives, value in ((70, true), (FAR, true.replace(b"127.0.0.1", b"127.0.0.2"))):
        await stores(plain, other, topic, value, one.peer, lives)
    await eventually(lambda: finds(other, topic, one))


async def test_a_node_that_is_gone_is_forgotten_by_plain_peers_as_well(plain, address, nodes, topic):
    one, other = await beside(address, nodes)
    await one.announce(topic, record_of(one), ttl=2)
    await eventually(lambda: finds(other, topic, one))
    await asyncio.sleep(2.1)
    assert await other.find(topic) == []


async def test_a_node_finds_its_own_record_only_where_others_have_it(plain, address, nodes):
    """So a node knows whether others can find it. Here a stranger prevents that."""
    one, *others = await nodes(3)
    for other in others:
        await other.stop()
    await stores(plain, one, b"spoilt", b"\xc0")
    with pytest.raises(TransportError, match="no peer took the record"):
        await one.announce(b"spoilt", record_of(one), ttl=60)
    assert await one.find(b"spoilt") == []
    await one.announce(b"sound", record_of(one), ttl=60)
    assert await one.find(b"sound") == [record_of(one)]


async def test_what_other_programs_store_in_the_same_dht_is_kept_by_nodes_too(plain, address, nodes):
    """hivemind counts a peer that refuses as one that has stored: among many nodes all would be lost."""
    await beside(address, nodes)
    kept = {f"key {number}": number for number in range(8)}
    stored = [await plain.store(key, value, time.time() + 60) for key, value in kept.items()]
    stored.append(await plain.store("all", 1, time.time() + 60, subkey="one"))
    assert all(stored)
    for storage in (plain.protocol.storage, plain.protocol.cache):
        storage.clear()
    await eventually(lambda: found(plain, kept))  # hivemind asks no peer for 5 s that was too slow once


async def finds(node, topic, one):
    """Return whether a node finds the record of `one`, and no other. A peer that answers late counts as one
    without an answer, and is asked again after 5 s."""
    return await node.find(topic) == [record_of(one)]


async def found(plain, kept):
    """Return whether a plain peer finds all these values, and the one with a subkey."""
    answers = {key: await plain.get(key, latest=True) for key in [*kept, "all"]}
    values = {key: answer and answer.value for key, answer in answers.items()}
    parts = values.pop("all")
    return values == kept and parts and parts["one"].value == 1

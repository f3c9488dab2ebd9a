"""`upgrade-check`: what a run and its peers speak is found out without joining."""

from __future__ import annotations

import msgpack
import pytest

from sfnode.peers import compatibility
from sfnode.peers.compatibility import examine, read_version
from sfnode.transport.base import Asker, Link
from sfnode.transport.memory import MemoryTransport
from sfprotocol import wire_codec
from sfprotocol.messages import PROTOCOL_VERSION, Goodbye, Hello, ManifestReply, Message
from tests.node.helpers import SmallEngine, Swarm, manifest

RUN = manifest()


def of_protocol(version: int) -> bytes:
    """A manifest of another protocol, with a field that this one does not know."""
    fields = msgpack.unpackb(RUN.canonical()) | {"protocol": version}
    return bytes(msgpack.packb(fields | ({"new": "field"} if version > PROTOCOL_VERSION else {})))


async def asker(swarm: Swarm) -> MemoryTransport:
    transport = MemoryTransport(swarm.network, "asker")
    await transport.start()
    return transport


async def peer(swarm: Swarm, name: str, run: bytes, greeting: Message | bytes) -> str:
    """Somebody who answers with this manifest and greets so; returns the address."""
    transport = MemoryTransport(swarm.network, name)
    await transport.start()

    async def answer(_: Asker, __: bytes) -> bytes:
        return wire_codec.encode(ManifestReply(run))

    async def greet(link: Link) -> None:
        await link.send(greeting if isinstance(greeting, bytes) else wire_codec.encode(greeting))
        await link.receive()
        await link.close()

    transport.on_request(answer)
    transport.on_link(greet)
    return f"/memory/{name}/p2p/{name}"


async def test_a_real_node_is_asked_and_nothing_is_joined(swarm: Swarm) -> None:
    a = await swarm.node("a", make_engine=SmallEngine).start(swarm.run_file)
    found = await examine(await asker(swarm), [a.address, "/memory/gone/p2p/gone"], swarm.run.run_id.hex())
    assert found.run == (swarm.run.run_id, swarm.run.name, PROTOCOL_VERSION)
    assert [peer.protocol for peer in found.peers] == [PROTOCOL_VERSION, None]
    assert found.peers[1].reason
    assert found.speaks_ours
    await a.until(lambda: not a.machine.links)
    assert not a.machine.counters.rejected


@pytest.mark.parametrize("version", [PROTOCOL_VERSION + 1, 99])
async def test_a_run_from_the_future_says_which_protocol_it_speaks(swarm: Swarm, version: int) -> None:
    address = await peer(swarm, "new", of_protocol(version), Hello(version, RUN.run_id, 0, 0))
    found = await examine(await asker(swarm), [address], "")
    assert found.run is not None
    assert found.run.protocol == found.peers[0].protocol == version
    assert not found.speaks_ours


async def test_the_manifest_of_another_run_does_not_count(swarm: Swarm) -> None:
    address = await peer(swarm, "other", RUN.canonical(), Hello(PROTOCOL_VERSION, RUN.run_id, 0, 0))
    found = await examine(await asker(swarm), [address], "00" * 32)
    assert found.run is None
    assert not found.speaks_ours


@pytest.mark.parametrize(
    ("greeting", "says"),
    [(b"\xc1", "C2"), (Goodbye("no room"), "no room"), (ManifestReply(b""), "other")],
)
async def test_a_peer_that_does_not_greet_is_said_to_be_unknown(
    swarm: Swarm, greeting: Message | bytes, says: str
) -> None:
    address = await peer(swarm, "rude", RUN.canonical(), greeting)
    found = await examine(await asker(swarm), [address], RUN.run_id.hex())
    assert found.run is not None
    assert found.peers[0].protocol is None
    assert says in found.peers[0].reason
    assert not found.speaks_ours


async def test_a_peer_that_says_nothing_is_not_waited_for(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compatibility, "GREETING_DEADLINE", 0.05)
    silent = MemoryTransport(swarm.network, "silent")
    await silent.start()

    async def listen(link: Link) -> None:
        await link.receive()

    silent.on_link(listen)
    found = await examine(await asker(swarm), ["/memory/silent/p2p/silent"], "")
    assert found.run is None
    assert "within" in found.peers[0].reason


@pytest.mark.parametrize("manifest", [b"", b"\xc1", b"\x80", b"\x81\xa8protocol\x00", b"\x91" * 2000])
def test_what_is_no_manifest_says_nothing(manifest: bytes) -> None:
    assert read_version(manifest) is None

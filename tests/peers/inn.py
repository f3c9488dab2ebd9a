"""Peers with prepared replies, and a node that asks them."""

from __future__ import annotations

from random import Random

import msgpack

from sfnode.manifest import Manifest
from sfnode.transport.base import Asker, NotSpoken, RequestHandler
from sfnode.transport.memory import MemoryLink, MemoryTransport, Network
from sfprotocol import wire_codec
from sfprotocol.messages import PROTOCOL_VERSION, ManifestReply, ManifestRequest

Reply = bytes | None


class PlainPeer(MemoryTransport):
    """A peer of Hivemind's DHT that is no node. Others only find the roster through it."""

    def _accept(self, link: MemoryLink) -> None:
        raise NotSpoken(f"{self.peer} does not speak sfnode")

    async def _reply(self, asker: MemoryTransport, frame: bytes) -> bytes | None:
        raise NotSpoken(f"{self.peer} does not speak sfnode")


class Inn:
    """A network of such peers, and the transport of the node that asks them."""

    def __init__(self) -> None:
        self.network = Network(Random(0))
        self.asker = MemoryTransport(self.network, "asker")

    async def open(self, *, plain: str = "", **replies: Reply) -> tuple[str, ...]:
        """Peers by name with what they answer (None: nothing), and `plain` ones, by names with blanks between
        them; returns their addresses."""
        await self.asker.start()
        for name in plain.split():
            await PlainPeer(self.network, name).start()
        for name, reply in replies.items():
            peer = MemoryTransport(self.network, name)
            await peer.start()
            peer.on_request(answering(reply))
        return tuple(f"/memory/{name}/p2p/{name}" for name in (*plain.split(), *replies))


def answering(reply: Reply) -> RequestHandler:
    async def answer(_: Asker, question: bytes) -> bytes:
        assert wire_codec.decode(question) == ManifestRequest()
        assert reply is not None
        return reply

    return answer


def serving(run: Manifest) -> bytes:
    return wire_codec.encode(ManifestReply(run.canonical()))


def from_the_future(run: Manifest) -> bytes:
    fields = msgpack.unpackb(run.canonical())
    fields["protocol"] = PROTOCOL_VERSION + 1
    fields["something"] = "new"
    return wire_codec.encode(ManifestReply(msgpack.packb(fields)))

"""Simulation, in virtual time, of many nodes that download one file from each other. Only one has it at
first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

from sfnode import virtual_time
from sfnode.modelshare.download import Givers
from sfnode.modelshare.listed import one_file
from sfnode.modelshare.sharing import Sharing
from sfnode.resources.bandwidth_limits import Bandwidth
from sfnode.settings import Settings
from sfnode.store.data_folder import Layout
from sfnode.tasks.public_files import listed
from sfnode.transport.base import Asker
from sfnode.transport.memory import CALM, MemoryTransport, Network
from sfprotocol import wire_codec
from sfprotocol.messages import PartReply, PartRequest
from sfprotocol.model_listing import decode, encode, hash_data
from tests.node.helpers import manifest

KNOWN = 15
"""Number of other newcomers whose addresses a node knows at a time, besides the peer in its invitation."""


class Metered(MemoryTransport):
    """A transport whose replies leave one after the other, at `uplink` bytes per second."""

    uplink: float
    _free_at = 0.0
    """Time at which all replies so far have left."""

    async def _reply(self, asker: MemoryTransport, frame: bytes) -> bytes | None:
        reply = await super()._reply(asker, frame)
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now) + len(reply or b"") / self.uplink
        await asyncio.sleep(self._free_at - now)
        return reply


class Member:
    """One node of the crowd."""

    def __init__(self, network: Network, name: str, number: int, folder: Path, random: Random) -> None:
        self.name = name
        self.transport = Metered(network, name, address=f"/ip4/{11 + number}.1.0.1/tcp/1")
        self.address = f"{self.transport.address}/p2p/{name}"
        self.known: Callable[[], list[str]] = list
        self.file = folder / name / "file"
        self.given = 0
        self.served_at = 0.0
        """Time at which it had the file, in seconds."""
        settings = Settings(data_dir=folder / name, role="relay", share_model=True)
        bandwidth, clock = Bandwidth(), asyncio.get_running_loop().time
        givers = Givers(lambda: self.known(), self.transport.request, bandwidth.download, clock, random)
        self.sharing = Sharing(settings, manifest(), Layout(folder / name), givers, bandwidth.upload)

    async def start(self) -> None:
        await self.transport.start()
        self.transport.on_request(self._answer)

    async def _answer(self, asker: Asker, frame: bytes) -> bytes:
        question = wire_codec.decode(frame)
        assert isinstance(question, PartRequest)
        reply = await self.sharing.answer(question, asker)
        self.given += len(reply.data)
        return wire_codec.encode(self.twisted(question, reply))

    def twisted(self, question: PartRequest, reply: PartReply) -> PartReply:
        """Return the reply that is sent instead of `reply`."""
        return reply

    async def get(self, digest: bytes) -> None:
        """Get the file from others, and give it to them from then on."""
        fetching = self.sharing.fetch_file(
            "data", digest, self.file, what="file", named=hash_data, checked=decode
        )
        await fetching
        self.served_at = asyncio.get_running_loop().time()
        self.give()

    def give(self) -> None:
        encoded = encode([listed(self.file, "data")])
        self.sharing.listed[hash_data(encoded)] = one_file(encoded, self.file)


class Liar(Member):
    """A member that sends wrong bytes of the right length."""

    def twisted(self, question: PartRequest, reply: PartReply) -> PartReply:
        return PartReply(reply.size, bytes(len(reply.data))) if question.part else reply


class Outcome(NamedTuple):
    """The result of a simulation."""

    seconds: list[float]
    """Times at which the newcomers had the file."""
    copies: float
    """Bytes that the donor sent, as a multiple of the size of the file."""
    right: bool
    """Whether every newcomer has the right bytes."""


async def _crowd(folder: Path, count: int, size: int, uplink: float, seed: int, liars: int) -> Outcome:
    random = Random(seed)
    network = Network(random, CALM)
    donor = Member(network, "donor", 0, folder, random)
    others = [Member(network, f"n{number}", number, folder, random) for number in range(1, count + 1)]
    strangers = [Liar(network, f"liar{number}", 100 + number, folder, random) for number in range(liars)]
    for one in (donor, *others, *strangers):
        one.file.parent.mkdir()
        one.transport.uplink = uplink
        await one.start()
    content = random.randbytes(size)
    for one in (donor, *strangers):
        one.file.write_bytes(content)
        one.give()
    addresses = [one.address for one in (*others, *strangers)]
    for one in others:
        one.known = lambda: [donor.address, *random.sample(addresses, min(KNOWN, len(addresses)))]
    digest = hash_data(encode([listed(donor.file, "data")]))
    await asyncio.gather(*(one.get(digest) for one in others))
    right = all(one.file.read_bytes() == content for one in others)
    for one in (donor, *others, *strangers):
        await one.transport.stop()
    return Outcome([one.served_at for one in others], donor.given / size, right)


def crowd(folder: Path, count: int, size: int, uplink: float, *, seed: int = 0, liars: int = 0) -> Outcome:
    """Let `count` newcomers come at the same moment to one donor of a file of `size` bytes. Everybody sends
    `uplink` bytes per second; `liars` claim to have the file, and send other bytes."""
    return virtual_time.run(_crowd(folder, count, size, uplink, seed, liars), seed)

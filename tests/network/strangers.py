"""Attacks of somebody who speaks the protocol, and whom the organiser of the run has not admitted.

Every signature is valid unless a signature is the attack. Whoever loses the link comes again with a new
identity, which costs as much as starting p2pd.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfprotocol import wire_codec
from sfprotocol.decisions import Finish, encode
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.messages import (
    Branch,
    Claim,
    Control,
    ControlFork,
    ControlHead,
    ControlWant,
    Entry,
    EpochScalars,
    Feed,
    Message,
    PartRequest,
    Petition,
    Proof,
    Segment,
    Succession,
    Summary,
    Vote,
)
from sfprotocol.petitions import petition_message
from sfprotocol.seeds import feed_key
from sfprotocol.segments import MAX_SEGMENT_UPDATES
from sfprotocol.signing import extend, genesis, head_message
from tests.network.hostile_client import FAILURES, LINK, PATIENCE, REQUEST, Client, Stream, framed, hang_up

LISTENING = 0.5
"""Seconds for which an attacker listens before it speaks: feeds and the head of the control feed are told
first."""

LAST_EPOCH = 65_535
CLAIMS = 2_000
"""Feeds in one page of a Summary: it fits a frame."""

CLAIM_PAUSE = 3.0
"""Seconds between two rounds of false claims."""

IN_FLIGHT = 1 << 16
"""Bytes that are written before the attacker waits for the victim to read."""


@dataclass
class Heard:
    """What the victim has told."""

    run_id: bytes
    feeds: dict[Feed, int] = field(default_factory=dict)
    """The first step of each feed that the victim lacks."""
    head: ControlHead = field(default_factory=lambda: ControlHead(0, 0, bytes(32)))

    def take(self, message: Message) -> None:
        if isinstance(message, Summary):
            self.feeds.update((claim.feed, claim.next) for claim in message.entries)
        elif isinstance(message, ControlHead):
            self.head = message


class Origin:
    """A key with one feed, which signs whatever is wanted."""

    def __init__(self, run_id: bytes) -> None:
        self.run_id = run_id
        self.key = Ed25519PrivateKey.generate()
        self.feed = Feed(self.key.public_key().public_bytes_raw(), 0)
        self.chain, self.next = genesis(run_id, self.feed), 0

    def named(self) -> Summary:
        return Summary(False, 0, bytes(32), (Claim(self.feed, 0, bytes(4)),))

    def segment(self, label: int, count: int) -> Segment:
        parts = (EpochScalars(label, (7,) * count),)
        first, self.chain, self.next = self.next, extend(self.chain, parts), self.next + count
        signature = self._signed(self.next, self.chain)
        return Segment(feed_key(self.run_id, *self.feed), first, parts, signature, hops=1)

    def proof(self) -> Proof:
        """A proof as large as may be, of two histories that both come from here."""
        branches = []
        for scalar in (1, 2):
            parts = tuple(EpochScalars(epoch, (scalar,)) for epoch in range(MAX_SEGMENT_UPDATES))
            branches.append(Branch(parts, self._signed(MAX_SEGMENT_UPDATES, extend(self.chain, parts))))
        return Proof(self.feed, 0, (self.chain, self.chain), (branches[0], branches[1]))

    def petition(self, invitation: int = 0) -> Petition:
        voucher = os.urandom(64) if invitation else b""
        unsigned = Petition(self.feed.origin, 1, invitation, voucher, bytes(64))
        return replace(unsigned, signature=self.key.sign(petition_message(self.run_id, unsigned)))

    def _signed(self, stop: int, chain: bytes) -> bytes:
        return self.key.sign(head_message(self.run_id, self.feed, stop, chain))


Say = Callable[[Heard], Iterator[Message | float]]
"""Yields messages, and seconds to wait, for one link."""


def updates(heard: Heard) -> Iterator[Message]:
    """Send full segments of sixteen origins."""
    yield from _segments(heard, label=0)


def last_label(heard: Heard) -> Iterator[Message]:
    """Send updates that are labelled with the last epoch of all."""
    yield from _segments(heard, label=LAST_EPOCH)


def _segments(heard: Heard, label: int) -> Iterator[Message]:
    origins = [Origin(heard.run_id) for _ in range(16)]
    yield from (origin.named() for origin in origins)
    for origin in itertools.cycle(origins):
        yield origin.segment(label, MAX_SEGMENT_UPDATES)


def free_feeds(heard: Heard) -> Iterator[Message]:
    """Tell of feeds without end, each with one update."""
    while True:
        claims = sorted(Claim(Feed(os.urandom(32), 0), 1, bytes(4)) for _ in range(CLAIMS))
        yield Summary(True, CLAIMS, os.urandom(32), tuple(claims))


def false_claims(heard: Heard) -> Iterator[Message | float]:
    """Say that every feed of the run goes on, the victim's own included, and that there are more of each."""
    for more in itertools.count(1):
        known = [Claim(feed, stop + 1000 * more, os.urandom(4)) for feed, stop in heard.feeds.items()]
        other = [Claim(Feed(feed.origin, 63), 1000, os.urandom(4)) for feed in heard.feeds]
        yield Summary(False, 10**6, os.urandom(32), tuple(sorted({*known, *other})))
        yield CLAIM_PAUSE


def proofs(heard: Heard) -> Iterator[Message]:
    """Prove that strangers have signed two histories."""
    while True:
        yield Origin(heard.run_id).proof()


def petitions(heard: Heard) -> Iterator[Message]:
    """Ask for admission under ever new keys, without the work."""
    while True:
        yield Origin(heard.run_id).petition()


def false_vouchers(heard: Heard) -> Iterator[Message]:
    """Ask for admission by an invitation that one does not have."""
    while True:
        yield Origin(heard.run_id).petition(invitation=1)


def false_decisions(heard: Heard) -> Iterator[Message]:
    """Say that the control feed goes on, and end the run in the organiser's name."""
    while True:
        yield ControlHead(heard.head.term, heard.head.stop + 1000, os.urandom(32))
        yield Control(heard.head.stop, (Entry(heard.head.term, encode(Finish()), os.urandom(64)),))


def false_authority(heard: Heard) -> Iterator[Message]:
    """Hand the run over to oneself, and say that the organiser has signed two decisions."""
    while True:
        key = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
        yield Succession(1, heard.head.stop, heard.head.chain, key, (Vote(0, os.urandom(64)),))
        both = os.urandom(64), os.urandom(64)
        yield ControlFork(0, max(1, heard.head.stop), (bytes(32), b"\1" * 32), both)


def control_wants(heard: Heard) -> Iterator[Message]:
    """Ask for the whole control feed, again and again."""
    while True:
        yield ControlWant(0)


def _speaker(say: Say) -> Callable[[Client], Awaitable[None]]:
    async def attack(client: Client) -> None:
        while client.on_time:
            stream = await client.open(LINK)
            if stream:
                with suppress(*FAILURES, RemoteProtocolError):
                    await _speak(client, stream, say)
                await hang_up(stream)
            if client.on_time:
                await client.renew()

    attack.__name__ = say.__name__
    attack.__doc__ = say.__doc__
    return attack


async def _speak(client: Client, stream: Stream, say: Say) -> None:
    reader, writer = stream
    writer.write(client.hello())
    heard = Heard(client.run_id)
    await client.be_greeted(reader)
    listening = asyncio.create_task(_listen(reader, heard))
    try:
        await asyncio.wait([listening], timeout=LISTENING)
        written = 0
        for message in say(heard):
            if not client.on_time or listening.done():
                return
            if isinstance(message, float):
                await asyncio.wait([listening], timeout=message)
                continue
            frame = framed(wire_codec.encode(message))
            writer.write(frame)
            written += len(frame)
            client.did["frames"] += 1
            client.did["bytes"] += len(frame)
            if written > IN_FLIGHT:
                written = 0
                async with asyncio.timeout(max(0.1, client.until - asyncio.get_running_loop().time())):
                    await writer.drain()
                await asyncio.sleep(0)
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def _listen(reader: asyncio.StreamReader, heard: Heard) -> None:
    while True:
        frame = await reader.readexactly(int.from_bytes(await reader.readexactly(3), "big"))
        with suppress(RemoteProtocolError):
            heard.take(wire_codec.decode(frame))


async def parts(client: Client) -> None:
    """Ask for parts of the base model without end."""
    asked = framed(wire_codec.encode(PartRequest(os.urandom(32), 1, 0, 1 << 17)))

    async def say(stream: Stream) -> None:
        stream[1].write(asked)
        async with asyncio.timeout(PATIENCE):
            client.did["answered"] += len(await stream[0].read()) > 0

    await asyncio.gather(*(client.again_and_again(REQUEST, say) for _ in range(8)))


STRANGERS: dict[str, Callable[[Client], Awaitable[None]]] = {
    attack.__name__: attack
    for attack in (
        *map(
            _speaker,
            (
                updates,
                last_label,
                free_feeds,
                false_claims,
                proofs,
                petitions,
                false_vouchers,
                false_decisions,
                false_authority,
                control_wants,
            ),
        ),
        parts,
    )
}

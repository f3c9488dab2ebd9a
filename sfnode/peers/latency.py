"""Measures the latency of neighbours and asks for their origins, but only while a view of them is open.

Neither the protocol nor libp2p's daemon reports round trips. So each neighbour gets an echo request on a
separate stream of the existing connection. The latency is the time until the response, including the opening
of the stream: one to two round trips of the network. A measurement costs a neighbour some hundred bytes. In
its response the neighbour may introduce itself as the node of an origin, with the origin's signature.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress

from sfnode.errors import UserError
from sfnode.transport.base import Transport, TransportError, call_off, peer_of
from sfprotocol.signing import introduction_message, signed_by

ECHO = b"\xc0"
"""The echo request, and the beginning of its response (SPEC L6)."""

ORIGIN_BYTES, SIGNATURE_BYTES = 32, 64
"""Lengths, in bytes, of the origin and of the signature in an introduction."""

INTERVAL = 10.0
"""Minimum time, in seconds, between two echo requests to one neighbour."""

DEADLINE = 5.0
"""Deadline, in seconds, for a response."""


class NeighbourLatencies:
    """The latency of the neighbours of one node."""

    def __init__(self, transport: Transport, run_id: bytes) -> None:
        self._transport = transport
        self._run_id = run_id
        self._found: dict[str, float] = {}
        self._origins: dict[str, bytes] = {}
        self._asked: dict[str, float] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self._stopped = False

    def of(self, peer: str) -> float | None:
        """Return the last latency in seconds; None if the peer never answered."""
        return self._found.get(peer)

    def origin(self, peer: str) -> bytes | None:
        """Return the peer's origin, as proven by that origin's signature; None if the peer has sent no such
        proof."""
        return self._origins.get(peer)

    def look(self, addresses: dict[str, str]) -> None:
        """Measure neighbours that were not measured within INTERVAL; `addresses` has one address for each.

        Does nothing after `stop`, because views may still call it while the node ends.
        """
        if self._stopped:
            return
        now = asyncio.get_running_loop().time()
        self._forget(addresses)
        for peer, address in addresses.items():
            if now - self._asked.get(peer, float("-inf")) >= INTERVAL:
                self._asked[peer] = now
                self._asking.add(task := asyncio.create_task(self._ask(address)))
                task.add_done_callback(self._asking.discard)

    async def stop(self) -> None:
        """Cancel the measurements under way, for good."""
        self._stopped = True
        await call_off(self._asking)

    async def _ask(self, address: str) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        with suppress(TransportError, UserError, TimeoutError):
            async with asyncio.timeout(DEADLINE):
                answer = await self._transport.request(address, ECHO)
            peer = peer_of(address)
            if answer.startswith(ECHO) and peer in self._asked:  # else it has left meanwhile
                self._found[peer] = clock() - began
                if origin := introduced(self._run_id, peer, answer):
                    self._origins[peer] = origin

    def _forget(self, wanted: Collection[str]) -> None:
        for peer in self._asked.keys() - set(wanted):
            del self._asked[peer]
            self._found.pop(peer, None)
            self._origins.pop(peer, None)


def introduction(run_id: bytes, origin: bytes, peer: str, sign: Callable[[bytes], bytes]) -> bytes:
    """Return the response of a node that introduces itself; `sign` signs with the key of its origin."""
    return ECHO + origin + sign(introduction_message(run_id, origin, peer))


def introduced(run_id: bytes, peer: str, answer: bytes) -> bytes | None:
    """Return the origin that a peer's response proves to be its own; None without a valid proof."""
    origin, signature = answer[1 : 1 + ORIGIN_BYTES], answer[1 + ORIGIN_BYTES :]
    if len(signature) != SIGNATURE_BYTES:
        return None
    return origin if signed_by(origin, introduction_message(run_id, origin, peer), signature) else None

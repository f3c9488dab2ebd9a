"""Latency of neighbours, measured only while somebody looks at it.

Neither the protocol nor libp2p's daemon reports round trips, so this sends each neighbour an echo request on
a stream of its own, over the existing connection. The result is the time until the response, opening of the
stream included: one to two round trips of the network. It costs a neighbour some hundred bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress

from sfnode.errors import UserError
from sfnode.transport.base import Transport, TransportError, peer_of

ECHO = b"\xc0"
"""The echo request, and its response (SPEC L6)."""

INTERVAL = 10.0
"""Seconds between two echo requests to one neighbour, however often somebody looks."""

DEADLINE = 5.0
"""Seconds for a response."""


class Latency:
    """The latency of the neighbours of one node."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._found: dict[str, float] = {}
        self._asked: dict[str, float] = {}
        self._asking: set[asyncio.Task[None]] = set()

    def of(self, peer: str) -> float | None:
        """Return the latency in seconds as last measured; None if the peer never answered."""
        return self._found.get(peer)

    def look(self, addresses: dict[str, str]) -> None:
        """Measure these neighbours, given an address for each, unless that was done within INTERVAL."""
        now = asyncio.get_running_loop().time()
        self._forget(addresses)
        for peer, address in addresses.items():
            if now - self._asked.get(peer, float("-inf")) >= INTERVAL:
                self._asked[peer] = now
                self._asking.add(task := asyncio.create_task(self._ask(address)))
                task.add_done_callback(self._asking.discard)

    async def stop(self) -> None:
        """Cancel the measurements under way."""
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)

    async def _ask(self, address: str) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        with suppress(TransportError, UserError, TimeoutError):
            async with asyncio.timeout(DEADLINE):
                answer = await self._transport.request(address, ECHO)
            if answer == ECHO and peer_of(address) in self._asked:  # else it has left meanwhile
                self._found[peer_of(address)] = clock() - began

    def _forget(self, wanted: Collection[str]) -> None:
        for peer in self._asked.keys() - set(wanted):
            del self._asked[peer]
            self._found.pop(peer, None)

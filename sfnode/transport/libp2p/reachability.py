"""Whether anybody listens at an address, before libp2p is asked to dial it.

libp2p does not dial an address again for 5 s after a failure, and for longer after every further one (up to
5 minutes): a peer that comes back would be met long after that. So it is given only addresses at which a TCP
connection can be opened, and hardly ever notices that a peer was away: the DHT asks a peer that has just gone
once more, which costs those 5 s if the peer comes back at once. Knows no libp2p beyond that.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from sfnode.transport.libp2p.calls import cancel

TCP_DEADLINE = 4.0
"""Seconds for a TCP connection: a lost first packet is sent again after 1 s, a second one after 3."""

MOMENT = 0.1
"""Seconds that the other addresses of a peer have after the first has answered; libp2p takes the best."""

_TCP = re.compile(r"/(ip4|ip6|dns|dns4|dns6)/([^/]+)/tcp/(\d{1,5})(?:/.*)?", re.ASCII)
_FAMILY = {"4": socket.AF_INET, "6": socket.AF_INET6}


SocketAddress = tuple[str, int]
"""A numeric host and a port."""


class TcpEndpoint(NamedTuple):
    """Host and port to which a multiaddress leads first: those of a peer, or of its relay."""

    kind: str
    host: str
    port: int

    @property
    def named(self) -> bool:
        """Whether the host is a DNS name."""
        return self.kind.startswith("dns")


def tcp_endpoint(address: str) -> TcpEndpoint | None:
    """Return what a multiaddress leads to; None if it names no host to which TCP connections are opened."""
    form = _TCP.fullmatch(address)
    return TcpEndpoint(form[1], form[2], int(form[3])) if form else None


def resolve(endpoint: TcpEndpoint) -> list[SocketAddress]:
    """Return the socket addresses of an endpoint. Raises OSError, UnicodeError, ValueError.

    Blocks for as long as name servers take, half a minute where they are silent.
    """
    return _socket_addresses(socket.getaddrinfo(endpoint.host, endpoint.port, **_hints(endpoint)))


def _hints(endpoint: TcpEndpoint) -> dict[str, int]:
    flags = 0 if endpoint.named else socket.AI_NUMERICHOST
    family = _FAMILY.get(endpoint.kind[-1], socket.AF_UNSPEC)
    return {"family": family, "type": socket.SOCK_STREAM, "flags": flags}


def _socket_addresses(found: Iterable[tuple[Any, ...]]) -> list[SocketAddress]:
    return [(str(address[0]), int(address[1])) for *_, address in found]


async def try_connect(addresses: Sequence[SocketAddress]) -> None:
    """Open a TCP connection to the first of these addresses where somebody listens, and close it again.

    Raises the OSError of the last one. Takes no DNS names: uvloop resolves them as part of connecting, and
    the result of a query that outlives a timeout ends up in asyncio's log.
    """
    for number, (host, port) in enumerate(addresses, start=1):
        try:
            _, writer = await asyncio.open_connection(host, port)
        except OSError:
            if number == len(addresses):
                raise
        else:
            writer.transport.abort()
            return


async def listening(addresses: Sequence[str]) -> list[str]:
    """Return those multiaddresses at which somebody listens (for a relayed one: the relay), or of which one
    cannot tell (UDP, or a relay without its address), in their order.

    Returns a moment after the first has answered, or when all have failed.
    """
    attempts = {asyncio.create_task(_listens(one)): one for one in dict.fromkeys(addresses)}
    try:
        for done in asyncio.as_completed(attempts):
            if await done:
                await asyncio.wait(attempts, timeout=MOMENT)
                break
        return [one for task, one in attempts.items() if task.done() and task.result()]
    finally:
        await cancel(attempts)


async def _listens(address: str) -> bool:
    endpoint = tcp_endpoint(address)
    if endpoint is None:
        return True
    with suppress(OSError, ValueError, OverflowError):  # among them TimeoutError and UnicodeError
        async with asyncio.timeout(TCP_DEADLINE):
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(endpoint.host, endpoint.port, **_hints(endpoint))
            await try_connect(_socket_addresses(found))
            return True
    return False

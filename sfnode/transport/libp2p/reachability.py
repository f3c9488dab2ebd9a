"""Checks, before libp2p dials an address, whether anything listens there; also looks up DNS names.

After a failed dial, libp2p does not dial the address again for 5 s, and for up to 5 minutes after further
failures, even if the peer comes back meanwhile. So libp2p is given only addresses at which a TCP connection
can be opened, and its dials hardly ever fail. (The DHT still calls a peer once after the peer has gone. If
the peer comes back at once, that failure costs 5 s.) Names are looked up here as well, because libp2p's own
look-up uses up time of the dial and does not cache the answer. This module knows nothing else of libp2p.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from sfnode.transport.base import is_loopback
from sfnode.transport.libp2p.calls import cancel

TCP_DEADLINE = 4.0
"""Deadline, in seconds, for a TCP connection. The first packet is sent again after 1 s and 3 s if it is
lost."""

NAME_DEADLINE = 10.0
"""Deadline, in seconds, for looking up a name. If a name server is silent, a resolver asks again after 5
s."""

NAME_FRESH = 60.0
"""Maximum time, in seconds, for which the address of a name is used before the name is looked up again.
Dynamic addresses may change within minutes."""

NAME_KEPT = 86_400.0
"""Maximum time, in seconds, for which the last address of a name is used while no name server answers."""

MAX_NAMES = 256
"""Maximum number of names whose addresses are kept; the address book has 64 peers."""

MOMENT = 0.1
"""Maximum time, in seconds, to wait for the other addresses of a peer after the first one has answered.
libp2p chooses the best of those that answer."""

_TCP = re.compile(r"/(ip4|ip6|dns|dns4|dns6)/([^/]+)/tcp/(\d{1,5})(?:/.*)?", re.ASCII)
_FAMILY = {"4": socket.AF_INET, "6": socket.AF_INET6}


SocketAddress = tuple[str, int]
"""A numeric host and a port."""


class TcpEndpoint(NamedTuple):
    """The host and port that a dial of a multiaddress connects to: those of a peer, or of its relay."""

    kind: str
    host: str
    port: int

    @property
    def named(self) -> bool:
        """Whether the host is a DNS name."""
        return self.kind.startswith("dns")


LookUp = Callable[[TcpEndpoint], Awaitable[list[SocketAddress]]]
"""A resolver: returns the socket addresses of an endpoint, and raises what `resolve` raises."""


def tcp_endpoint(address: str) -> TcpEndpoint | None:
    """Return the host and port that a dial of a multiaddress connects to; None if it names no host for TCP
    connections."""
    form = _TCP.fullmatch(address)
    return TcpEndpoint(form[1], form[2], int(form[3])) if form else None


def resolve(endpoint: TcpEndpoint) -> list[SocketAddress]:
    """Return the socket addresses of an endpoint. Raises OSError, UnicodeError, ValueError.

    Blocks until name servers answer, or for half a minute if they are silent.
    """
    return _socket_addresses(socket.getaddrinfo(endpoint.host, endpoint.port, **_hints(endpoint)))


def _hints(endpoint: TcpEndpoint) -> dict[str, int]:
    flags = 0 if endpoint.named else socket.AI_NUMERICHOST
    family = _FAMILY.get(endpoint.kind[-1], socket.AF_UNSPEC)
    return {"family": family, "type": socket.SOCK_STREAM, "flags": flags}


def _socket_addresses(found: Iterable[tuple[Any, ...]]) -> list[SocketAddress]:
    return [(str(address[0]), int(address[1])) for *_, address in found]


class Names:
    """The addresses of names that were looked up."""

    def __init__(self, look_up: LookUp | None = None) -> None:
        """`look_up` is the resolver; None for the resolver of the system."""
        self._look_up = look_up or _look_up
        self._found: dict[TcpEndpoint, tuple[float, list[SocketAddress]]] = {}
        """Time of the last answer and the addresses in it, keyed by endpoint; the latest last."""

    async def addresses(self, endpoint: TcpEndpoint) -> list[SocketAddress]:
        """Return the socket addresses of an endpoint. While name servers are silent or refuse to answer,
        return the addresses found last, for up to NAME_KEPT seconds. Raises OSError, UnicodeError,
        ValueError, OverflowError."""
        time = asyncio.get_running_loop().time
        asked, kept = self._found.get(endpoint, (float("-inf"), []))
        if time() < asked + NAME_FRESH:
            return kept
        try:
            async with asyncio.timeout(NAME_DEADLINE):
                found = await self._look_up(endpoint)
        except OSError:  # TimeoutError among them
            if time() < asked + NAME_KEPT:
                return kept
            raise
        if endpoint.named:
            self._found.pop(endpoint, None)
            self._found[endpoint] = time(), found
            if len(self._found) > MAX_NAMES:
                del self._found[next(iter(self._found))]
        return found


async def _look_up(endpoint: TcpEndpoint) -> list[SocketAddress]:
    loop = asyncio.get_running_loop()
    return _socket_addresses(await loop.getaddrinfo(endpoint.host, endpoint.port, **_hints(endpoint)))


async def try_connect(addresses: Sequence[SocketAddress]) -> SocketAddress | None:
    """Open a TCP connection to the first of these addresses at which something listens, and close it again.

    Returns that address; None if `addresses` is empty. If all fail, raises the OSError of the last one. Hosts
    must be numeric: uvloop looks up names as part of connecting, and if the look-up outlives a timeout, its
    result ends up in asyncio's log.
    """
    for number, (host, port) in enumerate(addresses, start=1):
        try:
            _, writer = await asyncio.open_connection(host, port)
        except OSError:
            if number == len(addresses):
                raise
        else:
            writer.transport.abort()
            return host, port
    return None


def elsewhere(addresses: Sequence[str], own: Sequence[str]) -> list[str]:
    """Return a peer's addresses without those that lead to this node, whose addresses are `own`, or to
    another program on this machine.

    Many nodes have the same port, and the same private address behind their routers. Such an address of the
    peer may lead to this node, where something listens. Then `listening` would accept it, libp2p would dial
    in vain, and would not dial again for minutes. Loopback addresses are kept only if the peer is on this
    machine.
    """
    here = {(found.host, found.port) for one in own if (found := tcp_endpoint(one))}
    hosts = {host for host, _ in here}
    ends = {one: tcp_endpoint(one) for one in addresses}
    others = [one for one, end in ends.items() if end is None or (end.host, end.port) not in here]
    beyond = [end for one, end in ends.items() if end and not is_loopback(one)]
    if not beyond or any(end.host in hosts for end in beyond):
        return others
    return [one for one in others if not is_loopback(one)]


async def listening(addresses: Sequence[str], names: Names) -> list[str]:
    """Return the multiaddresses at which something listens, in their order. For a relayed address, the relay
    is checked.

    A name is replaced by its numeric address at which something listens. Addresses that cannot be tried (UDP,
    or a relay without its address) are returned as well.

    Returns MOMENT seconds after the first address has answered, or when all have failed.
    """
    attempts = [asyncio.create_task(_answering(one, names)) for one in dict.fromkeys(addresses)]
    try:
        for done in asyncio.as_completed(attempts):
            if await done:
                await asyncio.wait(attempts, timeout=MOMENT)
                break
        found = [task.result() for task in attempts if task.done()]
        return [address for address in found if address]
    finally:
        await cancel(attempts)


async def _answering(address: str, names: Names) -> str | None:
    """Return a multiaddress, with a numeric host in place of a name, if something listens there; else
    None."""
    endpoint = tcp_endpoint(address)
    if endpoint is None:
        return address
    with suppress(OSError, ValueError, OverflowError):  # among them TimeoutError and UnicodeError
        found = await names.addresses(endpoint)
        async with asyncio.timeout(TCP_DEADLINE):
            if there := await try_connect(found):
                return _numbered(address, there[0]) if endpoint.named else address
    return None


def _numbered(address: str, host: str) -> str:
    """Return a multiaddress with this host in place of its name."""
    rest = address.split("/", 3)[3]
    return f"/ip{6 if ':' in host else 4}/{host.partition('%')[0]}/{rest}"

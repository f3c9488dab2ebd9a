"""Whether anybody listens at an address, before libp2p is asked to dial it.

libp2p does not dial an address again for 5 s after a failure, and for longer after every further one (up to
5 minutes): a peer that comes back would be met long after that. So it gets to know only addresses at which a
TCP connection can be opened, and hardly ever learns that a peer was away: the DHT asks a peer that has just
gone once more, which costs those 5 s if it comes back at once. Knows no libp2p beyond that.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from sfnode.transport.calls import cancel

KNOCK_DEADLINE = 4.0
"""Seconds for a TCP connection: a lost first packet is sent again after 1 s, a second one after 3."""

MOMENT = 0.1
"""Seconds for other addresses of the same peer, of which libp2p takes the best."""

_TCP = re.compile(r"/(ip4|ip6|dns|dns4|dns6)/([^/]+)/tcp/(\d{1,5})(?:/.*)?", re.ASCII)
_FAMILY = {"4": socket.AF_INET, "6": socket.AF_INET6}


Door = tuple[str, int]
"""A numeric host and a port."""


class Place(NamedTuple):
    """Where a way begins: at a peer, or at a relay."""

    kind: str
    host: str
    port: int

    @property
    def named(self) -> bool:
        """Whether a name server has to be asked where it is."""
        return self.kind.startswith("dns")


def place_of(way: str) -> Place | None:
    """None for a way that does not begin with a TCP connection to an address that it names."""
    form = _TCP.fullmatch(way)
    return Place(form[1], form[2], int(form[3])) if form else None


def look_up(place: Place) -> list[Door]:
    """Where a place is. Raises OSError, and UnicodeError or ValueError for what is no name at all.

    Takes as long as name servers do, which may be half a minute where they are silent.
    """
    return _doors(socket.getaddrinfo(place.host, place.port, **_question(place)))


def _question(place: Place) -> dict[str, int]:
    flags = 0 if place.named else socket.AI_NUMERICHOST
    family = _FAMILY.get(place.kind[-1], socket.AF_UNSPEC)
    return {"family": family, "type": socket.SOCK_STREAM, "flags": flags}


def _doors(found: Iterable[tuple[Any, ...]]) -> list[Door]:
    return [(str(address[0]), int(address[1])) for *_, address in found]


async def knock(doors: Sequence[Door]) -> None:
    """Open a TCP connection to the first of these numeric addresses that has somebody, and close it again.

    Raises what the last one says, an OSError. Names are not for here: uvloop asks for them on the way to a
    connection, and what becomes of the question after a timeout nobody would hear but asyncio's log.
    """
    for number, (host, port) in enumerate(doors, start=1):
        try:
            _, writer = await asyncio.open_connection(host, port)
        except OSError:
            if number == len(doors):
                raise
        else:
            writer.transport.abort()
            return


async def listening(ways: Sequence[str]) -> list[str]:
    """Those of `ways` at which somebody listens (in a relayed one: the relay), or of which one cannot tell
    (UDP, or a relay without its address); in their order.

    Returns a moment after the first has answered, or when all have failed.
    """
    knocks = {asyncio.create_task(_answers(way)): way for way in dict.fromkeys(ways)}
    try:
        for done in asyncio.as_completed(knocks):
            if await done:
                await asyncio.wait(knocks, timeout=MOMENT)
                break
        return [way for task, way in knocks.items() if task.done() and task.result()]
    finally:
        await cancel(knocks)


async def _answers(way: str) -> bool:
    place = place_of(way)
    if place is None:
        return True
    with suppress(OSError, ValueError, OverflowError):  # among them TimeoutError and UnicodeError
        async with asyncio.timeout(KNOCK_DEADLINE):
            loop = asyncio.get_running_loop()
            await knock(_doors(await loop.getaddrinfo(place.host, place.port, **_question(place))))
            return True
    return False

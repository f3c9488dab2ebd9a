"""Whether this machine's clock is right: what time servers say, and what peers' clocks say.

Training itself needs no clock. The roster in the DHT does: entries carry the time at which they expire, and a
node whose clock is minutes off writes entries that are expired already, or are refused.
"""

from __future__ import annotations

import asyncio
import statistics
import struct
import time
from collections.abc import Sequence
from typing import cast

from sfnode.doctor.case import in_thread
from sfnode.doctor.findings import Finding, Subject, note, ok, problem
from sfnode.transport.reach import Place, look_up

WRONG = 30.0
"""Seconds from which a clock is a problem: a third of the life of an entry in the roster (90 s)."""

INEXACT = 3.0
"""Seconds from which it is worth saying: other programs on hivemind's DHT refuse such a peer."""

NTP_PORT = 123
NTP_DEADLINE = 2.5
"""Seconds for the one packet there and back; where UDP is blocked nothing will ever come."""

_NTP_EPOCH = 2_208_988_800
"""Seconds from 1900, where NTP counts from, to 1970."""

_CLIENT = b"\x23" + bytes(47)
"""An NTP packet of version 4, mode client, which says nothing else (RFC 4330)."""

_SERVER_MODE = 4


async def ntp_ahead(host: str, port: int = NTP_PORT) -> float:
    """Seconds by which that time server is ahead of this clock. Raises OSError (or TimeoutError)."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[float] = loop.create_future()
    async with asyncio.timeout(NTP_DEADLINE):
        door, *_ = await in_thread(lambda: look_up(Place("dns", host, port)))
        transport, _ = await loop.create_datagram_endpoint(lambda: _Asker(answer), remote_addr=door)
        try:
            return await answer
        finally:
            transport.close()


class _Asker(asyncio.DatagramProtocol):
    """Sends one question; the answer is when the server's clock read what, halfway there and back."""

    def __init__(self, answer: asyncio.Future[float]) -> None:
        self._answer = answer
        self._asked = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._asked = time.time()
        cast(asyncio.DatagramTransport, transport).sendto(_CLIENT)  # uvloop's is none by its class

    def datagram_received(self, data: bytes, _: object) -> None:
        if len(data) < 48 or data[0] & 7 != _SERVER_MODE or data[1] == 0 or self._answer.done():
            return  # no answer of a server that knows the time (stratum 0 says "go away")
        whole, part = struct.unpack("!II", data[40:48])
        there = whole - _NTP_EPOCH + part / 2**32
        self._answer.set_result(there - (self._asked + time.time()) / 2)

    def error_received(self, error: Exception) -> None:
        if not self._answer.done():
            self._answer.set_exception(error if isinstance(error, OSError) else OSError(str(error)))


def judged_by_peers(ahead: Sequence[float]) -> Finding:
    """`ahead`: seconds by which each of their clocks is ahead of ours."""
    if ahead:
        those = "a peer's clock" if len(ahead) == 1 else f"the clocks of {len(ahead)} peers"
        return judged(statistics.median(ahead), those)
    return note(
        Subject.CLOCK,
        "there was nothing to compare the clock with: no time server answers, and no peer",
        "Make sure that the system sets its clock by the network; `timedatectl` shows it on most systems.",
    )


def judged(ahead: float, by: str) -> Finding:
    """`ahead`: seconds by which the clock that is called `by` is ahead of ours."""
    way = "behind" if ahead > 0 else "ahead of"
    what = f"this clock is {_span(abs(ahead))} {way} {by}"
    if abs(ahead) < INEXACT:
        return ok(Subject.CLOCK, what)
    fix = "Let the system set its clock by the network (on most: `timedatectl set-ntp true`)."
    if abs(ahead) < WRONG:
        return note(Subject.CLOCK, what, fix)
    return problem(Subject.CLOCK, what + ", so that others cannot find this node through the DHT", fix)


def _span(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"

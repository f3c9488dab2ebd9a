"""Examines this machine's clock: compares it with time servers and with peers' clocks.

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

from sfnode.daemon_thread import in_daemon_thread
from sfnode.doctor.findings import Finding, Subject, note, ok, problem
from sfnode.transport.libp2p.reachability import TcpEndpoint, resolve
from sfnode.transport.roster import CLOCK_WRONG

INEXACT = 3.0
"""Seconds from which a clock is worth a note: other programs on hivemind's DHT refuse such a peer."""

NTP_PORT = 123
NTP_DEADLINE = 2.5
"""Seconds for one packet there and back; where UDP is blocked no answer comes."""

_NTP_EPOCH = 2_208_988_800
"""Seconds from 1900, where NTP counts from, to 1970."""

_CLIENT = b"\x23" + bytes(47)
"""An otherwise empty NTP packet of version 4, mode client (RFC 4330)."""

_SERVER_MODE = 4


async def ntp_ahead(host: str, port: int = NTP_PORT) -> float:
    """Return the seconds by which a time server is ahead of this clock. Raises OSError or TimeoutError."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[float] = loop.create_future()
    async with asyncio.timeout(NTP_DEADLINE):
        address, *_ = await in_daemon_thread(lambda: resolve(TcpEndpoint("dns", host, port)))
        transport, _ = await loop.create_datagram_endpoint(lambda: _Asker(answer), remote_addr=address)
        try:
            return await answer
        finally:
            transport.close()


class _Asker(asyncio.DatagramProtocol):
    """Sends one request; `answer` becomes the server's time minus the mean of our times before and after."""

    def __init__(self, answer: asyncio.Future[float]) -> None:
        self._answer = answer
        self._asked = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._asked = time.time()
        cast(asyncio.DatagramTransport, transport).sendto(_CLIENT)  # uvloop's class does not inherit from it

    def datagram_received(self, data: bytes, _: object) -> None:
        if len(data) < 48 or data[0] & 7 != _SERVER_MODE or data[1] == 0 or self._answer.done():
            return  # not an answer of a server that knows the time (stratum 0 refuses)
        whole, part = struct.unpack("!II", data[40:48])
        there = whole - _NTP_EPOCH + part / 2**32
        self._answer.set_result(there - (self._asked + time.time()) / 2)

    def error_received(self, error: Exception) -> None:
        if not self._answer.done():
            self._answer.set_exception(error if isinstance(error, OSError) else OSError(str(error)))


def judge_by_peers(ahead: Sequence[float]) -> Finding:
    """Judge this clock by those of peers, each of which is `ahead` of ours by so many seconds."""
    if ahead:
        those = "a peer's clock" if len(ahead) == 1 else f"the clocks of {len(ahead)} peers"
        return judge(statistics.median(ahead), those)
    return note(
        Subject.CLOCK,
        "there is nothing to compare the clock with: neither a time server nor a peer answers",
        "Make sure that the system sets its clock by the network; `timedatectl` shows it on most systems.",
    )


def judge(ahead: float, by: str) -> Finding:
    """Judge this clock by another, described by `by`, that is `ahead` of ours by so many seconds."""
    way = "behind" if ahead > 0 else "ahead of"
    what = f"this clock is {_span(abs(ahead))} {way} {by}"
    if abs(ahead) < INEXACT:
        return ok(Subject.CLOCK, what)
    fix = "Let the system set its clock by the network (on most: `timedatectl set-ntp true`)."
    if abs(ahead) < CLOCK_WRONG:
        return note(Subject.CLOCK, what, fix)
    return problem(Subject.CLOCK, what + ", so that others cannot find this node through the DHT", fix)


def _span(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"

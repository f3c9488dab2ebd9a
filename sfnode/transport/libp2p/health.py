"""The health of p2pd and the addresses that it reports, queried through hivemind's P2P; `keep_running`
restarts a transport that breaks.

p2pd may die, hang, or lose its connection to hivemind while it still seems to work. When this machine has
lost an address or its relays, p2pd takes long to notice. Imports nothing of hivemind, but knows the internals
of its P2P.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

import psutil

from sfnode.errors import UserError
from sfnode.logging import log
from sfnode.transport.base import Transport, TransportError
from sfnode.transport.libp2p.calls import Calls, cancel
from sfnode.transport.libp2p.daemon_process import Daemon
from sfnode.transport.libp2p.relays import Relays

ANSWER_DEADLINE = 2.0
"""Deadline, in seconds, for p2pd to answer with its id over a local socket; a busy p2pd needs
milliseconds."""

PING_INTERVAL = 0.4
"""Pause, in seconds, between two pings (`Pulse.beats`), each of which costs half a millisecond."""

HANG_TICK, HANG_TICKS, MOST_TICKS = 0.25, 5, 80
"""Seconds between two wake-ups of our own event loop, and number of wake-ups after which a p2pd that has not
answered a ping counts as hanging: HANG_TICKS in a row in which it used no processor time, or MOST_TICKS. A
p2pd that works, but waits for its turn on a busy machine, would wait for much longer after a restart.
Wake-ups are counted, and not seconds, so that a pause of this process (on a busy machine, or a laptop that
slept) is not taken for a pause of p2pd. A stopped p2pd is noticed within 0.4 s + 5 x 0.25 s = 1.65 s."""

LOOK_INTERVAL = 1.0
"""Seconds between two checks of this machine's addresses, which take 0.1 ms, and of the reservations at
relays."""

OUR_OWN = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
"""Error numbers of calls to p2pd that show a lack of resources in this process or machine, not a fault of
p2pd."""


class Pulse:
    """The health of one p2pd, to which `p2p` is attached."""

    def __init__(self, p2pd: Daemon, p2p: Any, calls: Calls, relays: Relays | None) -> None:
        """`relays` are the relays through which this node asks to be reached; None if it asks for none."""
        self.addresses: list[str] = []
        """Addresses of this node as p2pd reports them, without /p2p/ID."""
        self._p2pd = p2pd
        self._p2p = p2p
        self._calls = calls
        self._relays = relays

    async def ask(self, deadline: float = ANSWER_DEADLINE) -> None:
        """Ask p2pd for this node's addresses. Raises TransportError."""
        _, found = await self._calls.within(
            deadline, "asking p2pd for its addresses", self._p2p._client.identify()
        )
        addresses = []
        for maddr in found:
            with suppress(Exception):  # libp2p knows more kinds of addresses than hivemind
                addresses.append(str(maddr))
        if self._relays:
            relayed = [address for address in addresses if "/p2p-circuit" in address]
            addresses = [address for address in addresses if "/p2p-circuit" not in address]
            addresses += self._relays.places(relayed, await self.connected(deadline))
        self.addresses = list(dict.fromkeys(addresses))

    async def connected(self, deadline: float = ANSWER_DEADLINE) -> set[str]:
        """Return the peers to which p2pd has connections. Raises TransportError."""
        call = self._p2p._client.list_peers()
        peers = await self._calls.within(deadline, "asking p2pd for its peers", call)
        return {str(peer.peer_id) for peer in peers}

    async def beats(self, deadline: float = ANSWER_DEADLINE) -> bool:
        """Return whether p2pd and its connection to hivemind work. Return True also if this process lacks the
        resources to ask: a restart of p2pd would not help then."""
        if not self._p2pd.alive or any(task.done() for task in _conversations(self._p2p)):
            return False
        try:
            await self.ask(deadline)
        except TransportError as error:
            cause = error.__cause__
            return isinstance(cause, OSError) and cause.errno in OUR_OWN
        _forget_finished(self._p2p)
        return True

    async def stops(self) -> str:
        """Wait until p2pd has died, hangs or needs a restart; return the reason as the end of a sentence."""
        hung_up = asyncio.wait(_conversations(self._p2p), return_when=asyncio.FIRST_COMPLETED)
        ends: dict[asyncio.Task[Any], str] = {
            asyncio.create_task(self._p2pd.ended()): "is gone",
            asyncio.create_task(hung_up): "is gone",  # sometimes noticed sooner
            asyncio.create_task(self._hung()): "hangs",
            asyncio.create_task(self._moved()): "has connections from an address that is gone",
            asyncio.create_task(self._unrelayed()): "has lost its relays",
        }
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel(ends)
        return next(why for end, why in ends.items() if end in done)

    async def _hung(self) -> None:
        """Return once p2pd has left a ping unanswered for HANG_TICKS wake-ups in which it did nothing, or for
        MOST_TICKS."""
        ticks = idle = 0
        while ticks < MOST_TICKS and idle < HANG_TICKS:
            used = processor_seconds(self._p2pd.pid)
            ping = asyncio.create_task(self.beats(HANG_TICK * MOST_TICKS))
            while not ping.done() and ticks < MOST_TICKS and idle < HANG_TICKS:
                await asyncio.wait([ping], timeout=HANG_TICK)
                ticks += 1
                before, used = used, processor_seconds(self._p2pd.pid)
                idle = idle + 1 if used == before else 0
            if ping.done() and ping.result():
                ticks = idle = 0
                await asyncio.sleep(PING_INTERVAL)
        await cancel([ping])

    async def _moved(self) -> None:
        """Return once this machine has lost an address from which p2pd has connections.

        Nothing arrives at a lost address any more, and p2pd is not told. It would notice only after 40 s, and
        use these connections until then.
        """
        here: set[str] = set()
        while True:
            await asyncio.sleep(LOOK_INTERVAL)
            before = here
            with suppress(OSError):  # there may be no file descriptor left
                here = own_addresses()
            if (gone := before - here) and gone & await asyncio.to_thread(used_addresses, self._p2pd.pid):
                return

    async def _unrelayed(self) -> None:
        """Return once this node has no reservation at any relay, but may get one after a restart of p2pd."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL)
            if self._relays and await self._relays.want_a_start():
                return


def processor_seconds(pid: int) -> float:
    """Return the processor time that a process has used, in steps of 10 ms; 0 if that cannot be read."""
    with suppress(psutil.Error, OSError):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
    return 0.0


def own_addresses() -> set[str]:
    """Return the IP addresses of this machine's interfaces."""
    return {_plain(one.address) for found in psutil.net_if_addrs().values() for one in found}


def used_addresses(pid: int) -> set[str]:
    """Return the addresses of this machine from which a process has connections; an empty set if they cannot
    be read.

    Addresses on which the process was told to listen are left out. If such an address is lost, a restart
    would not help, because the process could not listen there again.
    """
    with suppress(psutil.Error, OSError):
        sockets = [one for one in psutil.Process(pid).net_connections("tcp") if one.laddr]
        listening = {_plain(one.laddr.ip) for one in sockets if not one.raddr}
        return {_plain(one.laddr.ip) for one in sockets if one.raddr} - listening
    return set()


def _plain(address: str) -> str:
    """Return an address without its zone. An IPv4 address that an IPv6 socket reports becomes a plain IPv4
    address."""
    with suppress(ValueError):
        ip = ip_address(address.partition("%")[0])
        return str(getattr(ip, "ipv4_mapped", None) or ip)
    return address


async def detach(p2p: Any) -> None:
    """End hivemind's tasks, and make calls that wait for p2pd fail at once."""
    control = p2p._client.control
    for call in list(control._pending_calls.values()):
        if not call.done():
            call.set_exception(TransportError("the network is stopped"))
    await p2p.shutdown()
    await cancel([*_conversations(p2p), *control._handler_tasks.values()])


def _conversations(p2p: Any) -> list[asyncio.Task[Any]]:
    """Return hivemind's tasks that talk to p2pd. If one of them has ended, all calls hang."""
    control = p2p._client.control
    tasks = (control._read_task, control._write_task, p2p._listen_task)
    return [task for task in tasks if task is not None]


def _forget_finished(p2p: Any) -> None:
    """Drop the finished tasks that hivemind keeps for every DHT request that its sender has cancelled."""
    tasks = p2p._client.control._handler_tasks
    for call_id in [call_id for call_id, task in tasks.items() if task.done()]:
        del tasks[call_id]


RESTART_PAUSE, RESTART_PAUSE_MOST = 0.5, 15.0
"""First and maximum pause, in seconds, before another attempt to restart a transport that could not be
restarted. The pause doubles each time."""

RESTART_SPACING = 5.0
"""Minimum time, in seconds, between two restarts, in case the network daemon dies right after each start."""


async def keep_running(
    transport: Transport, restarted: Callable[[], None], clock: Callable[[], float]
) -> None:
    """Restart a transport whenever it breaks, and call `restarted` each time. Runs until it is cancelled."""
    last = float("-inf")
    while True:
        why = await transport.broken()
        await asyncio.sleep(last + RESTART_SPACING - clock())
        last, pause = clock(), RESTART_PAUSE
        log.warning("the network daemon %s; restarting it", why)
        while not await _restarts(transport):
            await asyncio.sleep(pause)
            pause = min(2 * pause, RESTART_PAUSE_MOST)
        restarted()
        log.info("the network daemon is back after %.1f s", clock() - last)


async def _restarts(transport: Transport) -> bool:
    """Try to restart the transport once; return whether it works."""
    try:
        await transport.restart()
    except (TransportError, UserError) as error:
        log.warning("restarting the network daemon failed: %s", error)
        return False
    return True

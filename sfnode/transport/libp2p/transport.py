"""The transport over libp2p: streams through `hivemind.P2P`, the roster in a `hivemind.dht.DHTNode`.

Only this module and `dht` import hivemind, and with it torch, which takes 2 s. So import this module where it
is needed, not at the top of a file. p2pd is started here as a child process, and hivemind is attached to it.
Each call has a deadline, and every error is mapped to ours. Knows nothing of runs and updates.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import SystemRandom

import hivemind.hivemind_cli
from hivemind.dht.node import DHTNode
from hivemind.p2p import P2P, PeerID
from hivemind.proto.dht_pb2 import PingRequest
from hivemind.utils.logging import use_hivemind_log_handler
from hivemind.utils.multiaddr import Multiaddr
from hivemind.utils.multiaddr.exceptions import Error as MultiaddrError
from hivemind.utils.timed_storage import get_dht_time

from sfnode.errors import UserError
from sfnode.logging import begins
from sfnode.transport import base
from sfnode.transport.base import Link, LinkHandler, NotSpoken, PeerRecord, RequestHandler, TransportError
from sfnode.transport.libp2p.calls import (
    AbandonedTasks,
    Calls,
    Demote,
    cancel,
    contain_inbound,
    one_line,
    remember_sockets,
    wait_briefly,
)
from sfnode.transport.libp2p.daemon_process import (
    Daemon,
    daemon_error,
    peers_unreachable,
    start_daemon,
    wait_for_ports,
    without_missing_ipv6,
)
from sfnode.transport.libp2p.dht import create_dht, find_records, put_record
from sfnode.transport.libp2p.health import Pulse, detach
from sfnode.transport.libp2p.keys import PeerKey, ensure_key
from sfnode.transport.libp2p.reachability import Names, elsewhere, listening
from sfnode.transport.libp2p.relays import Relays
from sfnode.transport.libp2p.settings import (
    NO_RELAY,
    HivemindSettings,
    keep_ports,
    kept_ports,
    p2pd_flags,
    relays_of,
    same_ports,
)
from sfnode.transport.libp2p.streams import StreamLink, Switchboard, ask, seen_at
from sfnode.transport.roster import MAX_TTL, pack_record, read_record, roster_key, sample

__all__ = ["HivemindSettings", "HivemindTransport"]

LINK_PROTOCOL = "/sfnode/link/1"
REQUEST_PROTOCOL = "/sfnode/request/1"
"""libp2p protocol ids of the two kinds of stream, links and requests. The version at the end will be raised
when the framing changes incompatibly."""

ATTACH_DEADLINE = 5.0
"""Deadline, in seconds, for each local step of a start, on a machine that may be busy."""

RPC_DEADLINE = 3.0
"""Deadline, in seconds, for one DHT message and its answer. A call to a dead peer takes this long."""

DHT_DEADLINE = 12.0
"""Deadline, in seconds, for storing a record or searching a roster: finding the nearest peers, and asking
them."""

BOOTSTRAP_GRACE = 2.0
"""Maximum time, in seconds, to wait for further bootstrap peers after the first has answered. One peer is
enough to join."""

_P2P_CODE = bytes.fromhex("a503")
"""Varint that precedes a peer id in a binary multiaddress."""

_NOT_SPOKEN = "protocols not supported"
"""Part of p2pd's message when two peers cannot agree on a protocol."""

P2PD = Path(hivemind.hivemind_cli.__file__).with_name("p2pd")


log = logging.getLogger(__name__)


logging.addLevelName(logging.WARNING, "WARNING")  # hivemind has renamed the level for the whole process


def _quieten_hivemind() -> None:
    """Turn hivemind's messages, and asyncio's messages about tasks that hivemind has abandoned, into debug
    messages of ours.

    Idempotent. Changes hivemind's own logger, and adds a filter to asyncio's.
    """
    use_hivemind_log_handler("nowhere")
    logger, asyncio_log = logging.getLogger("hivemind"), logging.getLogger("asyncio")
    logger.propagate = False
    if not any(isinstance(handler, Demote) for handler in logger.handlers):
        logger.addHandler(Demote())
    if not any(isinstance(one, AbandonedTasks) for one in asyncio_log.filters):
        library, ours = Path(hivemind.__file__).parent, Path(__file__).parents[2]
        asyncio_log.addFilter(AbandonedTasks(library, ours))


def _parse(address: str) -> Multiaddr:
    """Parse a multiaddress. Raises UserError BAD_ADDRESS.

    hivemind encodes a relay's id inside an address as a CID, which libp2p cannot read. So the plain id is
    encoded instead.
    """
    start, *hops = address.split("/p2p/")
    try:
        encoded = Multiaddr(start).to_bytes()
        for hop in hops:
            peer, slash, rest = hop.partition("/")
            plain = PeerID.from_base58(peer).to_bytes()
            encoded += _P2P_CODE + bytes([len(plain)]) + plain + Multiaddr(slash + rest or "/").to_bytes()
        str(parsed := Multiaddr(encoded))  # raises for an id that is not one
        return parsed
    except (ValueError, MultiaddrError) as error:
        raise base.bad_address(address, one_line(error)) from error


def _split(address: str) -> tuple[PeerID, Multiaddr]:
    """Return the peer and its address without /p2p/ID. Raises UserError BAD_ADDRESS."""
    peer = base.peer_of(address)
    _parse(address)
    return PeerID.from_base58(peer), _parse(address.removesuffix(f"/p2p/{peer}"))


def _check_addresses(settings: HivemindSettings) -> None:
    """Raise UserError BAD_ADDRESS if an address in the settings is malformed. `host_maddrs` are checked
    later, when p2pd listens."""
    for address in (*settings.bootstrap, *settings.trusted_relays):
        _split(address)
    for address in settings.announce_maddrs:
        _parse(address)
        if "/tcp/0" in address or "/udp/0" in address:
            raise base.bad_address(address, "others need the port itself, 0 is not one")


def _well_formed(addresses: Iterable[str]) -> Iterator[tuple[PeerID, Multiaddr]]:
    """Yield (peer, address without /p2p/ID) for each well-formed address."""
    for address in addresses:
        with suppress(UserError):
            yield _split(address)


@dataclass(slots=True)
class _Session:
    """Everything that runs between a start and a stop."""

    p2pd: Daemon
    p2p: P2P
    dht: DHTNode
    calls: Calls
    pulse: Pulse


class HivemindTransport:
    """A `Transport` over libp2p, for one identity."""

    def __init__(self, settings: HivemindSettings) -> None:
        self.peer = ""
        self._settings = settings = replace(settings, host_maddrs=without_missing_ipv6(settings.host_maddrs))
        self._hosts = kept_ports(settings)
        self._stack = AsyncExitStack()
        self._session: _Session | None = None
        self._board = Switchboard(self._disconnect)
        self._changing = asyncio.Lock()
        self._random = SystemRandom()
        self._names = Names()
        relayed = settings.use_auto_relay and settings.force_reachability != "public"
        self._relays = Relays(relays_of(settings), self._names, self._random) if relayed else None

    def on_link(self, handler: LinkHandler) -> None:
        self._board.link_handler = handler

    def on_request(self, handler: RequestHandler) -> None:
        self._board.request_handler = handler

    def ask_for_relays(self, known: Callable[[], Sequence[str]]) -> None:
        if self._relays:
            self._relays.known = known

    async def start(self) -> None:
        """Start p2pd and join the DHT. Raises UserError as `Transport.start` does: PEERS_UNREACHABLE if there
        are bootstrap peers and none of them answers."""
        _quieten_hivemind()
        _check_addresses(self._settings)
        async with self._changing:
            await self._begin()
        others = [address for address in self._settings.bootstrap if base.peer_of(address) != self.peer]
        if others:
            begins("reaching %s", base.counted(others))
        if others and not await self.bootstrap(others):
            await self.stop()
            raise peers_unreachable(others)

    async def stop(self) -> None:
        """Stop everything. Waits until a start or restart under way has ended, unless the caller cancels that
        first."""
        async with self._changing:
            await self._end()

    async def restart(self) -> None:
        """Restart everything. Kills p2pd first, so that nothing waits for a p2pd that hangs."""
        async with self._changing:
            if self._session is not None:
                self._session.p2pd.kill()
            await self._end()
            await self._begin()

    async def healthy(self) -> bool:
        return self._session is not None and await self._session.pulse.beats()

    async def broken(self) -> str:
        return await self._session.pulse.stops() if self._session else "does not run"

    def addresses(self) -> list[str]:
        found = self._session.pulse.addresses if self._session else []
        return [f"{address}/p2p/{self.peer}" for address in base.best_first(found)]

    async def connect(self, peer: str, addresses: Sequence[str] = ()) -> Link:
        """Open a link. Malformed addresses and those of other peers are skipped."""
        own = [maddr for target, maddr in _well_formed(addresses) if target.to_base58() == peer]
        return self._board.keep(await self._open(peer, own, LINK_PROTOCOL))

    async def request(self, address: str, frame: bytes) -> bytes:
        target, maddr = _split(address)
        return await ask(await self._open(target.to_base58(), [maddr], REQUEST_PROTOCOL), frame)

    async def announce(self, topic: bytes, record: PeerRecord, ttl: float) -> None:
        session = self._running()
        expiry = get_dht_time() + min(ttl, MAX_TTL)
        call = put_record(session.dht, roster_key(topic), self.peer, pack_record(record), expiry)
        if not await session.calls.within(DHT_DEADLINE, "announcing this node", call):
            raise TransportError("announcing this node: no peer took the record; is this clock right?")

    async def find(self, topic: bytes) -> list[PeerRecord]:
        session = self._running()
        call = find_records(session.dht, roster_key(topic), self.peer)
        found = await session.calls.within(DHT_DEADLINE, "searching the roster", call)
        records = [read_record(peer, value) for peer, value in found.items()]
        return sample((record for record in records if record is not None), self._random)

    async def clock_ahead(self, address: str) -> float:
        """Dial a peer, ask its DHT for the time, and return the seconds by which its clock is ahead of ours.

        Raises TransportError, and UserError BAD_ADDRESS.
        """
        target, maddr = _split(address)
        await self._dial(target, [maddr])
        session, asked = self._running(), get_dht_time()
        dht = session.dht.protocol
        call = dht.get_stub(target).rpc_ping(PingRequest(peer=dht.node_info), timeout=RPC_DEADLINE)
        answer = await session.calls.within(RPC_DEADLINE + 1, "asking for the time", call)
        return float(answer.dht_time - (asked + get_dht_time()) / 2)

    async def bootstrap(self, addresses: Sequence[str]) -> int:
        """Dial these peers and join the DHT. Wait until the first peer has answered or all have failed, then
        BOOTSTRAP_GRACE for the others."""
        session = self._running()
        dht = session.dht
        others = [peer for peer in _well_formed(addresses) if peer[0] != self.peer]
        attempts = [asyncio.create_task(self._join(session, *peer)) for peer in others]
        try:
            for attempt in asyncio.as_completed(attempts):
                if await attempt:
                    await wait_briefly(attempts, BOOTSTRAP_GRACE)
                    with suppress(TransportError):
                        call = dht.find_nearest_nodes([dht.node_id])
                        await session.calls.within(RPC_DEADLINE, "joining the DHT", call)
                    break
        finally:
            await cancel(attempts)
        return sum(one.done() and not one.cancelled() and one.result() for one in attempts)

    async def _join(self, session: _Session, target: PeerID, maddr: Multiaddr) -> bool:
        """Dial a peer and introduce its DHT node and ours to each other; return whether it answered."""
        try:
            await self._dial(target, [maddr])
            call = session.dht.protocol.call_ping(target)
            return await session.calls.within(RPC_DEADLINE + 1, "ping", call) is not None
        except TransportError as error:
            log.debug("bootstrap: %s", error.reason)
            return False

    async def _dial(self, target: PeerID, maddrs: Sequence[Multiaddr]) -> None:
        """Make p2pd connect to a peer, at those of its addresses at which something listens."""
        session = self._running()
        client = session.p2p._client  # P2P itself takes no addresses
        if str(target) not in await session.pulse.connected():
            there = elsewhere([str(maddr) for maddr in maddrs], session.pulse.addresses)
            maddrs = [_parse(text) for text in await listening(there, self._names)]
            if not maddrs:
                raise TransportError(f"dialling {target}: nobody listens there")
        call = client.connect(target, maddrs)
        await session.calls.within(base.CONNECT_DEADLINE, f"dialling {target}", call)

    async def _open(self, peer: str, maddrs: Sequence[Multiaddr], protocol: str) -> StreamLink:
        if peer == self.peer:
            raise TransportError("that is this node itself")
        try:
            target = PeerID.from_base58(peer)
        except ValueError:
            raise TransportError(f"{peer!r} is not a peer id") from None
        if maddrs:
            await self._dial(target, maddrs)
        session = self._running()
        call = session.p2p.call_binary_stream_handler(target, protocol)
        what = f"opening a stream to {peer}"
        try:
            other, reader, writer = await session.calls.within(base.CONNECT_DEADLINE, what, call)
        except TransportError as error:
            if _NOT_SPOKEN not in error.reason:
                raise
            raise NotSpoken(f"{peer} does not speak sfnode ({protocol})") from error
        return StreamLink(peer, True, reader, writer, seen_at(other))

    async def _disconnect(self, peer: str) -> None:
        """End p2pd's connection to a peer, if there is one."""
        with suppress(TransportError):
            session = self._running()
            call = session.p2p._client.disconnect(PeerID.from_base58(peer))
            await session.calls.within(base.CONNECT_DEADLINE, f"disconnecting {peer}", call)

    def _running(self) -> _Session:
        if self._session is None:
            raise TransportError("the network is not running")
        return self._session

    async def _begin(self) -> None:
        if self._session is not None:
            raise RuntimeError("the transport is running already")
        try:
            await asyncio.to_thread(ensure_key, self._settings.identity_path)
            folder = _private_folder()
            self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
            p2pd = await self._start_p2pd(folder / "p2pd.sock")
            self._stack.push_async_callback(p2pd.stop)
            self._session = await self._attach(p2pd, Multiaddr(f"/unix{folder}/p2pd.sock"))
            self._hosts = same_ports(self._settings, self._session.pulse.addresses)
            await asyncio.to_thread(keep_ports, self._settings, self._hosts)
        except TransportError as error:
            await self._end()
            raise daemon_error(f"the network daemon does not answer: {error.reason}") from error
        except BaseException:
            await self._end()
            raise

    async def _start_p2pd(self, control: Path) -> Daemon:
        if not self._settings.client_mode:
            await self._wait_for_ports()
        no_relay = control.with_name("p2pd.json")
        no_relay.write_text(NO_RELAY)
        relays = await self._relays.choose() if self._relays else relays_of(self._settings)
        return await start_daemon(P2PD, p2pd_flags(self._settings, self._hosts, control, no_relay, relays))

    async def _wait_for_ports(self) -> None:
        """Wait until the ports of the last start are free. If they stay taken and the user has not named
        them, use any free ports."""
        try:
            await wait_for_ports(self._hosts)
        except UserError:
            if self._hosts == self._settings.host_maddrs:
                raise
            log.warning(
                "another program listens on %s, where this node did: taking another port. Links that name "
                "the old one do not lead here any more; `sfnode invite` makes a new one",
                ", ".join(self._hosts),
            )
            self._hosts = self._settings.host_maddrs
            await wait_for_ports(self._hosts)

    async def _attach(self, p2pd: Daemon, control: Multiaddr) -> _Session:
        calls = Calls()
        p2p = await calls.within(ATTACH_DEADLINE, "attaching", P2P.replicate(control))
        self._stack.push_async_callback(detach, p2p)
        remember_sockets(p2p._client.control.daemon_connector)
        contain_inbound(p2p._client.control)
        self.peer = str(p2p.peer_id)
        self._stack.push_async_callback(self._board.hang_up)
        for name, accept in (
            (LINK_PROTOCOL, self._board.accept_link),
            (REQUEST_PROTOCOL, self._board.accept_request),
        ):
            await calls.within(ATTACH_DEADLINE, "listening", p2p.add_binary_stream_handler(name, accept))
        key = await asyncio.to_thread(PeerKey, self._settings.identity_path)
        joining = create_dht(p2p, key, self._settings.client_mode, self._random, RPC_DEADLINE)
        dht = await calls.within(ATTACH_DEADLINE, "DHT", joining)
        pulse = Pulse(p2pd, p2p, calls, self._relays)
        await pulse.ask(ATTACH_DEADLINE)
        return _Session(p2pd, p2p, dht, calls, pulse)

    async def _end(self) -> None:
        if self._session is not None:
            self._session.calls.fail()
        self._session = None
        await self._stack.aclose()


def _private_folder() -> Path:
    """Make a folder of mode 0700 for p2pd's control socket: whoever reaches the socket controls p2pd."""
    try:
        return Path(tempfile.mkdtemp(prefix="sfnode-"))
    except OSError as error:
        raise daemon_error(f"there is no folder for its socket: {error}") from error

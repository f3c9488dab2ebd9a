"""The road over libp2p: streams through `hivemind.P2P`, the roster in a `hivemind.dht.DHTNode`.

The only module that imports hivemind (and with it torch: 2 s), so import it where it is needed, not at the
top. hivemind is kept at arm's length: p2pd is started by us, on a leash, and hivemind is attached to it; each
call has a deadline and every error becomes ours. Knows nothing of runs and updates.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hivemind.hivemind_cli
from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
from hivemind.p2p import P2P, P2PDaemonError, PeerID
from hivemind.utils.logging import use_hivemind_log_handler
from hivemind.utils.multiaddr import Multiaddr
from hivemind.utils.multiaddr.exceptions import Error as MultiaddrError
from hivemind.utils.serializer import MSGPackSerializer
from hivemind.utils.timed_storage import get_dht_time

from sfnode.errors import UserError
from sfnode.transport import base
from sfnode.transport.base import Link, LinkHandler, PeerRecord, RequestHandler, TransportError
from sfnode.transport.calls import (
    AbandonedTasks,
    Demote,
    cancel,
    contain_inbound,
    one_line,
    remember_sockets,
    wait_briefly,
    within,
)
from sfnode.transport.daemon import (
    Daemon,
    daemon_error,
    peers_unreachable,
    port_is_free,
    start_daemon,
    wait_for_ports,
)
from sfnode.transport.peerkey import ensure_key
from sfnode.transport.roster import MAX_ROSTER, MAX_TTL, Bounds, pack_record, read_record, roster_key
from sfnode.transport.settings import HivemindSettings, p2pd_flags, same_ports
from sfnode.transport.streams import StreamLink, Switchboard, ask

__all__ = ["HivemindSettings", "HivemindTransport"]

LINK_PROTOCOL = "/sfnode/link/1"
REQUEST_PROTOCOL = "/sfnode/request/1"
"""libp2p's names of our two kinds of stream; the number counts incompatible framings."""

HEALTH_DEADLINE = 2.0
"""Seconds for p2pd to say its id over a local socket; a busy one needs milliseconds."""

ATTACH_DEADLINE = 5.0
"""Seconds for each local step of a start, as above but on a machine that is busy starting."""

RPC_DEADLINE = 3.0
"""Seconds for one DHT message and its answer; a dead peer costs this much."""

DHT_DEADLINE = 10.0
"""Seconds for one store or search: three rounds that each meet a dead peer."""

BOOTSTRAP_GRACE = 2.0
"""Seconds for the slower bootstrap peers after the first has answered; one is enough to go on with."""

MAX_TOPICS = 256
"""Keys that this node stores for others; with a full roster in each they would take 200 MiB."""

_P2P_CODE = bytes.fromhex("a503")
"""The varint that announces an id in the binary form of an address."""

P2PD = Path(hivemind.hivemind_cli.__file__).with_name("p2pd")


log = logging.getLogger(__name__)


def _silence_hivemind() -> None:
    use_hivemind_log_handler("nowhere")
    logger = logging.getLogger("hivemind")
    logger.propagate = False
    logger.addHandler(Demote())
    logging.addLevelName(logging.WARNING, "WARNING")  # hivemind calls it WARN, everywhere
    library, ours = Path(hivemind.__file__).parent, Path(__file__).parents[1]
    logging.getLogger("asyncio").addFilter(AbandonedTasks(library, ours))


_silence_hivemind()


def _parse(address: str) -> Multiaddr:
    """Raises UserError BAD_ADDRESS.

    hivemind encodes the id of a relay inside an address as a CID, which libp2p does not read: we put the
    plain id there.
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
    """The peer and the way to it. Raises UserError BAD_ADDRESS."""
    peer = base.peer_of(address)
    _parse(address)
    return PeerID.from_base58(peer), _parse(address.removesuffix(f"/p2p/{peer}"))


def _check_addresses(settings: HivemindSettings) -> None:
    """Raises UserError BAD_ADDRESS. host_maddrs are tried out later."""
    for address in (*settings.bootstrap, *settings.trusted_relays):
        _split(address)
    for address in settings.announce_maddrs:
        _parse(address)
        if "/tcp/0" in address or "/udp/0" in address:
            raise base.bad_address(address, "others need the port itself, 0 is not one")


def _ways(peer: str, addresses: Iterable[str]) -> list[Multiaddr]:
    """Ways to `peer`; what others wrote wrongly is left out."""
    ways = []
    for address in addresses:
        with suppress(UserError):
            target, way = _split(address)
            if target.to_base58() == peer:
                ways.append(way)
    return ways


class _Storage(DHTLocalStorage):  # type: ignore[misc]
    """The DHT's memory with a limit on the entries of one key; hivemind has one on keys only."""

    def store_subkey(self, key: DHTID, subkey: Any, value: bytes, expiration_time: float) -> bool:
        held = self.get(key)
        full = held and isinstance(held.value, DictionaryDHTValue) and len(held.value) >= MAX_ROSTER
        if full and subkey not in held.value:
            return False
        return bool(super().store_subkey(key, subkey, value, expiration_time))


@dataclass(slots=True)
class _Session:
    """What runs between a start and a stop."""

    p2pd: Daemon
    p2p: P2P
    dht: DHTNode
    ways: list[str]
    """Where p2pd says that this node is reached, without /p2p/ID."""


class HivemindTransport:
    """A `Transport` over libp2p, for one identity."""

    def __init__(self, settings: HivemindSettings) -> None:
        self.peer = ""
        self._settings = settings
        self._hosts = settings.host_maddrs
        self._stack = AsyncExitStack()
        self._session: _Session | None = None
        self._board = Switchboard()
        self._changing = asyncio.Lock()

    def on_link(self, handler: LinkHandler) -> None:
        self._board.link_handler = handler

    def on_request(self, handler: RequestHandler) -> None:
        self._board.request_handler = handler

    async def start(self) -> None:
        """As `Transport.start`; PEERS_UNREACHABLE when there are bootstrap peers and none of them answers."""
        _check_addresses(self._settings)
        async with self._changing:
            await self._begin()
        others = [address for address in self._settings.bootstrap if base.peer_of(address) != self.peer]
        if others and not await self.bootstrap(others):
            await self.stop()
            raise peers_unreachable(others)

    async def stop(self) -> None:
        """A start or restart that is under way is waited for: cancel it first."""
        async with self._changing:
            await self._end()

    async def restart(self) -> None:
        """Raises UserError as `start` does, but not PEERS_UNREACHABLE: peers that are away may come back."""
        async with self._changing:
            await self._end()
            await self._begin()
        await self.bootstrap(self._settings.bootstrap)

    async def healthy(self) -> bool:
        session = self._session
        if session is None or not session.p2pd.alive or not _attached(session.p2p):
            return False
        try:
            session.ways = await _where(session.p2p, HEALTH_DEADLINE)
        except TransportError:
            return False
        _forget_finished(session.p2p)
        return True

    def addresses(self) -> list[str]:
        ways = self._session.ways if self._session else []
        return [f"{way}/p2p/{self.peer}" for way in base.best_first(ways)]

    async def connect(self, peer: str, addresses: Sequence[str] = ()) -> Link:
        """Addresses that are malformed or of somebody else are passed over."""
        return self._board.keep(await self._open(peer, _ways(peer, addresses), LINK_PROTOCOL))

    async def request(self, address: str, frame: bytes) -> bytes:
        target, way = _split(address)
        return await ask(await self._open(target.to_base58(), [way], REQUEST_PROTOCOL), frame)

    async def announce(self, topic: bytes, record: PeerRecord, ttl: float) -> None:
        dht = self._running().dht
        expiry = get_dht_time() + min(ttl, MAX_TTL)
        call = dht.store(roster_key(topic), pack_record(record), expiry, subkey=self.peer)
        if not await within(DHT_DEADLINE, "announcing this node", call):
            raise TransportError("announcing this node: no peer took the record; is this clock right?")

    async def find(self, topic: bytes) -> list[PeerRecord]:
        call = self._running().dht.get(roster_key(topic), latest=True)
        found = await within(DHT_DEADLINE, "searching the roster", call)
        if found is None or not isinstance(found.value, dict):
            return []
        records = [read_record(peer, entry.value) for peer, entry in found.value.items()]
        return sorted(record for record in records if record is not None)[:MAX_ROSTER]

    async def bootstrap(self, addresses: Sequence[str]) -> int:
        """Waits for the first answer as long as it takes, and for the others a moment more.

        libp2p does not dial an address again for 5 s after a failure, and for longer after every further one
        (up to 5 minutes): until then a peer that has come back is met only when it dials.
        """
        dht = self._running().dht
        peers = [(target, way) for target, way in map(_split, addresses) if target != self.peer]
        knocks = [asyncio.create_task(self._knock(dht, *peer)) for peer in peers]
        try:
            for knock in asyncio.as_completed(knocks):
                if await knock:
                    await wait_briefly(knocks, BOOTSTRAP_GRACE)
                    with suppress(TransportError):
                        await within(RPC_DEADLINE, "joining the DHT", dht.find_nearest_nodes([dht.node_id]))
                    break
        finally:
            await cancel(knocks)
        return sum(knock.done() and not knock.cancelled() and knock.result() for knock in knocks)

    async def _knock(self, dht: DHTNode, target: PeerID, way: Multiaddr) -> bool:
        """Dial one peer and make its DHT known to ours and ours to its."""
        try:
            await self._dial(target, [way])
            return await within(RPC_DEADLINE + 1, "ping", dht.protocol.call_ping(target)) is not None
        except TransportError as error:
            log.debug("bootstrap: %s", error.reason)
            return False

    async def _dial(self, target: PeerID, ways: Sequence[Multiaddr]) -> None:
        client = self._running().p2p._client  # P2P itself has no way to say where a peer is
        await within(base.CONNECT_DEADLINE, f"dialling {target}", client.connect(target, ways))

    async def _open(self, peer: str, ways: Sequence[Multiaddr], protocol: str) -> StreamLink:
        if peer == self.peer:
            raise TransportError("that is this node itself")
        try:
            target = PeerID.from_base58(peer)
        except ValueError:
            raise TransportError(f"{peer!r} is not a peer id") from None
        if ways:
            await self._dial(target, ways)
        call = self._running().p2p.call_binary_stream_handler(target, protocol)
        _, reader, writer = await within(base.CONNECT_DEADLINE, f"opening a stream to {peer}", call)
        return StreamLink(peer, True, reader, writer)

    def _running(self) -> _Session:
        if self._session is None:
            raise TransportError("the network is not running")
        return self._session

    async def _begin(self) -> None:
        if self._session is not None:
            raise RuntimeError("the transport is running already")
        try:
            await asyncio.to_thread(ensure_key, self._settings.identity_path)
            folder = Path(tempfile.mkdtemp(prefix="sfnode-"))  # mode 0700: who reaches the socket is us
            self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
            p2pd = await self._start_p2pd(folder / "p2pd.sock")
            self._stack.push_async_callback(p2pd.stop)
            self._session = await self._attach(p2pd, Multiaddr(f"/unix{folder}/p2pd.sock"))
            self._hosts = same_ports(self._settings, self._session.ways)
        except TransportError as error:
            await self._end()
            raise daemon_error(f"the network daemon does not answer: {error.reason}") from error
        except BaseException:
            await self._end()
            raise

    async def _start_p2pd(self, control: Path) -> Daemon:
        if not self._settings.client_mode:
            if not all(map(port_is_free, self._hosts)):  # no port that we got by chance is worth waiting for
                self._hosts = self._settings.host_maddrs
            await wait_for_ports(self._hosts)
        return await start_daemon(P2PD, p2pd_flags(self._settings, self._hosts, control))

    async def _attach(self, p2pd: Daemon, control: Multiaddr) -> _Session:
        p2p = await within(ATTACH_DEADLINE, "attaching", P2P.replicate(control))
        self._stack.push_async_callback(_detach, p2p)
        remember_sockets(p2p._client.control.daemon_connector)
        contain_inbound(p2p._client.control)
        self.peer = str(p2p.peer_id)
        self._stack.push_async_callback(self._board.hang_up)
        for name, accept in (
            (LINK_PROTOCOL, self._board.accept_link),
            (REQUEST_PROTOCOL, self._board.accept_request),
        ):
            await within(ATTACH_DEADLINE, "listening", p2p.add_binary_stream_handler(name, accept))
        dht = await within(ATTACH_DEADLINE, "DHT", _create_dht(p2p, self._settings.client_mode))
        return _Session(p2pd, p2p, dht, await _where(p2p, ATTACH_DEADLINE))

    async def _end(self) -> None:
        self._session = None
        await self._stack.aclose()


async def _create_dht(p2p: P2P, client_mode: bool) -> DHTNode:
    """A DHT node without hivemind's caches and their background tasks, and with bounded memory."""
    dht = await DHTNode.create(
        p2p=p2p,
        node_id=DHTID.generate(source=p2p.peer_id.to_bytes()),  # the same after a restart
        wait_timeout=RPC_DEADLINE,
        backoff_rate=1.0,  # a peer that was away is asked again after 5 s, however long it was away
        cache_locally=False,
        cache_nearest=0,
        cache_on_store=False,
        cache_refresh_before_expiry=0,
        reuse_get_requests=False,
        client_mode=client_mode,
        record_validator=Bounds(MSGPackSerializer.loads),
    )
    dht.protocol.storage, dht.protocol.cache = _Storage(MAX_TOPICS), _Storage(MAX_TOPICS)
    return dht


async def _where(p2p: P2P, deadline: float) -> list[str]:
    _, ways = await within(deadline, "asking p2pd for its addresses", p2p._client.identify())
    texts = []
    for way in ways:
        with suppress(MultiaddrError):  # libp2p knows more kinds of addresses than hivemind
            texts.append(str(way))
    return texts


def _background(p2p: P2P) -> list[asyncio.Task[Any]]:
    """The tasks in which hivemind talks to p2pd. When one has ended, calls hang."""
    control = p2p._client.control
    tasks = (control._read_task, control._write_task, p2p._listen_task)
    return [task for task in tasks if task is not None]


def _attached(p2p: P2P) -> bool:
    return not any(task.done() for task in _background(p2p))


def _forget_finished(p2p: P2P) -> None:
    """hivemind keeps the task of every DHT question that the asker has cancelled; drop them."""
    tasks = p2p._client.control._handler_tasks
    for call_id in [call_id for call_id, task in tasks.items() if task.done()]:
        del tasks[call_id]


async def _detach(p2p: P2P) -> None:
    """End hivemind's tasks and let calls that wait for p2pd fail instead of hang."""
    control = p2p._client.control
    for call in list(control._pending_calls.values()):
        if not call.done():
            call.set_exception(P2PDaemonError("the network is stopped"))
    await p2p.shutdown()
    await cancel([*_background(p2p), *control._handler_tasks.values()])

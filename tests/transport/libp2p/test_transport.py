"""The libp2p transport: a daemon that crashes or hangs, ports, keys, and strangers in the DHT."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import stat
import sys
import time
from asyncio.subprocess import PIPE
from contextlib import suppress
from pathlib import Path

import msgpack
import psutil
import pytest
from hivemind.dht.routing import DHTID
from hivemind.p2p import P2PHandlerError, PeerID
from hivemind.proto.dht_pb2 import FindRequest, NodeInfo, PingRequest, StoreRequest
from hivemind.utils.timed_storage import get_dht_time

from sfnode.errors import Code, UserError
from sfnode.transport.base import PeerRecord, TransportError
from sfnode.transport.libp2p import daemon_process, relays, streams
from sfnode.transport.libp2p.calls import cancel
from sfnode.transport.libp2p.daemon_process import start_daemon
from sfnode.transport.libp2p.health import HANG_TICK, HANG_TICKS
from sfnode.transport.libp2p.keys import peer_id
from sfnode.transport.libp2p.settings import NO_RELAY, p2pd_flags
from sfnode.transport.libp2p.transport import LINK_PROTOCOL, P2PD, REQUEST_PROTOCOL, HivemindTransport
from sfnode.transport.roster import roster_key
from tests.refusals import fails_with
from tests.transport.helpers import POOL, eventually, read_all

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 2**20

PARENT = """
import asyncio, sys
from pathlib import Path

from sfnode.transport.libp2p.daemon_process import start_daemon

async def main(program, *flags):
    await start_daemon(Path(program), flags)
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def kind():
    return "hivemind"


@pytest.fixture
def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def daemons_of(pid):
    """Return the p2pd processes that process `pid` has started, running or not yet reaped."""
    return [child for child in psutil.Process(pid).children() if "p2pd" in child.name()]


async def refusal(settings):
    """Return the error with which a node does not start."""
    before = daemons_of(os.getpid())
    with pytest.raises(UserError) as error:
        await HivemindTransport(settings).start()
    assert daemons_of(os.getpid()) == before
    return error.value


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(daemon_process, "PORT_PATIENCE", 0.1)


async def test_a_port_that_any_program_has_is_refused(settings, impatient):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = f"/ip4/127.0.0.1/tcp/{other.getsockname()[1]}"
        error = await refusal(settings(host_maddrs=("/ip4/127.0.0.1/tcp/0", taken)))
    assert error.code is Code.PORT_IN_USE
    assert taken in error.what


async def test_a_node_listens_where_it_did_before_or_says_that_it_cannot(
    settings, free_port, impatient, tmp_path, caplog
):
    """An old link names the port of an earlier start."""
    kept = tmp_path / "ports"
    kept.write_text(f"/ip4/127.0.0.1/tcp/{free_port}\n")
    node = HivemindTransport(settings(ports_path=kept))
    await node.start()
    assert f"/tcp/{free_port}/" in node.addresses()[0]
    await node.stop()
    with socket.socket() as other:
        other.bind(("127.0.0.1", free_port))
        other.listen()
        node = HivemindTransport(settings(ports_path=kept))
        await node.start()
    moved = node.addresses()[0].partition("/p2p/")[0]
    await node.stop()
    assert moved != f"/ip4/127.0.0.1/tcp/{free_port}"
    assert kept.read_text() == f"{moved}\n"
    assert f"another program listens on /ip4/127.0.0.1/tcp/{free_port}" in caplog.text


@pytest.mark.parametrize(
    "changes",
    [
        {"host_maddrs": ("localhost:31337",)},
        {"host_maddrs": ("/ip4/203.0.113.7/tcp/0",)},
        {"host_maddrs": ("/ip4/127.0.0.1/tcp/99999",)},
        {"announce_maddrs": ("/ip4/203.0.113.7/tcp/0",)},
        {"announce_maddrs": ("/ip4/203.0.113.700/tcp/1",)},
        {"bootstrap": ("/ip4/203.0.113.7/tcp/1",)},
        {"bootstrap": ("/ip4/203.0.113.7/tcp/1/p2p/QmNobody",)},
    ],
)
async def test_an_address_that_cannot_be_used_is_refused(settings, changes):
    assert (await refusal(settings(**changes))).code is Code.BAD_ADDRESS


async def test_bootstrap_peers_that_are_all_away_are_reported(settings, keys, free_port):
    away = f"/ip4/127.0.0.1/tcp/{free_port}/p2p/{peer_id(keys[0])}"
    error = await refusal(settings(bootstrap=(away,)))
    assert error.code is Code.PEERS_UNREACHABLE
    assert away in error.what


async def test_a_node_that_is_among_its_own_bootstrap_peers_starts_alone(settings, keys, free_port):
    host = f"/ip4/127.0.0.1/tcp/{free_port}"
    own = f"{host}/p2p/{peer_id(keys[POOL])}"
    node = HivemindTransport(settings(host_maddrs=(host,), bootstrap=(own,)))
    await node.start()
    assert node.addresses() == [own]
    await node.stop()


@pytest.mark.parametrize("content", [b"", b"not a key", b"\x08\x00\x12\x04\x30\x82\x00\x00"])
async def test_a_damaged_key_is_reported_and_left_alone(settings, tmp_path, content):
    path = tmp_path / "key"
    path.write_bytes(content)
    assert (await refusal(settings(identity_path=path))).code is Code.DATA_DIR_UNUSABLE
    assert path.read_bytes() == content


async def test_a_missing_key_is_made_for_its_owner_only_and_gives_the_same_id_again(settings, tmp_path):
    node = HivemindTransport(settings(identity_path=tmp_path / "key"))
    await node.start()
    await node.stop()
    assert node.peer == peer_id(tmp_path / "key")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


async def test_a_key_in_a_folder_that_is_missing_is_reported(settings, tmp_path):
    assert (await refusal(settings(identity_path=tmp_path / "no" / "key"))).code is Code.DATA_DIR_UNUSABLE


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from sfnode.errors import UserError
from sfnode.transport.libp2p.keys import ensure_key

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    ensure_key(Path(sys.argv[1]))
except UserError as error:
    sys.exit(error.code)
"""


async def test_a_key_for_which_there_is_no_room_is_a_full_disk(tmp_path):
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", FULL_DISK, str(tmp_path / "key"))
    assert await process.wait() == Code.DISK_FULL
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("program", ["/nonexistent/p2pd", "/bin/false", "/bin/true"])
async def test_a_daemon_that_does_not_start_is_reported(program):
    with fails_with(Code.NETWORK_DAEMON):
        await start_daemon(Path(program), [])


async def test_strangers_in_the_dht_cannot_spoil_the_roster(topic, nodes):
    host, guest, stranger = await nodes(3)
    record = PeerRecord(host.peer, tuple(host.addresses()), 0, 9)
    await host.announce(topic, record, ttl=60)
    dht, key, expiry = stranger._session.dht, roster_key(topic), get_dht_time() + 60
    for number, value in enumerate((None, "text", [1, 2, 3, 4], {"a": 1}, [host.peer, [], 0, 0])):
        assert not await dht.store(key, value, expiry, subkey=f"stranger{number}")
        assert not await dht.store(key, value, expiry + number, subkey=host.peer)
        assert await dht.store(key, value, expiry + number, subkey=stranger.peer)
    assert await guest.find(topic) == [record]

    dht.protocol.storage.store(DHTID.generate(key), b"\xc1", expiry, subkey=guest.peer)
    dht.protocol.storage.store(DHTID.generate(key), msgpack.packb(bytes(5_000)), expiry, subkey="large")
    assert await guest.find(topic) == [record]
    assert await host.find(topic) == [record]


async def test_a_record_that_was_overheard_cannot_be_made_to_last(topic, nodes):
    host, guest, stranger = await nodes(3)
    await host.announce(topic, PeerRecord(host.peer, (), 0, 9), ttl=60)
    dht, key = stranger._session.dht, DHTID.generate(roster_key(topic))
    await stranger.find(topic)
    overheard = host._session.dht.protocol.storage.data[key].value.get(host.peer)
    target = PeerID.from_base58(guest.peer)
    for later in (20.0, float("inf")):
        expiry = [overheard.expiration_time + later]
        assert await dht.protocol.call_store(target, [key], [overheard.value], expiry, [host.peer]) == [False]


@pytest.mark.parametrize("name", ["rpc_ping", "rpc_store", "rpc_find"])
async def test_a_malformed_message_in_the_dht_makes_no_noise(nodes, name):
    """hivemind handles the message in an abandoned task. A fixture checks asyncio's log."""
    host, stranger = await nodes(2)
    requests = {"rpc_ping": PingRequest, "rpc_store": StoreRequest, "rpc_find": FindRequest}
    request = requests[name](peer=NodeInfo(node_id=b"\xff" * 40))
    stub = stranger._session.dht.protocol.get_stub(PeerID.from_base58(host.peer))
    with suppress(P2PHandlerError):
        await getattr(stub, name)(request, timeout=3)
    gc.collect(1)
    assert await host.healthy()


@pytest.mark.parametrize("name", ["DHTProtocol.rpc_ping", "DHTProtocol.rpc_find"])
async def test_a_promise_of_a_terabyte_to_the_dht_is_refused_and_takes_no_memory(nodes, name):
    """p2pd reads messages for hivemind's unary handlers, up to 4 MiB. Stream handlers would read any length
    in
    this process, and are not registered."""
    host, stranger = await nodes(2)
    assert set(host._session.p2p._client.control.handlers) == {LINK_PROTOCOL, REQUEST_PROTOCOL}
    processes = [psutil.Process(pid) for pid in (os.getpid(), host._session.p2pd.pid)]
    before = [process.memory_info().rss for process in processes]
    target = PeerID.from_base58(host.peer)
    _, _, writer = await stranger._session.p2p.call_binary_stream_handler(target, name)
    writer.write(b"\x80\x80\x80\x80\x80\x20")  # 2**40 as a varint
    with pytest.raises(OSError):  # noqa: PT011 (a reset or a broken pipe)
        await pour(writer, 64 * MIB)
    writer.close()
    after = [process.memory_info().rss for process in processes]
    assert all(now - then < 20 * MIB for now, then in zip(after, before, strict=True))
    assert await host.healthy()


async def pour(writer, size):
    for _ in range(size // 65_536):
        writer.write(bytes(65_536))
        await writer.drain()


async def test_streams_that_are_opened_and_cancelled_leave_neither_task_nor_memory(nodes):
    host, stranger = await nodes(2)
    board, most = host._board, 0
    tasks = len(asyncio.all_tasks())

    async def counted(link):
        nonlocal most
        most = max(most, len(board._inbound))
        return await read_all(link)

    host.on_link(counted)

    async def open_and_cancel():
        with suppress(TransportError):  # its connection is ended now and then
            await open_for_nothing(stranger, host)

    for _ in range(20):
        await asyncio.gather(*(open_and_cancel() for _ in range(20)))
    assert 0 < most <= streams.MAX_INBOUND_STREAMS_OF_PEER

    async def forgotten():
        return not board._inbound and not board._inbound_of and len(asyncio.all_tasks()) <= tasks

    await eventually(forgotten)


async def open_for_nothing(stranger, host):
    call = stranger._session.p2p.call_binary_stream_handler(PeerID.from_base58(host.peer), LINK_PROTOCOL)
    _, _, writer = await stranger._session.calls.within(5, "opening", call)
    writer.close()


async def test_the_daemon_keeps_to_a_few_cores(nodes):
    (host,) = await nodes(1)
    cores = int(psutil.Process(host._session.p2pd.pid).environ()["GOMAXPROCS"])
    assert 1 <= cores <= max(1, os.cpu_count() // 4)


async def test_who_opens_streams_for_nothing_is_cut_off_and_disturbs_no_other_link(nodes):
    host, stranger, guest = await nodes(3)
    heard = asyncio.Queue()

    async def hear(link):
        with suppress(TransportError):
            while True:
                heard.put_nowait(await link.receive())

    host.on_link(hear)
    link = await guest.connect(host.peer, host.addresses())

    async def cut_off():
        with suppress(TransportError):
            await open_for_nothing(stranger, host)
        return stranger.peer not in await host._session.pulse.connected()

    await eventually(cut_off)
    await link.send(b"still here")
    async with asyncio.timeout(5):
        assert await heard.get() == b"still here"


async def test_requests_that_are_cancelled_are_forgotten(nodes):
    host, stranger = await nodes(2)
    stub = stranger._session.dht.protocol.get_stub(PeerID.from_base58(host.peer))
    handlers = host._session.p2p._client.control._handler_tasks
    for _ in range(5):
        questions = [asyncio.create_task(stub.rpc_ping(PingRequest())) for _ in range(50)]
        await asyncio.sleep(0)  # they are sent
        await cancel(questions)

    async def forgotten():
        return await host.healthy() and not handlers

    await eventually(forgotten)


async def test_a_pause_of_this_process_itself_is_not_taken_for_one_of_the_daemon(nodes):
    (host,) = await nodes(1)
    noticing = asyncio.create_task(host.broken())
    for pause in (0.0, 1.5 * HANG_TICK * HANG_TICKS, 0.0):
        await asyncio.wait([noticing], timeout=0.3)
        time.sleep(pause)  # noqa: ASYNC251 (the event loop stands still, in the midst of whatever it was doing)
    assert not noticing.done()
    await cancel([noticing])


async def test_calls_under_way_fail_at_once_when_a_restart_begins(nodes, topic):
    host, guest = await nodes(2)
    daemon = psutil.Process(host._session.p2pd.pid)
    daemon.suspend()

    async def stands_still():
        return daemon.status() == psutil.STATUS_STOPPED

    await eventually(stands_still)
    calls = [
        asyncio.create_task(call)
        for call in (host.find(topic), host.connect(guest.peer, guest.addresses()), host.healthy())
    ]
    await asyncio.wait(calls, timeout=0.1)
    assert not any(call.done() for call in calls)
    restarting = asyncio.create_task(host.restart())
    async with asyncio.timeout(1):
        found, link, healthy = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(found, TransportError)
    assert isinstance(link, TransportError)
    assert healthy is False
    await restarting


async def test_a_peer_that_was_away_for_long_is_met_as_soon_as_it_is_back(settings, nodes, free_port):
    """libp2p itself would not dial the peer again for at least 5 s."""
    (host,) = await nodes(1)
    other = HivemindTransport(settings(host_maddrs=(f"/ip4/127.0.0.1/tcp/{free_port}",)))
    await other.start()
    addresses = other.addresses()
    await other.stop()
    for _ in range(5):
        assert await host.bootstrap(addresses) == 0
        with pytest.raises(TransportError):
            await host.connect(other.peer, addresses)
    await other.restart()
    assert await host.bootstrap(addresses) == 1
    await other.stop()


async def test_a_link_knows_where_its_other_end_is_seen(nodes, inbound):
    host, guest = await nodes(2)
    arriving = inbound(host)
    link = await guest.connect(host.peer, host.addresses())
    assert link.address == host.addresses()[0].partition("/p2p/")[0]
    assert (await arriving.get()).address.startswith("/ip4/127.0.0.1/tcp/")
    await link.close()


@pytest.mark.parametrize("hung", [False, True])
async def test_a_stop_leaves_neither_process_nor_file_nor_task(settings, hung):
    before = asyncio.all_tasks()
    node = HivemindTransport(settings())
    await node.start()
    pid, folder = node._session.p2pd.pid, Path(node._session.p2p.daemon_listen_maddr["unix"]).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    if hung:
        os.kill(pid, signal.SIGSTOP)
    await node.stop()
    assert not psutil.pid_exists(pid)
    assert not folder.exists()
    assert asyncio.all_tasks() <= before


async def serving(node, starting):
    return node.addresses() or starting.done()


async def test_a_start_that_is_cancelled_leaves_nothing_behind(settings):
    before = daemons_of(os.getpid())
    node = HivemindTransport(
        settings(bootstrap=("/ip4/203.0.113.7/tcp/1/p2p/QmWv4MDNkJnWMTaHJxSwZ8dnkwJPZvLScPZzYD9bCHMgdB",))
    )
    starting = asyncio.create_task(node.start())
    await eventually(lambda: serving(node, starting))
    starting.cancel()
    await node.stop()
    assert (await asyncio.gather(starting, return_exceptions=True))[0] is not None
    assert daemons_of(os.getpid()) == before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
async def test_a_node_killed_outright_leaves_no_daemon_and_its_port_can_be_used_at_once(
    settings, free_port, tmp_path
):
    own = settings(host_maddrs=(f"/ip4/127.0.0.1/tcp/{free_port}",))
    (no_relay := tmp_path / "no-relay").write_text(NO_RELAY)
    flags = p2pd_flags(own, own.host_maddrs, tmp_path / "p2pd.sock", no_relay, ())
    first = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PARENT, str(P2PD), *flags), stdout=PIPE, stderr=PIPE
    )
    assert await first.stdout.readline() == b"ready\n"
    (p2pd,) = daemons_of(first.pid)
    p2pd.suspend()  # so that it cannot end by itself
    first.kill()
    node = HivemindTransport(own)
    await node.start()
    assert node.addresses() == [f"{own.host_maddrs[0]}/p2p/{node.peer}"]
    assert not p2pd.is_running() or p2pd.status() == psutil.STATUS_ZOMBIE
    await node.stop()
    assert await first.communicate() == (b"", b"")


async def test_a_client_takes_part_without_being_reachable(topic, nodes, settings, inbound):
    (host,) = await nodes(1)
    arriving = inbound(host)
    client = HivemindTransport(settings(client_mode=True, bootstrap=tuple(host.addresses())))
    await client.start()
    assert client.addresses() == []
    await client.announce(topic, PeerRecord(client.peer, (), 0, 0), ttl=60)
    assert [record.peer for record in await host.find(topic)] == [client.peer]
    await client.connect(host.peer)
    assert (await arriving.get()).peer == client.peer
    await client.stop()


async def test_two_nodes_that_nobody_can_dial_meet_through_a_relay_and_through_another_when_it_goes(
    settings, tmp_path, inbound, monkeypatch
):
    monkeypatch.setattr(relays, "LOST_PATIENCE", 0.5)
    first, second = (
        HivemindTransport(settings(identity_path=tmp_path / name, circuit_relay=True)) for name in "ab"
    )
    await asyncio.gather(first.start(), second.start())
    unreachable = {"client_mode": True, "bootstrap": tuple(first.addresses())}
    here = HivemindTransport(settings(use_auto_relay=True, **unreachable))
    there = HivemindTransport(settings(identity_path=tmp_path / "key", **unreachable))
    await asyncio.gather(here.start(), there.start())
    assert there.addresses() == []
    here.ask_for_relays(second.addresses)
    arriving = inbound(here)
    await assert_linked_through(first, here, there, arriving)
    lost = asyncio.create_task(here.broken())
    await first.stop()
    assert await lost == "has lost its relays"
    await here.restart()
    await assert_linked_through(second, here, there, arriving)
    await asyncio.gather(here.stop(), there.stop(), second.stop())


async def assert_linked_through(relay, here, there, arriving):
    """Assert that a relay gets a place for `here`, and that a frame arrives there through it."""

    async def has_a_place():
        return await here.healthy() and here.addresses()

    await eventually(has_a_place)
    assert here.addresses() == [f"{relay.addresses()[0]}/p2p-circuit/p2p/{here.peer}"]
    links = []

    async def connected():
        with suppress(TransportError):  # until `here` has its place at the relay
            links.append(await there.connect(here.peer, here.addresses()))
        return links

    await eventually(connected)
    await links[0].send(b"through")
    link = await arriving.get()
    assert await link.receive() == b"through"
    assert "/p2p-circuit" in link.address

"""Uses the network as a node would, under temporary identities. Leaves nothing behind.

Starts at most two libp2p daemons: a caller that only dials, and a host that is dialled through a relay.

Training does not depend on the clock, but the roster in the DHT does: its entries contain the time at which
they expire. If a node's clock is wrong by minutes, its entries have already expired for other nodes, or are
refused.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from sfnode.daemon_thread import in_daemon_thread
from sfnode.doctor.findings import CheckFinding, Subject, note, ok, problem, refused
from sfnode.errors import UserError
from sfnode.store.data_folder import holder
from sfnode.transport.base import PeerRecord, TransportError, peer_of
from sfnode.transport.libp2p.daemon_process import port_is_free, without_missing_ipv6
from sfnode.transport.libp2p.settings import HivemindSettings
from sfnode.transport.roster import CLOCK_WRONG

if TYPE_CHECKING:
    from sfnode.transport.libp2p.transport import HivemindTransport


ENTRY_LIFE = 30.0
"""Lifetime, in seconds, of the entry that this module writes into the DHT."""

RELAY_POLL = 0.25
"""Seconds between two attempts to connect through a relay. The first attempts usually come too early."""

_PORT = re.compile(r"/(?:tcp|udp)/(\d+)")

_SOMEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses reserved for documentation, keyed by address family. They select the default route; nothing is
sent to them."""

INEXACT = 3.0
"""Threshold, in seconds, above which the difference between clocks is worth a note: other programs on
hivemind's DHT refuse a peer whose clock differs by more."""

NTP_DEADLINE = 2.5
"""Deadline, in seconds, for an NTP packet and its answer. Where UDP is blocked, no answer arrives."""

_NTP_EPOCH = 2_208_988_800
"""Seconds from 1900, the epoch of NTP, to 1970, the epoch of Unix."""

_CLIENT = b"\x23" + bytes(47)
"""An otherwise empty NTP packet of version 4, mode client (RFC 4330)."""

_SERVER_MODE = 4


async def start(stack: AsyncExitStack, relays: Sequence[str] = ()) -> HivemindTransport:
    """Start a transport that listens through these relays; without relays it listens nowhere.

    Raises UserError NETWORK_DAEMON.
    """
    from sfnode.transport.libp2p.transport import HivemindTransport

    key = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sfnode-doctor-"))) / "key"
    settings = HivemindSettings(
        identity_path=key, client_mode=True, use_auto_relay=bool(relays), trusted_relays=tuple(relays)
    )
    transport = HivemindTransport(settings)
    stack.push_async_callback(transport.stop)
    await transport.start()
    return transport


async def through_dht(caller: HivemindTransport, peers: Sequence[str]) -> bool:
    """Return whether an entry written into the peers' DHT from here is found. Raises TransportError."""
    await caller.bootstrap(peers)
    topic = secrets.token_bytes(32)
    await caller.announce(topic, PeerRecord(caller.peer, (), 1, 0), ENTRY_LIFE)
    return any(record.peer == caller.peer for record in await caller.find(topic))


async def through_relay(caller: HivemindTransport, host: HivemindTransport, relays: Sequence[str]) -> str:
    """Return the relay through which the caller has opened a link to the host. Repeats the attempts until one
    succeeds or the task is cancelled."""
    await host.bootstrap(relays)
    while True:
        for relay in relays:
            try:
                address = f"{relay}/p2p-circuit/p2p/{host.peer}"
                link = await caller.connect(host.peer, [address])
            except TransportError:
                continue
            relayed = "/p2p-circuit" in link.address
            await link.close()
            if relayed:
                return peer_of(relay)
        await asyncio.sleep(RELAY_POLL)


# -- where the node can listen -------------------------------------------------------------------------


def look_at_ports(host_maddrs: Sequence[str], data_dir: Path) -> list[CheckFinding]:
    """Examine each address of --host-maddrs."""
    return [_listen(maddr, data_dir) for maddr in without_missing_ipv6(host_maddrs)]


def _listen(maddr: str, data_dir: Path) -> CheckFinding:
    try:
        if port_is_free(maddr):
            return ok(Subject.LISTEN, f"{maddr} can be listened on")
    except UserError as error:
        return refused(Subject.LISTEN, error)
    port = int(_PORT.findall(maddr)[0])
    holders = _holders(port)
    if ours(holders, data_dir):
        return ok(Subject.LISTEN, f"{maddr} is in use by the node that runs in {data_dir}")
    return problem(
        Subject.LISTEN,
        f"{maddr} is in use by {_named(holders)}",
        "Stop that program, or choose another port with --host-maddrs (0 is any free one).",
    )


def ours(holders: Sequence[psutil.Process], data_dir: Path) -> bool:
    """Return whether the running node of this folder, or its network daemon, is among these processes."""
    node = holder(data_dir)
    with suppress(psutil.Error):
        return any(node in (one.pid, *(parent.pid for parent in one.parents())) for one in holders)
    return False


def _holders(port: int) -> list[psutil.Process]:
    """Return the processes that listen on a port and are visible to this user."""
    found = []
    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("inet"):
            listens = connection.status == psutil.CONN_LISTEN or connection.type == socket.SOCK_DGRAM
            if connection.laddr and connection.laddr.port == port and listens and connection.pid:
                with suppress(psutil.Error):
                    found.append(psutil.Process(connection.pid))
    return found


def _named(holders: Sequence[psutil.Process]) -> str:
    names = set()
    for process in holders:
        with suppress(psutil.Error):
            names.add(f"{process.name()} (process {process.pid})")
    return " and ".join(sorted(names)) or "a program of another user"


def own_address(family: socket.AddressFamily) -> str | None:
    """Return the address from which this machine would send; None without a route."""
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((_SOMEWHERE[family], 9))
        return str(probe.getsockname()[0])
    return None


def look_at_ipv6(host_maddrs: Sequence[str]) -> CheckFinding:
    """Examine whether this machine has a public IPv6 address, and what a node without IPv4 needs."""
    return judge_ipv6(own_address(socket.AF_INET), own_address(socket.AF_INET6), host_maddrs)


def judge_ipv6(ipv4: str | None, address: str | None, host_maddrs: Sequence[str]) -> CheckFinding:
    """Judge this machine's IPv6. `ipv4` and `address` are the IPv4 and IPv6 addresses from which it would
    send (None without a route). The node would listen on `host_maddrs`."""
    if address and not ipv4:
        what = (
            "this machine has IPv6 alone: it meets peers that have IPv4 alone only through a relay with both"
        )
        if not any(maddr.startswith("/ip6/") for maddr in host_maddrs):
            fix = "Have the node listen there, too: --host-maddrs /ip6/::/tcp/0."
            return problem(
                Subject.IPV6, "this machine has IPv6 alone, and the node would not listen on it", fix
            )
        return note(Subject.IPV6, what, "Name a peer that has both with --peers, and join with --auto-relay.")
    if address and ip_address(address.partition("%")[0]).is_global:
        return ok(Subject.IPV6, f"this machine has the public IPv6 address {address}")
    return note(
        Subject.IPV6,
        "this machine has no public IPv6 address",
        "Nothing needs to be done where IPv4 works. With IPv6 a node at home can often be reached directly.",
    )


def public_ipv4() -> str | None:
    """Return this machine's own IPv4 address if it is public."""
    address = own_address(socket.AF_INET)
    return address if address and ip_address(address).is_global else None


# -- the clock -----------------------------------------------------------------------------------------


async def ntp_ahead(host: str, port: int) -> float:
    """Return the seconds by which a time server is ahead of this clock. Raises OSError or TimeoutError."""
    async with asyncio.timeout(NTP_DEADLINE):
        (family, address), *_ = await in_daemon_thread(lambda: _udp(host, port))
        with socket.socket(family, socket.SOCK_DGRAM) as asker:
            asker.setblocking(False)
            asker.connect(address)
            loop, asked = asyncio.get_running_loop(), time.time()
            await loop.sock_sendall(asker, _CLIENT)
            while (there := _time_in(await loop.sock_recv(asker, 512))) is None:
                pass
            return there - (asked + time.time()) / 2


def _udp(host: str, port: int) -> list[tuple[int, Any]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    return [(family, address) for family, *_, address in found]


def _time_in(answer: bytes) -> float | None:
    """Return the server's time; None if `answer` is no NTP answer, or the server does not know the time
    (stratum 0)."""
    if len(answer) < 48 or answer[0] & 7 != _SERVER_MODE or answer[1] == 0:
        return None
    whole, part = struct.unpack("!II", answer[40:48])
    return float(whole - _NTP_EPOCH + part / 2**32)


def judge_by_peers(ahead: Sequence[float]) -> CheckFinding:
    """Compare this clock with the clocks of peers. `ahead` has the seconds by which each peer's clock is
    ahead of this one."""
    if ahead:
        those = "a peer's clock" if len(ahead) == 1 else f"the clocks of {len(ahead)} peers"
        return judge(statistics.median(ahead), those)
    return note(
        Subject.CLOCK,
        "there is nothing to compare the clock with: neither a time server nor a peer answers",
        "Make sure that the system sets its clock by the network; `timedatectl` shows it on most systems.",
    )


def judge(ahead: float, by: str) -> CheckFinding:
    """Compare this clock with another clock, which `by` describes and which is `ahead` seconds ahead of this
    one."""
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

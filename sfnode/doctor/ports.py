"""Examines whether the node can listen on its addresses, and which public addresses this machine has.

Asks only the operating system; nothing is sent.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

import psutil

from sfnode.doctor.findings import Finding, Subject, note, ok, problem
from sfnode.errors import UserError
from sfnode.store.data_folder import holder
from sfnode.transport.libp2p.daemon_process import port_is_free

_PORT = re.compile(r"/(?:tcp|udp)/(\d+)")

_SOMEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses for documentation: the route to them is the default route, and nothing is sent there."""


def look_at_ports(host_maddrs: Sequence[str], data_dir: Path) -> list[Finding]:
    """Examine each address of --host-maddrs."""
    return [_listen(maddr, data_dir) for maddr in host_maddrs]


def _listen(maddr: str, data_dir: Path) -> Finding:
    try:
        if port_is_free(maddr):
            return ok(Subject.LISTEN, f"{maddr} can be listened on")
    except UserError as error:
        return problem(Subject.LISTEN, error.what, error.fix)
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
    """Return whether the running node of this folder, or its daemon, is among these processes."""
    node = holder(data_dir)
    with suppress(psutil.Error):
        return any(node in (one.pid, *(parent.pid for parent in one.parents())) for one in holders)
    return False


def _holders(port: int) -> list[psutil.Process]:
    """Return the processes that listen on a port, as far as this user may see them."""
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


def look_at_ipv6() -> Finding:
    """Examine whether this machine has a public IPv6 address."""
    address = own_address(socket.AF_INET6)
    if address and ip_address(address.partition("%")[0]).is_global:
        return ok(Subject.IPV6, f"this machine has the public IPv6 address {address}")
    return note(
        Subject.IPV6,
        "this machine has no public IPv6 address",
        "Nothing needs to be done: IPv4 is enough. With IPv6 a node at home can often be reached directly.",
    )


def public_ipv4() -> str | None:
    """Return this machine's own IPv4 address if it is public."""
    address = own_address(socket.AF_INET)
    return address if address and ip_address(address).is_global else None

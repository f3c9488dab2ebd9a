"""Settings of a node in the libp2p network, and the command line of p2pd for them.

They are not in the module `transport`, because that imports hivemind and with it torch, while a command line
must be read quickly.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sfnode.settings import Settings
from sfnode.transport.base import best_first, peer_of

log = logging.getLogger(__name__)

ATTACH_TIMEOUT = 30
"""Time, in seconds, after which p2pd ends if this node has not attached to it. A start takes half a
second."""

NO_RELAY = '{"Relay": {"Enabled": false}}'
"""Configuration of a p2pd that relays for nobody. It still opens links through relays. The flags alone do not
stop p2pd from relaying: -relay=0 leaves p2pd's default as it is, and with -relayService=0 it still relays
within libp2p's own bounds (128 KiB and two minutes for a circuit, 8 peers of one address, 128 peers)."""

RELAYED_PEERS = 32
"""Maximum number of peers reached through this node at once, if it is a circuit relay. All of them may have
the same address: p2pd sets libp2p's bounds for one address and for one provider to this number, too."""

CIRCUITS_OF_PEER = 12
"""Maximum number of circuits of one peer at once, equal to the maximum number of its links
(`peers.link_slots.MAX_LINKS`)."""

CIRCUIT_BYTES, CIRCUIT_TIME = 64 << 20, "30m"
"""Maximum bytes in each direction, and maximum duration, of a circuit. A run with 7,000 updates a second
sends that many bytes in that time. A closed circuit may be opened again at once: p2pd bounds neither the
bytes per second nor the sum over circuits."""

CIRCUIT_BUFFER = 64 << 10
"""Size, in bytes, of the buffer for one direction of a circuit; 48 MiB for all circuits. p2pd's own default
is 16 MiB."""

_LISTEN = re.compile(r"/(ip[46])/([^/]+)/(tcp|udp)/(\d+)(/.*)?")
_MAX_KEPT = 64
"""Maximum number of lines that are read from the file of ports. A node listens on one or two addresses."""
_ANYWHERE = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True, kw_only=True)
class HivemindSettings:
    """Settings of a `HivemindTransport`."""

    identity_path: Path
    """File of the libp2p key (RSA, mode 0400), made if missing. The peer id follows from this key; the origin
    is another key."""
    ports_path: Path | None = None
    """File that stores the ports chosen for port 0, so that invitation links stay valid after a restart."""
    host_maddrs: tuple[str, ...] = Settings.model_fields["host_maddrs"].default
    """Addresses to listen on."""
    announce_maddrs: tuple[str, ...] = ()
    """Addresses, with ports, to announce in place of the addresses that this machine sees itself."""
    bootstrap: tuple[str, ...] = ()
    """Full addresses of bootstrap peers."""
    use_auto_relay: bool = False
    """Whether to be reached through a relay, for a node behind a firewall or NAT."""
    trusted_relays: tuple[str, ...] = ()
    """Full addresses of relays for use_auto_relay; by default the bootstrap peers. Other relays of the run
    are used if fewer than two of these answer."""
    client_mode: bool = False
    """Whether to listen nowhere and use the DHT without serving it, for a node that nobody can dial."""
    circuit_relay: bool = False
    """Whether to relay connections between others, within bounds, once this node is publicly reachable."""
    force_reachability: Literal["", "public", "private"] = ""
    """Reachability to assume instead of asking other peers. If empty, p2pd asks, but assumes "private" with
    use_auto_relay."""


def p2pd_flags(
    settings: HivemindSettings, hosts: Sequence[str], control: Path, no_relay: Path, relays: Sequence[str]
) -> list[str]:
    """Return p2pd's command line for listening on `hosts` and being controlled over the socket `control`.

    `no_relay` is a file that contains NO_RELAY; `relays` are the relays that are asked to relay for this
    node. The command line names no bootstrap peers: we dial them ourselves, at the start and later, to learn
    which of them answer.
    """
    local = all("/127." in host or "/ip6/::1/" in host for host in hosts)
    flags = [
        f"-listen=/unix{control}",
        f"-id={settings.identity_path}",
        f"-idleTimeout={ATTACH_TIMEOUT}s",
        f"-autoRelay={int(settings.use_auto_relay)}",
        f"-natPortMap={int(not local)}",
        f"-autonat={int(not local)}",
        "-connManager=1",
        "-tls=1",
    ]
    flags += [*_reach(settings, hosts), *_relaying(settings, no_relay)]
    if relays:
        # With relay discovery, libp2p waits three minutes for more candidates before it asks any relay.
        flags += [f"-trustedRelays={','.join(relays)}", "-relayDiscovery=0"]
    # A node that asks for a relay need not wait a minute until other peers have found that it needs one.
    if reach := settings.force_reachability or ("private" if settings.use_auto_relay else ""):
        flags.append(f"-forceReachability{reach.capitalize()}")
    return flags


def _relaying(settings: HivemindSettings, no_relay: Path) -> list[str]:
    if settings.circuit_relay:
        return [
            "-relay=1",
            "-relayService=1",
            f"-relayMaxReservations={RELAYED_PEERS}",
            f"-relayMaxCircuits={CIRCUITS_OF_PEER}",
            f"-relayDataLimit={CIRCUIT_BYTES}",
            f"-relayTimeLimit={CIRCUIT_TIME}",
            f"-relayBufferSize={CIRCUIT_BUFFER}",
        ]
    if settings.use_auto_relay:  # p2pd demands -relay=1; no peer can reach this node to use it as a relay
        return ["-relay=1", "-relayService=0"]
    return [f"-f={no_relay}", "-relay=0"]


def relays_of(settings: HivemindSettings) -> list[str]:
    """Return the full addresses of the relays through which this node asks to be reached."""
    if not settings.use_auto_relay:
        return []
    return _one_each(settings.trusted_relays or settings.bootstrap)


def _one_each(addresses: Iterable[str]) -> list[str]:
    """Return the first address of every peer: libp2p would wait for as many relays as there are addresses."""
    first: dict[str, str] = {}
    for address in addresses:
        first.setdefault(peer_of(address), address)
    return list(first.values())


def _reach(settings: HivemindSettings, hosts: Sequence[str]) -> list[str]:
    if settings.client_mode:
        return ["-noListenAddrs", "-dhtClient"]
    flags = ["-dhtServer", f"-hostAddrs={','.join(hosts)}"]
    if settings.announce_maddrs:
        flags.append(f"-announceAddrs={','.join(settings.announce_maddrs)}")
    return flags


def same_ports(settings: HivemindSettings, addresses: Sequence[str]) -> tuple[str, ...]:
    """Return host_maddrs with the ports that p2pd chose for port 0, so that a restart uses them again.

    `addresses` are the addresses on which p2pd listens, as it reports. Nothing is changed if addresses are
    announced: the outside port of a firewall may be another one.
    """
    if settings.announce_maddrs:
        return settings.host_maddrs
    nearest = [found for one in reversed(best_first(addresses)) if (found := _LISTEN.fullmatch(one))]
    return tuple(_settled(host, nearest) for host in settings.host_maddrs)


def kept_ports(settings: HivemindSettings) -> tuple[str, ...]:
    """Return host_maddrs with the stored ports in place of port 0."""
    try:
        lines = settings.ports_path.read_text("ascii").split() if settings.ports_path else []
    except (OSError, ValueError):  # only old links depend on the ports
        return settings.host_maddrs
    kept = [found for line in lines[:_MAX_KEPT] if (found := _LISTEN.fullmatch(line)) and _is_port(found[4])]
    return tuple(_settled(host, kept) for host in settings.host_maddrs)


def keep_ports(settings: HivemindSettings, hosts: Sequence[str]) -> None:
    """Store the ports of `hosts` for the next start. `hosts` are host_maddrs with the ports that are in
    use."""
    if settings.ports_path is None or tuple(hosts) == kept_ports(settings):
        return
    try:
        settings.ports_path.write_text("".join(f"{host}\n" for host in hosts), "ascii")
    except (OSError, ValueError) as error:
        log.debug("the ports are not kept: %s", error)


def _is_port(text: str) -> bool:
    return len(text) <= 5 and 0 < int(text) <= 65_535


def _settled(host: str, addresses: Sequence[re.Match[str]]) -> str:
    wanted = _LISTEN.fullmatch(host)
    if wanted is None or wanted[4] != "0":
        return host
    for found in addresses:
        same_kind = found.group(1, 3, 5) == wanted.group(1, 3, 5)
        if same_kind and (wanted[2] in _ANYWHERE or wanted[2] == found[2]):
            return f"/{wanted[1]}/{wanted[2]}/{wanted[3]}/{found[4]}{wanted[5] or ''}"
    return host

"""Settings of a node in the libp2p network, and the command line of p2pd that follows from them.

Apart from the hivemind transport so that a command line can be read without loading torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sfnode.settings import Settings
from sfnode.transport.base import best_first, peer_of

ATTACH_TIMEOUT = 30
"""Seconds after which p2pd gives up on us if we never attach; a start takes half a second."""

_LISTEN = re.compile(r"/(ip[46])/([^/]+)/(tcp|udp)/(\d+)(/.*)?")
_ANYWHERE = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True, kw_only=True)
class HivemindSettings:
    """Settings of a `HivemindTransport`."""

    identity_path: Path
    """File of the libp2p key (RSA, mode 0400), made if missing. It fixes the peer id, not the origin."""
    host_maddrs: tuple[str, ...] = Settings.model_fields["host_maddrs"].default
    """Addresses to listen on."""
    announce_maddrs: tuple[str, ...] = ()
    """Addresses to announce instead of those that this machine sees; ports must be given."""
    bootstrap: tuple[str, ...] = ()
    """Full addresses of bootstrap peers."""
    use_auto_relay: bool = False
    """Whether to be reached through a relay, for a node behind a firewall or NAT."""
    trusted_relays: tuple[str, ...] = ()
    """Full addresses of relays for use_auto_relay; by default the bootstrap peers, else any peer."""
    client_mode: bool = False
    """Whether to listen nowhere and only use the DHT, for a node that nobody can dial."""
    force_reachability: Literal["", "public", "private"] = ""
    """Reachability to assume instead of asking other peers; "private" with use_auto_relay."""


def p2pd_flags(settings: HivemindSettings, hosts: Sequence[str], control: Path) -> list[str]:
    """Return p2pd's command line for listening on `hosts` and being controlled over the socket `control`.

    It names no bootstrap peers: we dial them ourselves, at the start and later, and learn who answered.
    """
    local = all("/127." in host or "/ip6/::1/" in host for host in hosts)
    flags = [
        f"-listen=/unix{control}",
        f"-id={settings.identity_path}",
        f"-idleTimeout={ATTACH_TIMEOUT}s",
        "-relay=1",  # reach others through relays, and be one for them: with 0 it does so all the same
        f"-autoRelay={int(settings.use_auto_relay)}",
        f"-natPortMap={int(not local)}",
        f"-autonat={int(not local)}",
        "-connManager=1",
        "-tls=1",
    ]
    flags += _reach(settings, hosts)
    if relays := relays_of(settings):
        # With discovery libp2p waits three minutes for more candidates before it asks even a trusted relay.
        flags += [f"-trustedRelays={','.join(relays)}", "-relayDiscovery=0"]
    # A node that asks for a relay need not wait a minute until other peers have found that it needs one.
    if reach := settings.force_reachability or ("private" if settings.use_auto_relay else ""):
        flags.append(f"-forceReachability{reach.capitalize()}")
    return flags


def relays_of(settings: HivemindSettings) -> list[str]:
    """Return the full addresses of the relays through which this node asks to be reached."""
    if not settings.use_auto_relay:
        return []
    return _one_each(settings.trusted_relays or settings.bootstrap)


def _one_each(addresses: Iterable[str]) -> list[str]:
    """Return the first address of every peer: libp2p waits for as many relays as it is given addresses."""
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
    """Return host_maddrs with the ports that p2pd got instead of 0, so that we keep them over a restart.

    `addresses` are those on which p2pd reports to listen. Nothing is learnt from announced addresses: a
    firewall may use another port outside.
    """
    if settings.announce_maddrs:
        return settings.host_maddrs
    nearest = [found for one in reversed(best_first(addresses)) if (found := _LISTEN.fullmatch(one))]
    return tuple(_settled(host, nearest) for host in settings.host_maddrs)


def _settled(host: str, addresses: Sequence[re.Match[str]]) -> str:
    wanted = _LISTEN.fullmatch(host)
    if wanted is None or wanted[4] != "0":
        return host
    for found in addresses:
        same_kind = found.group(1, 3, 5) == wanted.group(1, 3, 5)
        if same_kind and (wanted[2] in _ANYWHERE or wanted[2] == found[2]):
            return f"/{wanted[1]}/{wanted[2]}/{wanted[3]}/{found[4]}{wanted[5] or ''}"
    return host

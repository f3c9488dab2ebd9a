"""How a node takes part in the libp2p network, and what p2pd is told about it.

Apart from the hivemind transport so that a command line can be read without loading torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sfnode.transport.base import best_first, peer_of

ATTACH_TIMEOUT = 30
"""Seconds after which p2pd gives up on us if we never attach; a start takes half a second."""

_PLACE = re.compile(r"/(ip[46])/([^/]+)/(tcp|udp)/(\d+)(/.*)?")
_ANYWHERE = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True, kw_only=True)
class HivemindSettings:
    """Everything a `HivemindTransport` needs to know."""

    identity_path: Path
    """The libp2p key (RSA, mode 0400), made if missing. It fixes the peer id, not the origin of updates."""
    host_maddrs: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    """Where to listen."""
    announce_maddrs: tuple[str, ...] = ()
    """What to tell others instead of what this machine sees of itself; ports must be given."""
    bootstrap: tuple[str, ...] = ()
    """Full addresses of peers that are there already."""
    use_auto_relay: bool = False
    """Be reached through a relay, for a node behind a firewall or NAT."""
    trusted_relays: tuple[str, ...] = ()
    """For use_auto_relay; by default the bootstrap peers, and any peer if there are none."""
    client_mode: bool = False
    """Listen nowhere and only use the DHT: for a node that nobody can dial."""
    force_reachability: Literal["", "public", "private"] = ""
    """What to believe of the firewall instead of asking other peers; "private" with use_auto_relay."""


def p2pd_flags(settings: HivemindSettings, hosts: Sequence[str], control: Path) -> list[str]:
    """p2pd's command line for listening on `hosts` and taking orders on the socket `control`.

    No bootstrap peers: we dial them ourselves, then and later in the same way, and learn who answered.
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
    # Who asks for a relay need not wait a minute or more until other peers have found out that he needs one.
    if reach := settings.force_reachability or ("private" if settings.use_auto_relay else ""):
        flags.append(f"-forceReachability{reach.capitalize()}")
    return flags


def relays_of(settings: HivemindSettings) -> list[str]:
    """Full addresses of the relays through which this node asks to be reached."""
    if not settings.use_auto_relay:
        return []
    return _one_each(settings.trusted_relays or settings.bootstrap)


def _one_each(addresses: Iterable[str]) -> list[str]:
    """The first address of every peer: libp2p waits for as many relays as it is given addresses."""
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


def same_ports(settings: HivemindSettings, ways: Sequence[str]) -> tuple[str, ...]:
    """host_maddrs with the ports that p2pd got instead of 0, so that neighbours find us after a restart.

    `ways` is where p2pd says that it listens. Nothing is learnt from announced addresses: a firewall may
    have another port outside.
    """
    if settings.announce_maddrs:
        return settings.host_maddrs
    nearest = [place for way in reversed(best_first(ways)) if (place := _PLACE.fullmatch(way))]
    return tuple(_settled(host, nearest) for host in settings.host_maddrs)


def _settled(host: str, places: Sequence[re.Match[str]]) -> str:
    wanted = _PLACE.fullmatch(host)
    if wanted is None or wanted[4] != "0":
        return host
    for place in places:
        same_kind = place.group(1, 3, 5) == wanted.group(1, 3, 5)
        if same_kind and (wanted[2] in _ANYWHERE or wanted[2] == place[2]):
            return f"/{wanted[1]}/{wanted[2]}/{wanted[3]}/{place[4]}{wanted[5] or ''}"
    return host

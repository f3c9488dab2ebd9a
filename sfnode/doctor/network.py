"""Uses the network as a node would, under temporary identities; nothing is kept.

Starts two libp2p daemons at most: a caller that only dials, and a host that is dialled through a relay.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from sfnode.transport.base import PeerRecord, TransportError, peer_of
from sfnode.transport.libp2p.settings import HivemindSettings

if TYPE_CHECKING:
    from sfnode.transport.libp2p.transport import HivemindTransport

ENTRY_LIFE = 30.0
"""Lifetime of our entry in the DHT, in seconds."""

RELAY_POLL = 0.25
"""Seconds between two attempts to connect through a relay; the first ones usually come too early."""


async def start_caller(stack: AsyncExitStack) -> HivemindTransport:
    """Start a transport that listens nowhere. Raises UserError NETWORK_DAEMON."""
    return await _start(stack, client_mode=True)


async def start_host(stack: AsyncExitStack, relays: Sequence[str]) -> HivemindTransport:
    """Start a transport that is reached through these peers as its relays, and listens nowhere else.

    Raises UserError NETWORK_DAEMON.
    """
    return await _start(stack, client_mode=True, use_auto_relay=True, trusted_relays=tuple(relays))


async def _start(stack: AsyncExitStack, **settings: object) -> HivemindTransport:
    from sfnode.transport.libp2p.transport import HivemindTransport

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sfnode-doctor-")))
    transport = HivemindTransport(HivemindSettings(identity_path=folder / "key", **settings))  # type: ignore[arg-type]
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
    """Return the relay through which the caller opens a link to the host; try until cancelled."""
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

"""The network as a node would use it, for the time of the examination: another name, nothing kept.

Two libp2p daemons at most: a guest that only calls, and a host that tries to be called through a relay.
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
from sfnode.transport.settings import HivemindSettings

if TYPE_CHECKING:
    from sfnode.transport.hivemind import HivemindTransport

ENTRY_LIFE = 30.0
"""Seconds that our entry stays in the DHT."""

RELAY_POLL = 0.25
"""Seconds between two tries to get through a relay, of which the first ones come too early."""


async def start_guest(stack: AsyncExitStack) -> HivemindTransport:
    """A transport that listens nowhere. Raises UserError NETWORK_DAEMON."""
    return await _start(stack, client_mode=True)


async def start_host(stack: AsyncExitStack, relays: Sequence[str]) -> HivemindTransport:
    """A transport that asks these peers to be its relays, and listens nowhere else: whoever calls it comes
    through one of them. Raises UserError NETWORK_DAEMON."""
    return await _start(stack, client_mode=True, use_auto_relay=True, trusted_relays=tuple(relays))


async def _start(stack: AsyncExitStack, **settings: object) -> HivemindTransport:
    from sfnode.transport.hivemind import HivemindTransport

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sfnode-doctor-")))
    transport = HivemindTransport(HivemindSettings(identity_path=folder / "key", **settings))  # type: ignore[arg-type]
    stack.push_async_callback(transport.stop)
    await transport.start()
    return transport


async def through_dht(guest: HivemindTransport, peers: Sequence[str]) -> bool:
    """Whether what this machine writes into the peers' DHT is found there. Raises TransportError."""
    await guest.bootstrap(peers)
    topic = secrets.token_bytes(32)
    await guest.announce(topic, PeerRecord(guest.peer, (), 1, 0), ENTRY_LIFE)
    return any(record.peer == guest.peer for record in await guest.find(topic))


async def through_relay(guest: HivemindTransport, host: HivemindTransport, relays: Sequence[str]) -> str:
    """The relay through which the guest has opened a link to the host; tries until cancelled."""
    await host.bootstrap(relays)
    while True:
        for relay in relays:
            try:
                way = f"{relay}/p2p-circuit/p2p/{host.peer}"
                link = await guest.connect(host.peer, [way])
            except TransportError:
                continue
            relayed = "/p2p-circuit" in link.address
            await link.close()
            if relayed:
                return peer_of(relay)
        await asyncio.sleep(RELAY_POLL)

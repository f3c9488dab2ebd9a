"""Compatibility with a run: asks peers for its manifest and for the protocol version that they speak.

Joins nothing: it closes the link after Hello (SPEC V1: those messages are the same in all versions). What
follows from the result is for the caller to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import msgpack

from sfnode.errors import UserError
from sfnode.manifest import Manifest, run_id_of
from sfnode.transport.base import Transport, TransportError, peer_of
from sfprotocol import wire_codec
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.messages import PROTOCOL_VERSION, Goodbye, Hello, ManifestReply, ManifestRequest

GREETING_DEADLINE = 10.0
"""Seconds for a peer to say Hello, which it does at once."""


class PeerVersion(NamedTuple):
    """The protocol version of one peer."""

    address: str
    protocol: int | None
    """Protocol version; None if it could not be found out."""
    reason: str
    """Reason why it could not be found out; empty otherwise."""


class RunVersion(NamedTuple):
    """The protocol version of a run, from its manifest."""

    run_id: bytes
    name: str
    """Name of the run; empty if this sfnode cannot read the manifest."""
    protocol: int


class Compatibility(NamedTuple):
    """The versions of a run and of its peers."""

    run: RunVersion | None
    """None if no peer sent the manifest."""
    peers: tuple[PeerVersion, ...]

    @property
    def speaks_ours(self) -> bool:
        """Whether the run and at least one of its peers speak the version of this sfnode."""
        ours = self.run is not None and self.run.protocol == PROTOCOL_VERSION
        return ours and any(peer.protocol == PROTOCOL_VERSION for peer in self.peers)


async def examine(transport: Transport, addresses: Sequence[str], run_id: str) -> Compatibility:
    """Ask all these peers at once; manifests of other runs than `run_id` (hex, may be empty) do not count."""
    manifests = await asyncio.gather(*(_manifest(transport, address, run_id) for address in addresses))
    peers = await asyncio.gather(*(_greeting(transport, address) for address in addresses))
    return Compatibility(next((found for found in manifests if found), None), tuple(peers))


async def ask_manifest(transport: Transport, address: str) -> bytes:
    """Return the manifest that a peer sends, unparsed. Raises TransportError, RemoteProtocolError, and
    UserError BAD_ADDRESS."""
    reply = wire_codec.decode(await transport.request(address, wire_codec.encode(ManifestRequest())))
    if not isinstance(reply, ManifestReply):
        raise RemoteProtocolError("L6", "it sent something other than a manifest")
    return reply.manifest


async def _manifest(transport: Transport, address: str, run_id: str) -> RunVersion | None:
    try:
        found = read_version(await ask_manifest(transport, address))
    except (TransportError, RemoteProtocolError, UserError):
        return None
    return found if found and found.run_id.hex().startswith(run_id.lower()) else None


def read_version(manifest: bytes) -> RunVersion | None:
    """Return the version of the run of this manifest, be it a later one; None if it is no manifest."""
    try:
        fields = msgpack.unpackb(manifest, raw=False, strict_map_key=True)
    except (ValueError, RecursionError, msgpack.UnpackException):
        return None
    protocol = fields.get("protocol") if isinstance(fields, dict) else None
    if type(protocol) is not int or protocol < 1:
        return None
    if protocol > PROTOCOL_VERSION:
        return RunVersion(run_id_of(manifest), "", protocol)
    try:
        return RunVersion(run_id_of(manifest), Manifest.from_canonical(manifest, "a peer").name, protocol)
    except UserError:
        return None


async def _greeting(transport: Transport, address: str) -> PeerVersion:
    try:
        async with asyncio.timeout(2 * GREETING_DEADLINE):
            return await _hear(transport, address)
    except TransportError as error:
        return PeerVersion(address, None, error.reason)
    except UserError as error:  # one bad address is no reason not to ask the others
        return PeerVersion(address, None, error.what)
    except TimeoutError:
        return PeerVersion(address, None, f"it did not greet within {2 * GREETING_DEADLINE:g} s")


async def _hear(transport: Transport, address: str) -> PeerVersion:
    link = await transport.connect(peer_of(address), [address])
    try:
        greeting = wire_codec.decode(await link.receive())
        await link.send(wire_codec.encode(Goodbye("only looking")))
    except RemoteProtocolError as error:
        return PeerVersion(address, None, f"it does not speak the protocol: {error}")
    finally:
        await link.close()
    if isinstance(greeting, Hello):
        return PeerVersion(address, greeting.version, "")
    said = greeting.reason if isinstance(greeting, Goodbye) else "something other than a greeting"
    return PeerVersion(address, None, f"it said: {said}")

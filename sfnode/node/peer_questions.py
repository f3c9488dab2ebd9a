"""Questions of peers, and what a node answers: its run's manifest, parts of files, and who it is itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sfnode.node.context import NodeContext
from sfnode.peers.latency import ECHO, introduction
from sfnode.transport.base import Asker, TransportError
from sfprotocol import wire_codec
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.messages import ManifestReply, ManifestRequest, PartRequest


def answers_to_peers(node: NodeContext) -> Callable[[Asker, bytes], Awaitable[bytes]]:
    """Return what answers the questions of peers, frame for frame; it raises TransportError for what is no
    question to a node."""
    own_introduction = _introduction(node)

    async def answer(asker: Asker, frame: bytes) -> bytes:
        if frame == ECHO:
            return own_introduction
        try:
            question = wire_codec.decode(frame)
        except RemoteProtocolError as error:
            raise TransportError(str(error)) from error
        if isinstance(question, PartRequest):
            return wire_codec.encode(await node.sharing.answer(question, asker))
        if not isinstance(question, ManifestRequest):
            raise TransportError("only manifests and models are answered here")
        return wire_codec.encode(ManifestReply(node.manifest.canonical()))

    return answer


def _introduction(node: NodeContext) -> bytes:
    """Return who this node is, to neighbours: the origin of one that bears a name, of others nothing."""
    own = node.machine.own
    if own is None or not node.settings.display_name:
        return ECHO
    return introduction(node.manifest.run_id, own.origin, node.transport.peer, node.machine.sign)

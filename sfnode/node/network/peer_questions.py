"""Questions of peers, and what a node answers: its run's manifest, parts of files, and who it is itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sfnode.node.joined import Joined
from sfnode.peers.latency import ECHO, introduction
from sfnode.transport.base import Asker, TransportError
from sfprotocol import wire_codec
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.messages import ManifestReply, ManifestRequest, PartReply, PartRequest


class PeerQuestions:
    """Answers the questions of peers, frame for frame."""

    def __init__(self, joined: Joined, part: Callable[[PartRequest, Asker], Awaitable[PartReply]]) -> None:
        """`part` answers who asks for a part of a file."""
        self._manifest = joined.manifest
        self._part = part
        self._introduction = _introduction(joined)
        """Reply to those who measure how far away this node is."""

    async def answer(self, asker: Asker, frame: bytes) -> bytes:
        """Return the reply. Raises TransportError for what is no question to a node."""
        if frame == ECHO:
            return self._introduction
        try:
            question = wire_codec.decode(frame)
        except RemoteProtocolError as error:
            raise TransportError(str(error)) from error
        if isinstance(question, PartRequest):
            return wire_codec.encode(await self._part(question, asker))
        if not isinstance(question, ManifestRequest):
            raise TransportError("only manifests and models are answered here")
        return wire_codec.encode(ManifestReply(self._manifest.canonical()))


def _introduction(joined: Joined) -> bytes:
    """Return who this node is, to neighbours: the origin of one that bears a name, of others nothing."""
    own = joined.machine.own
    if own is None or not joined.settings.display_name:
        return ECHO
    return introduction(joined.manifest.run_id, own.origin, joined.transport.peer, joined.machine.sign)

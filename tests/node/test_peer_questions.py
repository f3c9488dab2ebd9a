"""Questions of peers to a whole node."""

from __future__ import annotations

import pytest

from sfnode.transport.base import TransportError
from sfnode.transport.memory import MemoryTransport
from sfprotocol import wire_codec
from sfprotocol.messages import Goodbye, ManifestReply, ManifestRequest
from tests.node.helpers import Swarm


@pytest.mark.parametrize("question", [b"\xc1", b"", wire_codec.encode(Goodbye("hello"))])
async def test_a_node_answers_one_question_and_shrugs_at_others(
    swarm: Swarm, caplog: pytest.LogCaptureFixture, question: bytes
) -> None:
    a = await swarm.first(role="relay")
    asker = MemoryTransport(swarm.network, "asker")
    await asker.start()
    with pytest.raises(TransportError):
        await asker.request(a.address, question)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    answer = wire_codec.decode(await asker.request(a.address, wire_codec.encode(ManifestRequest())))
    assert answer == ManifestReply(swarm.run.canonical())

"""Detection of a hanging p2pd, and of lost addresses."""

from __future__ import annotations

import os
import resource
import socket

import pytest

from sfnode.transport.libp2p.health import own_addresses, used_addresses


@pytest.mark.asyncio(loop_scope="module")
async def test_a_process_without_descriptors_does_not_take_its_daemon_for_dead(pool):
    """A restart would need descriptors, too, and lose all links."""
    node = pool[0]
    if not await node.healthy():
        await node.start()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = os.dup(0)  # the lowest free one: everything above is used or out of bounds
    os.close(spare)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))
    try:
        assert await node.healthy()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert await node.healthy()


def test_addresses_of_this_machine_and_those_that_a_process_uses():
    assert "127.0.0.1" in own_addresses()
    with socket.create_server(("127.0.0.2", 0)) as server, socket.socket() as client:
        client.bind(("127.0.0.3", 0))
        assert not {"127.0.0.2", "127.0.0.3"} & used_addresses(os.getpid()), "nobody is connected"
        client.connect(server.getsockname())
        with server.accept()[0]:
            assert {"127.0.0.2", "127.0.0.3"} & used_addresses(os.getpid()) == {"127.0.0.3"}
    assert used_addresses(2**31 - 1) == set()

"""Detection of a hanging p2pd, and of lost addresses."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
import time
from types import SimpleNamespace

import pytest

from sfnode.transport.libp2p import health
from sfnode.transport.libp2p.calls import Calls
from sfnode.transport.libp2p.daemon_process import Daemon
from sfnode.transport.libp2p.health import Pulse, own_addresses, used_addresses


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


async def silence() -> None:
    """The answer of a p2pd that does not answer."""
    await asyncio.Event().wait()


@pytest.mark.parametrize(("pause", "working"), [(99, False), (0, True)])
async def test_a_silent_daemon_that_works_gets_more_time_than_one_that_does_nothing(
    pause, working, monkeypatch
):
    """On a busy machine a restart would take even longer than the answer."""
    monkeypatch.setattr(health, "HANG_TICK", 0.05)
    program = f"import time\nprint('Peer ID: Qm', flush=True)\nwhile True: time.sleep({pause})"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
    )
    p2pd = Daemon(process)
    assert await p2pd.wait_until_ready()
    silent = SimpleNamespace(_client=SimpleNamespace(control=SimpleNamespace(
        _read_task=None, _write_task=None), identify=silence), _listen_task=None)  # fmt: skip
    began = time.monotonic()
    await Pulse(p2pd, silent, Calls(), None)._hung()
    took = time.monotonic() - began
    await p2pd.stop()
    assert took >= (health.MOST_TICKS if working else health.HANG_TICKS) * 0.05
    assert working or took < health.MOST_TICKS * 0.05


def test_addresses_of_this_machine_and_those_that_a_process_uses():
    assert "127.0.0.1" in own_addresses()
    with socket.create_server(("127.0.0.2", 0)) as server, socket.socket() as client:
        client.bind(("127.0.0.3", 0))
        assert not {"127.0.0.2", "127.0.0.3"} & used_addresses(os.getpid()), "nobody is connected"
        client.connect(server.getsockname())
        with server.accept()[0]:
            assert {"127.0.0.2", "127.0.0.3"} & used_addresses(os.getpid()) == {"127.0.0.3"}
    assert used_addresses(2**31 - 1) == set()

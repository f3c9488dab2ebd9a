"""Tests that a node goes on when visitors take its file descriptors, or when none are left."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from sfnode.preparing.manifest import build
from tests.processes.helpers import LOOPBACK, PATIENCE, Node, nodes, until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux limits another process"),
]

USUAL = 1024
"""Number of file descriptors that many systems allow a process."""

HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-More: "
WHOLE = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "run.toml").write_text(build({"update_budget": 1_000_000}).to_toml())
    return tmp_path


@contextmanager
def trainer(home: Path) -> Iterator[tuple[Node, tuple[int, int]]]:
    """Yield a node that trains, and the ports of its dashboard and its metrics."""
    with ExitStack() as held:
        free = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        dashboard, metrics = (one.getsockname()[1] for one in free)
    views = ("--dashboard", dashboard, "--metrics", metrics)
    with nodes(home) as make:
        node = make("a", "--run", "run.toml", *LOOPBACK, *views).start()
        node.until("it trains", lambda status: status.own_updates > 0)
        yield node, (dashboard, metrics)
        assert node.end() == 0
        assert "Traceback" not in node.output()


def limit(node: Node, most: int) -> None:
    _, hard = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (most, hard))


def asked(port: int) -> bytes:
    """Send a request to `port`. Return the first bytes of the answer."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as visitor:
        visitor.sendall(WHOLE)
        return visitor.recv(12)


def trains_on(node: Node) -> None:
    status = node.status()
    assert status
    node.until("it trains on", lambda now: now.own_updates > status.own_updates)


def test_half_sent_requests_do_not_end_a_node_and_keep_nobody_out(home: Path) -> None:
    with trainer(home) as (node, ports), ExitStack() as waiting:
        limit(node, USUAL)
        for port in ports:
            for _ in range(USUAL // 2 + 50):
                visitor = waiting.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))
                visitor.sendall(HALF)
        assert psutil.Process(node.pid).num_fds() < USUAL // 2
        assert [asked(port) for port in ports] == [b"HTTP/1.1 401", b"HTTP/1.1 200"]
        trains_on(node)


def test_a_node_without_a_descriptor_left_waits_for_one_and_goes_on(home: Path) -> None:
    with trainer(home) as (node, ports), ExitStack() as waiting:
        taken = {int(file.name) for file in Path(f"/proc/{node.pid}/fd").iterdir()}
        limit(node, next(number for number in range(USUAL) if number not in taken))
        visitors = [
            waiting.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE)) for port in ports
        ]
        for visitor in visitors:
            visitor.sendall(WHOLE)
        until("visitors wait", lambda: node.output().count("wait: [Errno 24]") == len(ports))
        until("the node does, too", lambda: "waiting for descriptors" in node.output())
        limit(node, USUAL)
        assert [visitor.recv(12) for visitor in visitors] == [b"HTTP/1.1 401", b"HTTP/1.1 200"]
        trains_on(node)

"""Tests of the bounds on visitors: number of connections, time, and descriptors."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from aiohttp import web

from sfnode.control import web_server

HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-More: "
REST = b"\r\nConnection: close\r\n\r\n"
PATIENCE = 30.0


@asynccontextmanager
async def served() -> AsyncIterator[int]:
    """Yield the port of a server that answers."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="here you are")

    application = web.Application()
    application.router.add_get("/", answer)
    listener = web_server.bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    close = await web_server.serve(application, listener)
    yield port
    await close()
    with socket.create_server(("127.0.0.1", port)):
        pass  # it let go of the port


async def visit(port: int, said: bytes = HALF) -> socket.socket:
    return await connected(socket.socket(), port, said)


async def connected(visitor: socket.socket, port: int, said: bytes = HALF) -> socket.socket:
    visitor.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(visitor, ("127.0.0.1", port))
    await loop.sock_sendall(visitor, said)
    return visitor


async def answer_to(visitor: socket.socket, said: bytes = b"") -> bytes:
    """Return the first bytes of the answer; nothing if the server has closed."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PATIENCE):
        try:
            await loop.sock_sendall(visitor, said)
            return await loop.sock_recv(visitor, 100)
        except ConnectionError:
            return b""


def open_descriptors() -> int:
    return len(os.listdir("/dev/fd"))


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(lowest := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)


async def test_who_comes_last_is_answered_though_half_sent_requests_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(web_server, "MOST_VISITORS", 10)
    async with served() as port:
        before = open_descriptors()
        waiting = [await visit(port) for _ in range(40)]
        last = await visit(port)
        assert (await answer_to(last, REST)).startswith(b"HTTP/1.1 200")
        assert [await answer_to(visitor) for visitor in waiting[:30]] == [b""] * 30
        assert open_descriptors() - before <= len([*waiting, last]) + 10
        for visitor in (*waiting, last):
            visitor.close()


async def test_a_request_that_never_ends_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "HEADERS_DEADLINE", 0.1)
    async with served() as port:
        for said in (b"", HALF, HALF.replace(b"\r\nX", b"\r\n\r\nGET / HTTP/1.1\r\nX")):
            visitor = await visit(port, said)
            while await answer_to(visitor):
                pass
            visitor.close()


async def test_visitors_wait_while_no_descriptor_is_left_and_are_answered_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Listeners of uvloop would close for good, without an error."""
    monkeypatch.setattr(web_server, "ACCEPT_PAUSE", 0.05)
    async with served() as port:
        visitor = socket.socket()
        with no_descriptor_left():
            await connected(visitor, port)
            async with asyncio.timeout(PATIENCE):
                while "wait" not in caplog.text:  # noqa: ASYNC110 (nothing tells of it)
                    await asyncio.sleep(0.01)
        assert (await answer_to(visitor, REST)).startswith(b"HTTP/1.1 200")
        assert len(caplog.records) == 1, "it is said once"
        visitor.close()

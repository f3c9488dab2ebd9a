"""One HTTP question over a Unix socket and its answer (RFC 9112), from within an event loop or without one.

An HTTP library would do, but importing one takes longer than a short command may run. Knows no routes.
"""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any, NamedTuple

CHUNK = 65_536
"""Bytes read at a time."""


class Response(NamedTuple):
    """The answer to a question."""

    status: int
    body: bytes


def request(method: str, path: str, body: Any = None) -> bytes:
    """Return the bytes of a question, whose body is `body` as JSON; the server closes after its answer."""
    content = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.1",
        "Host: node",
        "Connection: close",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
    )
    return "\r\n".join((*head, "", "")).encode() + content


def response(received: bytes) -> Response:
    """Parse everything that a server sent before it closed. Raises ValueError."""
    head, _, body = received.partition(b"\r\n\r\n")
    line, *fields = head.decode("latin-1").split("\r\n")
    version, _, status = line.partition(" ")
    lengths = [value for name, _, value in map(_parts, fields) if name.lower() == "content-length"]
    if not version.startswith("HTTP/1.") or not lengths:
        raise ValueError("the answer is not HTTP" if received else "no answer came")
    if len(body) != int(lengths[0]):
        raise ValueError("the answer is incomplete")
    return Response(int(status[:3]), body)


def _parts(field: str) -> tuple[str, str, str]:
    return field.partition(":")


async def exchange(path: Path, message: bytes, deadline: float) -> bytes:
    """Send `message` to the Unix socket `path` and return what comes back, all within `deadline` seconds.

    Raises OSError (which TimeoutError is).
    """
    import asyncio

    async with asyncio.timeout(deadline):
        reader, writer = await asyncio.open_unix_connection(str(path))
        try:
            writer.write(message)
            await writer.drain()
            return await reader.read()
        finally:
            writer.close()


async def exchange_blocking(path: Path, message: bytes, deadline: float) -> bytes:
    """Do the same without an event loop: the coroutine never suspends."""
    end = time.monotonic() + deadline
    received = bytearray()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(deadline)
        connection.connect(str(path))
        connection.sendall(message)
        while chunk := connection.recv(CHUNK):
            received += chunk
            connection.settimeout(max(end - time.monotonic(), 1e-3))
    return bytes(received)

"""Types of the fixtures of the doctor's tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

Peer = Callable[[bytes | None], Awaitable[str]]
"""Function that starts a peer with these bytes as its manifest, or without one, and returns its address."""

TimeServer = Callable[..., Awaitable[tuple[str, int]]]
"""Function that starts a time server. The server's clock is this many seconds ahead. Returns host and
port."""

"""What the doctor's tests are given: ways to start what it will visit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

Peer = Callable[[bytes | None], Awaitable[str]]
"""Start a peer that gives these bytes as its manifest, or none; its address."""

TimeServer = Callable[..., Awaitable[tuple[str, int]]]
"""`await time_server(600)`: one whose clock is so many seconds ahead; its host and port."""

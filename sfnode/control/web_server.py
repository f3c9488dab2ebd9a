"""A server for aiohttp applications that bounds the number of its connections, so that visitors cannot
exhaust the node's resources.

A node and its servers share one limit of file descriptors. aiohttp accepts every connection, and uvloop
silently stops listening for good when there is no descriptor for a connection. So this module accepts
connections itself.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Collection
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

from sfnode.logging import log

MOST_VISITORS = 100
"""Maximum number of simultaneous connections of a server. A browser opens six. Three full servers take less
than a third of the 1,024 descriptors that many systems allow a process."""

HEADERS_DEADLINE = 10.0
"""Time limit for the headers of each request, in seconds. aiohttp 3.14.0 and older do not apply it to the
first request of a connection, so there only MOST_VISITORS bounds the number of idle connections."""

ACCEPT_PAUSE = 1.0
"""Seconds between a failed attempt to accept a connection and the next one, as in asyncio's listeners."""

BACKLOG = 128
"""Maximum number of connections that wait in the kernel to be accepted. asyncio's listeners have 100."""

STOP_GRACE = 0.3
"""Maximum time, in seconds, for which a server that stops waits for unfinished answers."""


def bind(host: str, port: int) -> socket.socket:
    """Return a TCP socket that listens at `host` and `port`. Raises OSError."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family)


async def serve(application: web.Application, listener: socket.socket) -> Callable[[], Awaitable[None]]:
    """Serve `application` on a bound socket. Return the function that stops it and closes the socket."""
    runner = web.AppRunner(
        application, access_log=None, keepalive_timeout=HEADERS_DEADLINE, shutdown_timeout=STOP_GRACE
    )
    await runner.setup()
    assert runner.server
    listener.setblocking(False)
    listener.listen(BACKLOG)
    accepting = asyncio.create_task(_accept(listener, runner.server), name=f"accepting {application}")

    async def close() -> None:
        accepting.cancel()
        await asyncio.wait([accepting])
        listener.close()
        await runner.cleanup()

    return close


async def _accept(listener: socket.socket, server: web.Server) -> None:
    """Accept connections until cancelled. When there are more than MOST_VISITORS, the oldest connection is
    closed."""
    loop = asyncio.get_running_loop()
    inside: list[tuple[socket.socket, asyncio.Transport]] = []
    failing = False
    while True:
        try:
            visitor, _ = await loop.sock_accept(listener)
            transport, _ = await loop.connect_accepted_socket(server, visitor)
        except OSError as error:
            if not failing:
                log.warning("visitors of %s wait: %s", listener.getsockname(), error)
            failing = True
            await asyncio.sleep(ACCEPT_PAUSE)
            continue
        failing = False
        inside = [one for one in inside if one[0].fileno() >= 0]
        inside.append((visitor, transport))
        if len(inside) > MOST_VISITORS:
            inside.pop(0)[1].abort()


# -- access --------------------------------------------------------------------------------------------

# The control API has no tokens: only this user can open its socket, and whoever opens it controls the node.
# A TCP server, for metrics or the dashboard, can also be reached by web pages (DNS rebinding): a page may
# give its own host name the address of this machine. The browser then treats our answers as the page's own.
# Such a request carries the page's host name. So a server accepts only known names, and IP addresses, which
# cannot be rebound.
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def known_names(host: str) -> frozenset[str]:
    """Return the host names, in lower case, under which a server that listens at `host` answers."""
    return frozenset({"localhost", socket.gethostname().lower(), host.lower()})


def is_known(host: str, names: Collection[str]) -> bool:
    """Return whether a Host header is a known name or an IP address, which cannot be rebound."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    try:
        ip_address(name)
    except ValueError:
        return name in names
    return True


def is_from_elsewhere(request: web.Request) -> bool:
    """Return whether the headers say that a page of another site sends the request.

    Two headers are checked, because browsers omit Sec-Fetch-Site over plain HTTP to other machines, and
    Origin in requests that change nothing.
    """
    if request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
        return True
    origin = request.headers.get("Origin")
    return origin is not None and origin.partition("://")[2] != request.headers.get("Host")


def only_known_hosts(host: str) -> Middleware:
    """Return middleware that refuses requests of other sites' pages, for a server at `host`."""
    names = known_names(host)

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not is_known(request.headers.get("Host", ""), names):
            return web.Response(status=421, text="Not known under that name: use the IP address.\n")
        if is_from_elsewhere(request):
            return web.Response(status=403, text="Pages of other sites are not answered.\n")
        return await handler(request)

    return check


def bind_private(path: Path) -> socket.socket:
    """Return a bound Unix socket at `path` that only this user can open."""
    path.unlink(missing_ok=True)  # left by a node that was killed; the data folder's lock is ours
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(mask)
    return listener

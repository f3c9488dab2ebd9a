"""Access to the control API, and protection of other local HTTP servers from pages of other sites.

The control API has no tokens: whoever can open its socket, which is this user alone, may ask and direct the
node. A TCP server, of metrics or of the dashboard, is also reached by pages (DNS rebinding): a page may give
its own host name the address of this machine, and its browser then takes our answers for those of the page.
Such a request carries the page's name: so a server answers to IP addresses, which cannot be rebound, and to
names that it knows. Knows no routes.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Collection
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def known_names(host: str) -> frozenset[str]:
    """Return the names of a server that was told to listen at `host`."""
    return frozenset({"localhost", socket.gethostname().lower(), host.lower()})


def is_known(host: str, names: Collection[str]) -> bool:
    """Return whether a Host header is an IP address, which cannot be rebound, or a name that is known."""
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
    """Return whether the browser says that a page of another site sends the request.

    Neither header is always there: the first is missing over plain HTTP to other machines, the second in
    requests that change nothing.
    """
    if request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
        return True
    origin = request.headers.get("Origin")
    return origin is not None and origin.partition("://")[2] != request.headers.get("Host")


def only_known_hosts(host: str) -> Middleware:
    """Return middleware that refuses what the page of another site has sent, for a server at `host`."""
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
    """Return a listening Unix socket that only this user can open."""
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

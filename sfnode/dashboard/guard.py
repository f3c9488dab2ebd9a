"""Who may use the web dashboard: checks of every request, and the headers of every answer.

The dashboard shows what the control socket says, which only the node's user can open. So it listens on this
machine alone unless there is a token; it answers to no name that a stranger's page could have invented (DNS
rebinding), gives nothing to pages of other sites, and lets its own page load nothing from anywhere else.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

ANSWERS = "/api/"
"""Where the paths begin under which the node is asked; the others are files."""

NO_TOKEN = (
    "This dashboard needs its token. Open the whole address that the node printed, with ?token= in it.\n"
)
WRONG_HOST = (
    "This dashboard is not known under that name. Use its IP address, or the name it was started with.\n"
)


class _Passport(NamedTuple):
    """What a browser shows that has shown the token: a cookie, which fits whatever the token is made of."""

    name: str
    """With the port in it: cookies know no ports."""
    value: str


def guard(host: str, port: int, token: str) -> Middleware:
    """Middleware for a dashboard that listens at `host` and `port`; an empty `token`: for anybody."""
    names = {"localhost", socket.gethostname().lower(), host.lower()}
    passport = _Passport(f"sfnode-{port}", hashlib.sha256(token.encode()).hexdigest())

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        answer = _refusal(request, names)
        if answer is None and token:
            answer = _login(request, token, passport)
        if answer is None:
            try:
                answer = await handler(request)
            except web.HTTPException as error:
                answer = web.Response(status=error.status, text=f"{error.reason}\n")
        answer.headers.update(HEADERS)
        return answer

    return check


def is_local(host: str) -> bool:
    """Whether only this machine reaches that address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _refusal(request: web.Request, names: set[str]) -> web.StreamResponse | None:
    """For a request that no page of ours has sent."""
    if not _is_ours(request.headers.get("Host", ""), names):
        return web.Response(status=421, text=WRONG_HOST)
    plain = request.method == "POST" and request.content_type != "application/json"
    if plain or (request.path.startswith(ANSWERS) and _is_from_elsewhere(request)):
        return web.Response(status=403, text="Only pages of the dashboard itself may ask for this.\n")
    return None


def _is_from_elsewhere(request: web.Request) -> bool:
    """Whether a browser says that a page of another site asks. Neither header is always there: the first is
    missing over plain HTTP to other machines, the second in questions that change nothing."""
    if request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
        return True
    origin = request.headers.get("Origin")
    return origin is not None and origin.partition("://")[2] != request.headers.get("Host")


def _is_ours(host: str, names: set[str]) -> bool:
    """An IP address cannot be rebound; of names only those that are known."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    try:
        ip_address(name)
    except ValueError:
        return name in names
    return True


def _login(request: web.Request, token: str, passport: _Passport) -> web.StreamResponse | None:
    """None for who has shown the token before; who shows it now is given a cookie and sent to the page."""
    bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if _same(request.cookies.get(passport.name, ""), passport.value) or _same(bearer, token):
        return None
    if request.method == "GET" and _same(request.query.get("token", ""), token):
        answer = web.Response(status=303, headers={"Location": "/"})
        # Lax, as a browser that comes from a link in a chat would not send a Strict one on to the page
        answer.set_cookie(*passport, httponly=True, samesite="Lax", path="/")
        return answer
    return web.Response(status=401, text=NO_TOKEN)


def _same(given: str, token: str) -> bool:
    """In constant time."""
    return hmac.compare_digest(given.encode(errors="surrogateescape"), token.encode())

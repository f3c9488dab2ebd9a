"""Access to the web dashboard: checks of every request, and the headers of every answer.

The dashboard shows what the control socket answers, which only the node's user can open, and a port is open
to every user of the machine. So there is always a token, without which it answers nothing. It answers to no
host name that another page could have made up (DNS rebinding), gives nothing to pages of other sites, and
lets its own page load nothing from elsewhere.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import NamedTuple

from aiohttp import web
from aiohttp.typedefs import Middleware

from sfnode.control.access import Handler, is_from_elsewhere, is_known, known_names

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
"""Prefix of the paths that ask the node; other paths are files."""

NO_TOKEN = (
    "This dashboard needs its token. Open the whole address that the node printed, with ?token= in it.\n"
)
WRONG_HOST = (
    "This dashboard is not known under that name. Use its IP address, or the name it was started with.\n"
)


class _Cookie(NamedTuple):
    """The cookie of a browser that has presented the token; its value is a hash, which fits any token."""

    name: str
    """Contains the port, because cookies are shared by all ports of a host."""
    value: str


def guard(host: str, port: int, token: str) -> Middleware:
    """Return middleware for a dashboard at `host` and `port` that lets in whoever has the token."""
    names = known_names(host)
    cookie = _Cookie(f"sfnode-{port}", hashlib.sha256(token.encode()).hexdigest())

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        answer = _refusal(request, names)
        if answer is None:
            answer = _login(request, token, cookie)
        if answer is None:
            try:
                answer = await handler(request)
            except web.HTTPException as error:
                answer = web.Response(status=error.status, text=f"{error.reason}\n")
        answer.headers.update(HEADERS)
        return answer

    return check


def _refusal(request: web.Request, names: frozenset[str]) -> web.StreamResponse | None:
    """Return the refusal of a request that no page of ours has sent; None for the others."""
    if not is_known(request.headers.get("Host", ""), names):
        return web.Response(status=421, text=WRONG_HOST)
    plain = request.method == "POST" and request.content_type != "application/json"
    if plain or (request.path.startswith(ANSWERS) and is_from_elsewhere(request)):
        return web.Response(status=403, text="Only pages of the dashboard itself may ask for this.\n")
    return None


def _login(request: web.Request, token: str, cookie: _Cookie) -> web.StreamResponse | None:
    """Return None for a visitor with the cookie; give a cookie for the token; refuse everybody else."""
    bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if _same(request.cookies.get(cookie.name, ""), cookie.value) or _same(bearer, token):
        return None
    if request.method == "GET" and _same(request.query.get("token", ""), token):
        answer = web.Response(status=303, headers={"Location": "/"})
        # Lax: a browser that comes from a link in a chat would not send a Strict cookie
        answer.set_cookie(*cookie, httponly=True, samesite="Lax", path="/")
        return answer
    return web.Response(status=401, text=NO_TOKEN)


def _same(given: str, token: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode(errors="surrogateescape"), token.encode())

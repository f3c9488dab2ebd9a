"""The web dashboard: static files, and JSON answers made from the control socket's answers.

The dashboard may run in the node's process or in its own. In both cases it reaches the node only through the
client.

Only the node's user may see the contents of the dashboard, but every user of the machine can reach its port.
So the server always requires a token. Against DNS rebinding it accepts only known host names. It refuses
requests from other sites' pages, and its own page loads nothing from elsewhere.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from mimetypes import guess_type
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from aiohttp import web
from aiohttp.typedefs import Middleware
from pydantic import ValidationError, validate_call

from sfnode.control import web_server
from sfnode.control.client import Client
from sfnode.control.server import Seconds, get, invalid, post
from sfnode.control.server import error as refusal
from sfnode.control.web_server import Handler, is_from_elsewhere, is_known, known_names
from sfnode.dashboard import snapshot
from sfnode.dashboard.formatting import REACHES, limits_in_words, qr_svg
from sfnode.dashboard.quality import quality
from sfnode.errors import NO_ANSWER, Code, UserError
from sfnode.printable import command
from sfnode.schema.metrics import kind_in_words, measured, moved_in_words, trained_by
from sfnode.schema.node_state import NodeState
from sfnode.schema.results import InviteResult
from sfnode.schema.views import Count, KeyStart, Page, Prompt, Tokens

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
"""Prefix of the paths whose answers come from the node. All other paths are files."""

NO_TOKEN = (
    "This dashboard needs its token. Open the whole address that the node printed, with ?token= in it.\n"
)
WRONG_HOST = (
    "This dashboard is not known under that name. Use its IP address, or the name it was started with.\n"
)


# -- access: the checks of every request, the headers of every answer ----------------------------------


def guard(host: str, port: int, token: str) -> Middleware:
    """Return middleware for a dashboard at `host` and `port` that requires the token."""
    names = known_names(host)
    # Cookie of a visitor who presented the token. Browsers send it to all ports of this host, so also to
    # servers of other users. So its name has the port. Its value reveals nothing of the token and opens no
    # other dashboard.
    cookie = f"sfnode-{port}", secrets.token_urlsafe(24)

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
    """Return the refusal of a request that another site's page sent; None for other requests."""
    if not is_known(request.headers.get("Host", ""), names):
        return web.Response(status=421, text=WRONG_HOST)
    plain = request.method == "POST" and request.content_type != "application/json"
    if plain or (request.path.startswith(ANSWERS) and is_from_elsewhere(request)):
        return web.Response(status=403, text="Only pages of the dashboard itself may ask for this.\n")
    return None


def _login(request: web.Request, token: str, cookie: tuple[str, str]) -> web.StreamResponse | None:
    """Return None for a visitor with the cookie or with the token in a header. Return a redirection that sets
    the cookie for a visitor with the token in the URL, and a refusal for everybody else."""
    bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if _same(request.cookies.get(cookie[0], ""), cookie[1]) or _same(bearer, token):
        return None
    if request.method == "GET" and _same(request.query.get("token", ""), token):
        answer = web.Response(status=303, headers={"Location": "/"})
        # Lax: after a click on a link in a chat, browsers do not send Strict cookies
        answer.set_cookie(*cookie, httponly=True, samesite="Lax", path="/")
        return answer
    return web.Response(status=401, text=NO_TOKEN)


def _same(given: str, token: str) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(given.encode(errors="surrogateescape"), token.encode())


STATIC = Path(__file__).with_name("static")

NO_CONTROL = (
    "this dashboard only shows: start it with --dashboard-control to direct the node here, or use "
    "`sfnode pause`, `sfnode limit` and `sfnode leave`"
)


def now_in_words(now: snapshot.Now) -> dict[str, Any]:
    """Return the answer that the page requests every two seconds: three of the node's answers, with sentences
    that describe them."""
    drift = now.status.drift
    return {
        **now._asdict(),
        "alarms": snapshot.alarms(now.status),
        "doing": snapshot.doing(now),
        "together": snapshot.together(now),
        "agreement": {node.peer: snapshot.agreement(node, now.known) for node in now.near},
        "limits": limits_in_words(now.status.limits),
        "trained": trained_by(now.status.task),
        "moved": f"{moved_in_words(drift.distance)}.".capitalize() if drift else "",
    }


@asynccontextmanager
async def serving(
    client: Client, host: str, port: int, token: str = "", *, control: bool = False
) -> AsyncIterator[str]:
    """Serve the dashboard within the block, and yield the URL to open.

    Every user of this machine can reach the dashboard and, depending on `host`, users of other machines can,
    too. So a token is generated if none is given. If `control` is set, a visitor with the token may also
    pause, limit and end the node. Raises UserError PORT_IN_USE.
    """
    token = token or secrets.token_urlsafe(24)
    listener = _bind(host, port)
    bound = int(listener.getsockname()[1])
    application = web.Application(middlewares=[guard(host, bound, token), _errors_as_json])
    application.add_routes(
        [*_pages(), *_answers(client, control), *_invitation(client), *_orders(client, control)]
    )
    close = await web_server.serve(application, listener)
    try:
        yield _url(host, bound, token)
    finally:
        await close()


def _bind(host: str, port: int) -> socket.socket:
    try:
        return web_server.bind(host, port)
    except OSError as error:
        raise UserError(
            Code.PORT_IN_USE,
            f"the dashboard cannot listen at {host} port {port}: {error.strerror or error}",
            "Name another port, or 0 for any free one.",
        ) from error


def _url(host: str, port: int, token: str) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/?{urlencode({'token': token})}"


def _pages() -> list[web.RouteDef]:
    """Return the routes of the static files. A file's path is its name, and the page itself is at /."""

    def page(file: Path) -> Callable[[web.Request], Awaitable[web.Response]]:
        body, kind = file.read_bytes(), guess_type(file.name)[0] or "text/plain"

        async def answer(_: web.Request) -> web.Response:
            return web.Response(body=body, content_type=kind, charset="utf-8")

        return answer

    files = {f"/{file.name}": page(file) for file in sorted(STATIC.iterdir()) if file.is_file()}
    return [web.get("/", files["/index.html"]), *(web.get(name, files[name]) for name in files)]


def _answers(client: Client, control: bool) -> list[web.RouteDef]:
    """Return the routes by which the page asks the node for information, evaluations and generated text."""

    async def about() -> Any:
        found = await client.about()
        return {"about": found, "task": kind_in_words(found.task), "control": control}

    async def now() -> Any:
        return now_in_words(await snapshot.look(client))

    async def own() -> Any:
        standing, status = await asyncio.gather(client.standing(), client.status())
        return {"own": standing, "words": snapshot.contributed(status, standing)}

    async def model() -> Any:
        status = await client.status()
        evaluations = (await client.organising()).evaluations if status.organised else []
        measurements = [] if status.organised else (await client.curves()).measurements
        return {"quality": quality(status, measurements, evaluations)}

    async def timeline() -> Any:
        found = await client.timeline()
        told = ((one.position, one.evaluation) for one in found.entries)
        return {**dict(found), "measured": {at: measured(one) for at, one in told if one and at is not None}}

    async def evaluate() -> Any:
        await snapshot.measure(client)
        return await client.curves()

    def origins(offset: Count = 0, limit: Page = 100, find: KeyStart = "") -> Awaitable[Any]:
        return client.origins(offset=offset, limit=limit, find=find)

    def generate(prompt: Prompt, tokens: Tokens = 32) -> Awaitable[Any]:
        return client.generate(prompt, tokens=tokens)

    return [
        get("/api/now", now),
        get("/api/curves", client.curves),
        get("/api/about", about),
        get("/api/own", own),
        get("/api/quality", model),
        get("/api/samples", client.samples),
        get("/api/timeline", timeline),
        get("/api/origins", origins),
        get("/api/history", lambda: client.history()),
        post("/api/generate", generate),
        post("/api/evaluate", evaluate),
    ]


def _invitation(client: Client) -> list[web.RouteDef]:
    """Return the routes of the invitation link."""

    async def link() -> InviteResult | None:
        status = await client.status()
        if status.state == NodeState.COMPLETE:
            return None
        try:
            return await client.invitation()
        except UserError as error:
            if error.code != Code.NO_ADDRESS:
                raise
            return None

    async def invitation() -> dict[str, str]:
        found = await link()
        if found is None:
            return {"command": "", "note": ""}
        return {"command": command("sfnode", "join", found.link), "note": REACHES[found.reach]}

    async def code(_: web.Request) -> web.Response:
        found = await link()
        return web.Response(body=qr_svg(found.link if found else ""), content_type="image/svg+xml")

    return [get("/api/invitation", invitation), web.get("/api/invitation.svg", code)]


def _orders(client: Client, control: bool) -> list[web.RouteDef]:
    """Return the routes with which the page controls the node. Without `control` they refuse every
    request."""

    def order(name: str, carry_out: Callable[..., Awaitable[object]]) -> web.RouteDef:
        async def ordered(**wanted: Any) -> dict[str, bool]:
            await carry_out(**wanted)
            return {"done": True}

        async def refused(_: web.Request) -> web.Response:
            return refusal(403, NO_CONTROL)

        return post(f"/api/{name}", ordered) if control else web.post(f"/api/{name}", refused)

    @validate_call
    def pause(seconds: Seconds = None) -> Awaitable[object]:
        return client.pause(seconds)

    return [
        order("pause", pause),
        order("resume", lambda **_: client.resume()),
        order("limits", lambda **changes: client.limit(changes)),
        order("leave", lambda **_: client.leave()),
    ]


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer a request that failed with its error, as JSON. Status 503 tells the page that no node answers
    yet, and the page then waits."""
    try:
        return await handler(request)
    except ValidationError as error:
        return invalid(error)
    except UserError as error:
        return refusal(503 if error.code in NO_ANSWER else 409, error.what)

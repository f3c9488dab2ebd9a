"""The web dashboard: a few static files and a few JSON answers, which are those of the control socket.

It may run inside a node's process or beside it; either way all it knows comes through the client. Whom it
lets in is the business of `guard`.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from mimetypes import guess_type
from pathlib import Path
from urllib.parse import urlencode

from aiohttp import web
from pydantic import BaseModel, ValidationError

from sfnode.client import Client
from sfnode.dashboard.guard import guard, is_local
from sfnode.dashboard.seen import Now, Words, agreement, doing, look, measure, together
from sfnode.errors import Code, UserError
from sfnode.runtime.status import Answer, Status
from sfnode.runtime.viewed import GenerateRequest, OriginsQuery, Progress, Swarm

STATIC = Path(__file__).with_name("static")

STOP_GRACE = 0.3
"""Seconds that answers under way have when the dashboard stops."""


class NowAnswer(Answer):
    """What the page asks for every two seconds: three answers of the node, and in words what they mean."""

    status: Status
    progress: Progress
    swarm: Swarm
    doing: Words
    together: Words
    agreement: dict[str, Words]
    """By neighbour."""
    limits: dict[str, str]
    """Those in force, as people write them."""

    @classmethod
    def of(cls, now: Now) -> NowAnswer:
        return cls(
            **now._asdict(),
            doing=doing(now),
            together=together(now),
            agreement={node.peer: agreement(node, now.known) for node in now.near},
            limits=now.status.limits.told(),
        )


@asynccontextmanager
async def serving(client: Client, host: str, port: int, token: str = "") -> AsyncIterator[str]:
    """Serve the dashboard within the block; yields the URL to open.

    Where others than this machine can reach it there is always a token: one is made up if none is given.
    Raises UserError PORT_IN_USE.
    """
    token = token or ("" if is_local(host) else secrets.token_urlsafe(24))
    listener = _bind(host, port)
    bound = int(listener.getsockname()[1])
    application = web.Application(middlewares=[guard(host, bound, token), _errors_as_json])
    application.add_routes([*_pages(), *_answers(client)])
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=STOP_GRACE)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        yield _url(host, bound, token)
    finally:
        await runner.cleanup()


def _bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UserError(
            Code.PORT_IN_USE,
            f"the dashboard cannot listen at {host} port {port}: {error.strerror or error}",
            "Name another port, or 0 for any free one.",
        ) from error


def _url(host: str, port: int, token: str) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/" + (f"?{urlencode({'token': token})}" if token else "")


def _pages() -> list[web.RouteDef]:
    """The static files, each by its name; the page itself at /."""

    def page(file: Path) -> Callable[[web.Request], Awaitable[web.Response]]:
        body, kind = file.read_bytes(), guess_type(file.name)[0] or "text/plain"

        async def answer(_: web.Request) -> web.Response:
            return web.Response(body=body, content_type=kind, charset="utf-8")

        return answer

    files = {f"/{file.name}": page(file) for file in sorted(STATIC.iterdir()) if file.is_file()}
    return [web.get("/", files["/index.html"]), *(web.get(name, files[name]) for name in files)]


def _answers(client: Client) -> list[web.RouteDef]:
    """What the page asks for."""

    async def now(_: web.Request) -> web.Response:
        return _json(NowAnswer.of(await look(client)))

    async def curves(_: web.Request) -> web.Response:
        return _json(await client.curves())

    async def origins(request: web.Request) -> web.Response:
        query = OriginsQuery.model_validate(dict(request.query))
        return _json(await client.origins(**query.model_dump()))

    async def history(_: web.Request) -> web.Response:
        return _json(await client.history())

    async def generate(request: web.Request) -> web.Response:
        wanted = GenerateRequest.model_validate_json(await request.read())
        return _json(await client.generate(**wanted.model_dump()))

    async def evaluate(_: web.Request) -> web.Response:
        await measure(client)
        return _json(await client.curves())

    return [
        web.get("/api/now", now),
        web.get("/api/curves", curves),
        web.get("/api/origins", origins),
        web.get("/api/history", history),
        web.post("/api/generate", generate),
        web.post("/api/evaluate", evaluate),
    ]


@web.middleware
async def _errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """A node that is not there is an answer too: the page waits for it."""
    try:
        return await handler(request)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return _error(400, f"{'.'.join(map(str, first['loc'])) or 'the request'}: {first['msg']}")
    except UserError as error:
        return _error(503 if error.code == Code.NODE_NOT_RUNNING else 409, error.what)


def _json(model: BaseModel) -> web.Response:
    return web.Response(text=model.model_dump_json(), content_type="application/json")


def _error(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)

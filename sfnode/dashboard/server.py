"""The web dashboard: static files, and JSON answers made from those of the control socket.

It may run in the node's process or in one of its own; either way it knows the node only through the client.
Access is checked by `sfnode.dashboard.access`.
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
from pydantic import ValidationError

from sfnode.control.answers import answer, invalid
from sfnode.control.answers import error as refusal
from sfnode.control.client import Client
from sfnode.dashboard.access import guard, is_local
from sfnode.dashboard.formatting import limits_in_words
from sfnode.dashboard.snapshot import Now, Words, agreement, alarms, doing, health, look, measure, together
from sfnode.errors import NO_ANSWER, Code, UserError
from sfnode.schema.base import Answer
from sfnode.schema.status import Status
from sfnode.schema.views import GenerateRequest, OriginsQuery, Progress, Swarm

STATIC = Path(__file__).with_name("static")

STOP_GRACE = 0.3
"""Seconds that answers under way have when the dashboard stops."""


class NowAnswer(Answer):
    """The answer that the page asks for every two seconds: three answers of the node, and what they mean."""

    status: Status
    progress: Progress
    swarm: Swarm
    alarms: list[Words]
    doing: Words
    health: Words | None
    together: Words
    agreement: dict[str, Words]
    """State of each neighbour compared with ours, by peer id."""
    limits: dict[str, str]
    """Limits in force, formatted for people."""

    @classmethod
    def of(cls, now: Now) -> NowAnswer:
        return cls(
            **now._asdict(),
            alarms=alarms(now.status),
            doing=doing(now),
            health=health(now.status),
            together=together(now),
            agreement={node.peer: agreement(node, now.known) for node in now.near},
            limits=limits_in_words(now.status.limits),
        )


@asynccontextmanager
async def serving(client: Client, host: str, port: int, token: str = "") -> AsyncIterator[str]:
    """Serve the dashboard within the block, and yield the URL to open.

    If other machines can reach it there is always a token; one is generated if none is given.
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
    """Return the routes of the static files, by their names; the page itself is at /."""

    def page(file: Path) -> Callable[[web.Request], Awaitable[web.Response]]:
        body, kind = file.read_bytes(), guess_type(file.name)[0] or "text/plain"

        async def answer(_: web.Request) -> web.Response:
            return web.Response(body=body, content_type=kind, charset="utf-8")

        return answer

    files = {f"/{file.name}": page(file) for file in sorted(STATIC.iterdir()) if file.is_file()}
    return [web.get("/", files["/index.html"]), *(web.get(name, files[name]) for name in files)]


def _answers(client: Client) -> list[web.RouteDef]:
    """Return the routes that the page asks."""

    async def now(_: web.Request) -> web.Response:
        return answer(NowAnswer.of(await look(client)))

    async def curves(_: web.Request) -> web.Response:
        return answer(await client.curves())

    async def seals(_: web.Request) -> web.Response:
        return answer(await client.organising())

    async def origins(request: web.Request) -> web.Response:
        query = OriginsQuery.model_validate(dict(request.query))
        return answer(await client.origins(**query.model_dump()))

    async def history(_: web.Request) -> web.Response:
        return answer(await client.history())

    async def generate(request: web.Request) -> web.Response:
        wanted = GenerateRequest.model_validate_json(await request.read())
        return answer(await client.generate(**wanted.model_dump()))

    async def evaluate(_: web.Request) -> web.Response:
        await measure(client)
        return answer(await client.curves())

    return [
        web.get("/api/now", now),
        web.get("/api/curves", curves),
        web.get("/api/seals", seals),
        web.get("/api/origins", origins),
        web.get("/api/history", history),
        web.post("/api/generate", generate),
        web.post("/api/evaluate", evaluate),
    ]


@web.middleware
async def _errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer errors as JSON; 503 says that no node answers, and the page waits for one."""
    try:
        return await handler(request)
    except ValidationError as error:
        return invalid(error)
    except UserError as error:
        return refusal(503 if error.code in NO_ANSWER else 409, error.what)

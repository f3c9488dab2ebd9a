"""The web dashboard: static files, and JSON answers made from those of the control socket.

It may run in the node's process or in one of its own; either way it knows the node only through the client.
Access is checked by `sfnode.dashboard.access`.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from mimetypes import guess_type
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from sfnode.control.client import Client
from sfnode.control.routes import PauseRequest, answer, invalid
from sfnode.control.routes import error as refusal
from sfnode.dashboard.access import guard
from sfnode.dashboard.formatting import limits_in_words
from sfnode.dashboard.quality import Quality, quality
from sfnode.dashboard.snapshot import (
    Now,
    Words,
    agreement,
    alarms,
    contributed,
    doing,
    look,
    measure,
    together,
)
from sfnode.errors import NO_ANSWER, Code, UserError
from sfnode.schema.base import Answer
from sfnode.schema.metrics import METRICS, Trained, drift_in_words, task_of, trained_by
from sfnode.schema.status import Status
from sfnode.schema.views import (
    About,
    GenerateRequest,
    OriginsQuery,
    OwnStanding,
    Progress,
    Swarm,
    Timeline,
)

STATIC = Path(__file__).with_name("static")

NO_CONTROL = (
    "this dashboard only shows: start it with --dashboard-control to direct the node here, or use "
    "`sfnode pause`, `sfnode limit` and `sfnode leave`"
)

_BODY: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])

STOP_GRACE = 0.3
"""Seconds that answers under way have when the dashboard stops."""


class NowAnswer(Answer):
    """The answer that the page asks for every two seconds: three answers of the node, and what they mean."""

    status: Status
    progress: Progress
    swarm: Swarm
    alarms: list[Words]
    doing: Words
    together: Words
    agreement: dict[str, Words]
    """State of each neighbour compared with ours, by peer id."""
    limits: dict[str, str]
    """Limits in force, formatted for people."""
    trained: Trained
    """Word and unit of losses."""
    drift: str
    """Distance of the model that was evaluated last from its base, in words; empty before that."""

    @classmethod
    def of(cls, now: Now) -> NowAnswer:
        drift = now.status.drift
        return cls(
            **now._asdict(),
            alarms=alarms(now.status),
            doing=doing(now),
            together=together(now),
            agreement={node.peer: agreement(node, now.known) for node in now.near},
            limits=limits_in_words(now.status.limits),
            trained=trained_by(now.status.task),
            drift=drift_in_words(drift.distance, drift.kl) if drift else "",
        )


class AboutAnswer(Answer):
    """The purpose of the run, and whether whoever sees the page may direct the node."""

    about: About
    task: str
    """Its task in words."""
    control: bool


class QualityAnswer(Answer):
    """The quality of the run's model."""

    quality: Quality


class TimelineAnswer(Timeline):
    """The last decisions, and what metrics are called."""

    names: dict[str, str]


class OwnAnswer(Answer):
    """The contribution of this node, and the same in words."""

    own: OwnStanding
    words: Words


@asynccontextmanager
async def serving(
    client: Client, host: str, port: int, token: str = "", *, control: bool = False
) -> AsyncIterator[str]:
    """Serve the dashboard within the block, and yield the URL to open.

    Every user of this machine can reach it, and others perhaps, too: so there is always a token; one is
    generated if none is given. With `control` whoever has it may also pause, limit and end the node. Raises
    UserError PORT_IN_USE.
    """
    token = token or secrets.token_urlsafe(24)
    listener = _bind(host, port)
    bound = int(listener.getsockname()[1])
    application = web.Application(middlewares=[guard(host, bound, token), _errors_as_json])
    application.add_routes([*_pages(), *_answers(client, control), *_orders(client, control)])
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
    return f"http://{name}:{port}/?{urlencode({'token': token})}"


def _pages() -> list[web.RouteDef]:
    """Return the routes of the static files, by their names; the page itself is at /."""

    def page(file: Path) -> Callable[[web.Request], Awaitable[web.Response]]:
        body, kind = file.read_bytes(), guess_type(file.name)[0] or "text/plain"

        async def answer(_: web.Request) -> web.Response:
            return web.Response(body=body, content_type=kind, charset="utf-8")

        return answer

    files = {f"/{file.name}": page(file) for file in sorted(STATIC.iterdir()) if file.is_file()}
    return [web.get("/", files["/index.html"]), *(web.get(name, files[name]) for name in files)]


def _answers(client: Client, control: bool) -> list[web.RouteDef]:
    """Return the routes that the page asks."""

    async def about(_: web.Request) -> web.Response:
        found = await client.about()
        return answer(AboutAnswer(about=found, task=task_of(found.task).name, control=control))

    async def now(_: web.Request) -> web.Response:
        return answer(NowAnswer.of(await look(client)))

    async def curves(_: web.Request) -> web.Response:
        return answer(await client.curves())

    async def own(_: web.Request) -> web.Response:
        standing, status = await asyncio.gather(client.standing(), client.status())
        return answer(OwnAnswer(own=standing, words=contributed(status, standing)))

    async def model(_: web.Request) -> web.Response:
        status = await client.status()
        evaluations = (await client.organising()).evaluations if status.organised else []
        measurements = [] if status.organised else (await client.curves()).measurements
        return answer(QualityAnswer(quality=quality(status, measurements, evaluations)))

    async def samples(_: web.Request) -> web.Response:
        return answer(await client.samples())

    async def timeline(_: web.Request) -> web.Response:
        found = await client.timeline()
        names = {name: metric.name for name, metric in METRICS.items()}
        return answer(TimelineAnswer(total=found.total, entries=found.entries, names=names))

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
        web.get("/api/about", about),
        web.get("/api/own", own),
        web.get("/api/quality", model),
        web.get("/api/samples", samples),
        web.get("/api/timeline", timeline),
        web.get("/api/origins", origins),
        web.get("/api/history", history),
        web.post("/api/generate", generate),
        web.post("/api/evaluate", evaluate),
    ]


def _orders(client: Client, control: bool) -> list[web.RouteDef]:
    """Return the routes by which the page directs the node; without `control` they refuse."""

    def order(name: str, carry_out: Callable[[Any], Awaitable[object]]) -> web.RouteDef:
        async def handle(request: web.Request) -> web.Response:
            if not control:
                return refusal(403, NO_CONTROL)
            wanted = _BODY.validate_json(await request.read() or b"{}")
            await carry_out(wanted)
            return web.json_response({"done": True})

        return web.post(f"/api/{name}", handle)

    return [
        order("pause", lambda body: client.pause(PauseRequest.model_validate(body).seconds)),
        order("resume", lambda _: client.resume()),
        order("limits", client.limit),
        order("leave", lambda _: client.leave()),
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

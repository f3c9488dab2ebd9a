"""Routes that a node answers: status, evaluations and views. Wrong queries raise pydantic's ValidationError.

GET /status, /digest, /invitation and /views/...; POST /evaluate {"base": bool, "limit": int} and
/generate {"prompt": text, "tokens": int}. Knows the node by the protocols below.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from sfnode.control.answers import answer
from sfnode.schema import (
    About,
    CoreStatus,
    Curves,
    Feeds,
    Generated,
    History,
    InviteResult,
    NodeEvaluation,
    Origins,
    OwnStanding,
    Progress,
    Samples,
    Status,
    Swarm,
    Timeline,
)
from sfnode.schema.views import FeedsQuery, GenerateRequest, HistoryQuery, OriginsQuery, TimelineQuery


class Views(Protocol):
    """Views of a node (`sfnode.node.views.Views`)."""

    def progress(self) -> Progress: ...
    def curves(self) -> Curves: ...
    def swarm(self) -> Swarm: ...
    def samples(self) -> Samples: ...
    def feeds(self, query: FeedsQuery) -> Feeds: ...
    def invitation(self) -> InviteResult: ...
    async def about(self) -> About: ...
    async def standing(self) -> OwnStanding: ...
    async def timeline(self, query: TimelineQuery) -> Timeline: ...
    async def origins(self, query: OriginsQuery) -> Origins: ...
    async def history(self, query: HistoryQuery) -> History: ...


class Node(Protocol):
    """A node that can be asked."""

    @property
    def views(self) -> Views: ...

    def status(self) -> Status: ...
    async def evaluate(
        self, base: bool, limit: int, calibrated: bool = ..., probe: bool = ...
    ) -> NodeEvaluation: ...
    async def core_status(self) -> CoreStatus: ...
    async def generate(self, prompt: str, tokens: int) -> Generated: ...


class EvaluateRequest(BaseModel):
    """Evaluate the model of the last seal (open run: as of now), or the base model; `limit` 0: all test rows.

    `calibrated`: the base model less its prior. From the trained model it is subtracted where the run's
    loss is centred. `probe`: with a linear probe beside the trained model, where its head alone is trained.
    """

    model_config = ConfigDict(extra="forbid")

    base: bool = False
    calibrated: bool = False
    probe: bool = False
    limit: int = Field(default=0, ge=0)


def routes(node: Node) -> list[web.RouteDef]:
    """Return the routes that change nothing but what the engine is busy with."""
    return [*_at_once(node), *_queries(node.views), *_engine(node)]


def _at_once(node: Node) -> list[web.RouteDef]:
    """Return the routes without parameters that need no waiting."""

    def route(path: str, read: Callable[[], BaseModel]) -> web.RouteDef:
        async def handle(_: web.Request) -> web.Response:
            return answer(read())

        return web.get(path, handle)

    views = node.views
    return [
        route("/status", node.status),
        route("/invitation", views.invitation),
        route("/views/progress", views.progress),
        route("/views/curves", views.curves),
        route("/views/swarm", views.swarm),
        route("/views/samples", views.samples),
    ]


def _queries(views: Views) -> list[web.RouteDef]:
    async def feeds(request: web.Request) -> web.Response:
        return answer(views.feeds(FeedsQuery.model_validate(dict(request.query))))

    async def origins(request: web.Request) -> web.Response:
        return answer(await views.origins(OriginsQuery.model_validate(dict(request.query))))

    async def history(request: web.Request) -> web.Response:
        return answer(await views.history(HistoryQuery.model_validate(dict(request.query))))

    async def about(_: web.Request) -> web.Response:
        return answer(await views.about())

    async def standing(_: web.Request) -> web.Response:
        return answer(await views.standing())

    async def timeline(request: web.Request) -> web.Response:
        return answer(await views.timeline(TimelineQuery.model_validate(dict(request.query))))

    return [
        web.get("/views/about", about),
        web.get("/views/own", standing),
        web.get("/views/timeline", timeline),
        web.get("/views/feeds", feeds),
        web.get("/views/origins", origins),
        web.get("/views/history", history),
    ]


def _engine(node: Node) -> list[web.RouteDef]:
    async def digest(_: web.Request) -> web.Response:
        return answer(await node.core_status())

    async def evaluate(request: web.Request) -> web.Response:
        wanted = EvaluateRequest.model_validate_json(await request.read() or b"{}")
        return answer(await node.evaluate(wanted.base, wanted.limit, wanted.calibrated, wanted.probe))

    async def generate(request: web.Request) -> web.Response:
        wanted = GenerateRequest.model_validate_json(await request.read())
        return answer(await node.generate(wanted.prompt, wanted.tokens))

    return [web.get("/digest", digest), web.post("/evaluate", evaluate), web.post("/generate", generate)]

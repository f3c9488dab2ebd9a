"""Routes of the control API by which the owner of a machine directs the node on it.

POST /pause {"seconds": number or null}, /resume, /finish and /leave; GET and POST /limits. /pause and /resume
answer with the node's status, /limits with the limits in force.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from sfnode.control.answers import answer
from sfnode.limits import Limits
from sfnode.schema import Status

_CHANGES: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])

MOST_PAUSE = 366 * 24 * 3600
"""Seconds of the longest pause; a longer one is a pause without an end."""


class Limiter(Protocol):
    """The part of a node that keeps its owner's limits (`sfnode.resources.limiter`)."""

    @property
    def limits(self) -> Limits: ...

    def pause(self, seconds: float | None) -> None: ...
    def resume(self) -> None: ...
    async def limit(self, changes: Mapping[str, Any]) -> None: ...


class Node(Protocol):
    """A node that its owner can pause, limit and end."""

    @property
    def limiter(self) -> Limiter: ...

    def status(self) -> Status: ...
    def finish(self) -> None: ...
    def stop(self) -> None: ...


class PauseRequest(BaseModel):
    """Compute nothing for so many seconds; without an end if that is null."""

    model_config = ConfigDict(extra="forbid")

    seconds: float | None = Field(default=None, gt=0, le=MOST_PAUSE)


def routes(node: Node) -> list[web.RouteDef]:
    """Return the owner's routes."""

    async def pause(request: web.Request) -> web.Response:
        wanted = PauseRequest.model_validate_json(await request.read() or b"{}")
        node.limiter.pause(wanted.seconds)
        return answer(node.status())

    async def resume(_: web.Request) -> web.Response:
        node.limiter.resume()
        return answer(node.status())

    async def finish(_: web.Request) -> web.Response:
        node.finish()
        return web.json_response({"finishing": True})

    async def leave(_: web.Request) -> web.Response:
        node.stop()
        return web.json_response({"leaving": True})

    async def limits(_: web.Request) -> web.Response:
        return answer(node.limiter.limits)

    async def limit(request: web.Request) -> web.Response:
        await node.limiter.limit(_CHANGES.validate_json(await request.read()))
        return answer(node.limiter.limits)

    posts = (("pause", pause), ("resume", resume), ("finish", finish), ("leave", leave), ("limits", limit))
    return [web.get("/limits", limits), *(web.post(f"/{name}", handler) for name, handler in posts)]

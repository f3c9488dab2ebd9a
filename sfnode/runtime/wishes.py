"""What the owner of a machine says to the node on it, as routes of the control API.

POST /pause {"seconds": number or null}, /resume, /finish and /leave; GET and POST /limits. The answer to a
pause and to its end is the node's status, that to limits are those in force.
"""

from __future__ import annotations

from typing import Any, Protocol

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from sfnode.runtime.guest import Guest
from sfnode.runtime.status import Status

_CHANGES: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])

MOST_PAUSE = 366 * 24 * 3600
"""Seconds; whoever wants more wants no end."""


class Host(Protocol):
    """What these routes ask of a node."""

    @property
    def guest(self) -> Guest: ...

    def status(self) -> Status: ...
    def finish(self) -> None: ...
    def stop(self) -> None: ...


class PauseRequest(BaseModel):
    """Compute nothing for so long; without an end if that is null."""

    model_config = ConfigDict(extra="forbid")

    seconds: float | None = Field(default=None, gt=0, le=MOST_PAUSE)


def routes(node: Host) -> list[web.RouteDef]:
    """To be added to those of the control API, which makes answers of errors."""

    async def pause(request: web.Request) -> web.Response:
        wanted = PauseRequest.model_validate_json(await request.read() or b"{}")
        node.guest.pause(wanted.seconds)
        return _json(node.status())

    async def resume(_: web.Request) -> web.Response:
        node.guest.resume()
        return _json(node.status())

    async def finish(_: web.Request) -> web.Response:
        node.finish()
        return web.json_response({"finishing": True})

    async def leave(_: web.Request) -> web.Response:
        node.stop()
        return web.json_response({"leaving": True})

    async def limits(_: web.Request) -> web.Response:
        return _json(node.guest.limits)

    async def limit(request: web.Request) -> web.Response:
        await node.guest.limit(_CHANGES.validate_json(await request.read()))
        return _json(node.guest.limits)

    posts = (("pause", pause), ("resume", resume), ("finish", finish), ("leave", leave), ("limits", limit))
    return [web.get("/limits", limits), *(web.post(f"/{name}", handler) for name, handler in posts)]


def _json(model: BaseModel) -> web.Response:
    return web.Response(text=model.model_dump_json(), content_type="application/json")

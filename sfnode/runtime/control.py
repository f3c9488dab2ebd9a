"""The local control API: HTTP with JSON on a Unix socket that only the node's user can open.

Routes: GET /status, GET /metrics, POST /evaluate {"base": bool, "limit": int}, GET /digest, and
those of `views` and `wishes`. Whatever a view shows it reads here, so a program can read it too. Errors are
{"error": text} with status 4xx or 5xx, and with "code" and "fix" where they have a number.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sfnode.errors import UserError
from sfnode.observe import log
from sfnode.runtime import metrics, views, wishes
from sfnode.runtime.status import CoreStatus, EvaluationStatus
from sfnode.runtime.viewed import Generated
from sfnode.store.faults import disk_faults

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

STOP_GRACE = 0.3
"""Seconds that answers under way have when the node stops."""


class Node(wishes.Host, Protocol):
    """What the API asks of a node."""

    @property
    def views(self) -> views.Views: ...

    async def evaluate(self, base: bool, limit: int) -> EvaluationStatus: ...
    async def core_status(self) -> CoreStatus: ...
    async def generate(self, prompt: str, tokens: int) -> Generated: ...


class EvaluateRequest(BaseModel):
    """Evaluate the model as of now, or the base model; `limit` 0 means all test rows."""

    model_config = ConfigDict(extra="forbid")

    base: bool = False
    limit: int = Field(default=0, ge=0)


async def serve(node: Node, path: Path) -> Callable[[], Awaitable[None]]:
    """Listen on the Unix socket `path` (mode 0600); returns the function that stops listening.

    Raises UserError DATA_DIR_UNUSABLE or DISK_FULL.
    """
    application = web.Application(middlewares=[_errors_as_json])
    application.add_routes(_routes(node))
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=STOP_GRACE)
    await runner.setup()
    with disk_faults(path):
        listener = _bind(path)
    await web.SockSite(runner, listener).start()

    async def close() -> None:
        await runner.cleanup()
        with suppress(FileNotFoundError):
            os.unlink(path)

    return close


def _routes(node: Node) -> list[web.RouteDef]:
    async def status(_: web.Request) -> web.Response:
        return _json(node.status())

    async def evaluate(request: web.Request) -> web.Response:
        wanted = EvaluateRequest.model_validate_json(await request.read() or b"{}")
        return _json(await node.evaluate(wanted.base, wanted.limit))

    async def digest(_: web.Request) -> web.Response:
        return _json(await node.core_status())

    return [
        *views.routes(node.views, node.generate),
        *wishes.routes(node),
        web.get("/status", status),
        metrics.route(node),
        web.post("/evaluate", evaluate),
        web.get("/digest", digest),
    ]


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What goes wrong with a request is its sender's to hear, and no reason for the node to end."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return _error(error.status, error.reason)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return _error(400, f"{'.'.join(map(str, first['loc'])) or 'the request'}: {first['msg']}")
    except UserError as error:
        return _error(409, error.what, code=int(error.code), fix=error.fix)
    except Exception as error:
        log.exception("answering %s %s", request.method, request.path)
        return _error(500, f"{type(error).__name__}: {error}")


def _bind(path: Path) -> socket.socket:
    """A listening Unix socket that only this user can open."""
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


def _json(model: BaseModel) -> web.Response:
    return web.Response(text=model.model_dump_json(), content_type="application/json")


def _error(status: int, text: str, **more: object) -> web.Response:
    return web.json_response({"error": text, **more}, status=status)

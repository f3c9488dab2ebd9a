"""The local control API: HTTP with JSON on a Unix socket that only the node's user can open.

Routes: GET /status, POST /evaluate {"base": bool, "limit": int}, GET /digest, POST /stop. Whatever a view
shows it reads here, so a program can read it too. Errors are {"error": text} with status 4xx or 5xx.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from aiohttp import web
from pydantic import BaseModel

from sfnode.runtime.status import CoreStatus, EvaluationStatus, Status

STOP_GRACE = 0.3
"""Seconds that answers under way have when the node stops."""


class Node(Protocol):
    """What the API asks of a node."""

    def status(self) -> Status: ...
    async def evaluate(self, base: bool, limit: int) -> EvaluationStatus: ...
    async def core_status(self) -> CoreStatus: ...
    def stop(self) -> None: ...


class EvaluateRequest(BaseModel):
    """Evaluate the model as of now, or the base model; `limit` 0 means all test rows."""

    base: bool = False
    limit: int = 0


async def serve(node: Node, path: Path) -> Callable[[], Awaitable[None]]:
    """Listen on the Unix socket `path` (mode 0600); returns the function that stops listening."""
    application = web.Application()

    async def status(_: web.Request) -> web.Response:
        return _json(node.status())

    async def evaluate(request: web.Request) -> web.Response:
        try:
            wanted = EvaluateRequest.model_validate_json(await request.read() or b"{}")
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)
        if node.status().role == "relay":
            return web.json_response({"error": "a relay holds no model"}, status=409)
        return _json(await node.evaluate(wanted.base, wanted.limit))

    async def digest(_: web.Request) -> web.Response:
        return _json(await node.core_status())

    async def stop(_: web.Request) -> web.Response:
        node.stop()
        return web.json_response({"stopping": True})

    application.add_routes(
        [
            web.get("/status", status),
            web.post("/evaluate", evaluate),
            web.get("/digest", digest),
            web.post("/stop", stop),
        ]
    )
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=STOP_GRACE)
    await runner.setup()
    await web.SockSite(runner, _bind(path)).start()
    return runner.cleanup


def _bind(path: Path) -> socket.socket:
    """A listening Unix socket that only this user can open."""
    path.unlink(missing_ok=True)  # left by a node that was killed; the data folder's lock is ours
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(mask)
    return listener


def _json(model: BaseModel) -> web.Response:
    return web.Response(text=model.model_dump_json(), content_type="application/json")

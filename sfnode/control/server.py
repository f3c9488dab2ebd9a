"""The local control API: HTTP with JSON on a Unix socket that only the node's user can open.

Its routes are those of `routes`, and GET /metrics. Errors are {"error": text} with
status 4xx or 5xx, and with "code" and "fix" where they have a number.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web
from pydantic import ValidationError

from sfnode.control import prometheus, routes, web_server
from sfnode.control.access import Handler, bind_private
from sfnode.errors import UserError
from sfnode.logging import log
from sfnode.store.disk_errors import disk_faults

if TYPE_CHECKING:
    from sfnode.node.running import RunningNode


async def serve(node: RunningNode, path: Path) -> Callable[[], Awaitable[None]]:
    """Listen on the Unix socket `path` (mode 0600) and return the function that stops listening.

    Raises UserError DATA_DIR_UNUSABLE or DISK_FULL.
    """
    application = web.Application(middlewares=[_errors_as_json])
    application.add_routes(
        [*routes.routes(node), *routes.owner_routes(node), *routes.organising_routes(node)]
    )
    application.add_routes([prometheus.route(node.status)])
    with disk_faults(path):
        listener = bind_private(path)
    stop = await web_server.serve(application, listener)

    async def close() -> None:
        await stop()
        with suppress(FileNotFoundError):
            os.unlink(path)

    return close


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer with what is wrong with a request; no request is a reason for the node to end."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return routes.error(error.status, error.reason)
    except ValidationError as error:
        return routes.invalid(error)
    except UserError as error:
        return routes.error(409, error.what, code=int(error.code), fix=error.fix)
    except Exception as error:
        log.exception("answering %s %s", request.method, request.path)
        return routes.error(500, f"{type(error).__name__}: {error}")

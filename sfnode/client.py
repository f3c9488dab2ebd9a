"""Typed client of a running node's control API; loads neither torch nor the node."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import aiohttp
from pydantic import BaseModel, ValidationError

from sfnode.errors import Code, UserError
from sfnode.limits import Limits
from sfnode.runtime.status import CoreStatus, EvaluationStatus, Status
from sfnode.runtime.viewed import (
    MAX_PAGE,
    Curves,
    Feeds,
    FeedStatus,
    Generated,
    History,
    Origins,
    Progress,
    Swarm,
)

T = TypeVar("T", bound=BaseModel)

ANSWER_DEADLINE = 10.0
"""Seconds for an answer that needs no model."""

EVALUATE_DEADLINE = 3600.0
"""Seconds for an evaluation: a large model on a CPU takes its time."""


class Client:
    """Talks to the node that listens on `socket`. Raises UserError NODE_NOT_RUNNING if none does."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def status(self) -> Status:
        return await self._call("GET", "/status", Status)

    async def digest(self) -> CoreStatus:
        return await self._call("GET", "/digest", CoreStatus, deadline=EVALUATE_DEADLINE)

    async def evaluate(self, *, base: bool = False, limit: int = 0) -> EvaluationStatus:
        body = {"base": base, "limit": limit}
        return await self._call("POST", "/evaluate", EvaluationStatus, body, EVALUATE_DEADLINE)

    async def progress(self) -> Progress:
        return await self._call("GET", "/views/progress", Progress)

    async def curves(self) -> Curves:
        return await self._call("GET", "/views/curves", Curves)

    async def swarm(self) -> Swarm:
        return await self._call("GET", "/views/swarm", Swarm)

    async def feeds(self, *, offset: int = 0, limit: int = 100) -> Feeds:
        return await self._call("GET", f"/views/feeds?{urlencode({'offset': offset, 'limit': limit})}", Feeds)

    async def every_feed(self) -> list[FeedStatus]:
        """Page by page; a feed that begins meanwhile may be missing."""
        found: list[FeedStatus] = []
        while page := (await self.feeds(offset=len(found), limit=MAX_PAGE)).feeds:
            found += page
        return found

    async def origins(self, *, offset: int = 0, limit: int = 100, find: str = "") -> Origins:
        query = urlencode({"offset": offset, "limit": limit, "find": find})
        return await self._call("GET", f"/views/origins?{query}", Origins)

    async def history(self, *, points: int = 200) -> History:
        return await self._call("GET", f"/views/history?points={points}", History)

    async def generate(self, prompt: str, *, tokens: int = 32) -> Generated:
        body = {"prompt": prompt, "tokens": tokens}
        return await self._call("POST", "/generate", Generated, body, EVALUATE_DEADLINE)

    async def pause(self, seconds: float | None = None) -> Status:
        """Without an end if no seconds are given."""
        return await self._call("POST", "/pause", Status, {"seconds": seconds})

    async def resume(self) -> Status:
        return await self._call("POST", "/resume", Status)

    async def limits(self) -> Limits:
        return await self._call("GET", "/limits", Limits)

    async def limit(self, changes: Mapping[str, Any]) -> Limits:
        """Replace some limits, all or none; None takes one away."""
        return await self._call("POST", "/limits", Limits, dict(changes))

    async def finish(self) -> None:
        """Have it complete what is running, hand it over, and leave."""
        await self._fetch("POST", "/finish", None, ANSWER_DEADLINE)

    async def leave(self) -> None:
        """Have it end at once."""
        await self._fetch("POST", "/leave", None, ANSWER_DEADLINE)

    async def _call(
        self, method: str, path: str, answer: type[T], body: Any = None, deadline: float = ANSWER_DEADLINE
    ) -> T:
        text = await self._fetch(method, path, body, deadline)
        try:
            return answer.model_validate_json(text)
        except ValidationError as error:
            raise self._failed("it says something else; is it of another version of sfnode?") from error

    async def _fetch(self, method: str, path: str, body: Any, deadline: float) -> bytes:
        connector = aiohttp.UnixConnector(str(self._socket))
        limit = aiohttp.ClientTimeout(total=deadline)
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=limit) as session,
                session.request(method, f"http://node{path}", json=body) as response,
            ):
                text = await response.read()
                if response.status != 200:
                    raise _refused(text)
                return text
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise self._failed(reason) from error

    def _failed(self, reason: str) -> UserError:
        return UserError(
            Code.NODE_NOT_RUNNING,
            f"no node answers at {self._socket}: {reason}",
            "Is it running there? Name its folder with --data-dir.",
        )


def _refused(answer: bytes) -> UserError:
    """What the node would have said itself, where that has a number."""
    try:
        said = json.loads(answer)
        reason = str(said["error"])
        if "code" in said:
            return UserError(Code(said["code"]), f"the node refuses: {reason}", str(said["fix"]))
    except (ValueError, LookupError, TypeError):
        reason = answer.decode(errors="replace")
    return UserError(Code.BAD_OPTION, f"the node refuses: {reason}", "Ask it for something it can do.")

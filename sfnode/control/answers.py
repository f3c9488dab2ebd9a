"""Answers of an HTTP server as JSON, errors included; shared by the control API and the dashboard."""

from __future__ import annotations

from aiohttp import web
from pydantic import BaseModel, ValidationError


def answer(model: BaseModel) -> web.Response:
    """Return a record as JSON."""
    return web.Response(text=model.model_dump_json(), content_type="application/json")


def error(status: int, text: str, **more: object) -> web.Response:
    """Return `{"error": text}` and `more` with an HTTP status."""
    return web.json_response({"error": text, **more}, status=status)


def invalid(fault: ValidationError) -> web.Response:
    """Return the answer to a request that does not validate; it names the first wrong field."""
    first = fault.errors(include_url=False)[0]
    return error(400, f"{'.'.join(map(str, first['loc'])) or 'the request'}: {first['msg']}")

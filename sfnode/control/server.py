"""The local control API: HTTP with JSON on a Unix socket that only the node's user can open.

Any node answers GET /status, /digest, /invitation, /metrics and /views/..., POST /evaluate {"base": bool,
"limit": int}, and POST /generate {"prompt": text, "tokens": int}.

The owner controls a node with POST /pause {"seconds": number or null}, /resume, /finish and /leave, and with
GET and POST /limits. /pause and /resume answer with the node's status, /limits with the limits in force.

A node of an organised run also answers GET /organising, /organising/members?offset=&limit=&find= and
/organising/petitions. The node with the organiser's key signs the decision in POST /organising/decision
{"decision": hex, "dry_run": bool}. GET /organising/succession?key=&kept= proposes a succession, POST
/organising/succession submits one.

Errors are {"error": text} with status 4xx or 5xx. Numbered errors also have "code" and "fix".
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from inspect import isawaitable, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from aiohttp import web
from pydantic import BaseModel, Field, TypeAdapter, ValidationError, validate_call
from pydantic_core import to_json

from sfnode.control import prometheus, web_server
from sfnode.control.web_server import Handler, bind_private
from sfnode.errors import Code, UserError
from sfnode.logging import log
from sfnode.manifest import Manifest
from sfnode.node.organising import Organising
from sfnode.organising import owner_decisions
from sfnode.organising.organiser import OrganiserState
from sfnode.organising.reporting.alarms import ALONE_FIX
from sfnode.organising.reporting.reports import CUT_OFF, Reports
from sfnode.schema.organising import DecisionResult, EncodedDecision, Hex32, SuccessionFile
from sfnode.schema.views import Count, Entries, KeyStart, Page, Points, Prompt, Tokens
from sfnode.store.disk_errors import disk_faults
from sfprotocol import decisions
from sfprotocol.control_feed import genesis, valid_votes
from sfprotocol.decisions import Decision, StandIns
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.events import OwnSuccession
from sfprotocol.messages import Succession

if TYPE_CHECKING:
    from sfnode.node.running import RunningNode


_FIELDS: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


async def serve(node: RunningNode, path: Path) -> Callable[[], Awaitable[None]]:
    """Listen on the Unix socket `path` (mode 0600) and return the function that stops listening.

    Raises UserError DATA_DIR_UNUSABLE or DISK_FULL.
    """
    application = web.Application(middlewares=[_errors_as_json])
    application.add_routes([*_view_routes(node), *_owner_routes(node), *_organising_routes(node)])
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
    """Answer with an error as JSON when the handler of a request raises the error, so that no request ends
    the node."""
    try:
        return await handler(request)
    except web.HTTPException as fault:
        return error(fault.status, fault.reason)
    except ValidationError as fault:
        return invalid(fault)
    except UserError as fault:
        return error(409, fault.what, code=int(fault.code), fix=fault.fix)
    except Exception as fault:
        log.exception("answering %s %s", request.method, request.path)
        return error(500, f"{type(fault).__name__}: {fault}")


def get(path: str, read: Callable[..., Any]) -> web.RouteDef:
    """Return a route that answers with the result of `read` as JSON. `read` may return an awaitable. The
    arguments of `read` are fields of the query, with the types that `read` declares."""
    return web.get(path, _handler(read, lambda request: dict(request.query)))


def post(path: str, act: Callable[..., Any]) -> web.RouteDef:
    """Return a route that answers with the result of `act` as JSON. `act` may return an awaitable. The
    arguments of `act` are fields of the body, with the types that `act` declares."""

    async def fields_of(request: web.Request) -> dict[str, Any]:
        return fields(await request.read())

    return web.post(path, _handler(act, fields_of))


def fields(body: bytes) -> dict[str, Any]:
    """Return the fields of a request's body; an empty dict for an empty body. Raises ValidationError."""
    return _FIELDS.validate_json(body or b"{}")


def _handler(act: Callable[..., Any], given: Callable[[web.Request], Any]) -> Handler:
    takes = any(one.annotation is not one.empty for one in signature(act).parameters.values())
    checked = validate_call(act) if takes else act

    async def handle(request: web.Request) -> web.StreamResponse:
        said = checked(**await _awaited(given(request))) if takes else checked()
        body = to_json(await _awaited(said), inf_nan_mode="strings")
        return web.Response(body=body, content_type="application/json")

    return handle


async def _awaited(said: Any) -> Any:
    return await said if isawaitable(said) else said


def error(status: int, text: str, **more: object) -> web.Response:
    """Return a response with an HTTP status, and with `text` as "error" and the fields `more` in JSON."""
    return web.json_response({"error": text, **more}, status=status)


def invalid(fault: ValidationError) -> web.Response:
    """Return the answer to a request that does not validate. It names the first wrong field."""
    first = fault.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"])) or "the request"
    return error(400, f"{where}: {first['msg'].removeprefix('Value error, ')}")


def _view_routes(node: RunningNode) -> list[web.RouteDef]:
    """Return the routes that do not change the node. They read its state, or have the engine measure or
    generate something."""
    views = node.views

    def evaluate(
        base: bool = False, calibrated: bool = False, probe: bool = False, limit: Count = 0
    ) -> Awaitable[BaseModel]:
        return node.evaluate(base, limit, calibrated, probe)

    def generate(prompt: Prompt, tokens: Tokens = 32) -> Awaitable[BaseModel]:
        return node.generate(prompt, tokens)

    def timeline(limit: Entries = 200) -> Awaitable[BaseModel]:
        return views.timeline(limit)

    def feeds(offset: Count = 0, limit: Page = 100) -> BaseModel:
        return views.feeds(offset, limit)

    def origins(offset: Count = 0, limit: Page = 100, find: KeyStart = "") -> Awaitable[BaseModel]:
        return views.origins(offset, limit, find)

    def history(points: Points = 200) -> Awaitable[BaseModel]:
        return views.history(points)

    return [
        get("/status", node.status),
        get("/invitation", views.invitation),
        get("/views/progress", views.progress),
        get("/views/curves", views.curves),
        get("/views/swarm", views.swarm),
        get("/views/samples", views.samples),
        get("/views/about", views.about),
        get("/views/own", views.standing),
        get("/views/timeline", timeline),
        get("/views/feeds", feeds),
        get("/views/origins", origins),
        get("/views/history", history),
        get("/digest", node.core_status),
        post("/evaluate", evaluate),
        post("/generate", generate),
    ]


MOST_PAUSE = 366 * 24 * 3600
"""Maximum length of a pause, in seconds. A longer pause is possible only without an end."""

Seconds = Annotated[float | None, Field(gt=0, le=MOST_PAUSE)]


def _owner_routes(node: RunningNode) -> list[web.RouteDef]:
    """Return the routes with which the owner controls the node."""

    def pause(seconds: Seconds = None) -> BaseModel:
        if node.settings.role == "relay":
            raise UserError(
                Code.BAD_OPTION, "a relay computes nothing that could pause", "End it with `sfnode leave`."
            )
        node.limiter.pause(seconds)
        return node.status()

    def resume() -> BaseModel:
        node.limiter.resume()
        return node.status()

    def finish() -> dict[str, bool]:
        node.finish()
        return {"finishing": True}

    def leave() -> dict[str, bool]:
        node.stop()
        return {"leaving": True}

    async def limit(**changes: Any) -> BaseModel:
        await node.limiter.limit(changes)
        return node.limiter.limits

    return [
        get("/limits", lambda: node.limiter.limits),
        post("/limits", limit),
        post("/pause", pause),
        post("/resume", resume),
        post("/finish", finish),
        post("/leave", leave),
    ]


def _organising_routes(node: RunningNode) -> list[web.RouteDef]:
    """Return the routes about an organised run. In an open run they raise UserError RUN_IS_OPEN."""

    def reports() -> Reports:
        if node.reports is None:
            raise UserError(
                Code.RUN_IS_OPEN,
                f"the run {node.manifest.name} is open: nobody organises it",
                "Make an organised run with `sfnode init`.",
            )
        return node.reports

    def decide(decision: EncodedDecision, dry_run: bool = False) -> Awaitable[BaseModel]:
        return _decided(reports(), node.organising, _decision(decision), dry_run)

    def propose(key: Hex32, kept: Count | None = None) -> BaseModel:
        try:
            return reports().proposal(key, kept)
        except ValueError as error:
            fix = (
                "Wait until the node has them all. If they do not come, a neighbour may have made them up: "
                "say with --kept how many of those here stay."
            )
            raise UserError(Code.SUCCESSION_REFUSED, str(error), fix) from error

    def succeed(**said: Any) -> dict[str, bool]:
        reports()
        succession = _succession(node.manifest, SuccessionFile.model_validate(said))
        node.driver.post(OwnSuccession(succession))
        return {"taken": True}

    async def status() -> BaseModel:
        since = await asyncio.to_thread(node.log.arrival, reports().begun)
        return reports().status(node.organising, node.clock(), since)

    def stand_in() -> dict[str, str]:
        reports()
        return {"key": node.stand_in()}

    def hand_over(key: Hex32) -> dict[str, bool]:
        reports()
        _signing(node.organising).hand_over(bytes.fromhex(key))
        return {"asked": True}

    def members(offset: Count = 0, limit: Page = 100, find: KeyStart = "") -> BaseModel:
        return reports().members(offset, limit, find)

    return [
        get("/organising", status),
        post("/organising/stand-in", stand_in),
        post("/organising/hand-over", hand_over),
        get("/organising/members", members),
        get("/organising/petitions", lambda: reports().join_requests(node.organising)),
        post("/organising/decision", decide),
        get("/organising/succession", propose),
        post("/organising/succession", succeed),
    ]


async def _decided(
    reports: Reports, organising: Organising | None, decision: Decision, dry_run: bool
) -> DecisionResult:
    refusal = owner_decisions.refusal(reports.run_state, decision)
    if isinstance(decision, StandIns) and not reports.elects:
        refusal = "members stand in from protocol 4 on, and this run is of an earlier one"
    if refusal is None and dry_run:
        return DecisionResult(signed=False, changes=reports.changes(decision), invitation=None)
    if refusal is None:
        changes = reports.changes(decision)
        refusal = await _signing(organising).decide(decision)
        if refusal is None:
            return DecisionResult(signed=True, changes=changes, invitation=reports.invitation(decision))
    raise UserError(
        Code.DECISION_REFUSED,
        f"this would change nothing: {refusal}",
        "`sfnode organise status` and `sfnode organise members` tell how things stand.",
    )


def _decision(encoded: str) -> Decision:
    try:
        return decisions.decode(bytes.fromhex(encoded)).decision
    except RemoteProtocolError as error:
        raise UserError(
            Code.DECISION_REFUSED,
            f"this is no decision: {error.reason}",
            "Ask with a command of the same version as the node.",
        ) from error


def _signing(organising: Organising | None) -> Organising:
    """Return the organiser if this node signs. Raises UserError ORGANISER_NEEDED if it does not."""
    if organising is None:
        raise UserError(
            Code.ORGANISER_NEEDED,
            "this node does not have the organiser's key",
            "Ask the node that was started with --organise, or start this one so if you have the key.",
        )
    if organising.state is OrganiserState.STANDING_BY:
        raise UserError(
            Code.ORGANISER_NEEDED,
            CUT_OFF if organising.cut_off else "this node stands in, and another one organises",
            "Ask the node that organises: `sfnode organise status` names it.",
        )
    if restarted := organising.restarted:
        raise UserError(Code.ORGANISER_NEEDED, restarted.what, f"Try again in a minute. {ALONE_FIX}")
    return organising


def _succession(manifest: Manifest, said: SuccessionFile) -> Succession:
    """Return the succession in a file. Raises UserError WRONG_RUN or SUCCESSION_REFUSED."""
    if said.run_id != manifest.run_id.hex():
        raise UserError(
            Code.WRONG_RUN,
            f"the succession is of run {said.run_id[:16]}, and this node is of {manifest.run_id.hex()[:16]}",
            "Name the folder of a node of that run with --data-dir.",
        )
    authority, succession = manifest.parameters().organised, said.message()
    assert authority is not None  # the caller checked that the run is organised
    valid = valid_votes(authority, succession)
    if len(valid) < authority.votes:
        raise UserError(
            Code.SUCCESSION_REFUSED,
            f"{len(valid)} of its votes hold, and it takes {authority.votes}",
            "Have more deputies sign the file with `sfnode organise sign`.",
        )
    if said.kept == 0 and succession.chain != genesis(manifest.run_id):
        raise UserError(
            Code.SUCCESSION_REFUSED,
            "it keeps no decision, and its chain hash is not that of the beginning of the run",
            "Propose anew with `sfnode organise hand-over`.",
        )
    return replace(succession, votes=tuple(valid))

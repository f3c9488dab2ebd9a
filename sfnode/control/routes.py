"""Routes of the control API. Wrong queries raise pydantic's ValidationError.

Of any node: GET /status, /digest, /invitation and /views/...; POST /evaluate {"base": bool, "limit": int} and
/generate {"prompt": text, "tokens": int}.

By which its owner directs it: POST /pause {"seconds": number or null}, /resume, /finish and /leave; GET and
POST /limits. /pause and /resume answer with the node's status, /limits with the limits in force.

Of an organised run: GET /organising, /organising/members?offset=&limit=&find= and /organising/petitions; POST
/organising/decision {"decision": hex, "dry_run": bool}, which only the node with the organiser's key signs;
GET /organising/succession?key=&kept=, which proposes one, and POST /organising/succession, which takes one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError

from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.node.organising import Organising
from sfnode.organising import owner_decisions
from sfnode.organising.organiser import OrganiserState
from sfnode.organising.reporting.alarms import ALONE_FIX
from sfnode.organising.reporting.reports import CUT_OFF, Reports
from sfnode.schema.organising import (
    DecisionRequest,
    DecisionResult,
    HandOver,
    ProposalQuery,
    SuccessionFile,
)
from sfnode.schema.views import FeedsQuery, GenerateRequest, HistoryQuery, OriginsQuery, TimelineQuery
from sfprotocol import decisions
from sfprotocol.control_feed import genesis, valid_votes
from sfprotocol.decisions import Decision, StandIns
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.events import OwnSuccession
from sfprotocol.messages import Succession, Vote

if TYPE_CHECKING:
    from sfnode.node.running import RunningNode


def answer(said: BaseModel | dict[str, Any]) -> web.Response:
    """Return a record as JSON."""
    if isinstance(said, dict):
        return web.json_response(said)
    return web.Response(text=said.model_dump_json(), content_type="application/json")


def get(path: str, read: Callable[..., Any], query: type[BaseModel] | None = None) -> web.RouteDef:
    """Return a route that answers what `read` returns or awaits; given the `query`, if it has one."""

    async def handle(request: web.Request) -> web.Response:
        return await _answer(read, *([query.model_validate(dict(request.query))] if query else ()))

    return web.get(path, handle)


def post(path: str, act: Callable[..., Any], body: type[BaseModel] | None = None) -> web.RouteDef:
    """Return a route that answers what `act` returns or awaits; given the `body`, if it has one."""

    async def handle(request: web.Request) -> web.Response:
        return await _answer(
            act, *([body.model_validate_json(await request.read() or b"{}")] if body else ())
        )

    return web.post(path, handle)


async def _answer(act: Callable[..., Any], *given: BaseModel) -> web.Response:
    said = act(*given)
    return answer(await said if isawaitable(said) else said)


def error(status: int, text: str, **more: object) -> web.Response:
    """Return `{"error": text}` and `more` with an HTTP status."""
    return web.json_response({"error": text, **more}, status=status)


def invalid(fault: ValidationError) -> web.Response:
    """Return the answer to a request that does not validate; it names the first wrong field."""
    first = fault.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"])) or "the request"
    return error(400, f"{where}: {first['msg'].removeprefix('Value error, ')}")


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


class LimitChanges(RootModel[dict[str, Any]]):
    """Limits to be replaced, by their names."""


def routes(node: RunningNode) -> list[web.RouteDef]:
    """Return the routes that change nothing but what the engine is busy with."""
    views = node.views

    def evaluate(wanted: EvaluateRequest) -> Awaitable[BaseModel]:
        return node.evaluate(wanted.base, wanted.limit, wanted.calibrated, wanted.probe)

    return [
        get("/status", node.status),
        get("/invitation", views.invitation),
        get("/views/progress", views.progress),
        get("/views/curves", views.curves),
        get("/views/swarm", views.swarm),
        get("/views/samples", views.samples),
        get("/views/about", views.about),
        get("/views/own", views.standing),
        get("/views/timeline", views.timeline, TimelineQuery),
        get("/views/feeds", views.feeds, FeedsQuery),
        get("/views/origins", views.origins, OriginsQuery),
        get("/views/history", views.history, HistoryQuery),
        get("/digest", node.core_status),
        post("/evaluate", evaluate, EvaluateRequest),
        post("/generate", lambda wanted: node.generate(wanted.prompt, wanted.tokens), GenerateRequest),
    ]


MOST_PAUSE = 366 * 24 * 3600
"""Seconds of the longest pause; a longer one is a pause without an end."""


class PauseRequest(BaseModel):
    """Compute nothing for so many seconds; without an end if that is null."""

    model_config = ConfigDict(extra="forbid")

    seconds: float | None = Field(default=None, gt=0, le=MOST_PAUSE)


def owner_routes(node: RunningNode) -> list[web.RouteDef]:
    """Return the owner's routes."""

    def pause(wanted: PauseRequest) -> BaseModel:
        node.limiter.pause(wanted.seconds)
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

    async def limit(changes: LimitChanges) -> BaseModel:
        await node.limiter.limit(changes.root)
        return node.limiter.limits

    return [
        get("/limits", lambda: node.limiter.limits),
        post("/limits", limit, LimitChanges),
        post("/pause", pause, PauseRequest),
        post("/resume", resume),
        post("/finish", finish),
        post("/leave", leave),
    ]


def organising_routes(node: RunningNode) -> list[web.RouteDef]:
    """Return the routes about an organised run."""
    reports = _reports(node)

    def decide(wanted: DecisionRequest) -> Awaitable[BaseModel]:
        return _decided(reports(), node.organising, wanted)

    def propose(query: ProposalQuery) -> BaseModel:
        try:
            return reports().proposal(query.key, query.kept)
        except ValueError as error:
            fix = (
                "Wait until the node has them all. If they do not come, a neighbour may have made them up: "
                "say with --kept how many of those here stay."
            )
            raise UserError(Code.SUCCESSION_REFUSED, str(error), fix) from error

    def succeed(said: SuccessionFile) -> dict[str, bool]:
        reports()  # refuses for an open run
        node.driver.post(OwnSuccession(_succession(node.manifest, said)))
        return {"taken": True}

    async def status() -> BaseModel:
        since = await asyncio.to_thread(node.log.arrival, reports().begun)
        return reports().status(node.organising, node.clock(), since)

    def stand_in() -> dict[str, str]:
        reports()
        return {"key": node.stand_in()}

    def hand_over(to: HandOver) -> dict[str, bool]:
        reports()
        _signing(node.organising).hand_over(bytes.fromhex(to.key))
        return {"asked": True}

    return [
        get("/organising", status),
        post("/organising/stand-in", stand_in),
        post("/organising/hand-over", hand_over, HandOver),
        get("/organising/members", lambda query: reports().members(query), OriginsQuery),
        get("/organising/petitions", lambda: reports().petitions(node.organising)),
        post("/organising/decision", decide, DecisionRequest),
        get("/organising/succession", propose, ProposalQuery),
        post("/organising/succession", succeed, SuccessionFile),
    ]


def _reports(node: RunningNode) -> Callable[[], Reports]:
    """Return what gives the reports of a node; it raises UserError RUN_IS_OPEN for one of an open run."""

    def reports() -> Reports:
        if node.reports is None:
            raise UserError(
                Code.RUN_IS_OPEN,
                f"the run {node.manifest.name} is open: nobody organises it",
                "Make an organised run with `sfnode init`.",
            )
        return node.reports

    return reports


async def _decided(
    reports: Reports, organising: Organising | None, wanted: DecisionRequest
) -> DecisionResult:
    decision = _decision(wanted)
    refusal = owner_decisions.refusal(reports.counting, decision)
    if isinstance(decision, StandIns) and not reports.elects:
        refusal = "members stand in from protocol 4 on, and this run is of an earlier one"
    if refusal is None and wanted.dry_run:
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


def _decision(wanted: DecisionRequest) -> Decision:
    try:
        return decisions.decode(bytes.fromhex(wanted.decision)).decision
    except RemoteProtocolError as error:
        raise UserError(
            Code.DECISION_REFUSED,
            f"this is no decision: {error.reason}",
            "Ask with a command of the same version as the node.",
        ) from error


def _signing(organising: Organising | None) -> Organising:
    """Return the organiser if it signs. Raises UserError ORGANISER_NEEDED."""
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
    votes = tuple(Vote(vote.deputy, bytes.fromhex(vote.signature)) for vote in said.votes)
    chain, key = bytes.fromhex(said.chain), bytes.fromhex(said.key)
    authority = manifest.parameters().organised
    assert authority is not None  # the caller has seen that the run is organised
    succession = Succession(said.term, said.kept, chain, key, votes)
    valid = valid_votes(authority, succession)
    if len(valid) < authority.votes:
        raise UserError(
            Code.SUCCESSION_REFUSED,
            f"{len(valid)} of its votes hold, and it takes {authority.votes}",
            "Have more deputies sign the file with `sfnode organise sign`.",
        )
    if said.kept == 0 and chain != genesis(manifest.run_id):
        raise UserError(
            Code.SUCCESSION_REFUSED,
            "it keeps no decision, and its chain hash is not that of the beginning of the run",
            "Propose anew with `sfnode organise hand-over`.",
        )
    return replace(succession, votes=tuple(valid))

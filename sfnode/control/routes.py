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

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.node.organising import Organising
from sfnode.organising import owner_decisions
from sfnode.organising.organiser import OrganiserState
from sfnode.organising.reporting.reports import Reports
from sfnode.schema.organising import (
    DecisionRequest,
    DecisionResult,
    ProposalQuery,
    SuccessionFile,
)
from sfnode.schema.views import FeedsQuery, GenerateRequest, HistoryQuery, OriginsQuery, TimelineQuery
from sfprotocol import decisions
from sfprotocol.control_feed import genesis, valid_votes
from sfprotocol.decisions import Decision
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.events import OwnSuccession
from sfprotocol.messages import Succession, Vote

if TYPE_CHECKING:
    from sfnode.node.running import RunningNode
    from sfnode.node.views import Views


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


def routes(node: RunningNode) -> list[web.RouteDef]:
    """Return the routes that change nothing but what the engine is busy with."""
    return [*_at_once(node), *_queries(node.views), *_engine(node)]


def _at_once(node: RunningNode) -> list[web.RouteDef]:
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


def _engine(node: RunningNode) -> list[web.RouteDef]:
    async def digest(_: web.Request) -> web.Response:
        return answer(await node.core_status())

    async def evaluate(request: web.Request) -> web.Response:
        wanted = EvaluateRequest.model_validate_json(await request.read() or b"{}")
        return answer(await node.evaluate(wanted.base, wanted.limit, wanted.calibrated, wanted.probe))

    async def generate(request: web.Request) -> web.Response:
        wanted = GenerateRequest.model_validate_json(await request.read())
        return answer(await node.generate(wanted.prompt, wanted.tokens))

    return [web.get("/digest", digest), web.post("/evaluate", evaluate), web.post("/generate", generate)]


_CHANGES: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])

MOST_PAUSE = 366 * 24 * 3600
"""Seconds of the longest pause; a longer one is a pause without an end."""


class PauseRequest(BaseModel):
    """Compute nothing for so many seconds; without an end if that is null."""

    model_config = ConfigDict(extra="forbid")

    seconds: float | None = Field(default=None, gt=0, le=MOST_PAUSE)


def owner_routes(node: RunningNode) -> list[web.RouteDef]:
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


def organising_routes(node: RunningNode) -> list[web.RouteDef]:
    """Return the routes about an organised run."""
    reports = _reports(node)

    async def status(_: web.Request) -> web.Response:
        return answer(reports().status(node.organising))

    async def members(request: web.Request) -> web.Response:
        return answer(reports().members(OriginsQuery.model_validate(dict(request.query))))

    async def petitions(_: web.Request) -> web.Response:
        return answer(reports().petitions(node.organising))

    async def decide(request: web.Request) -> web.Response:
        wanted = DecisionRequest.model_validate_json(await request.read())
        return answer(await _decided(reports(), node.organising, wanted))

    async def propose(request: web.Request) -> web.Response:
        query = ProposalQuery.model_validate(dict(request.query))
        try:
            return answer(reports().proposal(query.key, query.kept))
        except ValueError as error:
            what = "Keep fewer, or leave out --kept."
            raise UserError(Code.SUCCESSION_REFUSED, str(error), what) from error

    async def succeed(request: web.Request) -> web.Response:
        reports()  # refuses for an open run
        said = SuccessionFile.model_validate_json(await request.read())
        node.driver.post(OwnSuccession(_succession(node.manifest, said)))
        return web.json_response({"taken": True})

    return [
        web.get("/organising", status),
        web.get("/organising/members", members),
        web.get("/organising/petitions", petitions),
        web.post("/organising/decision", decide),
        web.get("/organising/succession", propose),
        web.post("/organising/succession", succeed),
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
    if organising.state is OrganiserState.RESTARTED:
        raise UserError(
            Code.ORGANISER_NEEDED,
            "the organiser was restarted and waits for peers to tell which of its decisions they have",
            "Try again in a minute; if nobody else is there, start the node with --organise --alone.",
        )
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

"""Routes of the control API about an organised run. Any node of one answers all but the owner's decisions.

GET /organising, /organising/members?offset=&limit=&find= and /organising/petitions; POST /organising/decision
{"decision": hex, "dry_run": bool}, which only the node with the organiser's key signs; GET
/organising/succession?key=&kept=, which proposes one, and POST /organising/succession, which takes one in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from aiohttp import web

from sfnode.control.answers import answer
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.organising import owner_decisions
from sfnode.organising.organiser import OrganiserState
from sfnode.organising.reporting.reports import Organising, Reports
from sfnode.schema.organising import (
    DecisionRequest,
    DecisionResult,
    ProposalQuery,
    SuccessionFile,
)
from sfnode.schema.views import OriginsQuery
from sfprotocol import decisions
from sfprotocol.control_feed import genesis, valid_votes
from sfprotocol.decisions import Decision
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.events import Event, OwnSuccession
from sfprotocol.messages import Succession, Vote


class Driver(Protocol):
    """The part of a node that hands events to the machine."""

    def post(self, event: Event) -> None: ...


class Node(Protocol):
    """A node that may be one of an organised run."""

    @property
    def manifest(self) -> Manifest: ...
    @property
    def driver(self) -> Driver: ...
    @property
    def organising(self) -> Organising | None: ...
    @property
    def reports(self) -> Reports | None: ...


def routes(node: Node) -> list[web.RouteDef]:
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


def _reports(node: Node) -> Callable[[], Reports]:
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

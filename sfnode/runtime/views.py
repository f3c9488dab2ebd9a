"""The views of a running node: curves, progress, the swarm around it, origins and history from the log.

What is shown here any program can read over the control socket, and a relay shows the same as a trainer. It
looks at the node's parts and changes none of them; how any of it looks on a screen it refuses to know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from aiohttp import web
from pydantic import BaseModel

from sfnode.runtime.curves import Curve, Rate, Sample
from sfnode.runtime.describe import carried, greeted, role_of
from sfnode.runtime.history import LogIndex
from sfnode.runtime.latency import Latency
from sfnode.runtime.viewed import (
    Curves,
    Feeds,
    FeedsQuery,
    FeedStatus,
    Generated,
    GenerateRequest,
    History,
    HistoryQuery,
    Measurement,
    Origins,
    OriginsQuery,
    Progress,
    Swarm,
    SwarmEdge,
    SwarmNode,
)
from sfprotocol.flood import Link as LinkState
from sfprotocol.names import Names

if TYPE_CHECKING:
    from sfnode.runtime.node import RunningNode
    from sfnode.runtime.status import EvaluationStatus
    from sfnode.transport.base import Link

T = TypeVar("T")

SAMPLE_INTERVAL = 1.0
"""Seconds between looks at the node: as often as a person can follow."""

MAX_MEASUREMENTS = 256
"""Evaluations that are remembered; the oldest go."""


class Views:
    """Of one node; `run` until cancelled."""

    def __init__(self, node: RunningNode, caught_up: Callable[[], bool]) -> None:
        """`caught_up`: whether what arrives is news of the run and no more what was there before us."""
        self._node = node
        self._caught_up = caught_up
        self._curve = Curve(SAMPLE_INTERVAL)
        self._rate = Rate()
        self._swarm_rate: float | None = None
        self._measurements: list[Measurement] = []
        self._index = LogIndex(node.log, self._names)
        self._beside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="index")
        """Where the index is asked: one question at a time, and nobody else waits for them."""
        self._latency = Latency(node.transport)

    async def run(self) -> None:
        """Look at the node regularly."""
        try:
            while True:
                self._sample()
                await asyncio.sleep(SAMPLE_INTERVAL)
        finally:
            await self._latency.stop()
            self._index.close()
            await self._ask(lambda: None)  # nothing is being read any more

    def measured(self, answer: EvaluationStatus, known: int) -> None:
        """An evaluation is finished: remember it, at the state that was evaluated."""
        fields = answer.model_dump(exclude={"digest"})
        self._measurements.append(
            Measurement(seconds=self._uptime(), known=known, base=not answer.digest, **fields)
        )
        del self._measurements[:-MAX_MEASUREMENTS]

    # -- what is asked -----------------------------------------------------------------------------

    def progress(self) -> Progress:
        """Where the run is."""
        run, known, rate = self._node.machine.run, self._node.machine.frontier.known, self._swarm_rate
        epoch = run.epoch_of(known)
        begun = epoch * run.epoch_updates
        size = min(run.epoch_updates, run.update_budget - begun)
        return Progress(
            known=known,
            update_budget=run.update_budget,
            epoch=epoch,
            epochs=run.last_epoch + 1,
            epoch_known=known - begun,
            epoch_updates=size,
            updates_per_second=rate,
            epoch_seconds_left=_left(begun + size - known, rate),
            seconds_left=_left(run.update_budget - known, rate),
        )

    def curves(self) -> Curves:
        """What was seen since the start."""
        samples = self._curve.samples
        return Curves(
            now=self._uptime(),
            interval=self._curve.interval,
            seconds=[round(sample.seconds, 2) for sample in samples],
            known=[sample.known for sample in samples],
            own_rate=[sample.own_rate for sample in samples],
            swarm_rate=[sample.swarm_rate for sample in samples],
            loss=[sample.loss for sample in samples],
            measurements=self._measurements,
        )

    def feeds(self, query: FeedsQuery) -> Feeds:
        """Every feed, also of one and the same origin."""
        frontier = self._node.machine.frontier
        return Feeds(
            total=len(frontier),
            offset=query.offset,
            feeds=[
                FeedStatus(origin=s.feed.origin.hex(), incarnation=s.feed.incarnation, updates=s.next)
                for s in islice(frontier, query.offset, query.offset + query.limit)
            ],
        )

    async def origins(self, query: OriginsQuery) -> Origins:
        """Who contributed what, counted in the log."""
        machine = self._node.machine
        own = machine.own.origin if machine.own else b""
        return await self._ask(lambda: self._index.origins(own, query.offset, query.limit, query.find))

    async def history(self, query: HistoryQuery) -> History:
        """The course of the run, from the log."""
        return await self._ask(lambda: self._index.history(query.points))

    def _names(self) -> dict[bytes, Names]:
        """Beside the event loop, too: many take their time. Copies what may change before it begins."""
        return self._node.machine.cards.names(self._node.machine.frontier)

    async def _ask(self, question: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._beside, question)

    def swarm(self) -> Swarm:
        """This node, its neighbours, and who else is in the roster."""
        node, links = self._node, greeted(self._node)
        self._latency.look(self._ways([link for _, link in links]))
        neighbours = [self._neighbour(state, link) for state, link in links]
        near = {node.transport.peer, *(neighbour.peer for neighbour in neighbours)}
        others = [
            SwarmNode(
                peer=record.peer,
                kind="known",
                role=role_of(record.role),
                known=record.known,
                lag=self._lag(record.known),
            )
            for record in node.road.roster
            if record.peer not in near
        ]
        edges = [
            SwarmEdge(source=node.transport.peer, target=link.peer)
            if link.outbound
            else SwarmEdge(source=link.peer, target=node.transport.peer)
            for _, link in links
        ]
        return Swarm(nodes=[self._self(), *neighbours, *others], edges=edges)

    # -- looking -----------------------------------------------------------------------------------

    def _sample(self) -> None:
        node, now = self._node, self._node.clock()
        if self._swarm_rate is not None or self._caught_up():
            self._swarm_rate = self._rate.note(now, node.machine.frontier.known)
        training = node.training
        self._curve.add(
            Sample(
                seconds=self._uptime(),
                known=node.machine.frontier.known,
                own_rate=training.rate() if training else 0.0,
                swarm_rate=self._swarm_rate,
                loss=training.loss if training else None,
            )
        )

    def _uptime(self) -> float:
        return self._node.clock() - self._node.started_at

    def _lag(self, known: int) -> int:
        return max(0, self._node.machine.frontier.known - known)

    def _ways(self, links: list[Link]) -> dict[str, str]:
        """An address of each neighbour, of whom one is known."""
        found = {}
        for link in links:
            seen = f"{link.address.partition('/p2p/')[0]}/p2p/{link.peer}" if link.address else ""
            ways = [*self._node.book.ways(link.peer), *filter(None, [seen])]
            if ways:
                found[link.peer] = ways[0]
        return found

    def _self(self) -> SwarmNode:
        node = self._node
        sent, received = carried(node)
        return SwarmNode(
            peer=node.transport.peer,
            kind="self",
            role=node.settings.role,
            known=node.machine.frontier.known,
            lag=0,
            agrees=True,
            bytes_sent=sent,
            bytes_received=received,
            name=node.settings.display_name if node.machine.own else "",
        )

    def _neighbour(self, state: LinkState, link: Link) -> SwarmNode:
        since = state.mismatch_since
        return SwarmNode(
            peer=link.peer,
            kind="neighbour",
            role=role_of(state.role),
            known=state.known,
            lag=0 if state.agreed else self._lag(state.known),
            agrees=state.agreed,
            differs_for=None if since is None else max(0.0, self._node.clock() - since),
            latency=self._latency.of(link.peer),
            outbound=link.outbound,
            bytes_sent=link.bytes_sent,
            bytes_received=link.bytes_received,
        )


def routes(views: Views, generate: Callable[[str, int], Awaitable[Generated]]) -> list[web.RouteDef]:
    """What the control socket answers about views. Wrong queries raise ValidationError."""

    async def progress(_: web.Request) -> web.Response:
        return _json(views.progress())

    async def curves(_: web.Request) -> web.Response:
        return _json(views.curves())

    async def swarm(_: web.Request) -> web.Response:
        return _json(views.swarm())

    async def feeds(request: web.Request) -> web.Response:
        return _json(views.feeds(FeedsQuery.model_validate(dict(request.query))))

    async def origins(request: web.Request) -> web.Response:
        return _json(await views.origins(OriginsQuery.model_validate(dict(request.query))))

    async def history(request: web.Request) -> web.Response:
        return _json(await views.history(HistoryQuery.model_validate(dict(request.query))))

    async def write(request: web.Request) -> web.Response:
        wanted = GenerateRequest.model_validate_json(await request.read())
        return _json(await generate(wanted.prompt, wanted.tokens))

    return [
        web.get("/views/progress", progress),
        web.get("/views/curves", curves),
        web.get("/views/swarm", swarm),
        web.get("/views/feeds", feeds),
        web.get("/views/origins", origins),
        web.get("/views/history", history),
        web.post("/generate", write),
    ]


def _json(model: BaseModel) -> web.Response:
    return web.Response(text=model.model_dump_json(), content_type="application/json")


def _left(updates: int, rate: float | None) -> float | None:
    if updates <= 0:
        return 0.0
    return updates / rate if rate else None

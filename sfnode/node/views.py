"""Collects the views of a running node: curves, progress, the swarm around it, origins and history.

A relay has the same views as a trainer. This module only reads the node's parts. It knows neither how views
are requested (`sfnode.control.server`) nor how they look on a screen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import count, islice
from typing import TYPE_CHECKING, TypeVar

from sfnode.daemon_thread import DaemonExecutor
from sfnode.descriptors import patiently
from sfnode.models.model_files import licence_of
from sfnode.node.context import NodeContext
from sfnode.node.startup import remembered_peers
from sfnode.peers.invitations import compose, invite
from sfnode.peers.latency import NeighbourLatencies
from sfnode.schema.measurements import Drift
from sfnode.schema.results import InviteResult
from sfnode.schema.status import GpuStatus, MachineStatus
from sfnode.schema.views import (
    About,
    Curves,
    Feeds,
    FeedStatus,
    History,
    Origins,
    OwnStanding,
    Progress,
    Samples,
    Swarm,
    SwarmEdge,
    SwarmNode,
    Timeline,
)
from sfnode.stats import LogIndex, Rate, SeriesSample, TimeSeries
from sfprotocol.fields import NAMELESS, Names
from sfprotocol.link import Link as ProtocolLink

if TYPE_CHECKING:
    from sfnode.schema.measurements import NodeEvaluation
    from sfnode.transport.base import Link
    from sfprotocol.machine import Machine

T = TypeVar("T")

SAMPLE_INTERVAL = 1.0
"""Seconds between samples of the node. People could not follow more frequent ones."""

USAGE_EVERY = 2
"""Number of samples for each reading of the machine's usage. A reading costs more than a sample, as it may
list all processes to find the network daemon."""

MAX_MEASUREMENTS = 256
"""Maximum number of remembered evaluations. Older ones are dropped."""


class Views:
    """The views of one node; `run` samples the node until cancelled."""

    def __init__(
        self,
        node: NodeContext,
        *,
        started_at: float,
        caught_up: Callable[[], bool],
        samples: Callable[[], Samples],
    ) -> None:
        """`caught_up` returns whether arriving updates are new ones and not the history of the run. `samples`
        returns the recorded answers to test rows."""
        self._node = node
        self._started_at = started_at
        self.samples = samples
        self._caught_up = caught_up
        self._series = TimeSeries(SAMPLE_INTERVAL)
        self._rate = Rate()
        self._swarm_rate: float | None = None
        self._measurements: list[NodeEvaluation] = []
        self._index = LogIndex(node.log, self._names, node.machine.run, node.manifest.training)
        self._usage = node.outside.usage(*node.settings.devices)
        self.machine: MachineStatus | None = None
        """Usage of the machine by the node; None before the first reading."""
        self._beside = DaemonExecutor("index")
        """Thread that queries the index and reads decisions, one query at a time."""
        self._latency = NeighbourLatencies(node.transport, node.manifest.run_id)

    async def run(self) -> None:
        """Sample the node regularly, until cancelled."""
        try:
            for turn in count():
                if turn % USAGE_EVERY == 0:
                    self.machine = await asyncio.to_thread(patiently, self._usage)
                self._sample()
                await asyncio.sleep(SAMPLE_INTERVAL)
        finally:
            await self._latency.stop()
            self._index.close()
            await self._ask(lambda: None)  # nothing is being read any more

    def remember(self, evaluation: NodeEvaluation) -> None:
        """Add a finished evaluation to the curves."""
        self._measurements.append(evaluation)
        del self._measurements[:-MAX_MEASUREMENTS]

    @property
    def drift(self) -> Drift | None:
        """Drift of the model at the last evaluation that has measured it; None without such an evaluation."""
        return next((one.drift for one in reversed(self._measurements) if one.drift), None)

    # -- views -------------------------------------------------------------------------------------

    async def about(self) -> About:
        """Return the run's description, model, task and data."""
        manifest, folder = self._node.manifest, self._node.sharing.folder
        task = manifest.task
        licence = await self._ask(lambda: licence_of(folder)) if folder else None
        return About(
            run_id=manifest.run_id.hex(),
            run_name=manifest.name,
            description=manifest.description,
            organised=manifest.admission == "organised",
            model=manifest.model.source,
            parent=manifest.model.parent.run_id if manifest.model.parent else None,
            licence=licence,
            task=task.kind,
            template=task.template,
            answers=list(dict.fromkeys(task.verbalizer.values())),
            train=manifest.data.train,
            test=manifest.data.test,
        )

    async def standing(self) -> OwnStanding:
        """Return the contribution of this node's origin, counted in the log."""
        own = self._node.machine.own
        return await self._ask(lambda: self._index.standing(own.origin if own else b""))

    async def timeline(self, limit: int) -> Timeline:
        """Return the last decisions, from the log."""
        if self._node.machine.organised is None:
            return Timeline(total=0, entries=[])
        return await self._ask(lambda: self._index.timeline(limit))

    def progress(self) -> Progress:
        """Return the progress of the run."""
        machine, rate = self._node.machine, self._swarm_rate
        known, size, budget = machine.frontier.known, machine.run.epoch_updates, budget_of(machine)
        if machine.organised:
            here = machine.organised.unnamed
            known = machine.organised.run_state.counted
        else:
            here = known - machine.epoch * size
            size = min(size, budget - known + here)
        return Progress(
            known=known,
            update_budget=budget,
            epoch=machine.epoch,
            epochs=epochs_of(machine),
            epoch_known=here,
            epoch_updates=size,
            updates_per_second=rate,
            epoch_seconds_left=_left(size - here, rate),
            seconds_left=_left(budget - known, rate),
        )

    def curves(self) -> Curves:
        """Return the samples since the start, and the remembered evaluations."""
        samples = self._series.samples
        return Curves(
            now=self._uptime(),
            interval=self._series.interval,
            measurements=self._measurements,
            **{name: [getattr(sample, name) for sample in samples] for name in SeriesSample._fields},
        )

    def feeds(self, offset: int, limit: int) -> Feeds:
        """Return a page of the list of all feeds. An origin may have several feeds."""
        frontier = self._node.machine.frontier
        return Feeds(
            total=len(frontier),
            offset=offset,
            feeds=[
                FeedStatus(origin=s.feed.origin.hex(), incarnation=s.feed.incarnation, updates=s.next)
                for s in islice(frontier, offset, offset + limit)
            ],
        )

    async def origins(self, offset: int, limit: int, find: str) -> Origins:
        """Return a page of the origins with their contributions, counted in the log."""
        machine = self._node.machine
        own = machine.own.origin if machine.own else b""
        return await self._ask(lambda: self._index.origins(own, offset, limit, find))

    async def history(self, points: int) -> History:
        """Return the history of the run, from the log."""
        return await self._ask(lambda: self._index.history(points))

    def invitation(self) -> InviteResult:
        """Return the link with which others join. Raises UserError NO_ADDRESS."""
        node = self._node
        relays = {link.peer for state, link in greeted(node) if state.role}
        own, met = node.transport.addresses(), remembered_peers(node.log)
        url = node.peering.contacts_url
        return invite(node.manifest, compose(node.manifest.run_id, own, met, relays, url))

    def _names(self) -> dict[bytes, Names]:
        """Return the names of origins. Called on the index thread, while the event loop may change the
        names."""
        return self._node.machine.cards.names()

    async def _ask(self, question: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._beside, question)

    def swarm(self) -> Swarm:
        """Return this node, its neighbours, and the other nodes of the roster."""
        node, links = self._node, greeted(self._node)
        self._latency.look(self._ways([link for _, link in links]))
        shown = {origin for _, link in links if (origin := self._latency.origin(link.peer))}
        names = node.machine.cards.names(shown)
        neighbours = [self._neighbour(state, link, names) for state, link in links]
        near = {node.transport.peer, *(neighbour.peer for neighbour in neighbours)}
        others = [
            SwarmNode(
                peer=record.peer,
                kind="known",
                role=role_of(record.role),
                known=record.known,
                lag=self._lag(record.known),
            )
            for record in node.peering.roster
            if record.peer not in near
        ]
        edges = [
            SwarmEdge(source=node.transport.peer, target=link.peer)
            if link.outbound
            else SwarmEdge(source=link.peer, target=node.transport.peer)
            for _, link in links
        ]
        return Swarm(nodes=[self._self(), *neighbours, *others], edges=edges)

    # -- sampling ----------------------------------------------------------------------------------

    def _sample(self) -> None:
        node, now = self._node, self._node.clock()
        if self._swarm_rate is not None or self._caught_up():
            self._swarm_rate = self._rate.update(now, node.machine.frontier.known)
        scheduler, machine = node.model.scheduler, self.machine
        self._series.add(
            SeriesSample(
                seconds=round(self._uptime(), 2),
                known=node.machine.frontier.known,
                own_rate=scheduler.rate() if scheduler else 0.0,
                swarm_rate=self._swarm_rate,
                loss=scheduler.loss if scheduler else None,
                cpu=machine.cpu if machine else None,
                memory=machine.memory if machine else None,
                gpu=_busy(machine.gpus) if machine else None,
            )
        )

    def _uptime(self) -> float:
        return self._node.clock() - self._started_at

    def _lag(self, known: int) -> int:
        return max(0, self._node.machine.frontier.known - known)

    def _ways(self, links: list[Link]) -> dict[str, str]:
        """Return one address of each neighbour with a known address, keyed by peer."""
        found = {}
        for link in links:
            seen = f"{link.address.partition('/p2p/')[0]}/p2p/{link.peer}" if link.address else ""
            ways = [*self._node.peering.book.addresses(link.peer), *filter(None, [seen])]
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
            name=(node.settings.display_name or None) if node.machine.own else None,
            origin=node.machine.own.origin.hex() if node.machine.own else None,
        )

    def _neighbour(self, state: ProtocolLink, link: Link, names: Mapping[bytes, Names]) -> SwarmNode:
        since, origin = state.agreement.differs_since, self._latency.origin(link.peer)
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
            name=(names.get(origin, NAMELESS).name or None) if origin else None,
            origin=origin.hex() if origin else None,
        )


def _busy(gpus: Sequence[GpuStatus]) -> float | None:
    """Return the average, over GPUs, of the share of the time in which each was busy; None if it is
    unknown."""
    told = [gpu.busy for gpu in gpus if gpu.busy is not None]
    return sum(told) / len(told) if told else None


def _left(updates: int, rate: float | None) -> float | None:
    if updates <= 0:
        return 0.0
    return updates / rate if rate else None


def budget_of(machine: Machine) -> int:
    """Return the number of updates at which the run is complete."""
    return machine.organised.run_state.budget if machine.organised else machine.run.update_budget


def epochs_of(machine: Machine) -> int:
    """Return the number of epochs of the whole run. In an organised run this assumes that later epochs have
    the manifest's size."""
    if machine.organised is None:
        return machine.run.last_epoch + 1
    run_state = machine.organised.run_state
    if run_state.complete:
        return run_state.open_epoch
    to_come = -(-(run_state.budget - run_state.counted) // machine.run.epoch_updates)
    return max(run_state.open_epoch + 1, run_state.sealed + to_come)


def carried(node: NodeContext) -> tuple[int, int]:
    """Return the bytes sent and received over all links since the start."""
    traffic, links = node.driver.traffic, [pump.link for pump in node.driver.pumps.values()]
    sent = traffic.sent + sum(link.bytes_sent for link in links)
    return sent, traffic.received + sum(link.bytes_received for link in links)


def greeted(node: NodeContext) -> list[tuple[ProtocolLink, Link]]:
    """Return the links whose peer has sent its Hello."""
    pairs = ((node.machine.links.get(key), pump.link) for key, pump in node.driver.pumps.items())
    return [(state, link) for state, link in pairs if state is not None and state.greeted]


def role_of(number: int) -> str:
    """Return the name of a role (SPEC L2)."""
    return "relay" if number else "trainer"

"""A simulated computer with its own disk, clock and power, on which one shipped node runs.

The node starts and stops as it does for users. This module adds everything from outside: kills and power cuts
at any moment, leaps of the clock, copies and backups of the disk. It also reports everything that the node
writes, sends and counts to the oracle and the checks.
"""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from datetime import date, time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, cast

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sflab.simulator.world.disk import Files, lose_unsynced, prepare, put_back
from sflab.simulator.world.engine import IntegerEngine
from sflab.simulator.world.oracle import Violation
from sflab.simulator.world.runs import signing_key
from sflab.simulator.world.trace import kind_of
from sfnode import virtual_time
from sfnode.daemon import Node
from sfnode.errors import UserError
from sfnode.limits import Limits
from sfnode.manifest import Manifest
from sfnode.node.driver import Driver
from sfnode.node.outside import Outside
from sfnode.node.peering import Peering
from sfnode.node.running import RunningNode
from sfnode.node.training.model import LoadEngine
from sfnode.peers.events import Action, Reason
from sfnode.peers.events import Close as PeerClose
from sfnode.peers.events import Event as PeerEvent
from sfnode.peers.link_slots import MIN_OUTBOUND
from sfnode.resources.pauses import Readings
from sfnode.resources.sensors import Sensors
from sfnode.schema.status import MachineStatus
from sfnode.settings import Settings
from sfnode.store.data_folder import DataDir, Layout
from sfnode.store.identity import Identity
from sfnode.store.log import Record, UpdateLog
from sfnode.store.run_keys import organiser_key, write_key
from sfnode.transport.base import PeerRecord
from sfnode.transport.memory import MemoryLink, MemoryTransport
from sfprotocol.decisions import Decision
from sfprotocol.events import Event
from sfprotocol.host import Advanced, Close, Effect, Send
from sfprotocol.machine import Machine
from sfprotocol.messages import Feed, Segment
from sfprotocol.organised import Organised
from sfprotocol.wire_codec import LENGTH_BYTES

if TYPE_CHECKING:
    from sflab.simulator.world.world import World


Range = tuple[float, float]
"""Bounds of a uniform distribution."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """Speed of a node's disk and processor."""

    commit: Range = (0.001, 0.004)
    """Range of the seconds until a commit is durable, as on an SSD with its journal."""
    work: float = 0.0
    """Seconds of processor time per event."""


ORDINARY = Hardware()


HOP_LIMIT = 16
"""Hop count at which segments are not forwarded (SPEC FL3). Defined here again, because the machine may be
wrong."""

STUCK = 5
"""Seconds after which the owner restarts a node that cannot get updates that it lacks."""

OWN_ACCORD = (Reason.GAVE_WAY, Reason.MUTE)
"""Reasons for closing a link that the node could have kept."""

NOON = Readings(time(12), 0.0, True, frozenset(), 40.0, 0, 1.0)
"""Readings of the sensors of all simulated computers."""


class StillSensors(Sensors):
    """Sensors with constant readings."""

    cores = 1.0

    def __init__(self, *devices: str) -> None:
        pass

    def check(self, limits: Limits) -> None:
        pass

    def look(self, limits: Limits) -> Readings:
        return NOON

    def joules(self) -> float:
        return 0.0


def usage(*devices: str) -> Callable[[], MachineStatus]:
    """Return a function that always returns the same usage."""
    same = MachineStatus(device="cpu", cpu=0.1, cores=1.0, memory=1 << 28, memory_total=1 << 32, gpus=[])
    return lambda: same


class WatchedLog(UpdateLog):
    """Update log that reports all durable records and decisions."""

    on_append: Callable[[Sequence[Record]], None]

    on_decisions: Callable[[], None]

    def append(self, records: Sequence[Record], *others: Any, **more: Any) -> None:
        super().append(records, *others, **more)
        self.on_append(records)
        if more.get("control"):
            self.on_decisions()


class Computer:
    """One computer, with its node while the node runs."""

    hostile = False

    def __init__(self, world: World, name: str, hardware: Hardware, files: Files | None = None) -> None:
        """`files` makes this computer a copy of the computer that has these files."""
        self.world = world
        self.name = name
        self.display_name = name
        """Name that the owner of the node chose, and that others see."""
        self.hardware = hardware
        self.layout = Layout(world.folder / name)
        self.random = Random(f"{world.seed}/{name}")
        self.salt = self.random.getrandbits(32)
        """Salt of the scalars of the node's engine."""
        self.organises = False
        """Whether the computer has the organiser's key, and its node signs with that key."""
        self.begins_with_checkpoint = False
        """Whether the node's next start waits for a checkpoint and begins with the checkpoint's state."""
        self.prunes = False
        """Whether the node prunes its log: it deletes updates before a checkpoint that agrees with its own
        state."""
        self.island = 0
        self.up = False
        """Whether the node has joined its run and still runs."""
        self.up_since = 0.0
        self.allowance = 0
        """Maximum number of updates that the node may make between this start and the next."""
        self.bytes_in = self.bytes_out = 0
        self.faults: list[str] = []
        """Rules of the protocol for whose violation the node has dropped links."""
        self.address = ""
        """Public address of the computer, in a range of its own, without the peer id."""
        self.contacts: list[str] = []
        """Addresses of peers that the user gave to the node."""
        self.transport: MemoryTransport | None = None
        self.engine: IntegerEngine | None = None
        self.log: UpdateLog | None = None
        self._descriptor: int | None = None
        """File descriptor of the lock on the node's data folder."""
        self.node: Node | None = None
        """Node that runs; None before the first start and while the computer is off."""
        self._context = copy_context()
        self._program = virtual_time.Program()
        self._offset = self._reading = 0.0
        self._stops: dict[Feed, int] = {}
        """Next step of each feed that the node will count, as observed since its last start."""
        self._task: asyncio.Task[None] | None = None
        if files:
            self.layout.path.mkdir()
            put_back(self.layout, files)
        else:
            prepare(self.layout, world.manifest, signing_key(world.seed, name))
        self.origin = Identity.read(self.layout.identity).public

    # -- state and commands ------------------------------------------------------------------------

    @property
    def disk(self) -> UpdateLog:
        """Log of the running node."""
        assert self.log
        return self.log

    @property
    def off(self) -> bool:
        """Whether no node runs."""
        return self.node is None

    @property
    def said(self) -> int:
        """Number of updates of the node's own feed on disk."""
        return self.log.stop(self.machine.own) if self.up and self.log and self.machine.own else 0

    def counted(self, feed: Feed) -> int:
        """Return the first step of a feed that does not count according to the node's log: the feed's end, or
        an earlier fork; 0 while the node is off."""
        if self.log is None:
            return 0
        stop = self.log.stop(feed)
        return min([stop, *(cut.at for cut in self.log.cuts() if cut.feed == feed)])

    def forgets(self) -> None:
        """Allow forks of the node's key from now on, because its disk is outdated or exists twice."""
        self.world.oracle.may_fork.add(self.origin)

    @property
    def running(self) -> RunningNode:
        assert self.node is not None
        return self.node.running

    @property
    def machine(self) -> Machine:
        return self.running.machine

    @property
    def links(self) -> list[MemoryLink]:
        """Open links."""
        links = self.transport.links if self.up and self.transport else []
        return [link for link in links if not link.closed]

    @property
    def synced(self) -> bool:
        """Whether everything that the machine has decided so far is on disk."""
        return not self.running.driver.between_rounds.locked()

    @property
    def quiet(self) -> bool:
        """Whether all counted updates are on disk and in the engine."""
        thread = self.running.model.thread
        still = thread is None or thread.idle
        return self.synced and still and self.running.model.loaded

    @property
    def organised(self) -> Organised:
        """Part of the machine for organised runs."""
        assert self.machine.organised
        return self.machine.organised

    @property
    def keys(self) -> Path:
        """Folder for the organiser's key."""
        return self.layout.path / "keys"

    def give_key(self, key: Ed25519PrivateKey) -> None:
        """Give the computer the organiser's key. The node signs with it after its next start."""
        write_key(Identity._of(key), organiser_key(self.world.run.run_id, self.keys))
        self.organises = True

    def post(self, event: Event) -> None:
        """Pass an event to the node, as from a user's command."""
        self._context.run(self.running.driver.post, event)

    def decide(self, decision: Decision) -> None:
        """Request a decision from the organiser, as the run's owner."""
        organising = self.running.organising if self.up else None
        if organising:
            self._context.run(self.world.begin, _unless_it_ends(organising.decide(decision)))

    def stand_in(self) -> None:
        """Offer this member as a stand-in, as its owner would."""
        self._context.run(self.running.stand_in)

    @property
    def leads(self) -> bool:
        """Whether the node organises a run with stand-ins, and more than half of the stand-ins answer."""
        return self.up and self.organised.control.elections.leads(self.clock())

    def freeze(self, seconds: float, shown: float) -> None:
        """Stop the node for `seconds`, as a stopped process. Its clock then shows that `shown` seconds
        passed."""
        self._note("stopped", f"{shown:g} s")
        self._context.run(self.world.begin, self._stand_still(self.running.driver, seconds, shown))

    async def _stand_still(self, driver: Driver, seconds: float, shown: float) -> None:
        async with driver.between_rounds:
            await asyncio.sleep(seconds)
            self._offset += shown - seconds

    def clock(self) -> float:
        """Return the time of this computer's monotonic clock."""
        self._reading = max(self._reading, self.world.now + self._offset)
        return self._reading

    def leap(self, seconds: float) -> None:
        """Move the clock forward by `seconds`; if negative, stop it for as many seconds."""
        self._note("clock", f"{seconds:+.1f} s")
        self._offset += seconds

    def compute(self, updates: int) -> None:
        """Let the node make `updates` more updates."""
        if self.up and self.running.model.scheduler:
            self.allowance = max(self.allowance, self.engine.made if self.engine else 0) + updates
            self._context.run(self.running.model.advance)

    def step(self, pace: float) -> None:
        """Let the node make an update. The next update follows after `pace` seconds, so both may be signed
        together."""
        scheduler = self.running.model.scheduler if self.up else None
        if scheduler:
            scheduler._rests_until = float("-inf")
            self.compute(1)
            if scheduler._at_work:
                scheduler._rests_until = self.clock() + 2 * pace

    def hear(self, record: PeerRecord) -> None:
        """Tell the node about a peer."""
        self._context.run(self.running.peering.hear, [record])

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the node with the content of its disk."""
        self._program = virtual_time.Program(lambda random: random.uniform(*self.hardware.commit))
        self._context = copy_context()
        self._context.run(virtual_time.begin, self._program)
        self._stops, self.allowance, self.engine = {}, 0, None
        settings = Settings(
            data_dir=self.layout.path,
            peers=tuple(self.contacts),
            samples=0,
            history="checkpoint" if self.prunes else "all",
            queries=1,
            display_name=self.display_name,
            organise=self.organises,
            keys_dir=self.keys,
            alone=self.organises and not self.layout.log.exists(),
            from_checkpoint=self.begins_with_checkpoint,
        )
        self.begins_with_checkpoint = False
        self._context.run(self._make, settings)
        assert self.node
        self._task = self.world.loop.create_task(self._live(self.node), context=self._context)

    def _make(self, settings: Settings) -> None:
        self.node = Node(
            settings,
            make_transport=self._connect,
            load_engine=cast(LoadEngine, self._load),
            outside=Outside(
                random=self.random,
                clock=self.clock,
                today=lambda: date(2026, 1, 1),
                sensors=StillSensors,
                usage=usage,
                verify=self.world.verify,
                open_log=self._open_log,
                policy=self.world.policy,
                judge=self.world.judge,
                listens=False,
            ),
        )

    async def _live(self, node: Node) -> None:
        program = self._program
        try:
            await node.start()
            if program.alive:
                self._began(node.running)
            await node.wait()
        except Exception as error:
            if program.alive:
                self.world.failed(error, self.name)
        finally:
            if program.alive:
                self.up, self._descriptor = False, None

    def _began(self, running: RunningNode) -> None:
        self.up, self.up_since = True, self.world.now
        self._note("starts", running.machine.frontier.known)
        if running.machine.organised:
            self._see_to_history(self._program)
        driver = running.driver
        carry_out, wait = driver._carry_out, driver._wait

        def watched(effects: list[Effect]) -> None:
            for effect in effects:
                self._check(type(self)._watch, effect)
            carry_out(self.tampered(effects))

        async def slow_wait() -> None:
            if self.hardware.work:  # after a round, whose writes are all on disk
                await asyncio.sleep(driver._host.taken * self.hardware.work)
            await wait()

        peering = running.peering
        tell = peering._tell

        def watched_tell(event: PeerEvent) -> list[Action]:
            actions = tell(event)
            self._check_own_choice(peering, actions)
            return actions

        peering._tell = watched_tell  # type: ignore[method-assign]
        driver._carry_out, driver._wait = watched, slow_wait  # type: ignore[method-assign]

    def _see_to_history(self, program: virtual_time.Program, stuck: int = 0) -> None:
        """Restart from a checkpoint if no neighbour keeps the updates that this node lacks, as its owner is
        told to do."""
        if not program.alive:
            return
        stuck = stuck + 1 if self.up and self.organised.out_of_reach else 0
        if stuck < STUCK:
            self.world.later(1.0, self._see_to_history, program, stuck)
            return
        self.crash()
        self.begins_with_checkpoint = True
        self.start()

    def tampered(self, effects: list[Effect]) -> list[Effect]:
        """Return the effects to carry out. An honest node returns `effects` unchanged."""
        return effects

    def crash(self, *, power_cut: bool = False) -> None:
        """Kill the node, at any moment. In a power cut neighbours are not told, and unsynced writes are
        lost."""
        if self.node is None or not self._program.alive:
            return
        self._note("power cut" if power_cut else "killed")
        self._program.alive = self.up = False
        if self.transport:
            self.transport.die(silently=power_cut)
        for task in (self._task, self.node._life):
            if task:
                task.cancel()
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # the dying node may still hold it
        if self.log:
            lose_unsynced(self.log) if power_cut else self.log.close()
        self.node = self.transport = self.log = self._task = self._descriptor = None

    # -- parts that the node receives --------------------------------------------------------------

    def _connect(self, settings: Settings, data_dir: DataDir, bootstrap: object) -> MemoryTransport:
        self._descriptor = data_dir.descriptor
        self.transport = MemoryTransport(self.world.network, self.name, address=self.address)
        return self.transport

    def _load(self, settings: Settings, manifest: Manifest) -> IntegerEngine:
        self.engine = self.make_engine(manifest)
        scheduler = self.running.model.scheduler  # the node may have waited for a checkpoint before
        assert scheduler
        scheduler.ahead = 1
        scheduler.hindered = lambda: self.engine is None or self.engine.made >= self.allowance
        return self.engine

    def make_engine(self, manifest: Manifest) -> IntegerEngine:
        """Return the engine of the starting node."""
        return IntegerEngine(manifest, self.salt)

    def _open_log(self, path: Path, run_id: bytes) -> UpdateLog:
        self.log = log = (WatchedLog if self.world.watched else UpdateLog).open(path, run_id)
        if isinstance(log, WatchedLog):
            log.on_append = lambda records: self._check(self.world.became_durable, log, records)
            log.on_decisions = lambda: self._check(self.world.decided, log)
        return log

    # -- observations ------------------------------------------------------------------------------

    def _watch(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._watch_send(effect)
            case Close(link=number, fault=fault):
                pump = self.running.driver.pumps.get(number)
                self.faults += [fault] if fault and pump else []
                self._note("drops", fault or "", pump.link.peer if pump else "")
            case Advanced():
                self._watch_count(effect)

    def _watch_send(self, send: Send) -> None:
        pump, message, traffic = self.running.driver.pumps.get(send.link), send.message, self.world.traffic
        if pump is None:
            return
        self._note("sends", message, pump.link.peer)
        traffic.messages[kind_of(message)] += 1
        traffic.bytes[kind_of(message)] += len(send.frame) + LENGTH_BYTES
        if isinstance(message, Segment):
            traffic.copies_sent += message.count
            if message.hops >= HOP_LIMIT:
                self._object("hops", f"a segment is forwarded with hop count {message.hops}")

    def _watch_count(self, advanced: Advanced) -> None:
        """Check that counted steps of a feed have no gap, and go back only because of a fork proof."""
        feed, before, stop = advanced.feed, advanced.before, advanced.stop
        assert self.log
        if stop > self.log.stop(feed):
            self._object("durable", f"updates up to step {stop} are applied and not on disk")
        if self.machine.organised:
            return
        counted = self._stops.get(feed, before)
        if counted != before:
            self._object("once", f"updates from step {before} are applied where {counted} comes next")
        if stop < before:
            cut = next((cut for cut in self.log.cuts() if cut.feed == feed), None)
            if cut is None or cut.at > stop:
                self._object("cut", f"a feed goes back to step {stop} and no proof on disk says so")
        self._stops[feed] = stop

    def _check_own_choice(self, peering: Peering, actions: list[Action]) -> None:
        """Raise Violation if the node itself closes too many outbound links.

        At least MIN_OUTBOUND must remain. If the peers of the closed links had shown no updates, links that
        are being opened count, too.
        """
        closed = {a.link for a in actions if isinstance(a, PeerClose) and a.reason in OWN_ACCORD}
        counts = [count for count in peering._observed().links if count.link in closed] if closed else []
        own = [count for count in counts if peering._links[count.link].outbound]
        if not (own and self.world.managed):
            return
        kept = sum(standing.outbound for standing in peering.manager.standings())
        mute = all(count.blank for count in own)
        if kept + (len(peering.manager.dialling) if mute else 0) < MIN_OUTBOUND:
            self.world.failed(
                Violation("outbound", f"{self.name} gives up links of its own choice"), self.name
            )

    def _check(self, check: Callable[..., None], *seen: Any) -> None:
        """Make a check, and report a violation at once instead of at the end of the node."""
        try:
            check(self, *seen)
        except Violation as found:
            self.world.failed(found, self.name)
            raise

    def _object(self, checker: str, what: str) -> None:
        raise Violation(checker, what, (self.name,))

    def _note(self, what: str, detail: object = None, other: str = "") -> None:
        self.world.trace.note(self.world.now, self.name, what, other, detail)


async def _unless_it_ends(asked: Coroutine[Any, Any, object]) -> None:
    with suppress(UserError):
        await asked

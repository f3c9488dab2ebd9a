"""SeedFlood (arXiv 2602.18181) with virtual clients: shipped nodes in virtual time that share one engine.

A client is a node of the simulator (`sflab.simulator.world`): driver, peering, SQLite. In an organised run
client 0 is also the organiser. In a local step each client makes an update. The updates of a round are signed
and flooded together. Virtual time passes only in rounds. The only state is the measurements: everything else
follows from them and the cell, so a restart runs the cell again without measuring.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from sflab.baselines.clients import EdgeTraffic
from sflab.experiments.cell import Cell
from sflab.experiments.problem import Conditions, LoadedProblem, organiser_key
from sflab.experiments.shared_engine import ClientEngine, Measured, SharedEngine
from sflab.simulator.world.computer import Computer
from sflab.simulator.world.engine import IntegerEngine
from sflab.simulator.world.world import World
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data
from sfnode.manifest.task import Task
from sfnode.models import bases
from sfnode.node.training.step_scheduler import StepScheduler
from sfnode.organising.policy import Admission, OrganiserPolicy
from sfnode.peers.link_slots import TARGET_LINKS
from sfnode.schema.measurements import Evaluation
from sfnode.settings import Settings
from sfnode.store.data_folder import Layout
from sfnode.store.disk_errors import disk_faults
from sfnode.tasks.dataset import Row
from sfnode.tasks.mini_batches import Shard
from sfnode.transport import memory
from sfnode.transport.memory import Latency
from sfprotocol.decisions import Admit, Budget
from sfprotocol.host import Effect, Send
from sfprotocol.messages import Control, ControlWant, Feed, Have, Prune, Segment, Want
from sfprotocol.run_state import NEVER
from sfprotocol.seeds import derive_key
from sfprotocol.weighing import NOTHING, differences

COUNTED = (Segment, Have, Want, Prune, Control, ControlWant)
"""Messages that carry, announce or request updates and decisions. Anti-entropy is not counted: it depends on
elapsed time, which means nothing in a cell."""

ROUND = 3.0
"""Duration of a communication round, in virtual seconds, if links are slow, clients are absent or the run is
organised. Nodes forward everything in much less time. An organiser checks twice in a round what to decide."""

QUICK_LINK = 0.01
"""Delay of a link, in seconds, if `hops` is 0."""

STEP, LOOK = 0.001, 0.05
"""Seconds between two checks: STEP while waiting for the end of a local step, LOOK while waiting until all
clients are equal."""

PATIENCE = 600.0
"""Timeout, in seconds, for nodes to meet, to be admitted, and to have the last seal."""

LONGEST_EPOCH = 604_800.0
"""Maximum length of an epoch, in seconds. It is never reached: epochs end by their number of updates."""

LONGEST_WAIT = 86_400.0
"""Maximum time that a seal waits for measurements, in seconds. It is never reached: results come at once."""


def check(cell: Cell) -> None:
    """Raise UserError BAD_OPTION if nodes would not keep the links of the topology."""
    network = cell.network
    crowded = network.topology == "complete" and network.clients > TARGET_LINKS + 1
    if crowded or network.topology == "changing":
        raise UserError(
            Code.BAD_OPTION,
            f"SeedFlood's clients are nodes, which keep their links and open {TARGET_LINKS} at most",
            "Choose another --topology, or a baseline.",
        )


class ClientComputer(Computer):
    """Simulated computer of one client."""

    trains: ClientEngine
    """Engine of the client's node."""
    sent: EdgeTraffic
    """Bytes of the `COUNTED` messages of all nodes."""

    @property
    def number(self) -> int:
        """Number of the client."""
        return int(self.name)

    @property
    def own(self) -> Feed:
        """Feed of the client's node."""
        assert self.machine.own
        return self.machine.own

    @property
    def scheduler(self) -> StepScheduler:
        """Scheduler of the client's steps, once the model is loaded."""
        assert self.running.model.scheduler
        return self.running.model.scheduler

    @property
    def ready(self) -> bool:
        """Whether the node trains, and is in sync with all neighbours."""
        pairs = self.world.network.pairs or ()
        synced = [link.synced for link in self.machine.links.values()] if self.up else []
        meets = all(synced) and len(synced) == sum(self.name in pair for pair in pairs)
        return self.up and meets and self.quiet and self.scheduler.ready

    def start(self) -> None:
        """Start the node with the client's own key. As a newcomer the node may make updates at once (SPEC
        O20)."""
        self.layout.identity.unlink()
        super().start()

    def publish(self, least: int) -> None:
        """Sign the new updates, if there are at least `least`."""
        coalescing = self.scheduler._coalescing
        if coalescing and coalescing.count >= max(1, least):
            self._context.run(StepScheduler.flush, self.scheduler)

    def stall(self, stalled: bool) -> None:
        """Stop all frames on the client's links, or let them pass again."""
        for link in self.links:
            link.out.stall(stalled)
            link.into.stall(stalled)

    def make_engine(self, manifest: Manifest) -> ClientEngine:
        return self.trains

    def _load(self, settings: Settings, manifest: Manifest) -> IntegerEngine:
        lacks, engine = self.scheduler.hindered, super()._load(settings, manifest)
        spent = self.scheduler.hindered
        self.scheduler.hindered = lambda: lacks() or spent()
        self.scheduler.flush = lambda: None  # type: ignore[method-assign]  # until `publish`
        return engine

    def _watch(self, effect: Effect) -> None:
        """Count the bytes of a message that the client sends."""
        if isinstance(effect, Send) and isinstance(effect.message, COUNTED):
            pump = self.running.driver.pumps.get(effect.link)
            if pump:
                self.sent.add((self.number, int(pump.link.peer)), len(effect.frame))


class SeedFlood:
    """SeedFlood on the virtual clients of one simulated training run (a `Cell`). Must be closed."""

    def __init__(self, cell: Cell, problem: LoadedProblem, log: Path | None = None) -> None:
        """`log` is the empty folder to which client 0's data are copied at the end."""
        self._cell, self._problem, self._log = cell, problem, log
        self._done = 0
        self._hostile = hostile_clients(cell)
        self._conditions = Conditions(cell.network, cell.seed)
        manifest = node_manifest(problem.manifest)
        if log:
            _take(log, manifest)
        delay = ROUND / cell.network.hops if cell.network.hops else QUICK_LINK
        self.world = World(
            cell.seed,
            conditions=memory.Conditions(Latency(typical=delay), loss=cell.network.loss),
            manifest=manifest,
            policy=self._policy() if self.is_organised else None,
            computer=ClientComputer,
            watched=False,
        )
        self.traffic = EdgeTraffic()
        try:
            with disk_faults(self.world.folder):
                self._join(manifest)
        except BaseException:
            self.world.close()
            raise

    @property
    def clients(self) -> list[ClientComputer]:
        """Computers of all clients."""
        return cast(list[ClientComputer], list(self.world.nodes.values()))

    @property
    def example_forwards(self) -> int:
        """Number of example-forwards so far."""
        return self.engine.example_forwards

    @property
    def is_organised(self) -> bool:
        """Whether client 0 organises the run."""
        return bool(self._cell.options.get("organised"))

    @property
    def complete(self) -> bool:
        """Whether the run is complete. Then no client makes updates."""
        return self.is_organised and self.clients[0].organised.run_state.complete

    # -- the beginning -----------------------------------------------------------------------------

    def _policy(self) -> OrganiserPolicy:
        manifest, options = self._problem.manifest, self._cell.options
        validates = "validation" in self._problem.held_out
        search, guard = (bool(options.get(name)) and validates for name in ("search", "guard"))
        return OrganiserPolicy(
            target_updates=manifest.training.epoch_updates,
            longest_epoch=LONGEST_EPOCH,
            seal_wait=LONGEST_WAIT if search or guard else 0.0,
            search_rows=manifest.data.validation_limit if search else 0,
            origins=bool(options.get("origins", 1)),
            guard=guard,
            renew_updates=int(options.get("renew", 0)) if self._problem.bases else 0,
            update_forwards=manifest.update_forwards,
            admission=Admission.LINKS,
            work_bits=0,
            quota=manifest.organised.quota,
            amend_after=None,
            checkpoint_epochs=None,
        )

    def _join(self, manifest: Manifest) -> None:
        """Start all nodes with the links of the network, and admit them."""
        world, problem = self.world, self._problem
        for number in range(self._cell.network.clients):
            client = world.add(str(number))
            client.display_name = ""  # sending all names to all nodes would take as long as some rounds
            if problem.bases:
                targets, columns = manifest.model.parsed_targets(), manifest.basis_columns
                client.layout.bases.mkdir(exist_ok=True)
                bases.keep(Path(self._cell.problem.bases), client.layout.bases, targets, columns)
        first = self.clients[0]
        self.engine = SharedEngine(problem, first.layout.bases if problem.bases else None)
        dealt, size = list(problem.shards), manifest.training.batch_size
        for number in self._hostile:
            dealt[number] = shard_of(self._cell.network.attack, problem.task, dealt[number])
        for client, rows in zip(self.clients, dealt, strict=True):
            shard = Shard(problem.task, problem.loaded.tokenizer, rows, size, lambda: problem.public)
            client.trains = self.engine.add(shard, partial(self._disclosed, client.number))
            client.sent = self.traffic
        for one, other in self._conditions.links(0):
            world.want(self.clients[one], self.clients[other], both=False)
        if self.is_organised:
            first.give_key(organiser_key(self._cell))
        for client in self.clients:
            world.do(client.start)
        self._wait(lambda: all(client.up for client in self.clients))
        for client in self.clients if self.is_organised else ():
            world.do(first.decide, Admit(client.own.origin, manifest.organised.quota, 0))
        self._wait(lambda: all(client.ready for client in self.clients) and self._admitted())
        self._wait(self._equal)
        self.traffic.sent.clear()

    def _admitted(self) -> bool:
        return not self.is_organised or len(self.clients[0].organised.run_state.members) == len(self.clients)

    def _disclosed(self, client: int, sent: Sequence[int], seed: int, measured: int) -> int:
        if client not in self._hostile:
            return measured
        limit = self._problem.manifest.training.scalar_limit
        return scalar_of(self._cell, limit, sent, seed, measured)

    def _wait(self, until: Callable[[], bool], look: float = LOOK) -> None:
        """Let time pass until a condition holds, which is checked every `look` seconds. Fail after PATIENCE
        seconds."""
        end = self.world.now + PATIENCE
        while not until():
            if self.world.now > end:
                raise RuntimeError("clients wait for what does not come")
            self._pass(look)

    def _pass(self, seconds: float) -> None:
        self.world.run_until(self.world.now + seconds)

    # -- training ----------------------------------------------------------------------------------

    def step(self, number: int) -> float:
        """Take local step `number` of every present client. Fast clients take several mini-batches."""
        self._done = number + 1
        if self.complete:
            return math.nan
        steps = self._conditions.steps_by(number) * self._conditions.present(self._round(number))
        if self._cell.network.attack == "absent":
            steps[self._hostile.start :] = 0
        self.engine.losses.clear()
        for turn in range(steps.max()):
            chosen = [self.clients[client] for client in np.flatnonzero(steps > turn)]
            self.world.do(self._compute, chosen)
            self._wait(lambda: not any(one.scheduler._at_work for one in self.clients), STEP)
        losses = self.engine.losses
        return sum(losses) / len(losses) if losses else math.nan

    def _compute(self, chosen: Sequence[ClientComputer]) -> None:
        for client in chosen:
            client.allowance = 0  # updates that it could not make before are dropped
            client.scheduler._rests_until = -math.inf  # the run's pace is per second
            client.compute(self._problem.manifest.training.batch_updates)

    def _round(self, number: int) -> int:
        return number // self._cell.local_steps

    # -- communication -----------------------------------------------------------------------------

    def communicate(self, number: int) -> None:
        """Let all present clients sign their updates, and flood updates and decisions."""
        last, network = number == self._cell.steps - 1, self._cell.network
        there = self._conditions.present(self._round(number)) | last
        away = [client for client in self.clients if not there[client.number]]
        for client in away:
            self.world.do(client.stall, True)
        least = 0 if last else int(self._cell.options.get("segment_updates", 0))
        for client in self.clients:
            if client not in away:
                self.world.do(client.publish, least)
        if network.hops or away or self.is_organised:
            self._pass(ROUND + LOOK)  # nodes need some time, too
        if not (network.hops or away) or (last and self.is_organised):
            self._wait(self._equal)
        self._wait(lambda: all(client.quiet for client in self.clients), STEP)
        for client in away:
            self.world.do(client.stall, False)
        if last and self.is_organised:
            self._finish()

    def _state_of(self, client: ClientComputer) -> object:
        decided = client.organised.control.feed.stop if self.is_organised else 0
        return client.machine.frontier.digest(), decided

    def _equal(self) -> bool:
        """Return whether all clients have the same updates and decisions, and the bases that these updates
        need."""
        lacking = any(client.running.bases and client.running.bases.lacking() for client in self.clients)
        return len({self._state_of(client) for client in self.clients}) <= 1 and not lacking

    def _finish(self) -> None:
        """Let the organiser close and seal all updates left, and complete the run."""
        before = -1
        while not self.complete and (budget := self._left()) != before:
            self.world.do(self.clients[0].decide, Budget(budget))
            self._pass(4 * ROUND)
            before = budget
        self._wait(self._equal)

    def _left(self) -> int:
        """Return the smallest budget that is enough for all stored updates that may count."""
        first = self.clients[0]
        run_state, left = first.organised.run_state, 0
        for state in first.machine.frontier:
            number, member = run_state.number(state.feed), run_state.member(state.feed.origin)
            if number is not None and member and member.revoked == NEVER:
                left += state.next - run_state.named(number)
        return run_state.promised + left

    # -- measurements ------------------------------------------------------------------------------

    def consensus(self) -> float:
        """Return the mean of ||x_i - mean x||^2 over clients."""
        return self.engine.consensus()

    def updates(self) -> Mapping[str, int]:
        """Return the numbers of made and of counted updates, for honest and for hostile clients."""
        frontier = self.clients[0].machine.frontier
        made = [frontier.next(client.own) for client in self.clients]
        count = [self._counted(client) for client in self.clients] if self.is_organised else made
        bound = self._hostile.start
        return {
            "honest_updates": sum(made[:bound]),
            "honest_counted": sum(count[:bound]),
            "hostile_updates": sum(made[bound:]),
            "hostile_counted": sum(count[bound:]),
        }

    def _counted(self, client: ClientComputer) -> int:
        """Return the number of a client's updates that the seals so far count."""
        organised = self.clients[0].organised
        named = organised.named(organised.run_state.sealed - 1)
        counted = named.get(client.own, NOTHING)
        return sum(one.stop - one.first for one in differences(NOTHING, counted) if one.now)

    def evaluate(self, which: str) -> Evaluation:
        """Measure the average of all clients' models on the `validation` or the `test` rows.

        In a complete run, measure the model of its last seal.
        """
        if self.complete:
            asked = self.clients[0].running.model.ask_of_last_seal(lambda engine: engine.cores())
            _, cores = self.world.loop.run_until_complete(asked)
            self.engine.at(cores)
            return self._problem.evaluate(which)
        with self.engine.averaged():
            return self._problem.evaluate(which)

    # -- restarts ----------------------------------------------------------------------------------

    def state(self) -> Mapping[str, Any]:
        """Return all measurements, and the number of finished steps."""
        return {"done": self._done, "known": {seed: (*one,) for seed, one in self.engine.known.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state`, before the first step."""
        self.engine.known |= {seed: Measured(*told) for seed, told in state["known"].items()}
        for number in range(state["done"]):
            self.step(number)
            if (number + 1) % self._cell.local_steps == 0 or number + 1 == self._cell.steps:
                self.communicate(number)

    def close(self) -> None:
        """Stop all nodes. Copy client 0's data folder if `log` was given."""
        first = self.clients[0]
        first.crash()
        if self._log and self._done == self._cell.steps:
            with disk_faults(self._log):
                shutil.copytree(first.layout.path, self._log, dirs_exist_ok=True)
        self.engine.trainer.close()
        self.world.close()


def node_manifest(manifest: Manifest) -> Manifest:
    """Return the manifest of the nodes. They need no model and no rows, because the shared engine has
    them."""
    model = manifest.model.model_copy(update={"listing": ""})
    data = Data(train="builtin:reviews:train", validation_limit=manifest.data.validation_limit)
    return manifest.model_copy(update={"model": model, "data": data})


def _take(folder: Path, manifest: Manifest) -> None:
    """Make the folder for a log. Raises UserError BAD_OPTION if the folder has anything but a log of this
    simulated run, DISK_FULL and DATA_DIR_UNUSABLE."""
    layout = Layout(folder)
    with disk_faults(folder):
        folder.mkdir(parents=True, exist_ok=True)
        same = layout.manifest.exists() and Manifest.from_toml(layout.manifest).run_id == manifest.run_id
        if os.listdir(folder) and not same:
            raise UserError(
                Code.BAD_OPTION,
                f"{folder} is not empty, and the log of a simulated run takes a folder of its own",
                "Name a new folder with --write-log.",
            )


# -- hostile clients --------------------------------------------------------------------------------


LAZY = 4
"""Number of updates that a lazy client makes from one measurement."""


def hostile_clients(cell: Cell) -> range:
    """Return the numbers of the hostile clients: the last ones."""
    clients = cell.network.clients
    return range(clients - int(cell.network.hostile * clients), clients)


def shard_of(attack: str, task: Task, rows: Sequence[Row]) -> Sequence[Row]:
    """Return the rows on which a hostile client measures. Raises UserError BAD_OPTION for `target` if rows
    have no classes."""
    if attack != "target":
        return rows
    if not task.labelled:
        raise UserError(
            Code.BAD_OPTION,
            "rows of this task have no classes, and `target` teaches a wrong one",
            "Choose another --attack.",
        )
    label: dict[str, Any] = {task.label_field: next(iter(task.verbalizer))}
    return [{**row, **label} for row in rows]


def scalar_of(cell: Cell, limit: int, sent: Sequence[int], seed: int, measured: int) -> int:
    """Return the next scalar of a hostile client after the scalars `sent`. `limit` is the largest absolute
    value of a scalar."""
    coin = 1 - 2 * (derive_key(b"sfnode simulated attack", seed.to_bytes(8, "big")) & 1)
    match cell.network.attack:
        case "random":
            return coin * abs(measured)
        case "flip":
            return -measured
        case "turncoat":
            return -measured if 2 * len(sent) >= cell.steps else measured
        case "scale":
            return limit if measured < 0 else -limit
        case "noise":
            return coin * limit
        case "constant":
            return sent[0] if sent else measured
        case "lazy":
            return sent[len(sent) // LAZY * LAZY] if len(sent) % LAZY else measured
    return measured

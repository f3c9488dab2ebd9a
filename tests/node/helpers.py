"""Whole nodes inside the process of a test: real logs, machines, control sockets and links in memory.

Only the model is small: its engine's scalars are a function of the seeds, and its cores are real.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from sfnode.control.client import Client
from sfnode.daemon import Node as PublicNode
from sfnode.engine.core import Core, UpdateBatch
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data, Model, OrganisedSection
from sfnode.manifest.task import Task
from sfnode.manifest.training import Training
from sfnode.models import bases as published_bases
from sfnode.node.driver import Driver
from sfnode.node.running import RunningNode
from sfnode.schema.measurements import BaselineEvaluation, Evaluation, LayeredDrift, StepShare
from sfnode.settings import Settings
from sfnode.store.data_folder import Layout
from sfnode.store.identity import Identity
from sfnode.store.log import Record, Tail, UpdateLog
from sfnode.store.run_keys import organiser_key, write_key
from sfnode.transport.memory import PERFECT, Conditions, MemoryTransport
from sfprotocol import seeds, signing
from sfprotocol.decisions import Bases, Decision, read
from sfprotocol.frontier import Frontier
from sfprotocol.machine import Machine
from sfprotocol.messages import EpochScalars, Feed, Segment
from sfprotocol.seeds import I64
from tests.transport.split import SplitNetwork

D = TypeVar("D", bound=Decision)

PATIENCE = 60.0
"""Maximum seconds that a test waits. On an idle machine nothing takes more than two."""


def manifest(name: str = "test", **training: Any) -> Manifest:
    """A run that needs no model."""
    numbers = {"rank": 4, "epoch_updates": 40, "update_budget": 100_000} | training
    return Manifest(
        name=name,
        model=Model(source="none", digest="0" * 64, targets=("a:8x4", "b:4x8")),
        task=Task(kind="text", template="{text}"),
        data=Data(train="builtin:reviews:train"),
        training=Training(**numbers),
    )


def organised(run: Manifest, keys: Path, *, validation: str = "", **said: Any) -> Manifest:
    """Return the run with an organiser, whose key lies in a folder afterwards, and one deputy."""
    key, deputy = Identity.generate(), Identity.generate()
    names = {"organiser": key.public.hex(), "deputies": (deputy.public.hex(),), "quota": 120}
    data = run.data.model_copy(update={"validation": validation or run.data.validation})
    section = OrganisedSection(**names | said)
    made = run.model_copy(update={"admission": "organised", "organised": section, "data": data})
    write_key(key, organiser_key(made.run_id, keys))
    return made


def pairs_of(run: Manifest, entry: int) -> list[tuple[NDArray[np.int8], NDArray[np.int8]]]:
    """Bases of a run, of which all entries of U are the same, and all of V: others for every `entry` below
    10,000."""
    (high, low), rank = divmod(entry, 100), run.training.rank
    full, targets = partial(np.full, dtype=np.int8), run.model.parsed_targets()
    return [(full((t.out_features, rank), 1 + low), full((t.in_features, rank), 1 + high)) for t in targets]


ENOUGH = 10_000
"""Steps of a node that are more than any short run has."""

PACE = 0.001
"""Seconds of a step: a node then sends a few segments of many updates, as fast ones do."""

# -- the engine ----------------------------------------------------------------------------------------


class Result(NamedTuple):
    scalars: tuple[int, ...]
    loss: float = 1.0
    failed: int = 0


def accuracy(value: float, low: float, high: float, loss: float, rows: int) -> Evaluation:
    return Evaluation(metric="accuracy", value=value, low=low, high=high, loss=loss, count=rows)


def scalar_of(seed: int) -> int:
    """Return the scalar that the small engine measures for a seed. It is never 0, because 0 would look like a
    removed update."""
    return seed % 400 - 199 or 200


class NothingToPrepare:
    """The mini-batches of an engine without data."""

    def prepare(self, seeds: Sequence[int]) -> None:
        pass


class Answered(NamedTuple):
    """`engine.samples.Answered`, without torch."""

    text: str
    right: str
    said: str
    score: float


class SmallEngine:
    """An engine that counts updates instead of computing. It fails if an update is applied twice without
    being
    removed in between."""

    def __init__(self, run: Manifest) -> None:
        self.run = run
        self.core = Core(*run.core_shape)
        self.began_with: list[int] = []
        """Subspaces of the checkpoint with which it began."""
        self.bases: list[tuple[Bases, ...]] = []
        """Published bases that it was given, call by call."""
        self.mini_batches = NothingToPrepare()
        self.devices = ()
        self.odds = (4, 1024)
        self.applied: dict[int, int] = {}
        """Amounts of the updates in the core, keyed by seed. A seed belongs to one update of the run."""
        self.epochs: list[int] = []
        """Epochs of the completed steps."""
        self.steps = threading.Semaphore(0)
        """Number of steps that may still be made. `go` sets it, by default to more than any test needs."""
        self.stepping = threading.Event()
        self.endless = False
        """Whether an evaluation runs until it is no longer wanted."""
        self.measuring = threading.Event()
        self.best = 2.0
        """Factor at which the loss is least, for every line search."""
        self.towards: list[tuple[int, float]] = []
        """Number of updates in the core, and the factor, of each call of `evaluate_towards`."""
        self.made = 0
        """Number of times that bases were made."""
        self.made_at: int | None = None
        """Number of updates in the core when bases were last made."""
        self.shared_at: int | None = None
        """Number of updates in the core when shares were last measured."""
        self.parked = 0
        """Number of times that the model was offloaded."""
        self.aside = False
        self.threads: int | None = None
        self.most_threads: int | None = None

    def go(self, steps: int = 1_000_000_000) -> SmallEngine:
        self.steps = threading.Semaphore(steps)
        return self

    def begin(self, cores: Mapping[int, I64]) -> None:
        assert not self.applied, "begun after updates were applied"
        self.core.put(cores)
        self.began_with = sorted(cores)

    def use_bases(self, published: Sequence[Bases]) -> None:
        self.bases.append(tuple(published))

    def apply(self, batch: UpdateBatch) -> None:
        amounts = dict(zip(batch.seeds.tolist(), batch.scalars.tolist(), strict=True))
        assert len(amounts) == len(batch.seeds)
        for seed, amount in amounts.items():
            if seed not in self.applied:
                self.applied[seed] = amount
            elif (before := self.applied.pop(seed)) != -amount:
                assert before != amount, "applied twice"
                self.applied[seed] = before + amount
        self.core.add(batch)

    def offload(self) -> None:
        self.parked += not self.aside
        self.aside = True

    def restore(self) -> None:
        self.aside = False

    def use_threads(self, count: int | None, most: int | None) -> None:
        self.threads, self.most_threads = count, most

    def baselines(self, limit: int) -> tuple[BaselineEvaluation, ...]:
        return ()

    def step(self, seeds: Sequence[int], epoch: int, rate: object = None) -> Result:
        assert not self.aside
        self.stepping.set()
        self.steps.acquire()
        time.sleep(PACE)
        self.epochs.append(epoch)
        return Result(tuple(map(scalar_of, seeds)))

    def evaluate(self, limit: int, wanted: Callable[[], bool], rows: str = "test") -> Evaluation:
        self.restore()
        while self.endless:
            self.measuring.set()
            time.sleep(PACE)
            if not wanted():
                raise UserError(Code.PAUSED, "paused", "Ask again.")
        value = float(len(self.applied))
        return accuracy(value, value - 1, value + 1, loss=0.5, rows=limit)

    def drift(self) -> LayeredDrift:
        return LayeredDrift(norm=1.0, distance=0.01 * len(self.applied), kl=0.5, tokens=9, layers=[])

    def evaluate_base(
        self, limit: int, wanted: Callable[[], bool], rows: str = "test", *, calibrated: bool = False
    ) -> Evaluation:
        self.restore()
        found = accuracy(0.0, 0.0, 0.1, loss=0.7, rows=limit)
        return found.model_copy(update={"calibrated": calibrated})

    def cores(self) -> dict[int, I64]:
        self.latest = len(self.applied)
        return {subspace: core.copy() for subspace, core in self.core.cores().items()}

    def search(self, after: Mapping[int, I64], search: Any, go_on: Callable[[], bool]) -> int:
        """Find the least loss at `best`."""
        taken = 0
        while wanted := search.wanted:
            distances = np.array(search.amounts) - self.best
            search.take(np.tile(distances**2, (len(wanted), 1)))
            taken += len(wanted) * len(search.amounts)
        return taken

    def shares(
        self,
        after: Mapping[int, I64],
        updates: Sequence[tuple[UpdateBatch, I64]],
        rows: int,
        turn: int,
        go_on: Callable[[], bool],
    ) -> tuple[list[StepShare], int]:
        """Return the number of updates of each feed, slopes of 1, and the worth that follows from the
        weights."""
        self.shared_at = len(self.applied)
        found = []
        for batch, weights in updates:
            assert not self.applied.keys() & set(batch.seeds.tolist())
            scalars = batch.scalars.astype(float)
            worth = float((weights * scalars).sum())
            found.append(StepShare(len(scalars), scalars.sum(), (scalars**2).sum(), worth, 1.0))
        return found, 3 * rows

    def make_bases(self, folder: Path) -> str:
        """Write different bases at every call. (Runs begin with those of entry 8.)"""
        self.made, self.made_at = self.made + 1, len(self.applied)
        return published_bases.write(folder, pairs_of(self.run, 8 + self.made))

    def evaluate_towards(
        self, after: Mapping[int, I64], amount: float, go_on: Callable[[], bool], rows: str = "test"
    ) -> Evaluation:
        """Return the number of updates in the core when `cores` was last called."""
        self.towards.append((len(self.applied), amount))
        return accuracy(float(self.latest), self.latest - 1.0, self.latest + 1.0, loss=0.5, rows=256)

    def read_test_rows(self) -> None:
        pass

    def answer(self, rows: int, *, base: bool) -> list[Answered]:
        said = "?" if base else str(len(self.applied))
        return [Answered(f"row {row}", "much", said, 0.0) for row in range(rows)]

    def generate(self, prompt: str, tokens: int) -> tuple[str, str]:
        return prompt, f"{prompt} and {len(self.applied)} more"[:tokens]


# -- nodes -------------------------------------------------------------------------------------------


class Node:
    """One node of a test, over all its starts."""

    def __init__(
        self,
        network: SplitNetwork,
        name: str,
        folder: Path,
        make_engine: Callable[[Manifest], Any] = lambda run: SmallEngine(run).go(),
    ) -> None:
        self.network = network
        self.name = name
        self.folder = folder / name
        self.layout = Layout(self.folder)
        self.make_engine = make_engine
        self.engine: Any = None
        self.engines: list[Any] = []
        """Engines of all its starts."""
        self.settings: Any = None
        """Settings with which the engine was loaded."""
        self.transport: MemoryTransport | None = None
        self._node: RunningNode | None = None
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def address(self) -> str:
        return f"/memory/{self.name}/p2p/{self.name}"

    @property
    def client(self) -> Client:
        return Client(self.layout.control_socket)

    @property
    def node(self) -> RunningNode:
        assert self._node is not None
        return self._node

    @property
    def machine(self) -> Machine:
        return self.node.machine

    @property
    def known(self) -> int:
        return self.machine.frontier.known

    @property
    def digest(self) -> str:
        return self.machine.frontier.digest().hex()

    async def start(self, run_file: Path | None = None, **settings: Any) -> Node:
        """Start the node, and return once it has joined. Raises the error that keeps it from joining."""
        self.engine = None
        # an engine that is asked for samples at any moment is not the one that other tests count on
        chosen = Settings(data_dir=self.folder, run=run_file, **{"samples": 0} | settings)
        node = PublicNode(chosen, make_transport=self._make_transport, load_engine=self._load_engine)
        self._task = None
        await node.start()
        self._node = node.running
        self._watch(node.running.driver)
        self._task = asyncio.create_task(node.wait())
        return self

    async def until(self, predicate: Callable[[], object]) -> None:
        """Wait until `predicate` holds. It is called after every round of the driver. Raises the error that
        ended
        the node."""
        async with asyncio.timeout(PATIENCE):
            while not predicate():
                if self._task.done():
                    await self._task
                    raise AssertionError("the node has ended")
                self._changed.clear()
                changed = asyncio.create_task(self._changed.wait())
                await asyncio.wait([changed, self._task], return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()

    async def ended(self) -> None:
        """Wait until the node ends by itself. Raises its error."""
        assert self._task is not None
        async with asyncio.timeout(PATIENCE):
            await self._task

    async def stop(self) -> None:
        self.node.stop()
        await self.ended()

    def _make_transport(self, *_: object) -> MemoryTransport:
        self.transport = MemoryTransport(self.network, self.name)
        return self.transport

    def _load_engine(self, settings: Settings, run: Manifest) -> Any:
        self.settings = settings
        self.engine = self.make_engine(run)
        self.engines.append(self.engine)
        return self.engine

    def _watch(self, driver: Driver) -> None:
        driver.after_round.append(self._changed.set)


class Swarm:
    """Nodes of one run in one network."""

    def __init__(self, folder: Path, run: Manifest | None = None, conditions: Conditions = PERFECT) -> None:
        self.run = run or manifest()
        self.folder = folder
        self.network = SplitNetwork(Random(7), conditions)
        self.run_file = folder / "run.toml"
        self.run_file.write_text(self.run.to_toml())
        self.nodes: dict[str, Node] = {}

    def node(self, name: str, **options: Any) -> Node:
        """Make a node without starting it."""
        self.nodes[name] = Node(self.network, name, self.folder, **options)
        return self.nodes[name]

    async def first(self, name: str = "a", **options: Any) -> Node:
        """Start the first node of the run, from the manifest."""
        node = self.nodes.get(name) or self.node(name)
        return await node.start(self.run_file, **options)

    async def join(self, name: str, via: str = "a", **options: Any) -> Node:
        """Start a node that has only a peer's address."""
        node = self.nodes.get(name) or self.node(name)
        return await node.start(peers=(self.nodes[via].address,), **options)

    async def stop(self) -> None:
        """Stop all running nodes, and ignore their errors."""
        tasks = [node._task for node in self.nodes.values() if node._task]
        for node in self.nodes.values():
            if node._node:
                node._node.stop()
        await asyncio.gather(*tasks, return_exceptions=True)
        for engine in (engine for node in self.nodes.values() for engine in node.engines):
            if isinstance(engine, SmallEngine):
                engine.steps.release()  # the step that it waits for leave to make is its last

    def log(self, name: str) -> UpdateLog:
        """The log of a node as it is on disk now."""
        return UpdateLog.open(self.nodes[name].layout.log, self.run.run_id, read_only=True)


SwarmOf = Callable[..., Swarm]
"""As the fixture `swarm_of`."""


def decided(node: Node, kind: type[D]) -> list[D]:
    """Return the decisions of one kind that a node of an organised run has."""
    entries = node.machine.organised.control.feed.entries  # type: ignore[union-attr]
    return [said for entry in entries if isinstance(said := read(entry.record).decision, kind)]


def batch(key: int, first: int, parts: Iterable[EpochScalars]) -> UpdateBatch:
    """Return updates as columns. A slow reference implementation, one update at a time."""
    rows = [(epoch, scalar) for epoch, scalars in parts for scalar in scalars]
    epochs, scalars = np.array(rows, np.int64).T
    return UpdateBatch(epochs, seeds.update_seeds(key, first, len(rows)), scalars)


# -- parts of a node ----------------------------------------------------------------------------


def feed_of(name: str, incarnation: int = 0) -> Feed:
    return Feed(signing_key(name).public_key().public_bytes_raw(), incarnation)


def record(
    run: Manifest, name: str, scalars: Sequence[int], before: Sequence[int] = (), *, incarnation: int = 0
) -> Record:
    """The signed segment in which `name` says `scalars`, having said `before` until then; all of epoch 0."""
    feed, parts = feed_of(name, incarnation), (EpochScalars(0, tuple(scalars)),)
    chain = signing.genesis(run.run_id, feed)
    for piece in (before, scalars):
        chain = signing.extend(chain, [EpochScalars(0, tuple(piece))])
    stop = len(before) + len(scalars)
    signature = signing_key(name).sign(signing.head_message(run.run_id, feed, stop, chain))
    key = seeds.feed_key(run.run_id, *feed)
    return Record(feed, Segment(key, len(before), parts, signature), chain)


def signing_key(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(name.encode().ljust(32, b"."))


def machine(run: Manifest, tails: Iterable[Tail], name: str = "", now: float = 0.0) -> Machine:
    """The machine of the trainer called `name`, or of a relay, with a log that ends in `tails`."""
    frontier = Frontier(run.parameters())
    for tail in tails:
        frontier.advance(tail.feed, tail.next, tail.chain, tail.epoch)
    key = signing_key(name or "relay")
    return Machine(
        run.parameters(),
        frontier,
        own=Feed(key.public_key().public_bytes_raw(), 1) if name else None,
        sign=key.sign,
        draw_incarnation=lambda: 2,
        proven=True,
        now=now,
    )


async def let_train(*nodes: Node) -> None:
    """Let nodes whose engines make no steps yet train, once all have links and engines. So every node has a
    part in a short run, even on a busy machine."""
    for node in nodes:
        await node.until(lambda node=node: node.node.model.loaded and node.node.status().links)  # type: ignore[misc]
    for node in nodes:
        node.engine.steps.release(ENOUGH)


async def eventually(probe: Callable[[], object]) -> None:
    """Wait until `probe` returns something true, by polling."""
    async with asyncio.timeout(PATIENCE):
        while not probe():  # noqa: ASYNC110
            await asyncio.sleep(0.01)

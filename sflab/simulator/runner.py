"""Runs one scenario: first with faults, then without. After the faults all nodes must become equal in bounded
time."""

from __future__ import annotations

import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from random import Random
from types import FrameType
from typing import Any, TextIO

import psutil

from sflab.simulator import invariants, organised_runs
from sflab.simulator.actors import KINDS, Attack
from sflab.simulator.faults import FaultTime, heal
from sflab.simulator.scenarios import Scenario
from sflab.simulator.turncoats import TURNCOATS, FalseStandIn
from sflab.simulator.world import runs
from sflab.simulator.world.oracle import Violation
from sflab.simulator.world.runs import MANAGED, TOPOLOGIES, signing_key
from sflab.simulator.world.trace import quantiles
from sflab.simulator.world.world import World
from sfnode.manifest import Manifest
from sfnode.organising.policy import OrganiserPolicy
from sfnode.printable import command
from sfnode.virtual_time import NotInVirtualTimeError
from sfprotocol.decisions import Budget, StandIn, StandIns

STAGGER = 1.0
"""Seconds within which the first nodes start, so that their ticks are not synchronous."""

WARM = 3.0
"""Time, in seconds after the start, at which the links are up and the faults begin."""

FINE, COARSE = 0.1, 0.5
"""Seconds between checks of all nodes, in small and in large networks."""

SMALL = 32

MOST_AUTHORS = 32
"""Maximum number of initial nodes that compute. Every link must learn the name of every feed once. With a
thousand authors and a few hundred updates, a run would mostly transfer names."""

KNOWN = 2
"""Number of addresses that a node knows at first, if it finds its neighbours itself."""

APPOINTED = 60.0
"""Maximum seconds until members are admitted and named as stand-ins. A lost offer is repeated after 30 s."""

MORE = 20
"""Number of further counted updates after which a run with stand-ins is completed at the end."""

AFTERMATH = 3.0
"""Seconds after convergence in which nothing may change."""

LAST_ENTRIES = 40
"""Number of entries of the trace to show with a failure."""


@dataclass(frozen=True)
class Failure:
    """Violation that ended a run, and its time."""

    checker: str
    what: str
    when: float
    trace: tuple[str, ...]


@dataclass
class Outcome:
    """Result of one run. All times but `wall` are virtual."""

    scenario: str
    seed: int
    nodes: int
    topology: str
    seconds: float
    failure: Failure | None = None
    settled: float | None = None
    """Seconds from the end of the faults until all nodes were equal."""
    updates: int = 0
    forks: int = 0
    deliveries: int = 0
    delivered: float = 0.0
    """Mean share of all updates that a node had when the faults ended."""
    latency_p50: float = 0.0
    latency_p99: float = 0.0
    latency_max: float = 0.0
    copies: float = 0.0
    """Number of copies of an update that were sent, per delivery of an update."""
    messages: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    peak_entries: int = 0
    bytes_in: float = 0.0
    """Mean bytes per second that an honest node receives (`bytes_out`: that it sends)."""
    bytes_out: float = 0.0
    elections: list[float] = field(default_factory=list)
    """Seconds from each death of an organising stand-in until another one organised."""
    counting: list[float] = field(default_factory=list)
    """Seconds from each death of an organising stand-in until more updates were counted."""
    drops: dict[str, int] = field(default_factory=dict)
    """Number of links that honest nodes dropped, keyed by the broken rule."""
    steps: int = 0
    trace_hash: str = ""
    wall: float = 0.0

    @property
    def command(self) -> str:
        """Command that repeats this run."""
        chosen = ("--scenario", self.scenario, "--seed", self.seed, "--nodes", self.nodes)
        longer = ("--topology", self.topology, "--seconds", f"{self.seconds:g}")
        return command("sfnode", "lab", "simulate", "network", *chosen, *longer)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "command": self.command}


class Run:
    """One scenario with one seed, as a context manager."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        *,
        nodes: int | None = None,
        topology: str | None = None,
        seconds: float | None = None,
        trace_file: TextIO | None = None,
        patience: float = 0.0,
    ) -> None:
        """A run that takes more than `patience` seconds of real time counts as hanging, and fails; 0: no
        limit. Other values than 0 work only in the main thread."""
        self.patience = patience
        self.scenario = scenario
        self.nodes = nodes or scenario.nodes
        self.topology = topology or scenario.topology
        self.seconds = scenario.seconds if seconds is None else seconds
        self.world = World(
            seed,
            manifest=manifest_of(scenario, seed),
            policy=_policy_of(scenario),
            judge=runs.anything if scenario.judged else runs.falling,
            judged=scenario.judged,
            elects=bool(scenario.stand_ins),
            conditions=scenario.conditions,
            hardware=scenario.hardware,
            managed=self.topology == MANAGED,
            trace_file=trace_file,
        )
        self.checks = invariants.Checks(self.world)
        self._random = Random(f"{seed}/setup")
        self._founders: frozenset[str] = frozenset()
        self._settled: float | None = None
        self._delivered = 0.0

    def outcome(self) -> Outcome:
        """Run the scenario and return the outcome."""
        start, failure = time.perf_counter(), None
        try:
            with _alarm(self.patience), guarded():
                self.build()
                self.disturb()
                self.settle()
                self.judge()
        except Violation as violation:
            failure = self._failure(violation.checker, violation.what, violation.nodes)
        except Exception as error:  # any error of the machine is a finding
            where = traceback.extract_tb(error.__traceback__)[-1]
            said = f"{type(error).__name__}: {error} ({where.filename.rsplit('/', 1)[-1]}:{where.lineno})"
            failure = self._failure("exception", said, self.world.who)
        return self._outcome(failure, time.perf_counter() - start)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.world.close()

    # -- phases ------------------------------------------------------------------------------------

    def build(self) -> None:
        """Start the nodes, and wait for their links."""
        world, width = self.world, len(str(self.nodes - 1))
        names = [f"n{index:0{width}}" for index in range(self.nodes)]
        for name in names:
            world.add(name)
            world.loop.call_at(self._random.uniform(0, STAGGER), world[name].start)
        if self.scenario.organised:
            world[names[0]].give_key(signing_key(world.seed, runs.ORGANISER))
        for one, other in _pairs(self.topology, names, self._random):
            world.want(world[one], world[other])
        self._founders = frozenset(names)
        self._plan_attack()
        self._run(WARM)
        if self.scenario.stand_ins:
            self._appoint(names)

    def _appoint(self, names: list[str]) -> None:
        """Appoint stand-ins: admitted members offer themselves, and the organiser names them."""
        world, offered = self.world, set[str]()
        organiser, *others = (world[name] for name in names[: self.scenario.stand_ins])
        others += self._false()

        def go_on() -> None:
            for node in others:
                admitted = organiser.organised.run_state.member(node.origin)
                if node.up and node.name not in offered and admitted:
                    node.stand_in()
                    offered.add(node.name)
            organising = organiser.running.organising
            offers = organising.offers() if organising else {}
            if len(offers) > len(others):
                organiser.decide(StandIns(tuple(StandIn(*offer) for offer in sorted(offers.items()))))

        while not organiser.organised.control.feed.stand_ins:
            if world.now > APPOINTED:
                raise Violation("elections", "nobody stands in", (organiser.name,))
            world.do(go_on)
            self._run(WARM)
        self._run(APPOINTED / 4)

    def _false(self) -> list[FalseStandIn]:
        return [one for one in self.world.others.values() if isinstance(one, FalseStandIn)]

    def _plan_attack(self) -> None:
        attack = self.scenario.attack
        if attack is None:
            return
        kind = KINDS.get(attack.kind) or TURNCOATS[attack.kind]
        targets = self._targets(attack)
        for number in range(attack.actors):
            actor = kind(self.world, number, attack, targets)
            begin = 0.0 if attack.start < 0 else WARM + attack.start
            at = begin + self._random.uniform(0, STAGGER)
            self.world.loop.call_at(at, actor.start)

    def _targets(self, attack: Attack) -> list[str]:
        names = list(self.world.nodes)
        match attack.target:
            case "one":
                return names[-1:]
            case "publisher":
                return names[:1] if attack.kind != "censor" else names
            case "newcomer":
                return ["new1"]
            case _:
                return names

    def disturb(self) -> None:
        """Make updates while faults happen."""
        stop = self.world.now + self.seconds
        self.world.faults_middle, self.world.faults_end = self.world.now + self.seconds / 2, stop
        on = FaultTime(self.world, stop, self.seconds / self.scenario.seconds)
        for fault in self.scenario.faults:
            fault(on)
        self._load(stop)
        self._run(self.seconds)
        self._delivered = invariants.delivered(self.world)

    def settle(self) -> None:
        """Repair everything. All nodes must become equal in bounded time, and stay equal."""
        world = self.world
        world.do(heal, world, self.scenario.hardware)
        start = world.now
        while not self._settled_now():
            if world.now - start > self.scenario.settle:
                said, nodes = invariants.differences(world)
                said += organised_runs.lacking(world) if world.run.organised else ""
                raise Violation(
                    "convergence", f"not equal {self.scenario.settle:g} s after the end: {said}", nodes
                )
            self._run(FINE)
        self._settled = world.now - start
        complete = organised_runs.complete if world.run.organised else invariants.complete
        if lacking := complete(world):
            raise Violation("union", lacking)
        self._run(AFTERMATH)
        if not invariants.equal(world) or complete(world):
            raise Violation("convergence", "nodes that were equal no longer are, and nothing was made")
        if self.scenario.stand_ins:
            self._finish()

    def _finish(self) -> None:
        """Complete the run by a decision on its budget. Raises Violation if no node organises."""
        world = self.world
        start, staying = world.now, list(world.staying())
        leader = next((node for node in [*staying, *self._false()] if node.leads), None)
        if leader:
            world.do(leader.decide, Budget(leader.organised.run_state.counted + MORE))
        while not all(node.up and node.organised.run_state.complete for node in staying):
            if leader is None or world.now - start > self.scenario.settle:
                raise Violation("elections", "the run does not come to its end")
            for node in staying:
                world.do(node.compute, 1)
            self._run(1.0)

    def _settled_now(self) -> bool:
        """Return whether all nodes are equal. In an organised run everything must be sealed and applied, too:
        an engine applies a decision some milliseconds after it is on disk."""
        world = self.world
        judged = not world.run.organised or (
            not organised_runs.lacking(world) and all(node.quiet for node in world.staying())
        )
        return judged and invariants.equal(world)

    def judge(self) -> None:
        """Check the limits of the scenario."""
        limits, traffic = self.scenario.limits, self.world.traffic
        _, p99, worst = quantiles(traffic.latencies)
        for what, figure, limit in (
            ("p99 of delivery", p99, limits.p99),
            ("slowest delivery", worst, limits.worst),
            ("copies per delivery", traffic.copies, limits.copies),
        ):
            if limit is not None and figure > limit:
                raise Violation("limits", f"{what} is {figure:.3f}, at most {limit:g} is allowed")

    # -- pieces ------------------------------------------------------------------------------------

    def _run(self, seconds: float) -> None:
        """Let time pass, and check all nodes at intervals."""
        end = self.world.now + seconds
        every = FINE if self.nodes <= SMALL else COARSE
        while self.world.now < end - 1e-9:
            self.world.run_until(min(self.world.now + every, end))
            self.checks.look()

    def _load(self, stop: float) -> None:
        load, random = self.scenario.load, Random(f"{self.world.seed}/load")
        authors = list(self.world.nodes)[: load.origins or MOST_AUTHORS]

        def compute() -> None:
            if self.world.now >= stop:
                return
            candidates = [n for n in self._authors(authors) if n.up]
            if candidates:
                random.choice(candidates).compute(random.randint(1, load.most))
            self.world.later(random.expovariate(load.rate), compute)

        compute()

    def _authors(self, chosen: list[str]) -> list[Any]:
        """Return the chosen initial nodes, and all that joined later."""
        nodes = self.world.nodes
        return [node for name, node in nodes.items() if name in chosen or name not in self._founders]

    def _failure(self, checker: str, what: str, nodes: tuple[str, ...]) -> Failure:
        trace = tuple(self.world.trace.last(LAST_ENTRIES, nodes))
        return Failure(checker, what, self.world.now, trace)

    def _outcome(self, failure: Failure | None, wall: float) -> Outcome:
        world, traffic = self.world, self.world.traffic
        p50, p99, worst = quantiles(traffic.latencies)
        nodes = list(world.nodes.values())
        node_seconds = max(1.0, world.now * len(nodes))
        drops: dict[str, int] = {}
        for fault in (fault for node in nodes for fault in node.faults):
            drops[fault] = drops.get(fault, 0) + 1
        return Outcome(
            scenario=self.scenario.name,
            seed=world.seed,
            nodes=self.nodes,
            topology=self.topology,
            seconds=self.seconds,
            failure=failure,
            settled=self._settled,
            updates=world.oracle.updates,
            forks=sum(story.forked for story in world.oracle.stories.values()),
            deliveries=traffic.deliveries,
            delivered=self._delivered,
            latency_p50=p50,
            latency_p99=p99,
            latency_max=worst,
            copies=traffic.copies,
            messages=dict(sorted(traffic.messages.items())),
            bytes=dict(sorted(traffic.bytes.items())),
            peak_entries=self.checks.peak_entries,
            bytes_in=sum(node.bytes_in for node in nodes) / node_seconds,
            bytes_out=sum(node.bytes_out for node in nodes) / node_seconds,
            elections=self.checks.stand_ins.elections if self.checks.stand_ins else [],
            counting=self.checks.stand_ins.counting if self.checks.stand_ins else [],
            drops=dict(sorted(drops.items())),
            steps=world.loop.turns,
            trace_hash=world.trace.digest(),
            wall=wall,
        )


def manifest_of(scenario: Scenario, seed: int) -> Manifest:
    """Return the manifest of the simulated run."""
    if not scenario.organised:
        return runs.OPEN_RUN
    organised, turn = runs.manifest(seed), seed % 4
    vectors = scenario.first_order or turn == 3
    organised = runs.with_stand_ins(organised) if scenario.stand_ins else organised
    return runs.first_order(organised, 1 + seed // 4 % 4) if vectors else organised


def _policy_of(scenario: Scenario) -> OrganiserPolicy | None:
    if not scenario.organised:
        return None
    return runs.SELDOM if scenario.stand_ins else runs.POLICY


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise Violation in the running code after `seconds` of real time."""

    def ring(number: int, frame: FrameType | None) -> None:
        where = f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}" if frame else "nowhere"
        raise Violation("hang", f"no end after {seconds:g} s of real time, in {where}")

    if not seconds:
        yield
        return
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _pairs(topology: str, names: list[str], random: Random) -> list[tuple[str, str]]:
    """Return pairs of nodes. The first node of a pair knows the address of the second at the start. The pairs
    are the topology's links or, if nodes find their neighbours themselves, KNOWN pairs for each node."""
    if topology != MANAGED:
        return TOPOLOGIES[topology](names, random)
    return [(name, names[n - back]) for n, name in enumerate(names) for back in range(1, KNOWN + 1)]


def simulate(scenario: Scenario, seed: int, **options: Any) -> Outcome:
    """Run `scenario` once, with the options of `Run`."""
    with Run(scenario, seed, **options) as run:
        return run.outcome()


# -- calls that would make a run irreproducible -------------------------------------------------


ASKING: tuple[tuple[Any, str], ...] = (
    *((time, name) for name in ("time", "monotonic", "perf_counter", "process_time", "sleep")),
    *((secrets, name) for name in ("token_bytes", "token_hex", "randbits", "randbelow")),
    *((os, name) for name in ("urandom", "getpid")),
    *((uuid, name) for name in ("uuid1", "uuid4")),
    *((psutil, name) for name in ("Process", "cpu_times", "virtual_memory", "process_iter")),
    *((tempfile, name) for name in ("mkstemp", "mkdtemp", "gettempdir", "TemporaryDirectory")),
    *((socket, name) for name in ("getaddrinfo", "create_connection")),
    (random, "SystemRandom"),
    (subprocess, "Popen"),
    (threading.Thread, "start"),
)
"""Functions, as module and name, that ask the system for time, randomness or other processes, or that take
real time."""

HARMLESS = {
    "sfnode.store.data_folder": "the lock of a folder has the process in it, and waits for others that look",
    "sfnode.store.identity": "a key is written under a name that nobody sees, and renamed",
    "sfnode.node.training.engine_thread": "how long steps take counts where the owner limits it",
    "sfnode.node.training.limiter": "the same of this process",
    "sfnode.peers.contacts": "a file for people says when it was written",
    "sfnode.node.state": "the status tells the process",
}
"""Modules that may make the calls in ASKING, each with the reason why the behaviour of a node does not depend
on these calls."""


@contextmanager
def guarded() -> Iterator[None]:
    """Forbid the calls in ASKING to `sfnode` within the block. Libraries, such as SQLite, may make them."""
    before = [(module, name, getattr(module, name)) for module, name in ASKING]
    try:
        for module, name, function in before:
            setattr(module, name, _refusing(f"{module.__name__}.{name}", function))
        yield
    finally:
        for module, name, function in before:
            setattr(module, name, function)


def _refusing(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def refuse(*arguments: Any, **settings: Any) -> Any:
        asking = sys._getframe(1).f_globals["__name__"]
        if asking.startswith("sfnode.") and asking not in HARMLESS:
            raise NotInVirtualTimeError(f"{asking} calls {name}: it is given that by its surroundings")
        return function(*arguments, **settings)

    return refuse


# -- the outcome as text ------------------------------------------------------------------------


def lines(outcome: Outcome) -> list[str]:
    """Format the outcome in lines: results, costs and, after a failure, its reason and the command that
    repeats it."""
    head = f"{outcome.scenario}: {outcome.nodes} nodes, {outcome.topology}, seed {outcome.seed}"
    said = [f"{head}: {'FAILED' if outcome.failure else 'ok'}"]
    said += _result(outcome)
    said += _elections(outcome)
    said += _costs(outcome)
    if outcome.failure:
        said += _why(outcome)
    return said


def line(outcome: Outcome) -> str:
    """Format the outcome in one line."""
    settled = "-" if outcome.settled is None else f"{outcome.settled:.1f}"
    failed = f"  FAILED [{outcome.failure.checker}]" if outcome.failure else ""
    return (
        f"{outcome.scenario:<20} {outcome.updates:>8,} {100 * outcome.delivered:>8.2f} {settled:>8} "
        f"{outcome.latency_p50:>7.3f} "
        f"{outcome.latency_p99:>7.3f} {outcome.latency_max:>7.3f} {outcome.copies:>7.2f} "
        f"{outcome.peak_entries:>8,} {outcome.bytes_in:>9,.0f} {outcome.bytes_out:>9,.0f}{failed}"
    )


HEADING = (
    f"{'scenario':<20} {'updates':>8} {'there %':>8} {'equal s':>8} {'p50 s':>7} {'p99 s':>7} {'max s':>7} "
    f"{'copies':>7} {'entries':>8} {'in B/s':>9} {'out B/s':>9}"
)


def _result(outcome: Outcome) -> list[str]:
    settled = "not equal" if outcome.settled is None else f"all equal {outcome.settled:.1f} s after the end"
    forks = f", {outcome.forks} forked feeds" if outcome.forks else ""
    return [
        f"  {outcome.updates:,} updates{forks}, {outcome.deliveries:,} deliveries; "
        f"{100 * outcome.delivered:.2f} % was everywhere when the faults ended; {settled}",
        f"  delivery  median {outcome.latency_p50:.3f} s, 99 % {outcome.latency_p99:.3f} s, "
        f"slowest {outcome.latency_max:.3f} s",
    ]


def _elections(outcome: Outcome) -> list[str]:
    if not outcome.elections:
        return []
    led, counted = (
        ", ".join(f"{seconds:.0f}" for seconds in found) for found in (outcome.elections, outcome.counting)
    )
    return [
        f"  elections {led} s from the death of whoever organised; more updates counted after {counted} s"
    ]


def _costs(outcome: Outcome) -> list[str]:
    kinds = ", ".join(
        f"{kind} {count:,} ({outcome.bytes[kind]:,} B)" for kind, count in outcome.messages.items()
    )
    drops = ", ".join(f"{count} x {fault}" for fault, count in outcome.drops.items())
    return [
        f"  copies    {outcome.copies:.2f} per delivery",
        f"  sent      {kinds}",
        f"  a node    {outcome.bytes_in:,.0f} B/s in, {outcome.bytes_out:,.0f} B/s out; "
        f"at most {outcome.peak_entries:,} entries in its tables",
        *([f"  dropped   {drops}"] if drops else []),
        f"  simulated {outcome.steps:,} steps in {outcome.wall:.1f} s; trace {outcome.trace_hash}",
    ]


def _why(outcome: Outcome) -> list[str]:
    failure = outcome.failure
    assert failure
    return [
        f"  [{failure.checker}] {failure.what}",
        f"  at {failure.when:.3f} s; the last entries of the nodes concerned:",
        *(f"    {entry}" for entry in failure.trace),
        f"  again with: {outcome.command}",
    ]

"""Faults: functions that schedule the failures of a run.

Times are in seconds after the links are up. All randomness comes from the world's generator for faults.
`heal` repairs everything at the end, whatever the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Concatenate, Literal, ParamSpec

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sflab.simulator.world import disk
from sflab.simulator.world.computer import Computer, Hardware, Range
from sflab.simulator.world.oracle import Violation
from sflab.simulator.world.runs import DEPUTIES, ORGANISER, SUCCESSOR, VOTES, origin_of, signing_key
from sflab.simulator.world.world import World
from sfnode.transport.memory import CALM, MemoryLink
from sfprotocol.control_feed import succession_message
from sfprotocol.decisions import INCARNATIONS, Amend, Announce, Revoke, Void, encode
from sfprotocol.events import OwnDecision, OwnSuccession
from sfprotocol.messages import Succession, Vote

P = ParamSpec("P")

SLOW = Hardware(commit=(0.1, 0.5), work=0.002)
"""Hardware with a shared, spinning disk and the processor of a small board."""

RESTORING = 1.0
"""Seconds to restore a backup."""

NEWCOMERS_LINKS = 3
"""Number of links of a node that later joins a network of fixed links."""

BUSY_LOOK = 0.02
"""Seconds between two checks whether the organising node is busy. A decision takes two hops of 50 ms each, so
the pause must be shorter than 100 ms."""

TWIN = "-twin"
"""Suffix of the name of a copied node."""

TWINS_PACE = 0.7
"""Seconds between updates of twins, so that both extend the feed before they hear of each other."""


@dataclass
class FaultTime:
    """Schedule of the faults of one run."""

    world: World
    stop: float
    """Time at which the faults end."""
    scale: float = 1.0
    """Factor by which the times of the scenario are stretched."""
    newcomers: int = 0

    def at(self, when: float, do: Callable[..., object], *arguments: Any) -> None:
        """Call `do` once, at time `when` of the scenario, unless the faults are over by then."""
        if self.world.now + when * self.scale < self.stop:
            self.world.later(when * self.scale, do, *arguments)

    def again(self, every: float, do: Callable[[], object]) -> None:
        """Call `do` at random moments, `every` seconds apart on average, while the faults last."""

        def once() -> None:
            if self.world.now < self.stop:
                do()
                plan()

        def plan() -> None:
            self.world.later(self.world.random.expovariate(1 / every), once)

        plan()

    def to_leader(self, when: float, do: Callable[[Computer], object], *, busy: bool = False) -> None:
        """Call `do` with the organising node at time `when`, or as soon afterwards as there is one. With
        `busy`, wait until that node stores a decision or evaluates."""

        def look() -> None:
            leader = next((node for node in self.world.living() if node.leads), None)
            if leader and (_is_busy(leader) or not busy):
                do(leader)
            elif self.world.now < self.stop:
                self.world.later(BUSY_LOOK, look)

        self.at(when, look)


Fault = Callable[[FaultTime], None]
"""Function that schedules a fault."""


def fault(install: Callable[Concatenate[FaultTime, P], None]) -> Callable[P, Fault]:
    """Decorate `install(on, ...)`, which schedules a fault. The result takes the parameters without `on`, and
    returns a `Fault`."""

    def made(*numbers: P.args, **named: P.kwargs) -> Fault:
        return lambda on: install(on, *numbers, **named)

    return made


# -- the network -----------------------------------------------------------------------------------------


@fault
def partition(
    on: FaultTime, start: float, stop: float, *, one_way: bool = False, hang_up: bool = False
) -> None:
    """Separate two halves of the nodes from `start` to `stop`.

    With `one_way`, only one direction is lost. With `hang_up`, links are closed; otherwise they lose all
    frames.
    """

    def part() -> None:
        _part(on.world)
        for node in on.world.living() if hang_up else ():
            for link in [one for one in node.links if on.world[one.peer].island != node.island]:
                link.cut()
        on.world.network.deaf = {(1, 0)} if one_way else {(0, 1), (1, 0)}

    on.at(start, part)
    on.at(stop, _rejoin, on.world)


def _part(world: World) -> None:
    nodes = list(world.staying())
    for node in world.random.sample(nodes, max(1, round(len(nodes) / 2))):
        node.island = 1
    world.network.deaf = {(0, 1), (1, 0)}


def _rejoin(world: World) -> None:
    world.network.deaf = set()
    for node in world.nodes.values():
        node.island = 0


@fault
def flaps(on: FaultTime, every: float) -> None:
    """Close random links at random moments, `every` seconds apart on average. Nodes open the links again."""

    def flap() -> None:
        if link := _any_link(on.world, on.world.living()):
            link.cut()

    on.again(every, flap)


def _any_link(world: World, nodes: Iterable[Computer]) -> MemoryLink | None:
    links = [link for node in nodes for link in node.links]
    return world.random.choice(links) if links else None


@fault
def slow_peers(on: FaultTime, share: float) -> None:
    """Give a share of the nodes a slow disk and processor, and links that stall at times."""
    nodes = list(on.world.staying())
    chosen = on.world.random.sample(nodes, max(1, round(share * len(nodes))))
    for node in chosen:
        node.hardware = SLOW

    def stall() -> None:
        if link := _any_link(on.world, (node for node in chosen if node.up)):
            link.out.stall(True)
            on.world.later(on.world.random.uniform(0.5, 15.0), link.out.stall, False)

    on.again(2.0, stall)


# -- nodes -----------------------------------------------------------------------------------------------


@fault
def crashes(on: FaultTime, every: float, down: Range = (0.5, 5.0), *, power_cut: bool = False) -> None:
    """Kill random nodes, `every` seconds apart on average, and restart each after `down` seconds.

    In a power cut a commit under way is lost, and neighbours are not told.
    """

    def crash() -> None:
        if node := on.world.pick():
            node.crash(power_cut=power_cut)
            on.world.later(on.world.random.uniform(*down), restart, on.world, node)

    on.again(every, crash)


@fault
def clock_jumps(on: FaultTime, every: float, most: float) -> None:
    """Move the clock of a random node forward by up to `most` seconds, or stop the clock for as long. This
    happens every `every` seconds on average. A monotonic clock never goes back."""

    def leap() -> None:
        if node := on.world.pick():
            node.leap(on.world.random.uniform(-most, most))

    on.again(every, leap)


@fault
def churn(on: FaultTime, per_minute: float) -> None:
    """Let the share `per_minute` of all nodes leave for good every minute. A new node replaces each of
    them."""

    def replaced() -> None:
        _leave(on.world, on.world.pick())
        _join(on)

    on.again(60 / (per_minute * len(on.world.nodes)), replaced)


@fault
def late_join(on: FaultTime, at: float, count: int = 1, *, checkpoint: bool = False) -> None:
    """Let `count` new nodes join at time `at`. With `checkpoint` they start from a checkpoint, otherwise from
    the whole log."""
    for _ in range(count):
        on.at(at, _join, on, checkpoint)


@fault
def pruning(on: FaultTime, share: float) -> None:
    """Let a share of the nodes, never the organiser, prune their logs: updates before a checkpoint that
    agrees with their own state are deleted."""
    nodes = [node for node in on.world.staying() if not node.organises]
    for node in on.world.random.sample(nodes, round(share * len(nodes))):
        node.prunes = True
        node.crash()  # the setting takes effect at the next start
        node.start()


@fault
def archive_leaves(on: FaultTime, at: float) -> None:
    """Let a node with the whole log leave for good, but not the organiser."""

    def leave() -> None:
        archives = [node for node in on.world.living() if not (node.prunes or node.organises)]
        _leave(on.world, on.world.random.choice(archives))

    on.at(at, leave)


def _leave(world: World, node: Computer | None) -> None:
    if node is None or node.organises or sum(1 for _ in world.living()) <= 2:
        return
    orphans = [n for n in world.neighbours(node) if n.up]
    node.crash()
    world.left.add(node.name)
    for orphan in orphans:
        other = world.pick()
        if other and other is not orphan:
            world.want(orphan, other)


def _join(on: FaultTime, begins_with_checkpoint: bool = False) -> None:
    on.newcomers += 1
    node = on.world.add(f"new{on.newcomers}")
    node.begins_with_checkpoint = begins_with_checkpoint
    _attach(on.world, node)


def _attach(world: World, node: Computer) -> None:
    """Start a node, and link it with some others."""
    name = node.name.removesuffix(TWIN)
    others = [other for other in world.living() if other.name.removesuffix(TWIN) != name]
    for other in world.random.sample(others, min(NEWCOMERS_LINKS, len(others))):
        world.want(node, other)
    node.start()


# -- copies of a disk ------------------------------------------------------------------------------------


@fault
def old_backup(on: FaultTime, taken: float, restored: float) -> None:
    """Crash a node at `restored`, and restart it with its disk from time `taken`."""

    def back_up() -> None:
        if node := _author(on.world):
            on.at(restored - taken, put_back, node, disk.copy(node.layout))

    def put_back(node: Computer, files: disk.Files) -> None:
        if node.name not in on.world.left:
            _replace_disk(node, files)
            on.world.later(RESTORING, restart, on.world, node)

    on.at(taken, back_up)


@fault
def twins(on: FaultTime, start: float, *, told: bool = False, apart: float = 5.0) -> None:
    """Start a second machine at `start`, with a copy of a node's disk and key. Both continue.

    If the copy is `told` that it is a copy, it draws a new incarnation and so has its own feed. For `apart`
    seconds a partition separates the two, so that neither hears of the other.
    """

    def begin() -> None:
        node = _author(on.world)
        if node is None or (name := f"{node.name}{TWIN}") in on.world.nodes:
            return
        twin = on.world.add(name, files=disk.copy(node.layout))
        if not told:
            disk.take_for_original(twin.layout, on.world.run.run_id)
            twin.forgets()
        if apart:
            _part(on.world)
            twin.island = 1 - node.island
            on.world.later(apart, _rejoin, on.world)
        _attach(on.world, twin)
        on.again(TWINS_PACE, lambda: node.compute(1))
        on.again(TWINS_PACE, lambda: twin.compute(1))

    on.at(start, begin)


def _author(world: World) -> Computer | None:
    """Return a random node that is up, has updates of its own and is no twin; None without such a node."""
    authors = [node for node in world.living() if not node.name.endswith(TWIN) and node.said]
    return world.random.choice(authors) if authors else None


def _replace_disk(node: Computer, files: disk.Files) -> None:
    node.crash()
    disk.put_back(node.layout, files)
    node.forgets()


# -- the organiser ---------------------------------------------------------------------------------------


@fault
def organiser_away(on: FaultTime, start: float, stop: float, taken: float | None = None) -> None:
    """Stop the organiser from `start` to `stop`. It restarts with its own disk, or with the copy from time
    `taken`."""
    world, began = on.world, on.world.now

    def back_up() -> None:
        node = _organiser(world)
        world.loop.call_at(began + stop * on.scale - RESTORING, _replace_disk, node, disk.copy(node.layout))

    if taken is not None:
        on.at(taken, back_up)
    on.at(start, lambda: _organiser(world).crash())
    on.at(stop, lambda: restart(world, _organiser(world)))


@fault
def organiser_lost(on: FaultTime, at: float, succeeded: float) -> None:
    """Remove the organiser and its key for good at `at`. At `succeeded` the deputies name another
    organiser."""

    def lose() -> None:
        node = _organiser(on.world)
        node.organises = False
        _leave(on.world, node)

    on.at(at, lose)
    on.at(succeeded, _succeed, on)


@fault
def organiser_twice(on: FaultTime, start: float, succeeded: float) -> None:
    """Give a second node the organiser's key. At `start` both sign a decision at the same position.

    The organiser hears of the fork like any other node. At `succeeded` the deputies pass the control feed to
    a third node.
    """
    world, updates = on.world, [0]

    def begin() -> None:
        one, other = _organiser(world), world.random.choice(_others(world))
        world.may_fork.add(0)
        other.crash()
        other.give_key(signing_key(world.seed, ORGANISER))
        other.start()
        on.world.later(RESTORING, decide_each, one, other)

    def decide_each(*nodes: Computer) -> None:
        for node in nodes:
            if node.up and not node.organised.control.feed.frozen:
                node.post(OwnDecision(encode(Announce(node.name))))
        updates[0] = world.oracle.updates
        on.world.later(RESTORING / 2, ask_all)

    def ask_all() -> None:  # some nodes may have used up the room of newcomers already
        for node in world.living():
            node.compute(1)

    def succeed() -> None:
        feeds = {node.name: node.organised.control.feed for node in world.living()}
        running = tuple(name for name, feed in feeds.items() if not feed.frozen)
        if running:
            raise Violation("organiser", f"{running[0]} goes on with a forked control feed", running[:3])
        if world.oracle.updates == updates[0]:
            raise Violation("organiser", "nobody trains while the control feed is frozen")
        _succeed(on)

    on.at(start, begin)
    on.at(succeeded, succeed)


@fault
def undo(on: FaultTime, at: float, what: Literal["revoke", "void", "amend"]) -> None:
    """Let the owner undo some work of a random member with a decision of the type `what`."""

    def take_back() -> None:
        node = _organiser(on.world)
        number = _victim(on.world, node) if node.up and node.running.organising else None
        if number is None:
            return
        run_state, member = node.organised.run_state, number // INCARNATIONS
        match what:
            case "revoke":
                node.decide(Revoke(member, run_state.open_epoch - 1))
            case "void":
                node.decide(Void(0, run_state.sealed - 1, (member,)))
            case _:
                stops = [0, *(stop for stop, _, _ in run_state.named_stops(number))]
                node.decide(Amend(number, on.world.random.choice(stops[:-1])))

    on.at(at, take_back)


@fault
def loss(on: FaultTime, at: float) -> None:
    """Kill all nodes at one moment, and delete the last listed steps of a random feed from all disks."""

    def lose() -> None:
        node = _organiser(on.world)
        number = _victim(on.world, node)
        if number is None:
            return
        run_state = node.organised.run_state
        feed, named = run_state.feed(number), run_state.named(number)
        ends = [0, *(stop for stop in disk.signatures(node.layout, feed) if stop < named)]
        kept = on.world.random.choice(ends)
        for other in list(on.world.staying()):
            other.crash(power_cut=True)
            disk.lose(other.layout, feed, kept)
            if other.origin == feed.origin:
                other.forgets()
            on.world.later(RESTORING, restart, on.world, other)

    on.at(at, lose)


def _organiser(world: World) -> Computer:
    """Return the last node that got the organiser's key."""
    return [node for node in world.staying() if node.organises][-1]


def _others(world: World) -> list[Computer]:
    return [node for node in world.living() if not node.organises]


def _succeed(on: FaultTime) -> None:
    """Let the deputies pass the control feed to a node with the longest copy of it."""
    world, others = on.world, _others(on.world)
    longest = max(node.organised.control.feed.stop for node in others)
    node = world.random.choice([node for node in others if node.organised.control.feed.stop == longest])
    feed, key = node.organised.control.feed, signing_key(world.seed, SUCCESSOR)
    succession = Succession(feed.next_term, feed.stop, feed.chain, origin_of(key), ())
    message = succession_message(world.run.run_id, succession)
    deputies = [signing_key(world.seed, name) for name in DEPUTIES[:VOTES]]
    votes = tuple(Vote(number, deputy.sign(message)) for number, deputy in enumerate(deputies))
    node.post(OwnSuccession(replace(succession, votes=votes)))
    on.world.later(RESTORING, _take_over, world, node, key)


def _take_over(world: World, node: Computer, key: Ed25519PrivateKey) -> None:
    for other in world.nodes.values():
        other.organises = False
    node.crash()
    node.give_key(key)
    restart(world, node)


def _victim(world: World, node: Computer) -> int | None:
    """Choose a random listed feed whose work will be undone, and add its origin to `world.undone`. Return the
    feed's number; None if no origin is left to choose."""
    run_state, spared = node.organised.run_state, {node.origin} | world.undone
    positions = run_state.positions(run_state.sealed - 1)
    named = [n for n, stop in positions.items() if stop and run_state.feed(n).origin not in spared]
    if not named:
        return None
    number = world.random.choice(named)
    world.undone.add(run_state.feed(number).origin)
    return number


# -- stand-ins -------------------------------------------------------------------------------------------


@fault
def leader_falls(on: FaultTime, at: float, back: float | None = None, *, during: bool = False) -> None:
    """Kill the organising stand-in, for good or until `back`.

    With `during`, kill it while it waits for others to store a decision, or evaluates.
    """

    def fall(leader: Computer) -> None:
        on.world.leaderless_since = on.world.now
        if back is not None:
            leader.crash()
            on.world.later((back - at) * on.scale, restart, on.world, leader)
            return
        leader.organises = False  # otherwise it could not leave
        _leave(on.world, leader)

    on.to_leader(at, fall, busy=during)


@fault
def hand_over(on: FaultTime, at: float) -> None:
    """Let the organising node hand over to another stand-in."""

    def hand(leader: Computer) -> None:
        organising = leader.running.organising
        others = [node.organised.control.key for node in _standing(on.world) if node is not leader]
        if organising and others:
            leader._context.run(organising.hand_over, on.world.random.choice(others))

    on.to_leader(at, hand)


@fault
def split(on: FaultTime, start: float, stop: float, groups: tuple[int, ...]) -> None:
    """Separate stand-ins into groups of these sizes from `start` to `stop`. The first group has the
    organising node.

    Nodes that are not stand-ins are in random groups.
    """
    world = on.world

    def part(leader: Computer) -> None:
        others = [node for node in _standing(world) if node is not leader]
        world.random.shuffle(others)
        places = [number for number, size in enumerate(groups) for _ in range(size)]
        for node in world.staying():
            node.island = world.random.randrange(len(groups))
        for node, place in zip([leader, *others], places, strict=False):
            node.island = place
        islands = range(len(groups))
        world.network.deaf = {(a, b) for a in islands for b in islands if a != b}
        on.world.later((stop - start) * on.scale, _rejoin, world)

    on.to_leader(start, part)


@fault
def stopped(on: FaultTime, at: float, seconds: float, shown: float) -> None:
    """Stop the organising node for `seconds`. Its clock then shows that `shown` seconds passed."""
    on.to_leader(at, lambda leader: leader.freeze(seconds * on.scale, shown))


@fault
def clock_ahead(on: FaultTime, at: float, seconds: float) -> None:
    """Move the clock of the organising node forward."""
    on.to_leader(at, lambda leader: leader.leap(seconds))


def _standing(world: World) -> list[Computer]:
    """Return the honest stand-ins that are up."""
    return [node for node in world.living() if node.organised.control.elections.takes_part]


def _is_busy(leader: Computer) -> bool:
    """Return whether the organising node waits for others to store a decision, or evaluates."""
    elections, organising = leader.organised.control.elections, leader.running.organising
    return elections._ahead().stop > leader.organised.control.feed.stop or bool(
        organising and organising._running
    )


# -- the end of all faults -------------------------------------------------------------------------------


def restart(world: World, node: Computer) -> None:
    """Start a node that is down, unless it left for good."""
    if node.off and node.name not in world.left:
        node.start()


def heal(world: World, hardware: Hardware) -> None:
    """End all faults. Every node is up, everything works, and there is a path between any two nodes."""
    world.network.conditions = CALM
    world.network.deaf = set()
    for node in list(world.staying()):
        node.island = 0
        node.hardware = hardware
        for link in node.links:
            link.out.stall(False)
        restart(world, node)
    if world.left and not world.managed:  # a node that left may have been the only path between others
        for one, other in pairwise(list(world.staying())):
            if not world.linked(one, other):
                world.want(one, other)

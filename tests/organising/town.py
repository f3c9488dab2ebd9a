"""A run on a virtual clock: its organiser, honest members at a steady pace, strangers who do what they may.

What is shipped decides everything: the organiser signs, `run_state` folds, `validation` says which updates of
whom are held, and `room_left` how many an honest member makes. Links and disks are left out: all hear of
everything at once. `sflab.simulator` has them, for some dozens of nodes; here a thousand are no trouble.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from sfnode.organising.events import Round, Sign
from sfnode.organising.organiser import Organiser
from sfnode.organising.steps import Judgement
from sfnode.organising.view import Boundary
from sfprotocol import validation
from sfprotocol.checkpoints import Base
from sfprotocol.decisions import FACTOR_ONE, INCARNATIONS, Admit, Close, Decision, encode
from sfprotocol.messages import EpochScalars, Feed
from sfprotocol.run_state import RunState
from tests.organising.bench import KEY, UNEVALUATED, Node

TICK = 0.25
"""Seconds between two looks of everybody."""

EPOCH = 256
BUDGET = 1 << 20

POLICY = replace(UNEVALUATED, target_updates=EPOCH)

USUAL, LARGE = 10, 1000
"""Sizes of scalars."""


@dataclass
class Shelf:
    """What is held of a feed."""

    stop: int = 0
    label: int = 0
    labelled: int = 0


@dataclass
class Person:
    """Somebody with a key."""

    name: str
    pace: float
    """Updates a second."""
    number: int = -1
    feed: int = 0
    """The incarnation with which it goes on."""
    ready: float = 0.0
    """Updates that are finished and not made yet."""
    made: int = 0
    hostile: bool = False
    zeros: float = 0.0
    acts: Callable[[Town, Person], None] | None = None
    """What it does in each tick; None: honest work."""

    @property
    def origin(self) -> bytes:
        return hashlib.blake2b(self.name.encode(), digest_size=32).digest()


@dataclass
class Town:
    """One run. Whoever judges skips hostile work if it is `told` of it, and counts everything else."""

    seed: int = 0
    told: bool = True
    budget: int = BUDGET
    now: float = 1000.0
    people: list[Person] = field(default_factory=list)
    shelves: dict[tuple[int, int], Shelf] = field(default_factory=dict)
    """By member and incarnation."""
    control_bytes: int = 0
    closes: list[Close] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.run_state = RunState(budget=self.budget, rate=1 << 20, epoch_updates=EPOCH)
        self._drawn = 0
        self.node = Node(self.run_state)
        self.node.linked["peer"] = 0
        self.organiser = Organiser(
            self.node, POLICY, self._judge, key=KEY, draw=self._draw, alone=True, now=self.now
        )
        self._do()

    def _draw(self, count: int) -> bytes:
        self._drawn += 1
        return self._drawn.to_bytes(count, "big")

    def _judge(self, run_state: RunState) -> Judgement:
        hostile = {person.number for person in self.people if person.hostile} if self.told else set()
        moved = run_state.moved(run_state.sealed)
        return Judgement(FACTOR_ONE, frozenset(n for n in moved if n // INCARNATIONS in hostile))

    def _do(self, *moved: Feed) -> None:
        actions = self.organiser.handle(Round(moved), self.now)
        for action in actions:
            if isinstance(action, Sign):
                self.decide(action.decision)

    def decide(self, decision: Decision) -> None:
        """Let the control feed grow."""
        self.control_bytes += len(encode(decision))
        if isinstance(decision, Close):
            self.closes.append(decision)
        self.node.decide(decision)
        self._do()

    # -- who is there ------------------------------------------------------------------------------

    def admit(self, person: Person, quota: int = 0) -> Person:
        """Admit somebody; a stranger without a quota."""
        person.number = len(self.run_state.members)
        self.people.append(person)
        self.decide(Admit(person.origin, quota, 0))
        return person

    def begin(self, *, members: int = 2, strangers: int = 2, pace: float = 4.0) -> list[Person]:
        """Admit honest members whom somebody vouches for, and honest strangers."""
        found = [self.admit(Person(f"member {n}", pace), 4 * EPOCH) for n in range(members)]
        return found + [self.admit(Person(f"stranger {n}", pace)) for n in range(strangers)]

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        while self.now < until and not self.run_state.complete:
            self.now += TICK
            for person in self.random.sample(self.people, len(self.people)):
                (person.acts or work)(self, person)
            while self.organiser.next_deadline() <= self.now:
                self._do()

    # -- updates -----------------------------------------------------------------------------------

    def quota(self, person: Person) -> int:
        """Return what somebody may make with the open label."""
        return self.run_state.quotas.quota(person.number, self.run_state.open_epoch)

    def labelled(self, person: Person) -> int:
        """Return what it has made with it, in all its feeds."""
        shelves = (self.shelves.get((person.number, feed)) for feed in range(INCARNATIONS))
        return sum(shelf.labelled for shelf in shelves if shelf and shelf.label == self.run_state.open_epoch)

    def room(self, person: Person) -> int:
        """Return how many more an honest member makes with it."""
        made: dict[int, int] = {}
        for (member, _), shelf in self.shelves.items():
            if shelf.label == self.run_state.open_epoch and shelf.labelled:
                made[member] = made.get(member, 0) + shelf.labelled
        return self.run_state.room_left(person.number, made)

    def make(
        self, person: Person, count: int, *, feed: int | None = None, zeros: int = 0, size: int = USUAL
    ) -> int:
        """Have updates of somebody arrive at all others; return how many are held."""
        incarnation = person.feed if feed is None else feed
        number, label = person.number * INCARNATIONS + incarnation, self.run_state.open_epoch
        shelf = self.shelves.setdefault((person.number, incarnation), Shelf())
        base = Base(Feed(person.origin, incarnation), shelf.stop, b"", shelf.label, shelf.labelled)
        parts = (EpochScalars(label, (0,) * zeros + (size,) * (count - zeros)),)
        refused = validation.refused(self.run_state, number, base, parts, 0)
        held = refused.step - shelf.stop if refused else count
        if held <= 0:
            return 0
        shelf.stop += held
        shelf.labelled = held + (shelf.labelled if shelf.label == label else 0)
        shelf.label = label
        nothing = min(held, zeros)
        chain = hashlib.blake2b(b"%d/%d" % (number, shelf.stop), digest_size=32).digest()
        boundary = Boundary(shelf.stop, label, chain, (held - nothing) * size**2, nothing)
        self.node.held.setdefault(base.feed, []).append(boundary)
        self.node.shows[base.feed] = shelf.stop
        self._do(base.feed)
        person.made += held
        return held

    # -- what is measured --------------------------------------------------------------------------

    def counts(self, people: list[Person]) -> int:
        """Return how many updates of some people count."""
        return sum(self.run_state.counts_of(person.number) for person in people)

    def named(self, people: list[Person]) -> int:
        """Return how many were named, zeros and all."""
        numbers = {person.number for person in people}
        moves = (move for close in self.closes for move in close.moves)
        return sum(move.steps for move in moves if move.feed // INCARNATIONS in numbers)


def work(town: Town, person: Person) -> None:
    """Make honest updates, as fast as the machine is and as many as are of use."""
    person.ready = min(person.ready + person.pace * TICK, max(2.0, person.pace))
    count = min(int(person.ready), town.room(person))
    if count > 0:
        zeros = sum(town.random.random() < person.zeros for _ in range(count)) if person.zeros else 0
        person.ready -= town.make(person, count, zeros=zeros)


def zeros(town: Town, person: Person) -> None:
    """Make zeros as soon as they may be held, in all feeds."""
    most = town.quota(person)
    town.make(person, most, zeros=most)
    for feed in range(INCARNATIONS):
        if (person.number, feed) not in town.shelves:
            town.make(person, 1, feed=feed, zeros=1)
    person.feed = town.run_state.quotas.incarnation(person.number, town.run_state.open_epoch)


def all_at_once(town: Town, person: Person) -> None:
    """Make the largest scalars as soon as they may be held."""
    if (most := town.quota(person) - town.labelled(person)) > 0:
        town.make(person, most, size=LARGE)


def turncoat(good: int, then: Callable[[Town, Person], None]) -> Callable[[Town, Person], None]:
    """Make so many good updates first, at an honest pace."""

    def acts(town: Town, person: Person) -> None:
        if person.made < good:
            work(town, person)
        else:
            person.hostile = True
            then(town, person)

    return acts

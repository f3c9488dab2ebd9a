"""A run on a virtual clock: an organiser, honest members at a steady pace, and strangers with full use of
their quotas.

Shipped code decides everything: the organiser signs, `run_state` folds, `validation` says which updates may
be held, and `room_left` how many an honest member makes. There are no links and disks, and everybody hears of
everything at once, so a thousand nodes are no trouble. `sflab.simulator` has links and disks, for some dozens
of nodes.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
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
"""Seconds between two turns of each person."""

EPOCH = 256
BUDGET = 1 << 20

POLICY = replace(UNEVALUATED, target_updates=EPOCH)

USUAL, LARGE = 10, 1000
"""Sizes of scalars: of honest updates, and of the largest ones."""


@dataclass
class Shelf:
    """Held part of a feed."""

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
    """Incarnation of its present feed."""
    ready: float = 0.0
    """Updates that are computed and not sent yet."""
    made: int = 0
    hostile: bool = False
    zeros: float = 0.0
    acts: Callable[[Town, Person], None] | None = None
    """Function that acts in each tick; None for honest work."""

    @property
    def origin(self) -> bytes:
        return hashlib.blake2b(self.name.encode(), digest_size=32).digest()


@dataclass
class Town:
    """One run. Its judge skips hostile work if it is `told` of it, and counts everything else."""

    seed: int = 0
    told: bool = True
    budget: int = BUDGET
    now: float = 1000.0
    people: list[Person] = field(default_factory=list)
    shelves: dict[tuple[int, int], Shelf] = field(default_factory=dict)
    """Held parts of feeds, keyed by member and incarnation."""
    by_label: dict[int, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    """Number of held updates with each label, keyed by member."""
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
        self.control_bytes += len(encode(decision))
        if isinstance(decision, Close):
            self.closes.append(decision)
        self.node.decide(decision)
        self._do()

    # -- who is there ------------------------------------------------------------------------------

    def admit(self, person: Person, quota: int = 0) -> Person:
        """Admit a person; with quota 0 as a stranger."""
        person.number = len(self.run_state.members)
        self.people.append(person)
        self.decide(Admit(person.origin, quota, 0))
        return person

    def begin(self, *, members: int = 2, strangers: int = 2, pace: float = 4.0) -> list[Person]:
        """Admit honest members whom somebody vouches for, and honest strangers."""
        found = [self.admit(Person(f"member {n}", pace), 4 * EPOCH) for n in range(members)]
        return found + [self.admit(Person(f"stranger {n}", pace)) for n in range(strangers)]

    def advance(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until and not self.run_state.complete:
            self.now += TICK
            for person in self.random.sample(self.people, len(self.people)):
                (person.acts or work)(self, person)
            while self.organiser.next_deadline() <= self.now:
                self._do()

    # -- updates -----------------------------------------------------------------------------------

    def quota(self, person: Person) -> int:
        """Return the number of updates that a person may make with the open label."""
        return self.run_state.quotas.quota(person.number, self.run_state.open_epoch)

    def labelled(self, person: Person) -> int:
        """Return the number of updates that a person has made with the open label, in all feeds."""
        return self.by_label[self.run_state.open_epoch][person.number]

    def room(self, person: Person) -> int:
        """Return how many more updates an honest member makes with the open label."""
        return self.run_state.room_left(person.number, self.by_label[self.run_state.open_epoch])

    def make(
        self, person: Person, count: int, *, feed: int | None = None, zeros: int = 0, size: int = USUAL
    ) -> int:
        """Let updates of a person arrive at everybody else; return how many are held."""
        incarnation = person.feed if feed is None else feed
        number, label = person.number * INCARNATIONS + incarnation, self.run_state.open_epoch
        shelf = self.shelves.setdefault((person.number, incarnation), Shelf())
        base = Base(Feed(person.origin, incarnation), shelf.stop, b"", shelf.label, shelf.labelled)
        parts = (EpochScalars(label, (0,) * zeros + (size,) * (count - zeros)),)
        refused = validation.refused(self.run_state, number, base, parts, 0)
        held = refused.step - shelf.stop if refused else count
        if held <= 0:
            return 0
        self.by_label[label][person.number] += held
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
        """Return the number of these people's updates that count."""
        return sum(self.run_state.counts_of(person.number) for person in people)

    def named(self, people: list[Person]) -> int:
        """Return the number of these people's updates that closes list, zeros included."""
        numbers = {person.number for person in people}
        moves = (move for close in self.closes for move in close.moves)
        return sum(move.steps for move in moves if move.feed // INCARNATIONS in numbers)


def work(town: Town, person: Person) -> None:
    """Make honest updates, at the machine's pace and within the room."""
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
    """Return a function that makes `good` updates at an honest pace first, and then acts like `then`."""

    def acts(town: Town, person: Person) -> None:
        if person.made < good:
            work(town, person)
        else:
            person.hostile = True
            then(town, person)

    return acts

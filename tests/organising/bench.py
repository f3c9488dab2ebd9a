"""An organiser on a virtual clock, with the control feed and the updates that it would have around it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TypeVar

from sfnode.organising.evaluation.judging import Judge, by_schedule
from sfnode.organising.evaluation.origins import Origins
from sfnode.organising.evaluation.rates import Schedule
from sfnode.organising.events import (
    Action,
    ControlChanged,
    Evaluate,
    EvaluationEnded,
    Event,
    HeldChanged,
    MakeBases,
    Mark,
    OwnerWish,
    PeerControl,
    PeerShows,
    Refuse,
    Sign,
    Stop,
    Summarise,
    Tenure,
    Wake,
)
from sfnode.organising.organiser import Organiser
from sfnode.organising.policy import OrganiserPolicy
from sfnode.schema.evaluation import Evaluation
from sfprotocol import holding
from sfprotocol.counting import Counting
from sfprotocol.decisions import INCARNATIONS as INCARNATIONS
from sfprotocol.decisions import Admit, Amend, Close, Decision, Recorded, encode
from sfprotocol.messages import Feed, Position
from sfprotocol.quotas import UNPROVEN_PART

D = TypeVar("D", bound=Decision)

RUN_ID = bytes(range(32))
RATE = 1 << 20
BUDGET = 100_000

CONSTANT = by_schedule(Schedule("constant", RATE))

UNEVALUATED = OrganiserPolicy(target_updates=100, longest_epoch=60.0, seal_wait=0.0)
"""Seals at once; most tests are about closes."""

EVALUATED = OrganiserPolicy(target_updates=100, longest_epoch=60.0, seal_wait=30.0)


def feed_of(name: str, incarnation: int = 0) -> Feed:
    return Feed(hashlib.blake2b(name.encode(), digest_size=32).digest(), incarnation)


def chain_of(feed: Feed, stop: int) -> bytes:
    return hashlib.blake2b(repr((feed, stop)).encode(), digest_size=32).digest()


def scores(value: float, *, metric: str = "accuracy", width: float = 0.02) -> Evaluation:
    return Evaluation(metric=metric, value=value, low=value - width, high=value + width, loss=0.5, count=1000)


AGAIN = ("decisions", "_credits", "_judged")


def state_of(counting: Counting) -> str:
    """Return everything that decisions have made, but for their number and what is worked out again."""
    told = {name: value for name, value in vars(counting).items() if name not in AGAIN}
    return repr(told | {"quotas": vars(counting.quotas)})


@dataclass
class Bench:
    """One organiser. Decisions are committed at once unless `held_back`."""

    policy: OrganiserPolicy = UNEVALUATED
    alone: bool = False
    judge: Judge = CONSTANT
    budget: int = BUDGET
    bases: bytes = b""
    held_back: bool = False
    now: float = 1000.0
    signed: list[Decision] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    plans: list[Evaluate] = field(default_factory=list)
    summarising: list[int] = field(default_factory=list)
    making: list[int] = field(default_factory=list)
    refused: list[Refuse] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    marks: dict[Feed, list[Mark]] = field(default_factory=dict)
    shown: dict[Feed, int] = field(default_factory=dict)
    outbox: list[Sign] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.counting = Counting(
            budget=self.budget,
            rate=RATE,
            bases=self.bases,
            epoch_updates=self.policy.target_updates,
        )
        self.origins = Origins()
        self.positions: dict[int, Decision] = {}
        self.drawn = 0
        self.start()

    def start(self) -> None:
        """Start an organiser on what is here, as after a restart."""
        self.organiser = Organiser(
            RUN_ID,
            self.counting,
            self.policy,
            self.judge,
            draw=self._draw,
            alone=self.alone,
            now=self.now,
            known=self.origins,
        )

    def _draw(self, count: int) -> bytes:
        self.drawn += 1
        return self.drawn.to_bytes(count, "big")

    # -- events ------------------------------------------------------------------------------------

    def do(self, *events: Event) -> list[Action]:
        """Tell what happens in one round, and then of the time if it is due, as a desk does."""
        actions = [action for event in events for action in self.organiser.handle(event, self.now)]
        if self.now >= self.organiser.next_deadline():
            actions += self.organiser.handle(Wake(), self.now)
        for action in actions:
            match action:
                case Sign():
                    self.outbox.append(action)
                case Evaluate(epoch=epoch):
                    self.asked.append(epoch)
                    self.plans.append(action)
                case Summarise(epoch=epoch):
                    self.summarising.append(epoch)
                case MakeBases(epoch=epoch):
                    self.making.append(epoch)
                case Refuse():
                    self.refused.append(action)
                case Stop(reason=reason):
                    self.stopped.append(reason)
        if not self.held_back:
            self.commit()
        return actions

    def commit(self) -> None:
        """Let the control feed grow by what is to be signed."""
        waiting, self.outbox = self.outbox, []
        for sign in waiting:
            known = self.positions.setdefault(sign.position, sign.decision)
            assert known == sign.decision, "two decisions for one position of the control feed"
            if sign.position != self.counting.decisions:
                continue
            self.check(sign.decision)
            encode(sign.decision)
            before = state_of(self.counting)
            self.counting.apply(Recorded(sign.decision))
            if type(sign.decision).__name__ not in ("Evaluated", "Announce", "Worth", "Oversized"):
                assert state_of(self.counting) != before, f"void where it stands: {sign.decision}"
            self.signed.append(sign.decision)
            self.origins.take(sign.decision)
            self.do(ControlChanged(self.counting, Tenure.HELD, (sign.decision,)))
            if isinstance(sign.decision, Amend):
                self.end(self.counting.feed(sign.decision.feed), self.counting.named(sign.decision.feed))

    def end(self, feed: Feed, at: int) -> None:
        """Let go of a feed, and fetch again what is left of it."""
        kept = [mark for mark in self.marks.pop(feed) if mark.stop <= at]
        self.do(HeldChanged(feed, 0, ()))
        if kept:
            self.marks[feed] = kept
            self.do(HeldChanged(feed, 0, tuple(kept)))

    def check(self, decision: Decision) -> None:
        """Check what holds of every close."""
        if not isinstance(decision, Close):
            return
        taken: dict[int, list[int]] = {}
        for number, steps, tag, _ in decision.moves:
            feed = self.counting.feed(number)
            stop = self.counting.named(number) + steps
            chains = {mark.stop: mark.chain for mark in self.marks[feed]}
            assert tag == holding.tag(decision.salt, chains[stop])
            assert self.alone or stop <= self.shown[feed]
            taken.setdefault(number // INCARNATIONS, []).append(steps)
        for member, several in taken.items():
            quota = self.counting.quotas.quota(member, self.counting.open_epoch)
            if self.counting.quotas.is_stranger(member):
                quota = max(quota, self.counting.room // UNPROVEN_PART)
            assert sum(several) - max(several) < quota, "the last one as a whole, as it was signed"

    def advance(self, seconds: float) -> None:
        """Let time pass, with a Wake whenever one is due."""
        until = self.now + seconds
        while self.organiser.next_deadline() <= until:
            self.now = max(self.now, self.organiser.next_deadline())
            self.do(Wake())
        self.now = until

    # -- what happens around it --------------------------------------------------------------------

    def begin(self, *names: str, quota: int = 1000) -> Bench:
        """Let a peer tell that it has no more than we, and admit these members."""
        self.do(PeerControl("peer", 0))
        self.advance(31.0)
        for name in names:
            self.wish(Admit(feed_of(name).origin, quota, 0))
        return self

    def wish(self, decision: Decision) -> None:
        self.do(OwnerWish(decision))

    def update(
        self,
        feed: Feed,
        count: int,
        label: int | None = None,
        *,
        shown: bool = True,
        size: int = 10,
        zeros: int = 0,
    ) -> None:
        """Let a feed grow by a segment here, with scalars of this size but for so many `zeros`, and by as
        much at a peer if `shown`."""
        marks = self.marks.setdefault(feed, [])
        first = marks[-1].stop if marks else 0
        label = self.counting.open_epoch if label is None else label
        squares = (count - zeros) * size**2
        marks.append(Mark(first + count, label, chain_of(feed, first + count), squares, zeros))
        held = HeldChanged(feed, first, (marks[-1],))
        self.do(held, *([self._shows(feed, marks[-1].stop)] if shown else ()))

    def show(self, feed: Feed, stop: int | None = None) -> None:
        self.do(self._shows(feed, self.marks[feed][-1].stop if stop is None else stop))

    def _shows(self, feed: Feed, stop: int) -> PeerShows:
        self.shown[feed] = max(self.shown.get(feed, 0), stop)
        return PeerShows((Position(feed, stop),))

    def evaluated(self, value: float, base: float | None = None) -> None:
        self.do(EvaluationEnded(self.asked[-1], scores(value), scores(base) if base else None))

    def named(self, feed: Feed) -> int:
        number = self.counting.number(feed)
        return 0 if number is None else self.counting.named(number)

    def of(self, kind: type[D]) -> list[D]:
        """Return the decisions of one kind."""
        return [decision for decision in self.signed if isinstance(decision, kind)]

"""A bench: one organiser on a virtual clock, with a control feed and updates that the test supplies."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from sfnode.organising.evaluation.evidence import MembersEvidence
from sfnode.organising.events import (
    Action,
    AnswerOwner,
    Evaluate,
    EvaluationEnded,
    Event,
    Make,
    OwnerDecision,
    Round,
    Sign,
    StopSigning,
)
from sfnode.organising.organiser import Organiser
from sfnode.organising.policy import OrganiserPolicy
from sfnode.organising.steps import Judge, Judgement, at_rate
from sfnode.organising.view import Boundary, View
from sfnode.schema.measurements import Evaluation
from sfprotocol import validation
from sfprotocol.control_feed import ControlFeed, extend
from sfprotocol.decisions import INCARNATIONS as INCARNATIONS
from sfprotocol.decisions import Admit, Amend, Bases, Close, Decision, Recorded, encode
from sfprotocol.frontier import FeedState
from sfprotocol.messages import ELECTED_TERMS, Authority, Entry, Feed
from sfprotocol.quotas import UNPROVEN_PART
from sfprotocol.run_state import NEVER, RunState

D = TypeVar("D", bound=Decision)

RUN_ID = bytes(range(32))
KEY = bytes(range(1, 33))
RATE = 1 << 20
BUDGET = 100_000

CONSTANT = at_rate(RATE)


def skipping(members: set[int]) -> Judge:
    """Return the judge that skips the work of these members, and recounts all other work."""

    def judge(run_state: RunState) -> Judgement:
        skipped = (n for n in run_state.moved(run_state.sealed) if n // INCARNATIONS in members)
        others = set(range(len(run_state.members))) - members
        recounted = (one for member in others for one in run_state.skipped(member))
        return Judgement(skipped=frozenset(skipped), recounted=frozenset(recounted))

    return judge


UNEVALUATED = OrganiserPolicy(
    target_updates=100, longest_epoch=60.0, seal_wait=0.0, quota=1024, update_forwards=8
)
"""Policy that seals at once. Most tests are about closes."""

EVALUATED = replace(UNEVALUATED, seal_wait=30.0)


def feed_of(name: str, incarnation: int = 0) -> Feed:
    return Feed(hashlib.blake2b(name.encode(), digest_size=32).digest(), incarnation)


def chain_of(feed: Feed, stop: int) -> bytes:
    return hashlib.blake2b(repr((feed, stop)).encode(), digest_size=32).digest()


def scores(value: float, *, metric: str = "accuracy", width: float = 0.02) -> Evaluation:
    return Evaluation(metric=metric, value=value, low=value - width, high=value + width, loss=0.5, count=1000)


AGAIN = ("decisions", "_credits", "_judged")


def state_of(run_state: RunState) -> str:
    """Return the run state in text form, without the number of decisions and without caches."""
    told = {name: value for name, value in vars(run_state).items() if name not in AGAIN}
    return repr(told | {"quotas": vars(run_state.quotas)})


class Node(View):
    """A node whose content the test has put there. Nothing is signed."""

    def __init__(self, run_state: RunState) -> None:
        self.folded = run_state
        self.feed = ControlFeed(Authority(RUN_ID, KEY, (), 0, ELECTED_TERMS))
        self.held: dict[Feed, list[Boundary]] = {}
        self.forked: dict[Feed, int] = {}
        self.shows: dict[Feed, int] = {}
        self.linked: dict[str, int] = {}
        self.claims: set[Feed] = set()

    @property
    def control(self) -> ControlFeed:
        return self.feed

    @property
    def run_state(self) -> RunState:
        return self.folded

    def decide(self, decision: Decision) -> None:
        record = encode(decision)
        chain = extend(self.feed.chain, self.feed.term, record)
        self.feed._append(Entry(self.feed.term, record, b""), chain)
        self.folded.apply(Recorded(decision))

    def feeds(self) -> list[Feed]:
        return list(self.held)

    def state(self, feed: Feed) -> FeedState:
        boundaries = self.held.get(feed)
        stop = boundaries[-1].stop if boundaries else 0
        return FeedState(feed, 0, stop, b"", 0, forked=self.forked.get(feed, NEVER))

    def chain(self, feed: Feed, step: int) -> bytes:
        boundaries = reversed(self.held.get(feed, []))
        return next((one.chain for one in boundaries if one.stop == step), chain_of(feed, step))

    def boundary(self, feed: Feed, step: int) -> Boundary:
        return next(one for one in self.held[feed] if one.stop == step)

    def boundaries(self, feed: Feed, first: int) -> Iterator[Boundary]:
        boundaries = self.held.get(feed, [])
        yield from boundaries[bisect_right(boundaries, first, key=lambda one: one.stop) :]

    def peers(self) -> dict[str, int]:
        return dict(self.linked)

    def shown(self, feeds: Iterable[Feed]) -> dict[Feed, int]:
        return {feed: min(self.state(feed).next, self.shows.get(feed, 0)) for feed in feeds}

    def claimed(self, feed: Feed) -> bool:
        return feed in self.claims


@dataclass
class Bench:
    """One organiser. Decisions are committed at once unless `held_back`."""

    policy: OrganiserPolicy = UNEVALUATED
    alone: bool = False
    key: bytes = KEY
    """Key of this organiser. If it is not the run's organiser's key, it is a stand-in's."""
    leads: bool = False
    """Whether more than half of the stand-ins have elected this key, and answer."""
    judge: Judge = CONSTANT
    budget: int = BUDGET
    bases: bytes = b""
    rate: int = RATE
    norm_limit: int = 0
    held_back: bool = False
    now: float = 1000.0
    signed: list[Decision] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    plans: list[Evaluate] = field(default_factory=list)
    summarising: list[int] = field(default_factory=list)
    making: list[int] = field(default_factory=list)
    refused: list[AnswerOwner] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    outbox: list[Sign] = field(default_factory=list)

    def __post_init__(self) -> None:
        updates = self.policy.target_updates
        run_state = RunState(
            budget=self.budget,
            rate=self.rate,
            norm_limit=self.norm_limit,
            bases=self.bases,
            epoch_updates=updates,
        )
        self.node = Node(run_state)
        self.positions: dict[int, Decision] = {}
        self.drawn = 0
        self.start()

    def start(self) -> None:
        """Start an organiser from the node's present content, as after a restart."""
        self.organiser = Organiser(
            self.node, self.policy, self.judge, key=self.key, draw=self._draw, alone=self.alone,
            stands_in=self.key != KEY, now=self.now,
        )  # fmt: skip
        self.node.leads = lambda now: self.leads  # type: ignore[method-assign]

    @property
    def run_state(self) -> RunState:
        return self.node.folded

    @property
    def boundaries(self) -> dict[Feed, list[Boundary]]:
        return self.node.held

    @property
    def origins(self) -> MembersEvidence:
        return self.organiser.known.verdicts.evidence

    def _draw(self, count: int) -> bytes:
        self.drawn += 1
        return self.drawn.to_bytes(count, "big")

    # -- events ------------------------------------------------------------------------------------

    def do(self, *events: Event) -> list[Action]:
        """Pass events to the organiser, a Round if none is given. Return its actions."""
        actions = [
            action for event in events or [Round()] for action in self.organiser.handle(event, self.now)
        ]
        for action in actions:
            match action:
                case Sign():
                    self.outbox.append(action)
                case Evaluate(epoch=epoch):
                    self.asked.append(epoch)
                    self.plans.append(action)
                case Make(what=what, epoch=epoch):
                    (self.making if what is Bases else self.summarising).append(epoch)
                case AnswerOwner(refused=reason):
                    self.refused += [action] if reason else []
                case StopSigning(reason=reason):
                    self.stopped.append(reason)
        if not self.held_back:
            self.commit()
        return actions

    def commit(self) -> None:
        """Add the waiting decisions to the control feed."""
        waiting, self.outbox = self.outbox, []
        for sign in waiting:
            known = self.positions.setdefault(sign.position, sign.decision)
            assert known == sign.decision, "two decisions for one position of the control feed"
            if sign.position != self.run_state.decisions:
                continue
            self.check(sign.decision)
            before = state_of(self.run_state)
            self.node.decide(sign.decision)
            if type(sign.decision).__name__ not in ("Evaluated", "Announce", "Worth", "Oversized"):
                assert state_of(self.run_state) != before, f"void where it stands: {sign.decision}"
            self.signed.append(sign.decision)
            self.do()
            if isinstance(sign.decision, Amend):
                self.end(self.run_state.feed(sign.decision.feed), self.run_state.named(sign.decision.feed))

    def end(self, feed: Feed, at: int) -> None:
        """Drop a feed, and fetch its steps before `at` again."""
        kept = [one for one in self.boundaries[feed] if one.stop <= at]
        self.hold(feed, [])
        self.hold(feed, kept)

    def hold(self, feed: Feed, boundaries: list[Boundary]) -> None:
        """Replace the held updates of a feed."""
        self.boundaries.pop(feed, None)
        if boundaries:
            self.boundaries[feed] = boundaries
        self.do(Round((feed,)))

    def check(self, decision: Decision) -> None:
        """Check the rules that every close keeps."""
        if not isinstance(decision, Close):
            return
        taken: dict[int, list[int]] = {}
        for number, steps, tag, _ in decision.moves:
            feed = self.run_state.feed(number)
            stop = self.run_state.named(number) + steps
            chains = {one.stop: one.chain for one in self.boundaries[feed]}
            assert tag == validation.tag(decision.salt, chains[stop])
            assert self.alone or stop <= self.node.shows[feed]
            taken.setdefault(number // INCARNATIONS, []).append(steps)
        for member, several in taken.items():
            quota = self.run_state.quotas.quota(member, self.run_state.open_epoch)
            if self.run_state.quotas.is_stranger(member):
                quota = max(1, quota, self.run_state.room // UNPROVEN_PART)
            assert sum(several) - max(several) < quota, "the last one as a whole, as it was signed"

    def advance(self, seconds: float) -> None:
        """Let time pass, and send a Round whenever one is due."""
        until = self.now + seconds
        while self.organiser.next_deadline() <= until:
            self.now = max(self.now, self.organiser.next_deadline())
            self.do()
        self.now = until

    # -- what happens around it --------------------------------------------------------------------

    def begin(self, *names: str, quota: int = 1000) -> Bench:
        """Link a peer that has no more decisions than this node, and admit these members."""
        self.link()
        self.advance(31.0)
        for name in names:
            self.decide(Admit(feed_of(name).origin, quota, 0))
        return self

    def link(self, peer: str = "peer", decided: int | None = None) -> None:
        """Link a peer that claims to have `decided` decisions, by default as many as this node."""
        self.node.linked[peer] = self.run_state.decisions if decided is None else decided
        self.do()

    def decide(self, decision: Decision) -> None:
        self.do(OwnerDecision(decision))

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
        """Add a segment of `count` updates to a feed, with scalars of this size and `zeros` zero updates. If
        `shown`, a peer holds it, too."""
        boundaries = self.boundaries.setdefault(feed, [])
        first = boundaries[-1].stop if boundaries else 0
        label = self.run_state.open_epoch if label is None else label
        squares = (count - zeros) * size**2
        boundaries.append(Boundary(first + count, label, chain_of(feed, first + count), squares, zeros))
        if shown:
            self.node.shows[feed] = boundaries[-1].stop
        self.do(Round((feed,)))

    def vector(self, feed: Feed, squares: int, *, moves: bool = True) -> None:
        """Add one update of a first-order run to a feed, on this node and at a peer."""
        boundaries = self.boundaries.setdefault(feed, [])
        stop, label = boundaries[-1].stop + 1 if boundaries else 1, self.run_state.open_epoch
        unit = self.run_state.rate_from(label).unit
        boundaries.append(Boundary(stop, label, chain_of(feed, stop), squares, int(not moves), unit))
        self.node.shows[feed] = stop
        self.do(Round((feed,)))

    def show(self, feed: Feed, stop: int | None = None) -> None:
        stop = self.boundaries[feed][-1].stop if stop is None else stop
        self.node.shows[feed] = max(self.node.shows.get(feed, 0), stop)
        self.do()

    def evaluated(self, value: float, base: float | None = None) -> None:
        self.do(EvaluationEnded(self.asked[-1], scores(value), scores(base) if base else None))

    def named(self, feed: Feed) -> int:
        number = self.run_state.number(feed)
        return 0 if number is None else self.run_state.named(number)

    def of(self, kind: type[D]) -> list[D]:
        """Return the decisions of one kind."""
        return [decision for decision in self.signed if isinstance(decision, kind)]

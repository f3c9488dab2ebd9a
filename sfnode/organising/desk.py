"""The organiser's desk: puts what a node sees before its organiser, and hands out what that one wants.

Sans-IO, and the same in the daemon and in the simulator. Whoever runs a host tells it of every round that was
carried out, with the feeds of which something else is held or counts (`Advanced`), of petitions, and of the
owner's wishes. The rest it reads: what is held of a feed from the log, decisions and peers from the machine.
A round in which nothing has happened costs nothing; what peers have shown is looked at when the organiser
looks, and only for feeds of which they have not shown everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from sfnode.organising.evaluation.judging import Judge
from sfnode.organising.evaluation.origins import Origins
from sfnode.organising.evaluation.searching import Search
from sfnode.organising.events import (
    Action,
    ControlChanged,
    DeskEvent,
    Event,
    ForkProven,
    HeldChanged,
    Mark,
    OwnerWish,
    PeerControl,
    PeerGone,
    PeersClaim,
    PeerShows,
    Refuse,
    Round,
    Sign,
    Signed,
    Tenure,
    Wake,
)
from sfnode.organising.guard import Guard
from sfnode.organising.organiser import Organiser, State
from sfnode.organising.policy import OrganiserPolicy
from sfprotocol import decisions
from sfprotocol.counting import NEVER
from sfprotocol.decisions import Decision
from sfprotocol.machine import Machine
from sfprotocol.messages import ControlHead, Feed, Petition, Position, Segment
from sfprotocol.organised import Organised
from sfprotocol.segments import MAX_SEGMENT_UPDATES, first_updates
from sfprotocol.signing import extend


class Log(Protocol):
    """The log on the node's disk; its methods are those of `sfprotocol.host.Store`."""

    def read(self, feed: Feed, first: int, max_updates: int) -> Segment | None: ...
    def past(self, feed: Feed, step: int) -> tuple[bytes, Segment]: ...
    def label(self, feed: Feed, step: int) -> tuple[int, int]: ...


class OrganiserDesk:
    """The organiser of one node that has the key, from one start to the next."""

    def __init__(
        self,
        machine: Machine,
        log: Log,
        *,
        key: bytes,
        policy: OrganiserPolicy,
        judge: Judge,
        draw: Callable[[int], bytes],
        alone: bool,
        now: float,
    ) -> None:
        """`key` is the public half of the organiser's key; the rest as for `Organiser`."""
        assert machine.organised is not None
        self._machine = machine
        self._organised: Organised = machine.organised
        self._log = log
        self._key = key
        self._told: tuple[ControlHead, Tenure] | None = None
        self._read, self._chain = 0, b""
        """Decisions that the organiser was told of, and the chain hash after them."""
        self._held: dict[Feed, tuple[int, bytes]] = {}
        """First step that is not held of each feed, and the chain hash there."""
        self._forked: dict[Feed, int] = {}
        self._shown: dict[Feed, int] = {}
        self._unshown: dict[Feed, None] = {}
        """Feeds of which more is held than peers have shown."""
        self._peers: dict[str, int] = {}
        self._claimed: frozenset[Feed] = frozenset()
        self._wishes: list[Decision] = []
        self._origins = Origins(kept=policy.kept)
        self._origins.follow(self._organised.control.feed)
        self._untold = [state.feed for state in machine.frontier]
        """Feeds of which the organiser has not been told anything yet."""
        self._organiser = Organiser(
            machine.run.run_id,
            self._organised.counting,
            policy,
            judge,
            draw=draw,
            alone=alone,
            now=now,
            known=self._origins,
        )

    # -- what others ask ---------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """Whether the organiser signs."""
        return self._organiser.state

    @property
    def search(self) -> Search | None:
        """The searches; None if there are none."""
        return self._organiser.search

    @property
    def guard(self) -> Guard | None:
        """The guard; None if there is none."""
        return self._organiser.guard

    def petitions(self, now: float) -> list[Petition]:
        """Return those that wait for the owner."""
        return self._organiser.petitions(now)

    def next_deadline(self) -> float:
        """Return the time at which a Round is due at the latest, even if none was carried out."""
        return self._organiser.next_deadline()

    # -- what the node tells -----------------------------------------------------------------------

    def handle(self, event: DeskEvent, now: float) -> list[Action]:
        """Take in one event, a Round only once it was carried out; return what to do, in order."""
        match event:
            case Round(moved=moved):
                actions = list(self._on_round(moved, now))
            case OwnerWish(decision=decision):
                self._wishes.append(decision)
                actions = list(self._tell(event, now))
            case _:
                actions = list(self._tell(event, now))
        if now >= self.next_deadline():
            actions += [*self._look_at_peers(now), *self._tell(Wake(), now)]
        return actions

    def _on_round(self, moved: Iterable[Feed], now: float) -> Iterator[Action]:
        yield from self._look_at_control(now)
        changed, self._untold = dict.fromkeys([*self._untold, *moved]), []
        for feed in changed:
            yield from self._look_at(feed, now)

    def _tell(self, event: Event, now: float) -> Iterator[Action]:
        for action in self._organiser.handle(event, now):
            match action:
                case Sign(position=position) if position != self._control_stop or not self._may_sign:
                    continue  # the control feed has moved on meanwhile
                case Refuse(decision=decision) if decision in self._wishes:
                    self._wishes.remove(decision)
            yield action

    # -- decisions ---------------------------------------------------------------------------------

    @property
    def _control_stop(self) -> int:
        return self._organised.control.feed.stop

    @property
    def _may_sign(self) -> bool:
        return self._tenure() is Tenure.HELD

    def _tenure(self) -> Tenure:
        feed = self._organised.control.feed
        if feed.key != self._key:
            return Tenure.PASSED_ON
        return Tenure.FORKED if feed.frozen else Tenure.HELD

    def _look_at_control(self, now: float) -> Iterator[Action]:
        control = self._organised.control
        current = control.head(), self._tenure()
        if current == self._told:
            return
        feed, first = control.feed, self._read
        anew = bool(first) and (feed.stop < first or feed.chains[first] != self._chain)
        self._told, self._read, self._chain = current, feed.stop, feed.chain
        news = tuple(decisions.read(entry.record).decision for entry in feed.entries[0 if anew else first :])
        for decision in news:
            if decision in self._wishes:
                self._wishes.remove(decision)
                yield Signed(decision)
        self._origins.follow(control.feed)
        yield from self._tell(ControlChanged(control.counting, current[1], news, anew), now)

    # -- feeds -------------------------------------------------------------------------------------

    def _look_at(self, feed: Feed, now: float) -> Iterator[Action]:
        """Tell what is held of a feed that has moved, or of which something else counts."""
        state = self._machine.frontier.state(feed)
        before, self._held[feed] = self._held.get(feed, (0, b"")), (state.next, state.chain)
        if not self._continues(feed, before):
            yield from self._anew(feed, state.next, now)
        elif before[0] < state.next:
            marks = tuple(self._marks(feed, before[0], state.next))
            yield from self._tell(HeldChanged(feed, before[0], marks), now)
        if state.forked < self._forked.get(feed, NEVER):
            self._forked[feed] = state.forked
            yield from self._tell(ForkProven(feed, state.forked), now)
        if state.next > self._shown.get(feed, 0):
            self._unshown[feed] = None

    def _continues(self, feed: Feed, before: tuple[int, bytes]) -> bool:
        """Return whether what is held of a feed continues what was, with a mark wherever one has to be."""
        known, chain = before
        if not chain or self._log.past(feed, min(known, self._held[feed][0]))[0] != chain:
            return False
        counting = self._organised.counting
        number = counting.number(feed)
        landmarks = [] if number is None else counting.landmarks(number, self._judged(number), known)
        return all(self._organiser.marked(feed, landmark.stop) for landmark in landmarks)

    def _judged(self, number: int) -> int:
        """Return the step up to which seals have judged a feed, but for the last one."""
        counting = self._organised.counting
        return counting.named(number, counting.sealed - 2)

    def _anew(self, feed: Feed, stop: int, now: float) -> Iterator[Action]:
        """Tell everything that is held of a feed."""
        number = self._organised.counting.number(feed)
        first = min(stop, 0 if number is None else self._judged(number))
        marks = list(self._marks(feed, first, stop))
        if first:
            marks.insert(0, Mark(first, self._log.label(feed, first)[0], self._log.past(feed, first)[0]))
        self._shown.pop(feed, None)
        self._unshown[feed] = None
        yield from self._tell(HeldChanged(feed, 0, tuple(marks)), now)

    def _marks(self, feed: Feed, first: int, stop: int) -> Iterator[Mark]:
        """Yield the steps at which a close may stop, above `first` and up to `stop`."""
        counting, step = self._organised.counting, first
        chain, number = self._log.past(feed, first)[0], counting.number(feed)
        landmarks = [] if number is None else [mark.stop for mark in counting.landmarks(number, first)]
        while step < stop:
            segment = self._log.read(feed, step, MAX_SEGMENT_UPDATES)
            assert segment is not None  # what the frontier says is on disk
            for part in first_updates(segment.parts, stop - step):
                last = step + len(part.scalars)
                for end in (*(at for at in landmarks if step < at < last), last):
                    taken, rest = part.scalars[: end - step], part.scalars[end - step :]
                    chain = extend(chain, [part._replace(scalars=taken)])
                    part, step = part._replace(scalars=rest), end
                    squares = sum(scalar * scalar for scalar in taken)
                    yield Mark(step, part.epoch, chain, squares, taken.count(0))

    # -- peers -------------------------------------------------------------------------------------

    def _look_at_peers(self, now: float) -> Iterator[Action]:
        links = [link for link in self._machine.links.values() if link.greeted and link.control.theirs]
        peers = {link.peer: link.control.theirs.stop for link in links if link.control.theirs}
        for peer in [peer for peer in self._peers if peer not in peers]:
            yield from self._tell(PeerGone(peer), now)
        for peer, decided in peers.items():
            if self._peers.get(peer) != decided:
                yield from self._tell(PeerControl(peer, decided), now)
        self._peers = peers
        if news := self._newly_shown():
            yield from self._tell(PeerShows(news), now)
        claimed = frozenset(feed for feed in self._organiser.missing if self._is_claimed(feed))
        if claimed != self._claimed:
            self._claimed = claimed
            yield from self._tell(PeersClaim(claimed), now)

    def _is_claimed(self, feed: Feed) -> bool:
        """Return whether a peer says that it has more of a feed than is here."""
        held = self._machine.frontier.next(feed)
        return any(link.has.get(feed, 0) > held for link in self._machine.links.values())

    def _newly_shown(self) -> tuple[Position, ...]:
        """Return how much of our feeds peers have shown to hold, where that is more than before."""
        frontier = self._machine.frontier
        links = [link for link in self._machine.links.values() if link.greeted]
        agreed = any(link.agreed and link.known == frontier.known for link in links)
        news: list[Position] = []
        for feed in list(self._unshown):
            held = frontier.next(feed)
            shown = held if agreed else min(held, max((link.has.get(feed, 0) for link in links), default=0))
            if shown > self._shown.get(feed, 0):
                self._shown[feed] = shown
                news.append(Position(feed, shown))
            if shown == held:
                del self._unshown[feed]
        return tuple(news)

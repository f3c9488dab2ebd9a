"""The organiser of a simulated node: the shipped policy, told what this node sees, its decisions signed here.

An adapter, as the daemon has one. It is told of effects as they are carried out, and looks at the rest
(links, decisions, forks) after every round; evaluations take a while and always have the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfnode.organising.events import (
    ControlChanged,
    Evaluate,
    EvaluationEnded,
    Event,
    ForkProven,
    HeldChanged,
    Mark,
    OwnerWish,
    PeerControl,
    PeerGone,
    PeerShows,
    PetitionHeard,
    Sign,
    Tenure,
    Wake,
)
from sfnode.organising.organiser import Organiser
from sfnode.organising.policy import Admission, OrganiserPolicy
from sfnode.organising.rates import Schedule
from sfnode.schema.evaluation import Evaluation
from sfnode.sim.world.keys import origin_of
from sfprotocol.decisions import Decision
from sfprotocol.host import Advanced, Asked
from sfprotocol.messages import ControlHead, Feed, Position

if TYPE_CHECKING:
    from sfnode.sim.world.node import Node

POLICY = OrganiserPolicy(
    target_updates=48,
    longest_epoch=4.0,
    seal_wait=5.0,
    admission=Admission.ANYONE,
    admissions_per_minute=600.0,
    work_bits=0,
    quota=64,
    young_share=0.5,
    share=0.5,
)
"""A policy for runs of seconds."""

ROUNDING = 0.001
"""Seconds at least until an alarm, so that one that comes too early is not set for the same moment."""

EVALUATION_TIME = 0.5
"""Seconds that an evaluation takes."""

RESULT = Evaluation(metric="accuracy", value=0.5, low=0.48, high=0.52, loss=1.0, count=100)


class Organising:
    """The organiser of one node, from one start to the next."""

    def __init__(self, node: Node, key: Ed25519PrivateKey) -> None:
        run = node.world.run
        self._node = node
        self._key = origin_of(key)
        self._control = node.organised.control
        self._told: ControlHead | None = None
        self._tenure: Tenure | None = None
        self._held: dict[Feed, int] = {}
        self._forked: dict[Feed, int] = {}
        self._shown: dict[Feed, int] = {}
        self._peers: dict[str, int] = {}
        self._alarm = float("inf")
        self.organiser = Organiser(
            run.run_id,
            self._control.counting,
            POLICY,
            Schedule("linear", run.rate),
            draw=node.random.randbytes,
            alone=not node.met,
            now=node.clock(),
        )

    def begin(self) -> None:
        """Tell the organiser everything that is here."""
        for state in self._node.machine.frontier:
            self._mark(state.feed, 0)
        self.look()

    def wish(self, decision: Decision) -> None:
        """Tell the organiser what the run's owner wants."""
        self._tell(OwnerWish(decision))

    # -- what the node tells -----------------------------------------------------------------------

    def moved(self, advanced: Advanced) -> None:
        """Take note that other updates of a feed are held, or that decisions have named them."""
        known = self._held.get(advanced.feed, 0)
        self._mark(advanced.feed, known if advanced.before == known < advanced.stop else 0)

    def asked(self, asked: Asked) -> None:
        """Take note of a petition."""
        self._tell(PetitionHeard(asked.petition, asked.via))

    def look(self) -> None:
        """Take note of everything else that may have changed, after a round."""
        head, tenure = self._control.head(), self._tenure_now()
        if (head, tenure) != (self._told, self._tenure):
            self._told, self._tenure = head, tenure
            self._tell(ControlChanged(self._control.counting, tenure))
        for feed, shelf in self._node.disk.shelves.items():
            if shelf.proof and shelf.proof.cut < self._forked.get(feed, shelf.proof.cut + 1):
                self._forked[feed] = shelf.proof.cut
                self._tell(ForkProven(feed, shelf.proof.cut))
        self._look_at_peers()
        self._set_alarm()

    def _look_at_peers(self) -> None:
        machine = self._node.machine
        links = [link for link in machine.links.values() if link.greeted and link.control.theirs]
        peers = {link.peer: link.control.theirs.stop for link in links if link.control.theirs}
        for peer in [peer for peer in self._peers if peer not in peers]:
            self._tell(PeerGone(peer))
        for peer, decided in peers.items():
            if self._peers.get(peer) != decided:
                self._tell(PeerControl(peer, decided))
        self._peers = peers
        news: dict[Feed, int] = {}
        for state in machine.frontier:
            agree = any(link.agreement.agreed and link.known == machine.frontier.known for link in links)
            said = max((link.has.get(state.feed, 0) for link in links), default=0)
            shown = state.next if agree else min(said, state.next)
            if shown > self._shown.get(state.feed, 0):
                news[state.feed] = self._shown[state.feed] = shown
        if news:
            self._tell(PeerShows(tuple(Position(feed, stop) for feed, stop in news.items())))

    def _tenure_now(self) -> Tenure:
        feed = self._control.feed
        if feed.key != self._key:
            return Tenure.PASSED_ON
        return Tenure.FORKED if feed.frozen else Tenure.HELD

    def _mark(self, feed: Feed, first: int) -> None:
        """Tell at which steps a close may stop, from step `first` on."""
        disk, counting = self._node.disk, self._control.counting
        stop = self._held[feed] = self._node.machine.frontier.next(feed)
        number, step = counting.number(feed), 0
        labels = []
        for label, count in disk.labels(feed, stop):
            step += count
            labels.append((step, label))
        steps = {step for step, _ in labels}
        if number is not None:
            steps |= {landmark for landmark, _, _ in counting.landmarks(number) if landmark < stop}
        marks = (
            Mark(step, next(label for end, label in labels if end >= step), disk.head(feed, step))
            for step in sorted(steps)
            if step > first
        )
        self._tell(HeldChanged(feed, first, tuple(marks)))

    # -- what the organiser wants ------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        for action in self.organiser.handle(event, self._node.clock()):
            match action:
                case Sign(position=position, decision=decision):
                    if position == self._control.feed.stop and self._tenure_now() is Tenure.HELD:
                        self._node.decide(decision)
                case Evaluate(epoch=epoch):
                    self._later(EVALUATION_TIME, self._evaluated, epoch)

    def _evaluated(self, epoch: int) -> None:
        self._tell(EvaluationEnded(epoch, RESULT, RESULT if epoch == 0 else None))
        self._set_alarm()

    def _later(self, seconds: float, do: Callable[..., None], *arguments: Any) -> None:
        self._node.world.agenda.later(seconds, self._if_here, do, *arguments)

    def _if_here(self, do: Callable[..., None], *arguments: Any) -> None:
        if self._node.organising is self:
            do(*arguments)

    def _set_alarm(self) -> None:
        """Wake the organiser when it wants to be."""
        due = self.organiser.next_deadline()
        if due < self._alarm:
            self._alarm = due
            self._later(max(ROUNDING, due - self._node.clock()), self._ring, due)

    def _ring(self, due: float) -> None:
        if due != self._alarm:
            return
        self._alarm = float("inf")
        self._tell(Wake())
        self._set_alarm()

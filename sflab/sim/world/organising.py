"""The organiser of a simulated node: the one that the daemon has, on a virtual clock.

Decisions go to the node's machine; evaluations take a while and always have the same result.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sflab.sim.world.checkpoints import summarise
from sflab.sim.world.keys import origin_of
from sfnode.organising.evaluation.judging import Judgement, Schedule, by_schedule
from sfnode.organising.events import (
    Evaluate,
    EvaluationEnded,
    Event,
    OwnerDecision,
    Round,
    Sign,
    Summarise,
    Summarised,
)
from sfnode.organising.organiser import Organiser
from sfnode.organising.policy import Admission, OrganiserPolicy
from sfnode.organising.view import View
from sfnode.schema.evaluation import Evaluation
from sfprotocol.counting import Counting
from sfprotocol.decisions import Decision, RateFrom
from sfprotocol.events import FindingHeard
from sfprotocol.host import Advanced, Asked, Effect

if TYPE_CHECKING:
    from sflab.sim.world.node import Node

POLICY = OrganiserPolicy(
    target_updates=48,
    longest_epoch=4.0,
    seal_wait=5.0,
    admission=Admission.ANYONE,
    admissions_per_minute=600.0,
    work_bits=0,
    quota=64,
    update_forwards=8,
    young_share=0.5,
    share=0.5,
    amend_after=40.0,
    checkpoint_epochs=3,
)
"""A policy for runs of seconds."""

FACTORS = (0, 2048, 4096, 6963)
"""Factors of seals where they are judged: 0, 1/2, 1 and 1.7."""

ROUNDING = 0.001
"""Seconds at least until an alarm, so that one that comes too early is not set for the same moment."""

EVALUATION_TIME = 0.5
"""Seconds that an evaluation takes."""

RESULT = Evaluation(metric="accuracy", value=0.5, low=0.48, high=0.52, loss=1.0, count=100)


class Organising:
    """The organiser of one node, from one start to the next."""

    def __init__(self, node: Node, key: Ed25519PrivateKey) -> None:
        self._node = node
        self._alarm = float("inf")
        self._untold: list[Event] = []
        """Events that have come while a round was under way."""
        self.organiser = Organiser(
            View(node.machine, node.disk),
            POLICY,
            _anything if node.world.judged else by_schedule(Schedule("linear", node.world.run.rate)),
            key=origin_of(key),
            draw=node.random.randbytes,
            alone=not node.met,
            now=node.clock(),
        )
        self._tell(Round())

    def carried_out(self, effects: list[Effect]) -> None:
        """Take note of a round of the node."""
        self._tell(Round(tuple(effect.feed for effect in effects if isinstance(effect, Advanced))))
        heard: list[Event] = [effect for effect in effects if isinstance(effect, Asked)]
        heard += [effect for effect in effects if isinstance(effect, FindingHeard)]
        events, self._untold = [*heard, *self._untold], []
        for event in events:
            self._tell(event)

    def decide(self, decision: Decision) -> None:
        """Tell the organiser what the run's owner wants."""
        self._if_here(OwnerDecision(decision))

    def _tell(self, event: Event) -> None:
        for action in self.organiser.handle(event, self._node.clock()):
            match action:
                case Sign(decision=decision):
                    self._node.decide(decision)
                case Evaluate(epoch=epoch):
                    result = EvaluationEnded(epoch, RESULT, RESULT if epoch == 0 else None)
                    self._later(EVALUATION_TIME, result)
                case Summarise(epoch=epoch):
                    state = summarise(self._node, epoch)
                    self._later(EVALUATION_TIME, Summarised(state.checkpoint if state else None))
        due = self.organiser.next_deadline()
        if due < self._alarm:
            self._alarm = due
            self._later(max(ROUNDING, due - self._node.clock()), Round())

    def _later(self, seconds: float, event: Event) -> None:
        self._node.world.agenda.later(seconds, self._if_here, event)

    def _if_here(self, event: Event) -> None:
        if self._node.organising is not self:
            return
        if isinstance(event, Round):
            self._alarm = float("inf")
        if not self._node.host.busy:
            self._tell(event)
        elif not isinstance(event, Round):  # it is told of that one when it was carried out
            self._untold.append(event)


def _anything(counting: Counting) -> Judgement:
    """Judge at random, the same by the same decisions: an organiser that was restarted says nothing else."""
    random, coming = Random(f"{counting.decisions}/judge"), counting.open_epoch + 1
    rates = {coming + random.randint(0, 3): random.randint(0, 1 << 23) for _ in range(random.randint(0, 2))}
    earlier = [skipped for number in range(len(counting.members)) for skipped in counting.skipped(number)]
    return Judgement(
        random.choice(FACTORS),
        frozenset(number for number in counting.moved(counting.sealed) if random.random() < 0.2),
        frozenset(skipped for skipped in earlier if random.random() < 0.5),
        tuple(RateFrom(*rate) for rate in sorted(rates.items())),
    )

"""The checkers find what they are there to find: a machine that is broken on purpose does not pass.

Each test says which checker must speak up.
"""

from __future__ import annotations

from typing import Any

import pytest

from sfnode.sim.runner import Outcome, simulate
from sfnode.sim.scenarios import SCENARIOS
from sfprotocol import admission, flood, forks
from sfprotocol.admission import Verified
from sfprotocol.events import Action, Admit, Event, Transmit
from sfprotocol.machine import Machine
from sfprotocol.messages import Want


def caught(outcome: Outcome) -> str:
    """The checker that objected."""
    assert outcome.failure, "a broken machine has passed"
    assert outcome.failure.trace, "a failure comes with its story"
    return outcome.failure.checker


class NeverAsks(Machine):
    """Drops every question for what is missing."""

    def handle(self, event: Event, now: float) -> list[Action]:
        actions = super().handle(event, now)
        return [a for a in actions if not (isinstance(a, Transmit) and isinstance(a.message, Want))]


def test_a_machine_that_drops_the_gap_pull_does_not_converge() -> None:
    outcome = simulate(SCENARIOS["lossy"], 0, nodes=8, seconds=5, machine=NeverAsks)
    assert caught(outcome) == "convergence"


def test_a_machine_that_forgets_the_ttl_is_seen_by_its_hop_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flood, "TTL", 250)
    outcome = simulate(SCENARIOS["long-line"], 0, seconds=5)
    assert caught(outcome) == "hops"


class AppliesTwice(Machine):
    """Gives every second Admit twice."""

    def handle(self, event: Event, now: float) -> list[Action]:
        actions = super().handle(event, now)
        for number, action in enumerate(actions):
            if isinstance(action, Admit) and action.segment.first % 2:
                return [*actions[: number + 1], action, *actions[number + 1 :]]
        return actions


def test_a_machine_that_admits_twice_is_seen_at_the_disk() -> None:
    assert caught(simulate(SCENARIOS["calm"], 0, seconds=5, machine=AppliesTwice)) == "once"


def test_a_machine_that_leaves_a_gap_is_seen_at_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def lenient(run: Any, state: Any, segment: Any, signed: Any) -> Verified | None:
        """Takes whatever lies ahead, near or far."""
        if segment.stop <= state.next:
            return None
        return Verified(segment, bytes(32), segment.count, bytes(32))

    monkeypatch.setattr(admission, "due", lambda state, segment: segment.stop > state.next)
    monkeypatch.setattr(admission, "verify", lenient)
    assert caught(simulate(SCENARIOS["lossy"], 0, seconds=5)) == "content"


def trusting(*arguments: Any, **settings: Any) -> Machine:
    """A machine that takes every signature for good."""
    return Machine(*arguments, **{**settings, "verify": lambda *_: True})


def test_a_machine_that_takes_any_signature_is_seen_by_what_it_admits() -> None:
    assert caught(simulate(SCENARIOS["garbage"], 0, seconds=5, machine=trusting)) == "content"


def test_a_machine_that_keeps_a_forked_feed_does_not_become_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two histories are made and nobody wants to see that: every node keeps the one that it met first."""
    monkeypatch.setattr(forks, "judge", lambda *_: forks.Finding())
    monkeypatch.setattr(forks, "holds", lambda *_: False)
    assert caught(simulate(SCENARIOS["twins"], 0, patience=20)) == "convergence"


def test_a_machine_whose_clock_never_advances_is_seen() -> None:
    class Stuck(Machine):
        def next_deadline(self) -> float:
            return min(super().next_deadline(), 2.0)

    assert caught(simulate(SCENARIOS["calm"], 0, seconds=2, machine=Stuck)) == "timer"


def test_a_machine_that_raises_is_a_finding_and_not_a_crash() -> None:
    class Raises(Machine):
        def handle(self, event: Event, now: float) -> list[Action]:
            if now > 4:
                raise RuntimeError("no way")
            return super().handle(event, now)

    assert caught(simulate(SCENARIOS["calm"], 0, seconds=2, machine=Raises)) == "exception"

"""Tests of owners' decisions: one is refused exactly if it would change nothing in the fold."""

from __future__ import annotations

import copy

import pytest

from sfnode.organising.owner_decisions import refusal
from sfprotocol.decisions import (
    Announce,
    Bases,
    Budget,
    Close,
    Decision,
    Finish,
    Invite,
    Recorded,
    Unknown,
)
from sfprotocol.run_state import RunState
from tests.organising.bench import RATE, state_of
from tests.organising.test_stories import Story


def changes(run_state: RunState, wish: Decision) -> bool:
    after = copy.deepcopy(run_state)
    after.apply(Recorded(wish))
    return state_of(after) != state_of(run_state)


def is_nobodys(wish: Decision) -> bool:
    """Return whether a decision is refused, or accepted, whatever it would change: an announcement, or a
    decision that no owner makes."""
    return isinstance(wish, Announce | Close) or (isinstance(wish, Invite) and not wish.uses)


@pytest.mark.parametrize("seed", range(12))
def test_a_wish_is_refused_if_and_only_if_it_would_change_nothing(seed: int) -> None:
    story = Story(seed)
    told: set[tuple[str, bool]] = set()
    for _ in range(400):
        story.step()
        wish, run_state = story.decide(), story.bench.run_state
        if is_nobodys(wish):
            continue
        refused = refusal(run_state, wish) is not None
        assert refused != changes(run_state, wish), wish
        told.add((type(wish).__name__, refused))
    assert len(told) >= 8


def test_nothing_is_wished_for_after_decisions_of_a_later_version() -> None:
    run_state = RunState(budget=100, rate=RATE)
    assert refusal(run_state, Finish()) is None
    run_state.apply(Recorded(Unknown(1000)))
    for wish in (Finish(), Budget(1), Announce("hello"), Bases(1, bytes(32))):
        assert "later version" in (refusal(run_state, wish) or "")

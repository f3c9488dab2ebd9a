"""A wish is refused if and only if the fold of decisions would make nothing of it."""

from __future__ import annotations

import copy

import pytest

from sfnode.organising.owner_decisions import refusal
from sfprotocol.counting import Counting
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
from tests.organising.bench import RATE, state_of
from tests.organising.test_stories import Story


def changes(counting: Counting, wish: Decision) -> bool:
    after = copy.deepcopy(counting)
    after.apply(Recorded(wish))
    return state_of(after) != state_of(counting)


def is_nobodys(wish: Decision) -> bool:
    """Whether a wish is not refused for what it would change: it says something, or is not for an owner."""
    return isinstance(wish, Announce | Close) or (isinstance(wish, Invite) and not wish.uses)


@pytest.mark.parametrize("seed", range(12))
def test_a_wish_is_refused_if_and_only_if_it_would_change_nothing(seed: int) -> None:
    story = Story(seed)
    told: set[tuple[str, bool]] = set()
    for _ in range(400):
        story.step()
        wish, counting = story.decide(), story.bench.counting
        if is_nobodys(wish):
            continue
        refused = refusal(counting, wish) is not None
        assert refused != changes(counting, wish), wish
        told.add((type(wish).__name__, refused))
    assert len(told) >= 8


def test_nothing_is_wished_for_after_decisions_of_a_later_version() -> None:
    counting = Counting(budget=100, rate=RATE)
    assert refusal(counting, Finish()) is None
    counting.apply(Recorded(Unknown(1000)))
    for wish in (Finish(), Budget(1), Announce("hello"), Bases(1, bytes(32))):
        assert "later version" in (refusal(counting, wish) or "")

"""Quotas and credit of strangers (SPEC O20)."""

from __future__ import annotations

import pytest

from sfprotocol.decisions import Decision, Recorded
from sfprotocol.quotas import UNPROVEN_PART
from sfprotocol.run_state import PACE, PACE_TIME, RunState
from tests.protocol.organised import admit, close, fold, seal

FIRST = 64
"""The first feed of the first stranger; the organiser's is 0."""

ROOM = 256
"""Room of an epoch after short ones."""


def begun(*decisions: Decision, strangers: int = 1) -> RunState:
    """Return a run in which an update of the organiser counts, after these decisions."""
    members = (admit(0), *(admit(1 + n, 0) for n in range(strangers)))
    return fold(*members, close(0, {0: 100}), seal(0), close(1), *decisions, epoch_updates=1024)


def quotas(run: RunState) -> list[int]:
    return [run.quotas.quota(member, run.open_epoch) for member in range(1, len(run.members))]


@pytest.mark.parametrize(("strangers", "each"), [(1, 16), (3, 5), (16, 1)])
def test_strangers_without_credit_share_a_sixteenth_of_the_room_alike(strangers: int, each: int) -> None:
    run = begun(strangers=strangers)
    assert run.room == ROOM
    assert quotas(run) == strangers * [each]


@pytest.mark.parametrize(("zeros", "credit"), [(0, 32), (8, 32), (12, 32), (15, 8), (16, 0)])
def test_zeros_give_credit_beside_a_quarter_that_moves(zeros: int, credit: int) -> None:
    run = begun(close(2, {FIRST: 16}, {FIRST: zeros}), seal(1), seal(2))
    assert run.credit(1) == credit


def test_credit_ends_sixteen_seals_after_the_last_work_that_counts() -> None:
    run = begun(close(2, {FIRST: 16}), seal(1), seal(2))
    for epoch in range(3, 3 + 16):
        assert run.credit(1) == 32
        run = begun(
            close(2, {FIRST: 16}),
            seal(1),
            seal(2),
            *(said for e in range(3, epoch + 1) for said in (close(e), seal(e))),
        )
    assert run.credit(1) == 0


def test_zeros_make_an_epoch_as_large_as_others() -> None:
    assert begun(close(2, {0: 400}, {0: 350})).room == 800


def test_members_make_no_more_than_twice_what_the_budget_lacks() -> None:
    run = begun()
    run.budget = run.promised + 30
    assert run.room_left(0, {}) == 60
    assert run.room_left(0, {0: 10, 1: 1000}) == 60 - 10 - 60 // UNPROVEN_PART, "others of no credit"
    run.budget = run.promised
    assert run.room_left(0, {}) == 0


def test_a_member_makes_its_part_of_what_all_make_in_a_second() -> None:
    assert begun(close(2, {0: 400})).pace == PACE
    assert begun(close(2, {0: 400, 64: 100, 128: 1}), strangers=2).pace == PACE / 3
    wide = fold(admit(0), close(0, {0: 100_000}), epoch_updates=65_536)
    assert wide.pace == 65_536 / PACE_TIME


def test_the_largest_of_the_last_four_closes_says_how_large_an_epoch_is() -> None:
    run = begun(close(2, {0: 400}), close(3), close(4), close(5))
    assert run.room == 800
    run.apply(Recorded(close(6)))
    assert run.room == ROOM


def test_who_comes_while_a_label_is_open_has_one_update_of_it_as_long_as_the_share_lasts() -> None:
    run = begun()
    for stranger in range(20):
        run.apply(Recorded(admit(2 + stranger, 0)))
    assert quotas(run)[1:] == 16 * [1] + 4 * [0]

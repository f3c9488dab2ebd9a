"""Tests of the bounds on what strangers can take from honest members (SPEC O20; figures:
`benchmarks.crowds`).

Two members and two strangers are honest and make 16 updates a second. A minute later others come. The runs
are those of `town`: the shipped organiser and fold on a virtual clock.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sfprotocol.decisions import INCARNATIONS
from sfprotocol.quotas import EPOCHS_AHEAD, UNPROVEN_PART
from tests.organising.town import EPOCH, Person, Town, all_at_once, turncoat, work, zeros

PACE = 16.0
"""Updates a second of all honest people together."""

Acts = Callable[[Town, Person], None]


def begun(
    *, told: bool = True, acts: Acts = work, count: int = 0, pace: float = 4.0
) -> tuple[Town, list[Person]]:
    """Return a run that is a minute old, and `count` people who have just come."""
    town = Town(told=told)
    town.begin()
    town.advance(60)
    hostile = acts in (zeros, all_at_once)
    return town, [town.admit(Person(f"other {n}", pace, acts=acts, hostile=hostile)) for n in range(count)]


def honest(town: Town) -> list[Person]:
    return town.people[:4]


def made(town: Town, seconds: float) -> tuple[int, int]:
    """Return how many updates honest people make in this time, and how many more of theirs count at its
    end."""
    before, counted = sum(p.made for p in honest(town)), town.counts(honest(town))
    town.advance(seconds)
    return sum(p.made for p in honest(town)) - before, town.counts(honest(town)) - counted


@pytest.mark.parametrize(
    ("acts", "count", "told"),
    [
        (zeros, 1, True),
        (zeros, 3, False),
        (all_at_once, 3, True),
        (all_at_once, 3, False),
        (all_at_once, 60, True),
    ],
)
def test_strangers_who_make_what_they_may_at_once_slow_nobody_down(
    acts: Acts, count: int, told: bool
) -> None:
    town, _ = begun(acts=acts, count=count, told=told)
    pace, counts = made(town, 120)
    assert pace >= 0.95 * PACE * 120
    assert counts >= 0.75 * PACE * 120


def test_a_stranger_who_brings_zeros_in_all_its_feeds_ends_no_epoch_sooner() -> None:
    peace, _ = begun()
    town, others = begun(acts=zeros, count=3)
    for one in (peace, town):
        one.advance(120)
    assert len(town.closes) <= len(peace.closes) + 1
    assert town.counts(others) == 0


def test_a_thousand_strangers_hold_an_eighth_of_the_room_with_a_label() -> None:
    town, others = begun(acts=all_at_once, count=1000)
    for _ in range(2):
        labels, before = len(town.closes), {p.name: p.made for p in others}
        room = town.run_state.room
        while len(town.closes) == labels:
            town.advance(1)
        held = sum(p.made - before[p.name] for p in others)
        assert held <= (room + town.run_state.room) // 8, "with the label that ended, and with the next one"


def test_of_a_thousand_strangers_all_have_their_turn() -> None:
    town, others = begun(acts=all_at_once, count=100)
    share = town.run_state.room // 16
    epochs = len(town.closes)
    while len(town.closes) < epochs + 2 + 100 // share:
        town.advance(1)
    assert all(p.made for p in others)


def test_an_honest_stranger_among_thirty_who_are_skipped_comes_to_its_pace() -> None:
    town, _ = begun(acts=all_at_once, count=30)
    late = town.admit(Person("late", 4.0))
    town.advance(180)
    before = late.made
    town.advance(60)
    assert late.made - before >= 0.9 * 4.0 * 60


def test_thirty_who_come_late_are_at_their_pace_within_a_few_epochs() -> None:
    town, others = begun(count=30, pace=1.0)
    town.advance(90)
    before = sum(p.made for p in others)
    town.advance(30)
    assert sum(p.made for p in others) - before >= 0.9 * 30 * 30


def test_who_has_lost_its_feed_is_at_its_pace_with_the_next_epoch() -> None:
    town, _ = begun()
    for person in honest(town)[1::2]:  # a member who was vouched for, and a stranger
        person.feed += 1
        labels = len(town.closes)
        while len(town.closes) == labels:
            town.advance(1)
        before = person.made
        town.advance(30)
        assert person.made - before >= 0.9 * 4.0 * 30


def test_a_turncoat_brings_in_no_more_than_twice_its_best_epoch_before_a_seal_sees_it() -> None:
    town, (other,) = begun(acts=turncoat(500, all_at_once), count=1)
    while not other.hostile:
        town.advance(1)
    good, best = other.made, max(4 * EPOCH // 16, 1)
    town.advance(120)
    assert town.counts([other]) <= good
    shares = (EPOCHS_AHEAD * EPOCH // 16) * (2 + 120 * PACE // EPOCH)
    assert other.made - good <= 2 * 2 * best + shares


@pytest.mark.parametrize("told", [True, False], ids=["judged", "unjudged"])
def test_who_turns_to_zeros_loses_its_credit_without_a_judge(told: bool) -> None:
    town, (other,) = begun(acts=turncoat(500, zeros), count=1, told=told)
    while not other.hostile:
        town.advance(1)
    assert town.run_state.credit(other.number)
    pace, counts = made(town, 120)
    assert not town.run_state.credit(other.number)
    assert pace >= 0.95 * PACE * 120
    assert counts >= 0.9 * PACE * 120


def test_of_what_a_stranger_brings_nothing_is_measured_at_until_it_has_counted() -> None:
    town, (other,) = begun(acts=all_at_once, count=1)
    feed = other.number * 64
    for _ in range(20):
        town.advance(5)
        held = town.shelves[other.number, 0].stop
        assert not any(run.factor for run in town.run_state.live(feed, held))
    assert town.named([other]) > 0


def test_members_most_of_whose_scalars_are_0_make_as_many_updates_as_others() -> None:
    """Rewards are often equal, which makes zero updates. These close no epoch, so rooms and quotas must be
    large enough for them."""
    town = Town()
    for person in town.begin(pace=8.0):
        person.zeros = 0.6
    town.advance(120)
    before = [p.made for p in honest(town)]
    town.advance(120)
    assert all(p.made - b >= 0.85 * 8 * 120 for p, b in zip(honest(town), before, strict=True))


def test_the_budget_is_reached_although_thirty_do_what_they_may_from_the_first_minute_on() -> None:
    """Until something counts, each stranger may use the whole room. What it signs then waits to be listed."""
    town = Town(budget=1500)
    town.begin()
    for n in range(30):
        town.admit(Person(f"other {n}", 4.0, acts=zeros if n % 2 else all_at_once, hostile=True))
    town.advance(60)
    assert all(town.counts([person]) for person in honest(town)), "each of the honest has its turn"
    town.advance(2 * 1500 / PACE)
    assert town.run_state.complete
    assert town.counts(honest(town)) >= 1500


def test_who_is_quick_at_a_runs_start_is_not_all_that_is_judged_first() -> None:
    """With fewer than three members noise cannot be told from work, and all of it counts."""
    town = Town()
    town.begin(members=1, strangers=1)
    quick = town.admit(Person("quick", 4.0, acts=all_at_once, hostile=True))
    while not town.closes:
        town.advance(1)
    moves = {move.feed // INCARNATIONS: move.steps for move in town.closes[0].moves}
    assert {0, 1} <= set(moves)
    assert moves.get(quick.number, 0) <= EPOCH // 2


def test_a_runs_first_epoch_is_full_once_all_that_waits_fills_it_and_strangers_are_half_of_it() -> None:
    town = Town()
    town.begin(members=1, strangers=3, pace=4.0)
    while not town.closes:
        town.advance(1)
    moves = {move.feed // INCARNATIONS: move.steps for move in town.closes[0].moves}
    assert EPOCH <= sum(person.made for person in town.people) < 1.2 * EPOCH
    assert moves[0] == pytest.approx(EPOCH / 4, rel=0.2)
    assert sum(moves.values()) == pytest.approx(2 * moves[0], abs=3)


def test_strangers_who_begin_a_run_are_at_their_pace_from_the_start() -> None:
    town = Town()
    town.begin(members=1, strangers=3, pace=4.0)
    town.advance(240)
    assert sum(person.made for person in town.people) > 0.9 * 240 * 16
    assert town.counts(town.people) > 0.85 * 240 * 16


def test_where_those_who_are_vouched_for_make_nothing_strangers_begin_after_a_while() -> None:
    town = Town()
    town.admit(Person("away", 0.0), 4 * EPOCH)
    for number in range(3):
        town.admit(Person(f"stranger {number}", 4.0))
    town.advance(25)
    assert not town.closes
    town.advance(60)
    assert len(town.closes) > 2


def begins_large(town: Town, person: Person) -> None:
    """Make the largest scalars with the first label."""
    if town.run_state.open_epoch == 0:
        all_at_once(town, person)


def begins_large_and_earns_credit(town: Town, person: Person) -> None:
    """Make the largest scalars with the first label, and in another feed one update that counts."""
    begins_large(town, person)
    if (person.number, 1) not in town.shelves:
        town.make(person, 1, feed=1)


@pytest.mark.parametrize("acts", [begins_large, begins_large_and_earns_credit])
def test_what_a_stranger_signed_as_a_whole_at_the_start_waits_where_it_is_more_than_their_part(
    acts: Callable[[Town, Person], None],
) -> None:
    town = Town(told=False)
    town.begin(members=2, strangers=0, pace=16.0)
    quick = town.admit(Person("quick", 4.0, acts=acts))
    town.advance(town.organiser.known.policy.longest_epoch - 10)
    assert len(town.closes) > 3
    assert quick.made > EPOCH
    assert town.named([quick]) < EPOCH // UNPROVEN_PART
    town.advance(60)
    assert town.named([quick]) > EPOCH, "at last it is named"

"""Tests of checkouts: the last seal whose updates a log holds counts the same on all nodes."""

from __future__ import annotations

from sfnode.errors import Code
from sfnode.store.checkout import Checkout, last_of, last_seal, warning
from sfprotocol.decisions import Amend, Void
from sfprotocol.messages import Feed
from tests.store.organised import ORGANISED, Logged

EACH = 5
"""Number of updates of each of three nodes in an epoch."""


def train(made: Logged, epochs: int) -> None:
    for _ in range(epochs):
        for name in "abc":
            made[name].compute(EACH)
        made.swarm.run(2)
        made.close()
        made.seal()
        made.swarm.run(2)


def seen(made: Logged, name: str = "b", **lacking: int) -> Checkout:
    """Return the checkout of a node that lacks updates at the ends of some feeds."""
    frontier = made[name].machine.frontier
    fewer = {made[other].own: count for other, count in lacking.items()}

    def held(feed: Feed) -> int:
        return frontier.next(feed) - fewer.get(feed, 0)

    found = last_seal(ORGANISED, made.logs[name].control(), held)
    assert frontier.run_state
    assert last_of(frontier.run_state, held) == (None if found.lacking else found)
    return found


def steps(checkout: Checkout) -> list[int]:
    """Return the counted steps of each feed with their factors."""
    return sorted(run.stop for counted in checkout.counted.values() for run in counted.spans if run.factor)


def test_it_is_the_last_seal_and_nothing_of_the_open_window(made: Logged) -> None:
    train(made, 3)
    sealed = seen(made)
    assert (sealed.epoch, sealed.updates, sealed.sealed, sealed.lacking) == (2, 3 * 3 * EACH, 3, 0)
    assert steps(sealed) == 3 * [3 * EACH]
    assert warning(sealed.epoch, sealed.sealed, sealed.lacking) is None
    made["c"].compute(4)
    made.swarm.run(2)
    made.close()  # named, and not judged yet
    made.swarm.run(2)
    for name in "abc":
        later = seen(made, name)
        assert (later[:2], steps(later)) == (sealed[:2], steps(sealed))


def test_who_lacks_an_update_speaks_of_the_last_seal_before_it(made: Logged) -> None:
    train(made, 2)
    second = seen(made)
    train(made, 2)
    behind = seen(made, c=EACH + 2)
    assert (behind.epoch, behind.sealed, behind.lacking) == (1, 4, EACH + 2)
    assert (behind.updates, steps(behind)) == (second.updates, steps(second))
    told = warning(behind.epoch, behind.sealed, behind.lacking)
    assert told
    assert told.code is Code.UPDATES_LACKING
    assert "lacks 7 updates of rounds after 1" in told.what
    assert "--as-of-now" in told.fix


def test_who_has_no_seal_as_a_whole_speaks_of_none(made: Logged) -> None:
    fresh = seen(made)
    assert (fresh.epoch, fresh.counted) == (None, {})
    told = warning(fresh.epoch, fresh.sealed, fresh.lacking)
    assert told
    assert "no round counts yet" in told.what
    train(made, 2)
    nothing = seen(made, a=2 * EACH)
    assert (nothing.epoch, nothing.updates, nothing.counted) == (None, 0, {})
    told = warning(nothing.epoch, nothing.sealed, nothing.lacking)
    assert told
    assert "lacks 10 updates of its 2 rounds" in told.what


def test_what_was_taken_back_since_does_not_count(made: Logged) -> None:
    train(made, 3)
    made.decide(Void(1, 2, ()))
    made.swarm.run(2)
    after = seen(made)
    assert (after.epoch, after.updates, after.lacking) == (2, 3 * EACH, 0)
    assert steps(after) == 3 * [EACH]


def test_who_lacks_what_was_given_up_later_lacks_nothing(made: Logged) -> None:
    train(made, 3)
    run_state, feed = made["a"].machine.frontier.run_state, made["c"].own
    assert run_state
    assert feed
    number = run_state.number(feed)
    assert number is not None
    assert seen(made, c=EACH).epoch == 1
    made.decide(Amend(number, 2))
    made.swarm.run(2)
    assert made["b"].machine.frontier.next(feed) == 2 * EACH
    after = seen(made)
    assert (after.epoch, after.updates, after.lacking) == (2, 3 * 3 * EACH - EACH, 0)

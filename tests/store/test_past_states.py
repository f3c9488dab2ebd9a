"""States at about the moment at which an update of a log was made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sfnode.store.log import UpdateLog
from sfnode.store.past_states import PARTS, PastMoment, PastStates
from sfprotocol.decisions import FACTOR_ONE
from sfprotocol.messages import EpochScalars
from sfprotocol.weighing import Counted, once
from tests.node.helpers import manifest
from tests.store.helpers import Author
from tests.store.organised import ORGANISED, Logged

RUN = manifest()


@pytest.fixture
def fast() -> Author:
    return Author(1, run_id=RUN.run_id)


@pytest.fixture
def slow() -> Author:
    return Author(2, run_id=RUN.run_id)


@pytest.fixture
def states(tmp_path: Path, fast: Author, slow: Author) -> PastStates:
    """One feed with 16 updates of epoch 0 and 64 of epoch 1, one with 8 and 32, one of epoch 1 alone."""
    late = Author(3, run_id=RUN.run_id)
    with UpdateLog.open(tmp_path / "updates.sqlite", RUN.run_id) as log:
        log.append(
            [
                fast.write_parts([EpochScalars(0, (1,) * 16), EpochScalars(1, (1,) * 64)]),
                slow.write_parts([EpochScalars(0, (1,) * 8), EpochScalars(1, (1,) * 32)]),
                late.write([1] * 24, epoch=1),
            ]
        )
        held = {fast.feed: 80, slow.feed: 40, late.feed: 24}
        return PastStates(RUN.parameters(), log, held)


def test_an_update_was_made_between_two_moments_of_its_epoch(states: PastStates, fast: Author) -> None:
    assert states.moments(fast.feed, 16 + 32) == (
        PastMoment(1, PARTS // 2 - 1),
        PastMoment(1, PARTS // 2 + 1),
    )


def test_at_the_edges_of_an_epoch_the_moments_are_of_its_neighbours(states: PastStates, fast: Author) -> None:
    assert states.moments(fast.feed, 0) == (PastMoment(0, 0), PastMoment(0, 1))
    assert states.moments(fast.feed, 16) == (PastMoment(0, PARTS - 1), PastMoment(1, 1))
    assert states.moments(fast.feed, 79) == (PastMoment(1, PARTS - 2), PastMoment(2, 0))


def test_feeds_go_through_an_epoch_together(states: PastStates, fast: Author, slow: Author) -> None:
    """In the middle of a moment: of part 4 of 8 that is 9/16 of each feed's updates with the label."""
    state = states.state(PastMoment(1, 4))
    assert (state[fast.feed], state[slow.feed]) == (once(16 + 36), once(8 + 18))


def test_who_began_later_has_nothing_in_earlier_epochs(states: PastStates, fast: Author) -> None:
    state = states.state(PastMoment(0, PARTS - 1))
    assert [steps.runs[0].stop for steps in state.values() if steps.runs] == [15, 7]


def test_after_the_last_label_everything_is_there(states: PastStates, fast: Author) -> None:
    assert states.state(PastMoment(2, 0))[fast.feed] == once(80)


def test_updates_after_an_epoch_can_be_told(states: PastStates, fast: Author) -> None:
    assert [states.after(fast.feed, epoch) for epoch in (-1, 0, 1)] == [0, 16, 80]


# -- organised runs ------------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Logged]:
    logged = Logged(tmp_path)
    yield logged
    logged.close_logs()


def test_in_an_organised_run_updates_count_as_they_did_at_the_time(made: Logged) -> None:
    """The seal of epoch 0 has factor 1/2; whoever made updates in epoch 1 knew that, and nothing later."""
    for factor in (FACTOR_ONE // 2, FACTOR_ONE // 4):
        for name in "abc":
            made[name].compute(16)
        made.swarm.run(5)
        made.close()
        made.swarm.run(2)
        made.seal(factor=factor)
        made.swarm.run(2)
    log = made.logs["b"]
    states = PastStates(ORGANISED, log, {state.feed: state.next for state in made["b"].machine.frontier})
    feed = made["c"].own
    assert factors(states.state(PastMoment(1, 4))[feed]) == [(16, FACTOR_ONE // 2), (16 + 9, FACTOR_ONE)]
    assert factors(states.state(PastMoment(2, 0))[feed]) == [(16, FACTOR_ONE // 2), (32, FACTOR_ONE // 4)]


def factors(counted: Counted) -> list[tuple[int, int]]:
    return [(run.stop, run.factor) for run in counted.runs]

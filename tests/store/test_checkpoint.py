"""Tests of checkpoints' states: computed from the log, kept as files, and used at a start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sfnode.engine.core import Core
from sfnode.errors import Code, UserError
from sfnode.store import checkpoint
from sfnode.store.checkpoint import CheckpointState, compute, decode, encode, plan
from sfnode.store.replay import changes, frontier_of
from sfprotocol.decisions import Void
from sfprotocol.run_state import RunState
from sfprotocol.weighing import named
from tests.refusals import fails_with
from tests.store.organised import ORGANISED, Logged
from tests.store.test_verification import MEANT, train


@pytest.fixture
def made(made: Logged) -> Logged:
    train(made, 5)
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def run_state(made: Logged, name: str = "a") -> RunState:
    found = made[name].machine.frontier.run_state
    assert found
    return found


def computed(
    made: Logged, epoch: int, previous: CheckpointState | None = None, name: str = "a"
) -> CheckpointState | None:
    return compute(MEANT, made.logs[name], plan(run_state(made, name), epoch, previous), previous)


def state(made: Logged, epoch: int) -> CheckpointState:
    found = computed(made, epoch)
    assert found
    return found


def signed(made: Logged, epoch: int) -> CheckpointState:
    """Return the state of an epoch, after the organiser has signed its checkpoint."""
    found = state(made, epoch)
    made.decide(found.decision(ORGANISED.run_id))
    made.swarm.run(2)
    return found


# -- computing -----------------------------------------------------------------------------------------


def test_all_nodes_compute_the_same_state(made: Logged) -> None:
    one, *others = (computed(made, 3, name=name) for name in "abc")
    assert one
    assert all(other and other.decision(bytes(32)) == one.decision(bytes(32)) for other in others)
    frontier = made["a"].machine.frontier
    for number, base in one.bases.items():
        feed = run_state(made).feed(number)
        assert (base.feed, base.step) == (feed, run_state(made).positions(3)[number])
        assert base.step < frontier.next(feed)
        assert (base.chain, *base[3:]) == (
            made.logs["b"].past(feed, base.step)[0],
            *made.logs["b"].label(feed, base.step),
        )


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_from_an_earlier_state_only_what_came_since_is_read(made: Logged, epoch: int) -> None:
    earlier, later = state(made, epoch), state(made, 4)
    made.logs["b"].rebase(earlier.bases.values())
    found = computed(made, 4, earlier, "b")
    assert found
    assert found.decision(bytes(32)) == later.decision(bytes(32))
    assert found.bases == later.bases


def test_what_is_not_all_here_makes_no_state(made: Logged) -> None:
    for name in "ac":
        made.swarm.cut(made[name], made["b"])
    made["c"].compute(6)
    made.swarm.run(2)
    made.close()
    made.seal()
    made.swarm.run(2)
    decided = plan(run_state(made), 5)
    assert compute(MEANT, made.logs["a"], decided)
    assert compute(MEANT, made.logs["b"], decided) is None


def test_another_history_than_the_named_one_makes_no_state(made: Logged) -> None:
    decided = plan(run_state(made), 3)
    number, (feed, end) = next(iter(decided.stops.items()))
    other = decided._replace(stops={**decided.stops, number: (feed, end._replace(tag=bytes(8)))})
    assert compute(MEANT, made.logs["a"], other) is None


# -- files ---------------------------------------------------------------------------------------------


def test_a_state_is_the_same_after_it_was_written(made: Logged) -> None:
    found = state(made, 3)
    data = encode(found)
    again = decode(MEANT, run_state(made), data)
    assert again.bases == found.bases
    assert again.decision(bytes(32)) == found.decision(bytes(32))
    assert len(data) <= checkpoint.most_bytes(MEANT, run_state(made), 3) < 2 * len(data)


def test_nonsense_is_refused(made: Logged) -> None:
    data = encode(state(made, 3))
    swapped = bytearray(data)
    swapped[20:24], swapped[72:76] = data[72:76], data[20:24]
    for nonsense in (
        b"",
        data[:-1],
        data + b"\x00",
        b"x" + data[1:],
        data[:12] + b"\xff" * 8,
        bytes(swapped),
    ):
        with fails_with(Code.LOG_CORRUPT):
            decode(MEANT, run_state(made), nonsense)


def epochs_of(folder: Path) -> list[int]:
    return sorted(int(file.name.split("-")[0]) for file in folder.iterdir())


def test_the_newest_two_files_are_kept_and_those_that_are_needed(made: Logged, folder: Path) -> None:
    assert checkpoint.usable(folder, run_state(made)) == []
    for epoch in range(5):
        checkpoint.keep(folder, ORGANISED.run_id, state(made, epoch), needed=[1])
    assert epochs_of(folder) == [1, 3, 4]
    checkpoint.keep(folder, ORGANISED.run_id, state(made, 2))
    assert epochs_of(folder) == [2, 3, 4], "what was just written stays"


def test_an_epoch_that_is_stated_anew_has_another_state(made: Logged, folder: Path) -> None:
    """A decision has taken back some work up to the epoch."""
    before = signed(made, 3)
    checkpoint.keep(folder, ORGANISED.run_id, before)
    made.decide(Void(1, 1, ()))
    after = signed(made, 3)
    stated = after.decision(ORGANISED.run_id)
    assert stated in run_state(made).checkpoints
    assert checkpoint.usable(folder, run_state(made)) == [], "what is here was stated before"
    assert checkpoint.start(folder, run_state(made), made.logs["a"]) == checkpoint.Start()
    checkpoint.keep(folder, ORGANISED.run_id, after)
    assert checkpoint.usable(folder, run_state(made)) == [stated]
    assert (loaded := checkpoint.load(folder, MEANT, run_state(made), stated))
    assert loaded.cores.keys() == after.cores.keys()
    assert epochs_of(folder) == [3], "the other one is of no use any more"


def test_a_file_is_what_was_stated_or_of_no_use(made: Logged, folder: Path) -> None:
    found = state(made, 3)
    stated = found.decision(ORGANISED.run_id)
    checkpoint.keep(folder, ORGANISED.run_id, found)
    assert (loaded := checkpoint.load(folder, MEANT, run_state(made), stated))
    assert loaded.bases == found.bases
    other = replace(stated, cores=bytes(32))
    (folder / checkpoint.name(stated)).rename(folder / checkpoint.name(other))
    with pytest.raises(UserError, match="not what the organiser has stated"):
        checkpoint.load(folder, MEANT, run_state(made), other)
    assert checkpoint.load(folder, MEANT, run_state(made), stated) is None


# -- starting ------------------------------------------------------------------------------------------


def test_a_node_starts_from_the_newest_checkpoint_that_is_here_and_usable(made: Logged, folder: Path) -> None:
    log = made.logs["b"]
    assert checkpoint.start(folder, run_state(made), log) == checkpoint.Start()
    for epoch in (1, 2):
        checkpoint.keep(folder, ORGANISED.run_id, signed(made, epoch))
    checkpoint.keep(folder, ORGANISED.run_id, state(made, 4), needed=[1])  # nobody has signed it
    begun = checkpoint.start(folder, run_state(made), log)
    assert begun.checkpoint
    assert (begun.checkpoint.epoch, begun.counted) == (2, named(run_state(made), 2))
    made.decide(Void(2, 2, ()))
    begun = checkpoint.start(folder, run_state(made), log)
    assert begun.checkpoint
    assert begun.checkpoint.epoch == 1
    made.decide(Void(0, 0, ()))
    assert checkpoint.start(folder, run_state(made), log) == checkpoint.Start()
    assert checkpoint.start(folder, None, log) == checkpoint.Start()


def test_a_state_that_is_chosen_may_be_removed_before_it_is_used(made: Logged, folder: Path) -> None:
    """A node that loads its model may meanwhile receive many newer checkpoints."""
    old = signed(made, 0)
    checkpoint.keep(folder, ORGANISED.run_id, old)
    begun = checkpoint.start(folder, run_state(made), made.logs["a"])
    for epoch in (2, 3):
        checkpoint.keep(folder, ORGANISED.run_id, signed(made, epoch))
    assert epochs_of(folder) == [2, 3]
    assert (found := begun.state(MEANT, run_state(made)))
    assert encode(found) == encode(old)
    gone = old.decision(ORGANISED.run_id)
    assert checkpoint.load(folder, MEANT, run_state(made), gone) is None


def test_a_state_that_goes_while_one_is_chosen_is_passed_over(made: Logged, folder: Path) -> None:
    for epoch in (1, 2):
        checkpoint.keep(folder, ORGANISED.run_id, signed(made, epoch))
    newest = folder / checkpoint.name(run_state(made).checkpoints[-1])
    newest.unlink()
    newest.symlink_to("gone")  # its name is still seen
    begun = checkpoint.start(folder, run_state(made), made.logs["a"])
    assert begun.checkpoint == run_state(made).checkpoints[0]


def test_from_a_start_on_the_cores_become_those_of_everything(made: Logged, folder: Path) -> None:
    machine, log = made["a"].machine, made.logs["a"]
    checkpoint.keep(folder, ORGANISED.run_id, signed(made, 2))
    begun = checkpoint.start(folder, run_state(made), log)
    begins = begun.state(MEANT, run_state(made))
    assert begins
    log.rebase(begins.bases.values())
    whole, core = Core(2, 4), Core(2, 4)
    core.put(begins.cores)
    wanted = {state.feed: machine.counted(state.feed) for state in machine.frontier}
    for batch in changes(made.logs["b"], {}, wanted, ORGANISED.subspace_of):
        whole.add(batch)
    for batch in changes(log, begun.counted, wanted, ORGANISED.subspace_of):
        core.add(batch)
    assert core.digest() == whole.digest()
    frontier = frontier_of(ORGANISED, log)
    assert (frontier.known, frontier.run_state and frontier.run_state.decisions) == (
        machine.frontier.known,
        run_state(made).decisions,
    )
    assert [s.record() for s in frontier] == [s.record() for s in machine.frontier]
    assert [s.labelled for s in frontier] == [s.labelled for s in machine.frontier]


def test_without_a_usable_checkpoint_a_log_that_has_let_go_is_of_no_use(made: Logged, folder: Path) -> None:
    log = made.logs["b"]
    older, newer = (signed(made, epoch) for epoch in (1, 3))
    checkpoint.keep(folder, ORGANISED.run_id, older)
    log.rebase(newer.bases.values())
    with fails_with(Code.CHECKPOINT_UNUSABLE):
        checkpoint.start(folder, run_state(made), log)
    checkpoint.keep(folder, ORGANISED.run_id, newer)
    assert checkpoint.start(folder, run_state(made), log).checkpoint
    made.decide(Void(1, 1, ()))
    with pytest.raises(UserError):
        checkpoint.start(folder, run_state(made), log)
    with fails_with(Code.CHECKPOINT_UNUSABLE):
        list(changes(log, {}, named(run_state(made), 3)))


def test_history_goes_below_the_older_of_two_checkpoints(made: Logged, folder: Path) -> None:
    assert checkpoint.prunable(folder, run_state(made)) is None
    below = None
    for epoch in (0, 1, 3):
        newest = signed(made, epoch)
        checkpoint.keep(folder, ORGANISED.run_id, newest)
        assert checkpoint.prunable(folder, run_state(made)) == below
        below = newest.decision(ORGANISED.run_id)
    made.decide(Void(2, 2, ()))
    assert checkpoint.prunable(folder, run_state(made)) is None, "what is left may still be needed"

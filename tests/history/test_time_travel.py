"""Tests of a run's past: its history and the states of its seals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sfnode.errors import Code, UserError
from sfnode.history.time_travel import Past, history
from sfnode.store import archive, checkpoint
from sfnode.store.checkpoint import compute, plan
from sfnode.store.verification import verify_log
from sfprotocol.decisions import FACTOR_ONE, RateFrom, Revoke, Void
from tests.node.helpers import manifest, record
from tests.protocol.feeds import origin_of
from tests.refusals import fails_with, refused
from tests.store.folders import Folder, organised

RUN = organised(manifest("past", update_budget=1000, scalar_limit=1000))
A, B = origin_of("a").hex(), origin_of("b").hex()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with Folder(tmp_path / "a", RUN, "a", organises=True) as made:
        made.admit("a", "b")
        yield made


def epoch(
    made: Folder, a: int, b: int, *, factor: int = FACTOR_ONE, rates: tuple[RateFrom, ...] = ()
) -> None:
    """Let both members make updates for an epoch, and seal it."""
    made.make(a, lambda: 100)
    if b:
        made.bring("b", [-50] * b)
    made.close()
    made.seal(factor=factor, rates=rates)


def past(made: Folder) -> Past:
    return Past(made.manifest, made.log, made.path)


def core_digest(made: Folder) -> str:
    """Return the core digest of the last seal, as `sfnode verify` computes it."""
    return verify_log(made.manifest, made.log).core_digest


# -- states of seals -----------------------------------------------------------------------------------


def test_every_seal_can_be_computed_again_in_any_order(folder: Folder) -> None:
    digests = []
    for a, b, factor in ((3, 4, FACTOR_ONE), (5, 0, FACTOR_ONE // 2), (2, 6, FACTOR_ONE)):
        epoch(folder, a, b, factor=factor)
        digests.append(core_digest(folder))
    seen = past(folder)
    for number in (2, 0, 1, 2):
        assert seen.result(number).core_digest == digests[number]
    assert [seen.result(number).updates for number in range(3)] == [7, 12, 20]
    assert seen.cores({}) == {}


def test_what_comes_after_a_seal_changes_nothing_of_it(folder: Folder) -> None:
    epoch(folder, 3, 4)
    first = core_digest(folder)
    epoch(folder, 3, 4)
    second = core_digest(folder)
    folder.decide(Void(0, 0, (1,)))
    folder.decide(Revoke(1, 1))
    epoch(folder, 1, 0)
    seen = past(folder)
    assert [seen.result(number).core_digest for number in (0, 1)] == [first, second]
    assert seen.result(2).core_digest == core_digest(folder)
    assert seen.result(2).updates == 3 + 3 + 4 + 1


def test_a_state_is_the_one_that_a_checkpoint_states(folder: Folder) -> None:
    for _ in range(2):
        epoch(folder, 3, 4)
    seen = past(folder)
    state = compute(RUN, folder.log, plan(seen.latest, 1))
    assert state
    folder.decide(state.decision(RUN.run_id))
    assert seen.result(1).core_digest == state.decision(RUN.run_id).cores.hex()
    checkpoint.keep(folder.layout.checkpoints, RUN.run_id, state)
    epoch(folder, 2, 2)
    assert past(folder).result(2).core_digest == core_digest(folder)  # from the checkpoint's state
    assert past(folder).result(0).core_digest == seen.result(0).core_digest  # and back from it


def test_a_folder_without_its_beginning_has_the_seals_after_it(folder: Folder) -> None:
    digests = []
    for _ in range(4):
        epoch(folder, 3, 4)
        digests.append(core_digest(folder))
    state = compute(RUN, folder.log, plan(past(folder).latest, 1))
    assert state
    folder.decide(state.decision(RUN.run_id))
    checkpoint.keep(folder.layout.checkpoints, RUN.run_id, state)
    folder.log.rebase(state.bases.values())
    seen = past(folder)
    assert [seen.result(number).core_digest for number in (3, 1, 2)] == [digests[3], digests[1], digests[2]]
    with pytest.raises(UserError, match="before its checkpoint was asked for") as refused:
        seen.result(0)
    assert refused.value.code is Code.CHECKPOINT_UNUSABLE
    with fails_with(Code.HISTORY_GONE):
        archive.write(RUN, folder.log, folder.layout.bases, folder.path / "archive", "0")


@pytest.mark.parametrize("wanted", [2, 60_000])
def test_an_epoch_without_a_seal_has_no_state(folder: Folder, wanted: int) -> None:
    epoch(folder, 3, 4)
    epoch(folder, 3, 4)
    folder.make(2)
    folder.close()
    with refused(Code.BAD_OPTION, "the last one is 1"):
        past(folder).result(wanted)


def test_an_open_run_has_no_seals(tmp_path: Path) -> None:
    run = manifest("open")
    with Folder(tmp_path / "b", run) as made, pytest.raises(UserError) as refused:
        past(made)
    assert refused.value.code is Code.RUN_IS_OPEN


# -- history -------------------------------------------------------------------------------------------


def test_the_history_of_an_open_run_has_its_epochs(tmp_path: Path) -> None:
    run = manifest("open", learning_rate=1e-3)
    with Folder(tmp_path / "b", run) as made:
        made.log.append([record(run, "a", [1, 2, 3]), record(run, "b", [4] * 50)])
        found = history(run, made.log)
    assert (found.sealed, found.counted, found.waiting) == (None, 53, 0)
    (only,) = found.entries
    assert (only.kind, only.text, only.position) == ("epoch", "round 0 has 53 updates", None)
    assert only.epoch
    assert [(one.origin, one.updates) for one in only.epoch.origins] == [(B, 50), (A, 3)]
    assert (only.epoch.rate, only.epoch.digest) == (1e-3, None)

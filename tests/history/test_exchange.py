"""Tests of imported archives, by which a swarm works without a network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sfnode.errors import Code, UserError
from sfnode.history.exchange import exchange, take_in
from sfnode.models import bases
from sfnode.store import archive, checkpoint
from sfnode.store.checkpoint import compute, plan
from sfnode.store.data_folder import open_data_dir
from sfnode.store.log import CardRecord
from sfnode.store.replay import remember_checkpoint, run_state_of
from sfnode.store.verification import verify_log
from sfprotocol import wire_codec
from sfprotocol.control_feed import succession_message
from sfprotocol.events import OwnSuccession
from sfprotocol.messages import Card, EpochScalars, Feed, Succession, Vote
from sfprotocol.signing import card_message
from tests.node.helpers import manifest, record
from tests.protocol.feeds import origin_of, signing_key
from tests.refusals import fails_with, refused
from tests.store.folders import Folder, joined, organised

RUN = organised(manifest("carried", update_budget=1000, scalar_limit=1000))
OPEN = manifest("open", update_budget=1000, scalar_limit=1000)

TARGETS = RUN.model.parsed_targets()


def carried(folder: Folder, file: Path) -> Path:
    archive.write(folder.manifest, folder.log, folder.layout.bases, file, "0")
    return file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with Folder(tmp_path / "origin", RUN, "a", organises=True) as a:
        a.admit("a")
        a.make(5)
        return carried(a, tmp_path / "file")


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_two_folders_train_apart_and_end_with_one_model(tmp_path: Path) -> None:
    """The organiser's machine and another one exchange files only."""
    here, there = tmp_path / "here", tmp_path / "there"
    with Folder(here, RUN, "a", organises=True) as a:
        a.admit("a", "b")
        a.make(5)
        first = carried(a, tmp_path / "first")
    assert take_in(first, there).new_updates == 5
    with Folder(there, RUN, "b") as b:
        b.make(7)
        b.make(4)
        second = carried(b, tmp_path / "second")
    with Folder(here, RUN, "a", organises=True) as a:
        a.make(6)
    result = take_in(second, here)
    assert (result.new_updates, result.new_decisions, result.updates, result.same) == (11, 0, 22, False)
    with Folder(here, RUN, "a", organises=True) as a:
        a.close()
        a.seal()
        a.make(3)
        digest, third = a.digest, carried(a, tmp_path / "third")
    result = take_in(third, there)
    assert (result.new_updates, result.new_decisions, result.sealed) == (9, 2, 1)
    assert (result.same, result.digest) == (True, digest)
    with Folder(here, RUN) as a, Folder(there, RUN) as b:
        assert a.digest == b.digest == digest
        assert verify_log(RUN, a.log) == verify_log(RUN, b.log)
    assert take_in(third, there).new_updates == 0  # once more changes nothing


def test_a_new_folder_goes_on_with_a_feed_of_its_own(file: Path, tmp_path: Path) -> None:
    take_in(file, tmp_path / "deep" / "there")
    assert files(tmp_path / "deep" / "there") == ["lock", "run.toml", "updates.sqlite"]
    assert files(tmp_path / "deep") == ["there", "there/lock", "there/run.toml", "there/updates.sqlite"]


def test_an_open_run_is_carried_as_well(tmp_path: Path) -> None:
    with Folder(tmp_path / "here", OPEN) as here, Folder(tmp_path / "there", OPEN) as there:
        here.log.append([record(OPEN, "a", [1, 2, 3]), record(OPEN, "b", [4] * 50)])
        there.log.append([record(OPEN, "a", [1, 2, 3]), record(OPEN, "c", [5] * 600)])
        file = carried(here, tmp_path / "file")
    result = take_in(file, tmp_path / "there")
    assert (result.new_updates, result.updates, result.sealed) == (50, 653, None)


def test_of_a_fork_the_sealed_history_is_kept(tmp_path: Path) -> None:
    """Folder b was copied, and both copies continued its feed. The organiser has sealed the work of one of
    them."""
    with Folder(tmp_path / "here", RUN, "a", organises=True) as a:
        a.admit("a", "b")
        file = carried(a, tmp_path / "file")
    for name in ("one", "other"):
        take_in(file, tmp_path / name)
        with Folder(tmp_path / name, RUN, "b") as b:
            b.make(6, lambda name=name: len(name))  # type: ignore[misc]
            carried(b, tmp_path / f"{name}.sfnode")
    take_in(tmp_path / "one.sfnode", tmp_path / "here")
    with Folder(tmp_path / "here", RUN, "a", organises=True) as a:
        a.close()
        a.seal()
        sealed = carried(a, tmp_path / "sealed")
        core = verify_log(RUN, a.log).core_digest
    take_in(sealed, tmp_path / "other")
    with Folder(tmp_path / "other", RUN) as b:
        assert verify_log(RUN, b.log).core_digest == core
        assert b.log.read(Feed(origin_of("b"), 0), 0, 6).parts == (EpochScalars(0, (3,) * 6),)  # type: ignore[union-attr]


def test_a_fork_of_an_open_run_is_cut_for_all_and_its_proof_goes_along(tmp_path: Path) -> None:
    with Folder(tmp_path / "here", OPEN) as here, Folder(tmp_path / "there", OPEN) as there:
        here.log.append([record(OPEN, "a", [1, 2, 3]), record(OPEN, "b", [4] * 5)])
        there.log.append([record(OPEN, "a", [1, 2, 4])])
        one, other = exchange(OPEN.parameters(), here.log, there.log)
        assert one.frontier.digest() == other.frontier.digest()
        assert [(cut.feed.origin, cut.at) for cut in there.log.cuts()] == [(origin_of("a"), 2)]
        file = carried(there, tmp_path / "file")
    result = take_in(file, tmp_path / "new")
    assert (result.updates, result.same) == (2 + 5, True)
    with Folder(tmp_path / "new", OPEN) as new:
        assert [cut.at for cut in new.log.cuts()] == [2]


def test_names_go_along_if_their_origin_has_signed_them(tmp_path: Path) -> None:
    with Folder(tmp_path / "here", OPEN) as here:
        for name, signer in (("a", "a"), ("b", "a")):
            said = record(OPEN, name, [1, 2, 3])
            card = Card(said.feed, 3, f"node {name}", "", bytes(64))
            signature = signing_key(signer).sign(card_message(OPEN.run_id, card))
            frame = wire_codec.encode(replace(card, signature=signature), 2)
            here.log.append([said], cards=[CardRecord(said.feed, frame)])
        file = carried(here, tmp_path / "file")
    take_in(file, tmp_path / "new")
    with Folder(tmp_path / "new", OPEN) as new:
        assert [card.feed.origin for card in new.log.cards()] == [origin_of("a")]


def test_published_bases_go_along(tmp_path: Path) -> None:
    blob = [
        (np.full((t.out_features, 4), 3, np.int8), np.full((t.in_features, 4), -3, np.int8)) for t in TARGETS
    ]
    digest = bases.write(tmp_path, blob)
    run = manifest("published", update_budget=1000, scalar_limit=1000, basis="published", bases=digest)
    with Folder(tmp_path / "here", run, "a") as here:
        here.make(5)
        bases.keep(bases.path_in(tmp_path, digest), here.layout.bases, TARGETS, (4, 4))
        file = carried(here, tmp_path / "file")
    take_in(file, tmp_path / "new")
    assert files(tmp_path / "new") == ["bases", f"bases/{digest}.bases", "lock", "run.toml", "updates.sqlite"]
    whole = file.read_bytes()
    place = whole.index(bytes([3] * 32))
    file.write_bytes(whole[:place] + b"\x04" + whole[place + 1 :])
    with refused(Code.ARCHIVE_UNUSABLE, "has the digest"):
        take_in(file, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_decisions_of_another_organiser_go_along_with_the_succession(tmp_path: Path) -> None:
    with Folder(tmp_path / "here", RUN, "a", organises=True) as a:
        a.admit("a")
        entries = a.machine.organised.control.feed.entries  # type: ignore[union-attr]
        chain = a.machine.organised.control.feed.chain  # type: ignore[union-attr]
        unsigned = Succession(1, len(entries), chain, origin_of("next"), ())
        vote = signing_key("deputy").sign(succession_message(RUN.run_id, unsigned))
        a.host.post(OwnSuccession(replace(unsigned, votes=(Vote(0, vote),))))
        a.settle()
        assert a.machine.organised.control.feed.key == origin_of("next")  # type: ignore[union-attr]
        file = carried(a, tmp_path / "file")
    take_in(file, tmp_path / "new")
    with Folder(tmp_path / "new", RUN) as new:
        assert new.machine.organised.control.feed.key == origin_of("next")  # type: ignore[union-attr]


def test_a_folder_that_has_let_go_of_its_beginning_takes_what_comes_after(tmp_path: Path) -> None:
    with Folder(tmp_path / "here", RUN, "a", organises=True) as a:
        a.admit("a")
        a.make(5)
        a.close()
        a.seal()
        run_state = run_state_of(a.run, a.log.control())
        state = compute(RUN, a.log, plan(run_state, 0))
        assert state
        a.decide(state.decision(RUN.run_id))
        take_in(carried(a, tmp_path / "first"), tmp_path / "there")
        with Folder(tmp_path / "there", RUN) as there:
            remember_checkpoint(there.log, state.decision(RUN.run_id))
            there.log.rebase(state.bases.values())
            checkpoint.keep(there.layout.checkpoints, RUN.run_id, state)
        a.make(4)
        second, digest = carried(a, tmp_path / "second"), a.digest
    result = take_in(second, tmp_path / "there")
    assert (result.new_updates, result.digest, result.same) == (4, digest, True)
    with Folder(tmp_path / "there", RUN) as there:
        assert [base.step for base in there.log.bases().values()] == [5]


# -- what is refused -----------------------------------------------------------------------------------


def test_an_archive_of_another_run_changes_nothing(file: Path, tmp_path: Path) -> None:
    joined(tmp_path / "other", organised(manifest("other")))
    before = files(tmp_path)
    with fails_with(Code.WRONG_RUN):
        take_in(file, tmp_path / "other")
    assert set(files(tmp_path)) - set(before) == {"other/lock"}


def test_a_broken_archive_leaves_nothing_behind(file: Path, tmp_path: Path) -> None:
    file.write_bytes(file.read_bytes()[:-2000])
    before = files(tmp_path)
    with fails_with(Code.ARCHIVE_UNUSABLE):
        take_in(file, tmp_path / "new")
    assert files(tmp_path) == before


def test_a_fault_on_the_way_leaves_nothing_behind(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise UserError(Code.DISK_FULL, "no room", "Make some.")

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "identity.pem").write_text("key")
    before = files(tmp_path)
    monkeypatch.setattr("sfnode.history.exchange.exchange", full)
    for name in ("new", "mine"):
        with pytest.raises(UserError, match="no room"):
            take_in(file, tmp_path / name)
    assert set(files(tmp_path)) - set(before) == {"mine/lock"}


def test_the_folder_of_a_running_node_is_refused(file: Path, tmp_path: Path) -> None:
    with open_data_dir(tmp_path / "busy"), pytest.raises(UserError) as refused:
        take_in(file, tmp_path / "busy")
    assert refused.value.code is Code.DATA_DIR_IN_USE


def test_large_logs_take_turns_as_links_do(tmp_path: Path) -> None:
    """The logs exceed a link's room, and an origin's rate."""
    run = manifest("large", update_budget=1_000_000, epoch_updates=200_000)
    with Folder(tmp_path / "here", run) as here, Folder(tmp_path / "there", run) as there:
        made: list[int] = []
        for _ in range(17):
            here.log.append([record(run, "a", [1] * 4000, before=made)])
            made += [1] * 4000
        exchange(run.parameters(), there.log, here.log)
        assert there.log.updates() == here.log.updates() == 68_000

"""Tests of `sfnode keys`: prompts, messages, and a run that continues with restored keys."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sfnode.defaults import DATA_DIR, KEYS_DIR, located
from sfnode.manifest import Manifest
from sfnode.store.data_folder import Layout, open_data_dir
from sfnode.store.identity import load_or_create
from sfnode.store.run_keys import (
    held_organiser_key,
    is_restored,
    load_deputy_key,
    organiser_key,
    recovery_key,
)
from tests.cli.helpers import Run


@pytest.fixture
def passphrase(tmp_path: Path) -> Path:
    file = tmp_path / "passphrase"
    file.write_text("correct horse\n")
    return file


@pytest.fixture
def run(sfnode: Run) -> Manifest:
    """Make a run that this user organises, and a key for its node."""
    assert sfnode("init", "--task", "reviews", "--set", "init.measure=no").status == 0
    with open_data_dir(located(DATA_DIR)) as folder:
        load_or_create(folder.identity)
    return Manifest.from_toml(Path("run.toml"))


def test_an_organised_run_goes_on_with_keys_from_a_backup(
    sfnode: Run, run: Manifest, passphrase: Path
) -> None:
    node, keys = located(DATA_DIR), located(KEYS_DIR)
    identity, organised = load_or_create(Layout(node).identity), run.organised
    assert organised
    by_file = ("--passphrase-file", passphrase)
    said = sfnode("keys", "backup", "--out", "backup", *by_file).done()
    own = [
        f"the node's key, {identity.public.hex()[:16]}",
        f"the organiser's key of run {run.run_id.hex()[:16]}, {organised.organiser[:16]}",
        f"the recovery key of run {run.run_id.hex()[:16]}, {organised.deputies[0][:16]}",
    ]
    assert [line.removeprefix("in it: ") for line in said.out.splitlines()[:-1]] == own
    for folder in (node, keys):
        shutil.rmtree(folder)

    said = sfnode("keys", "restore", "backup", *by_file).done()
    assert said.out.splitlines() == [f"restored: {line}" for line in own]
    assert load_or_create(Layout(node).identity) == identity
    with held_organiser_key(run.run_id, [bytes.fromhex(organised.organiser)], keys) as key:
        assert len(key.sign(b"decision")) == 64
    assert load_deputy_key(recovery_key(run.run_id, keys), [bytes.fromhex(organised.deputies[0])])
    assert is_restored(run.run_id, keys)
    said = sfnode("keys", "restore", "backup", *by_file)
    assert said.out.splitlines() == [f"was there already: {line}" for line in own]


def test_a_passphrase_is_asked_for_twice_and_none_is_not_taken(
    sfnode: Run, run: Manifest, answers: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = iter(["", "horse", "house", "horse", "horse"])
    monkeypatch.setattr("click.termui.hidden_prompt_func", lambda _: next(typed))
    assert sfnode("keys", "backup", "--out", "backup").status == 0
    assert list(typed) == []
    typed = iter(["horse"])
    assert sfnode("keys", "restore", "backup").status == 0
    typed = iter(["house"])
    said = sfnode("keys", "restore", "backup")
    assert (said.status, said.err.splitlines()[-2][:13]) == (1, "sfnode: SF046")


def test_an_empty_passphrase_file_makes_no_backup(sfnode: Run, run: Manifest, passphrase: Path) -> None:
    passphrase.write_text("\n")
    sfnode("keys", "backup", "--out", "backup", "--passphrase-file", passphrase).failed("SF010")
    assert not Path("backup").exists()


def test_a_file_that_is_there_is_not_replaced(sfnode: Run, run: Manifest, passphrase: Path) -> None:
    Path("backup").write_text("mine")
    sfnode("keys", "backup", "--out", "backup", "--passphrase-file", passphrase).failed("SF010")
    assert Path("backup").read_text() == "mine"


def test_another_key_that_is_there_stays(sfnode: Run, run: Manifest, passphrase: Path) -> None:
    sfnode("keys", "backup", "--out", "backup", "--passphrase-file", passphrase)
    path = organiser_key(run.run_id, located(KEYS_DIR))
    recovery_key(run.run_id, located(KEYS_DIR)).replace(path)
    said = sfnode("keys", "restore", "backup", "--passphrase-file", passphrase)
    assert (said.status, said.err[:13]) == (1, "sfnode: SF010")
    assert "Move it away" in said.err

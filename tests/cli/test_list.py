"""`sfnode list`: every run on this machine, whether its node runs or not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sfnode.cli.options import note
from sfnode.defaults import DATA_DIR, FOLDERS, PROFILES, located
from sfnode.preparing.manifest import build
from sfnode.store.data_folder import open_data_dir
from sfnode.store.log import UpdateLog
from tests.cli.fake_node import fake_node
from tests.cli.helpers import Run


def test_runs_are_found_in_the_default_folder_in_profiles_and_where_nodes_have_run(
    tmp_path: Path, sfnode: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))  # a short path, as sockets need
    run = build({})
    profile = located(PROFILES) / "owls"
    elsewhere = tmp_path / "elsewhere"
    profile.mkdir(parents=True)
    for folder in (profile, elsewhere):
        with open_data_dir(folder) as data_dir, UpdateLog.open(data_dir.log, run.run_id):
            data_dir.manifest.write_text(run.to_toml())
    note(elsewhere)
    default = located(DATA_DIR)
    with fake_node(default), open_data_dir(default) as running:
        running.manifest.touch()
        found = json.loads(sfnode("list", "--json").out)
        table = sfnode("list").out
    stopped = {"run_name": run.name, "run_id": run.run_id.hex(), "state": "not running", "contributed": 0}
    assert found[1:] == [{"folder": str(folder)} | stopped for folder in (profile, elsewhere)]
    assert found[0]["folder"] == str(default)
    assert (found[0]["state"], found[0]["run_name"]) == ("idle", "NaN")
    assert table.count("\n") == 4
    assert f"{run.run_id.hex()[:16]}  not running" in table


def test_a_folder_is_listed_once_and_only_if_it_would_not_be_found_without(
    home: Path, tmp_path: Path
) -> None:
    for folder in (
        tmp_path,
        tmp_path,
        home / DATA_DIR.relative_to("~"),
        home / PROFILES.relative_to("~") / "owls",
    ):
        note(folder)
    assert (home / FOLDERS.relative_to("~")).read_text() == f"{tmp_path}\n"


def test_without_a_run_the_way_to_one_is_told(sfnode: Run) -> None:
    assert sfnode("list").out.startswith("No run on this machine yet")
    assert json.loads(sfnode("list", "--json").out) == []


def test_a_folder_whose_files_cannot_be_read_is_listed_all_the_same(home: Path, sfnode: Run) -> None:
    broken = home / DATA_DIR.relative_to("~")
    broken.mkdir(parents=True)
    (broken / "run.toml").write_text("no = TOML")
    (run,) = json.loads(sfnode("list", "--json").out)
    assert (run["state"], run["run_name"], run["contributed"]) == ("not running", None, None)

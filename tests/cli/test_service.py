"""Tests of `sfnode service`: the written unit, and its removal."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.helpers import Run

HARD = 'a "b" $HOME 100%'
"""A display name with characters that have a meaning for systemd."""


@pytest.fixture(autouse=True)
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder of programs with a systemctl that is never run."""
    program = tmp_path / "bin" / "systemctl"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return program


def units(home: Path) -> Path:
    return home / ".config" / "systemd" / "user"


def test_a_unit_runs_join_with_what_was_said_and_hides_the_link(sfnode: Run, home: Path) -> None:
    said = ("sfnode:AZMB", "--limit", "cpu=50", "--display-name", HARD)
    ended = sfnode("service", "install", "--profile", "owls", *said)
    assert (ended.status, ended.err) == (0, "")
    unit = units(home) / "sfnode-owls.service"
    assert unit.stat().st_mode & 0o777 == 0o600, "a link may be a secret"
    assert "systemctl --user enable --now sfnode-owls" in ended.out
    folder = home / ".local/share/sfnode/profiles/owls"
    (start,) = [line for line in unit.read_text().splitlines() if line.startswith("ExecStart=")]
    assert start.startswith(f'ExecStart="{sys.executable}" "-m" "sfnode" "join" "--data-dir" "{folder}"')
    assert start.endswith(r'"--limit" "cpu=50" "--display-name" "a \"b\" $$HOME 100%%"')
    assert 'Environment="SFNODE_LINK=sfnode:AZMB"' in unit.read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_finds_nothing_wrong_with_a_unit(
    sfnode: Run, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    said = ("--data-dir", "a folder 100%", "sfnode:AZMB", "--display-name", HARD)
    assert sfnode("service", "install", *said).status == 0
    (unit,) = units(home).iterdir()
    command = ["systemd-analyze", "verify", "--user", "--man=no", unit]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_units_are_where_the_configuration_is_and_one_can_be_removed(
    sfnode: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert sfnode("service", "install").status == 0
    unit = tmp_path / "config" / "systemd" / "user" / "sfnode.service"
    wants = unit.parent / "default.target.wants"
    wants.mkdir()
    (wants / unit.name).symlink_to(unit)
    ended = sfnode("service", "remove").done()
    assert "systemctl --user stop sfnode" in ended.out
    assert [one for one in unit.parent.rglob("*") if one != wants] == []
    sfnode("service", "remove").refused("sfnode: SF010: there is no service for ")


def test_options_that_join_would_refuse_are_refused_before_anything_is_written(
    sfnode: Run, home: Path
) -> None:
    for words in (("--role", "king"), ("--limit", "cpu=500"), ("--bananas",)):
        assert sfnode("service", "install", *words).status == 2
    assert not units(home).exists()


def test_without_systemd_other_ways_are_told(
    sfnode: Run, systemd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(systemd.parent))
    systemd.unlink()
    sfnode("service", "install").refused("there is no systemd on this machine", "tmux")


def test_two_folders_of_one_name_do_not_take_each_others_service(sfnode: Run, home: Path) -> None:
    assert sfnode("service", "install", "--data-dir", "one/owls").status == 0
    (unit,) = units(home).iterdir()
    before = unit.read_text()
    for what in ("install", "remove"):
        ended = sfnode("service", what, "--data-dir", "other/owls")
        assert ended.err.startswith("sfnode: SF010: ")
        assert "another folder called owls" in ended.err
    assert unit.read_text() == before
    assert sfnode("service", "install", "--data-dir", "one/owls").status == 0

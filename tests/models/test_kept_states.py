"""States in files: bounded, and of no harm where they are lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from sfnode.models import kept_states
from sfnode.models.kept_states import StateFolder

SHAPE = (3, 4)
BYTES = 4 * 12


def write(folder: StateFolder, *keys: bytes) -> None:
    folder.write((key, torch.full(SHAPE, float(key[0]))) for key in keys)


def here(folder: StateFolder, *keys: bytes) -> list[bool]:
    return [folder.read(key, SHAPE) is not None for key in keys]


def test_a_state_is_read_as_it_was_written_and_in_no_other_shape(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "one")
    write(folder, b"a")
    found = folder.read(b"a", SHAPE)
    assert found is not None
    assert torch.equal(found, torch.full(SHAPE, float(b"a"[0])))
    assert folder.read(b"a", (2, 4)) is None
    assert folder.read(b"b", SHAPE) is None


def test_a_folder_that_was_written_to_longest_ago_makes_room_and_its_own_is_not_outgrown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_states, "DISK", 4 * BYTES)
    old, recent, own = (StateFolder(tmp_path / name) for name in ("old", "recent", "own"))
    write(old, b"a", b"b")
    write(recent, b"a")
    os.utime(tmp_path / "old", (1, 1))
    write(own, b"c", b"d")
    assert here(own, b"c", b"d") == [True, True]
    assert not (tmp_path / "old").exists()
    assert here(recent, b"a") == [True]
    write(own, b"e", b"f", b"g")
    assert here(own, b"c", b"d", b"e", b"f", b"g") == [True, True, True, True, False]
    assert not (tmp_path / "recent").exists()
    write(old, b"a")  # which goes on: its folder's loss has cost it time alone
    assert here(old, b"a") == [True]


def test_a_file_beside_the_folders_is_no_reason_to_keep_nothing(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("of somebody else")
    folder = StateFolder(tmp_path / "one")
    write(folder, b"a")
    assert here(folder, b"a") == [True]


def test_a_full_disk_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_states, "ROOM", 1 << 62)
    folder = StateFolder(tmp_path / "one")
    write(folder, b"a")
    assert here(folder, b"a") == [False]

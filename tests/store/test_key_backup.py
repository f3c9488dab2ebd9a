"""Backups of keys: what is in them is what was there, nobody else's file is believed, no key is replaced."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest

from sfnode.errors import Code, UserError
from sfnode.store import key_backup, run_keys
from sfnode.store.data_folder import Layout, open_data_dir
from sfnode.store.identity import Identity, load_or_create
from sfnode.store.run_keys import RunKeys, organiser_key
from tests.refusals import fails_with

RUN, OTHER = bytes(range(32)), bytes(32)
PASSPHRASE = b"correct horse"


class Home:
    """Where a node and an organiser keep their keys."""

    def __init__(self, path: Path) -> None:
        self.node, self.keys = path / "node", path / "keys"
        self.layout = Layout(self.node)

    def files(self) -> dict[str, bytes]:
        return key_backup.collected(self.node, self.keys)

    def restore(self, files: dict[str, bytes]) -> list[str]:
        return key_backup.restore(files, self.node, self.keys)


@pytest.fixture(autouse=True)
def cheap_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a passphrase cost no third of a second: the tests of the command line use what ships."""
    monkeypatch.setitem(key_backup._SCRYPT, "n", 1 << 4)


@pytest.fixture
def old(tmp_path: Path) -> Home:
    """A home with a node's two keys, those of a run, and the organiser's key of another one, encrypted."""
    home = Home(tmp_path / "old")
    with open_data_dir(home.node):
        load_or_create(home.layout.identity)
    home.layout.libp2p_identity.write_bytes(b"\x08\x00\x12" + bytes(range(200)))
    RunKeys.generate().write(RUN, home.keys)
    run_keys.write_key(Identity.generate(), organiser_key(OTHER, home.keys), b"its own")
    return home


@pytest.fixture
def new(tmp_path: Path) -> Home:
    """A home on another machine, with nothing in it."""
    return Home(tmp_path / "new")


@pytest.fixture
def backup(tmp_path: Path, old: Home) -> Path:
    path = tmp_path / "backup"
    key_backup.write(path, old.files(), PASSPHRASE)
    return path


def refused(path: Path, passphrase: bytes | None = PASSPHRASE) -> UserError:
    with pytest.raises(UserError) as caught:
        key_backup.read(path, passphrase)
    return caught.value


# -- what is in a backup -------------------------------------------------------------------------------


def test_every_key_comes_back_as_it_was(old: Home, new: Home, backup: Path) -> None:
    files = key_backup.read(backup, PASSPHRASE)
    assert sorted(new.restore(files)) == sorted(files)
    assert new.files() == old.files()
    assert set(files) == {
        *("node/identity.pem", "node/libp2p.key"),
        *(f"keys/{name}" for name in (RUN.hex(), f"{RUN.hex()}.recovery", OTHER.hex())),
    }


def test_only_their_owner_can_read_what_is_written(new: Home, backup: Path) -> None:
    new.restore(key_backup.read(backup, PASSPHRASE))
    written = [backup, *new.node.iterdir(), *new.keys.iterdir()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in written} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (new.node, new.keys)} == {0o700}


def test_a_backup_shows_nothing_of_the_keys(old: Home, backup: Path) -> None:
    content = backup.read_bytes()
    assert not any(data[30:60] in content for data in old.files().values())
    assert b"PRIVATE KEY" not in content
    assert RUN.hex().encode() not in content


def test_a_key_that_has_a_passphrase_keeps_it(old: Home, new: Home, backup: Path) -> None:
    new.restore(key_backup.read(backup, PASSPHRASE))
    assert Identity.read(organiser_key(OTHER, new.keys), b"its own") == Identity.read(
        organiser_key(OTHER, old.keys), b"its own"
    )


def test_what_is_no_key_is_left_out(old: Home) -> None:
    before = old.files()
    (old.keys / "notes.txt").write_text("which run is which")
    (old.keys / "folder").mkdir()
    os.mkfifo(old.keys / "fifo")
    with (old.keys / "large").open("wb") as file:
        file.truncate(1 << 40)
    run_keys.mark_restored(RUN, old.keys)
    assert old.files() == before


def test_without_any_key_there_is_nothing_to_keep(new: Home) -> None:
    with fails_with(Code.KEY_NOT_FOUND):
        new.files()


def test_a_runs_key_that_others_can_read_is_refused_as_everywhere(old: Home) -> None:
    organiser_key(RUN, old.keys).chmod(0o644)
    with fails_with(Code.KEY_EXPOSED):
        old.files()


# -- restoring -----------------------------------------------------------------------------------------


def test_a_restored_organisers_key_is_marked_until_that_is_forgotten(
    old: Home, new: Home, backup: Path
) -> None:
    new.restore(key_backup.read(backup, PASSPHRASE))
    assert run_keys.is_restored(RUN, new.keys)
    assert run_keys.is_restored(OTHER, new.keys)
    assert not run_keys.is_restored(RUN, old.keys)
    run_keys.forget_restored(RUN, new.keys)
    run_keys.forget_restored(RUN, new.keys)
    assert not run_keys.is_restored(RUN, new.keys)
    assert run_keys.is_restored(OTHER, new.keys)


def test_a_new_key_in_the_place_of_a_restored_one_is_not_marked(new: Home, backup: Path) -> None:
    new.restore(key_backup.read(backup, PASSPHRASE))
    path = organiser_key(RUN, new.keys)
    path.unlink()
    run_keys.write_key(Identity.generate(), path)
    assert not run_keys.is_restored(RUN, new.keys)


def test_keys_that_are_there_are_left_as_they_are_and_not_marked(old: Home, backup: Path) -> None:
    key = organiser_key(RUN, old.keys)
    inode = key.stat().st_ino
    old.layout.identity.unlink()
    assert old.restore(key_backup.read(backup, PASSPHRASE)) == ["node/identity.pem"]
    assert key.stat().st_ino == inode
    assert not run_keys.is_restored(RUN, old.keys)


@pytest.mark.parametrize("place", ["node/identity.pem", "node/libp2p.key", f"keys/{OTHER.hex()}"])
def test_another_key_is_never_replaced_and_then_nothing_is_restored(
    place: str, new: Home, backup: Path
) -> None:
    path = new.node.parent / place
    path.parent.mkdir(parents=True)
    Identity.generate().write(path)
    kept = path.read_bytes()
    with fails_with(Code.BAD_OPTION):
        new.restore(key_backup.read(backup, PASSPHRASE))
    assert path.read_bytes() == kept
    assert {one.name for one in new.node.parent.rglob("*") if one.is_file()} <= {path.name, "lock"}


def test_the_mark_is_there_before_the_key(new: Home, backup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a crash in between leaves a key that would sign in its old term."""

    def stop(path: Path, *_: Any) -> None:
        assert run_keys.is_restored(RUN, new.keys)
        raise KeyboardInterrupt

    files = {place: data for place, data in key_backup.read(backup, PASSPHRASE).items() if RUN.hex() in place}
    monkeypatch.setattr(key_backup, "write_whole", stop)
    with pytest.raises(KeyboardInterrupt):
        new.restore(files)


def test_a_running_nodes_folder_gets_no_other_key(new: Home, backup: Path) -> None:
    files = key_backup.read(backup, PASSPHRASE)
    with open_data_dir(new.node), fails_with(Code.DATA_DIR_IN_USE):
        new.restore(files)


def test_a_full_disk_is_a_numbered_error_and_leaves_no_half_backup(old: Home, tmp_path: Path) -> None:
    files, limits = old.files(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        with pytest.raises(UserError) as caught:
            key_backup.write(tmp_path / "backup", files, PASSPHRASE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.code is Code.DISK_FULL
    assert not list(tmp_path.glob("backup*"))


# -- hostile files -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("passphrase", "says"), [(None, "needs a"), (b"", "needs a"), (b"horse", "not its")])
def test_without_its_passphrase_a_backup_stays_shut(
    passphrase: bytes | None, says: str, backup: Path
) -> None:
    refusal = refused(backup, passphrase)
    assert refusal.code is Code.WRONG_PASSPHRASE
    assert says in refusal.what


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "garbage": lambda _: os.urandom(1_000),
    "a key": lambda _: b"-----BEGIN PRIVATE KEY-----\n",
    "another version": lambda data: data.replace(b"keys 1", b"keys 2"),
    "its beginning": lambda data: data[:20],
    "all but its end": lambda data: data[:-1],
    "more than itself": lambda data: data + b"\0",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_no_backup_or_not_the_whole_is_refused_before_a_passphrase_is_asked_for(
    damage: str, backup: Path
) -> None:
    backup.write_bytes(DAMAGES[damage](backup.read_bytes()))
    assert refused(backup, None).code is Code.BACKUP_UNUSABLE


def test_a_file_that_is_not_there_is_no_backup(tmp_path: Path) -> None:
    assert refused(tmp_path / "nowhere", None).code is Code.BACKUP_UNUSABLE
    assert refused(tmp_path, None).code is Code.BACKUP_UNUSABLE


def test_of_an_endless_file_a_bounded_part_is_read(backup: Path) -> None:
    with backup.open("r+b") as file:
        file.truncate(1 << 40)
    assert refused(backup, None).code is Code.BACKUP_UNUSABLE


@pytest.mark.parametrize("at", [20, 40, 60, -1], ids=["salt", "nonce", "content", "end"])
def test_a_changed_byte_is_noticed(at: int, backup: Path) -> None:
    data = bytearray(backup.read_bytes())
    data[at] ^= 1
    backup.write_bytes(data)
    assert refused(backup).code is Code.WRONG_PASSPHRASE


KEY = b"key"
STRANGE = {
    "out of the folder": {"keys/../../.ssh/authorized_keys": KEY},
    "the folder above": {"keys/..": KEY},
    "an absolute path": {"keys//etc/passwd": KEY},
    "another file of a node": {"node/run.toml": KEY},
    "another folder": {"home/.profile": KEY},
    "an invisible name": {"keys/.profile": KEY},
    "a name that no file can have": {"keys/a\0b": KEY},
    "no name": {"keys/": KEY},
    "a number for a name": {7: KEY},
    "a number for a key": {"keys/a": 7},
    "text for a key": {"keys/a": "text"},
    "what is no key": {"keys/a": b"#!/bin/sh"},
    "a list": [KEY],
}


@pytest.mark.parametrize("content", STRANGE)
def test_a_strangers_backup_with_its_passphrase_writes_keys_in_their_places_or_nothing(
    content: str, tmp_path: Path, old: Home
) -> None:
    key = organiser_key(RUN, old.keys).read_bytes()
    files: Any = STRANGE[content]
    if isinstance(files, dict):
        files = {place: key if data is KEY else data for place, data in files.items()}
    key_backup.write(tmp_path / "backup", files, PASSPHRASE)
    assert refused(tmp_path / "backup").code is Code.BACKUP_UNUSABLE


@pytest.mark.parametrize("content", [b"", b"\xc1", b"\x93", b"\x91" * 100_000, b"\x80\x80"])
def test_a_strangers_backup_of_garbage_is_refused(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(msgpack, "packb", lambda files: files)
        key_backup.write(tmp_path / "backup", content, PASSPHRASE)  # type: ignore[arg-type]
    assert refused(tmp_path / "backup").code is Code.BACKUP_UNUSABLE

"""The data folder: one process at a time, copies noticed, a control socket with a short path."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sfnode.errors import Code, UserError
from sfnode.store import data_folder
from sfnode.store.database import inode_generation
from sfnode.store.log import UpdateLog
from tests.refusals import fails_with, refused
from tests.store.helpers import RUN_ID, Author

HOLD = """
import sys
from pathlib import Path
from sfnode.store.data_folder import open_data_dir
held = open_data_dir(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


ASK = """
import sys
from pathlib import Path
from select import select

from sfnode.store.data_folder import holder
print("asking", flush=True)
answers = set()
while not select([sys.stdin], [], [], 0)[0]:
    answers.add(holder(Path(sys.argv[1])) or 0)
print(sorted(answers))
"""
"""Program that asks without a pause until its input ends, and prints the answers; 0 stands for nobody."""

STARTS = 100


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# -- one process -------------------------------------------------------------------------------------


def test_a_new_folder_is_private(tmp_path: Path) -> None:
    with data_folder.open_data_dir(tmp_path / "a" / "node") as data:
        assert mode(data.path) == 0o700
        assert mode(data.lock) == 0o600


def test_all_paths_in_the_folder_differ(tmp_path: Path) -> None:
    at = data_folder.Layout(tmp_path)
    names = [at.log, at.identity, at.libp2p_identity, at.manifest, at.lock, at.control_socket]
    assert len(set(names)) == 6
    assert {name.parent for name in names} == {tmp_path}


def test_a_second_process_is_refused_until_the_first_has_ended_even_by_sigkill(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        assert node.stdout.readline() == "held\n"
        with refused(Code.DATA_DIR_IN_USE, f"process {node.pid}"):
            data_folder.open_data_dir(tmp_path)
        node.kill()
    data_folder.open_data_dir(tmp_path).close()


def test_the_holder_of_a_folder_is_known_by_its_process_number(tmp_path: Path) -> None:
    assert data_folder.holder(tmp_path / "nowhere") is None
    with data_folder.open_data_dir(tmp_path / "node") as data_dir:
        assert data_folder.holder(tmp_path / "node") == os.getpid()
        data_dir.lock.write_text("half a numb")
        assert data_folder.holder(tmp_path / "node") == 0
    assert data_folder.holder(tmp_path / "node") is None


def test_asking_for_the_holder_never_keeps_a_node_from_starting(tmp_path: Path) -> None:
    """A starter in a tight loop against two askers in a tight loop."""
    command = [sys.executable, "-c", ASK, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    askers = [subprocess.Popen(command, **pipes, text=True) for _ in range(2)]
    try:
        for asker in askers:
            assert asker.stdout is not None
            assert asker.stdout.readline() == "asking\n"
        for _ in range(STARTS):
            data_folder.open_data_dir(tmp_path).close()
    finally:
        answers = [asker.communicate()[0] for asker in askers]
    assert set(answers) <= {"[]\n", f"{[0, os.getpid()]}\n", f"{[0]}\n", f"{[os.getpid()]}\n"}


def test_a_shared_lock_that_is_never_released_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_folder, "PROBE_PATIENCE", 0.05)
    data_folder.open_data_dir(tmp_path).close()
    with data_folder.Layout(tmp_path).lock.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        with fails_with(Code.DATA_DIR_IN_USE):
            data_folder.open_data_dir(tmp_path)


@pytest.mark.parametrize("below", ["", "node"])
def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    with fails_with(Code.DATA_DIR_UNUSABLE):
        data_folder.open_data_dir(tmp_path / "file" / below)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with fails_with(Code.DATA_DIR_UNUSABLE):
        data_folder.open_data_dir(tmp_path)


# -- copies ------------------------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The folder of a node that has trained and was shut down."""
    with data_folder.open_data_dir(tmp_path / "node") as data, UpdateLog.open(data.log, RUN_ID) as log:
        assert not data_folder.moved(log)
        data_folder.remember_location(log)
        log.append([Author().write([1, 2, 3])])
    return tmp_path / "node"


def was_moved(folder: Path) -> bool:
    with UpdateLog.open(data_folder.Layout(folder).log, RUN_ID) as log:
        return data_folder.moved(log)


def test_a_renamed_folder_is_still_the_same(node: Path) -> None:
    assert not was_moved(node.rename(node.with_name("renamed")))


def test_a_copied_folder_is_noticed_until_its_location_is_remembered(node: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(node, tmp_path / "copy")
    assert was_moved(copy)
    assert was_moved(copy), "asking must not make it forget: the node may crash before it has acted"
    with UpdateLog.open(data_folder.Layout(copy).log, RUN_ID) as log:
        data_folder.remember_location(log)
    assert not was_moved(copy)
    assert not was_moved(node)


def test_a_backup_restored_over_the_original_is_noticed_although_inode_numbers_return(node: Path) -> None:
    log, backup = data_folder.Layout(node).log, node / "backup"
    if not inode_generation(log):
        pytest.skip("this file system has no inode generations")
    shutil.copy2(log, backup)
    log.unlink()
    shutil.copy2(backup, log)
    assert was_moved(node)


def test_what_is_written_after_the_location_survives_another_program_that_opens_the_log(
    tmp_path: Path,
) -> None:
    """If this process closed a descriptor of the file, it would lose SQLite's locks, and the other program
    would delete the WAL."""
    visit = (
        "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM meta').fetchone()"
    )
    path = tmp_path / "updates.sqlite"
    with UpdateLog.open(path, RUN_ID) as log:
        assert not data_folder.moved(log)
        data_folder.remember_location(log)
        subprocess.run([sys.executable, "-c", visit, str(path)], check=True, timeout=60)
        assert (tmp_path / "updates.sqlite-wal").exists()
        log.append([Author().write([1])])
        shutil.copytree(tmp_path, copy := tmp_path / "as-after-kill-9", ignore=shutil.ignore_patterns("as-*"))
    with UpdateLog.open(copy / "updates.sqlite", RUN_ID) as log:
        assert log.updates() == 1


def test_a_log_with_updates_and_no_location_counts_as_moved(tmp_path: Path) -> None:
    with UpdateLog.open(tmp_path / "updates.sqlite", RUN_ID) as log:
        log.append([Author().write([1])])
        assert data_folder.moved(log)


# -- the control socket ------------------------------------------------------------------------------


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder of this test's own, with a short name."""
    with tempfile.TemporaryDirectory(prefix="sf") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    """A folder whose path alone is too long for a socket."""
    folder = tmp_path / ("x" * 60) / ("y" * 60)
    folder.mkdir(parents=True)
    return folder


def test_a_short_folder_holds_its_own_socket(temporary: Path) -> None:
    assert data_folder.control_socket_path(temporary) == temporary.resolve() / "control.sock"


def test_a_deep_folder_gets_a_short_private_socket(temporary: Path, deep: Path) -> None:
    with data_folder.open_data_dir(deep) as data:
        path = data.control_socket
        assert len(os.fsencode(path)) <= data_folder.MAX_SOCKET_PATH
        assert path.is_relative_to(temporary)
        assert mode(path.parent) == 0o700
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    data_folder.open_data_dir(deep).close()


def test_node_and_client_agree_on_the_socket_however_they_name_the_folder(
    temporary: Path, deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = temporary / "link"
    link.symlink_to(deep)
    monkeypatch.chdir(deep.parent)
    names = [deep, link, Path(deep.name), deep / ".." / deep.name]
    assert len({data_folder.control_socket_path(name) for name in names}) == 1
    assert list(temporary.iterdir()) == [link], "asking creates nothing"


@pytest.mark.usefixtures("temporary")
def test_the_socket_of_a_folder_that_was_removed_can_still_be_named(deep: Path) -> None:
    with data_folder.open_data_dir(deep) as data:
        path = data.control_socket
    shutil.rmtree(deep)
    assert data_folder.control_socket_path(deep) == path


@pytest.mark.usefixtures("temporary")
def test_two_deep_folders_have_two_sockets(deep: Path) -> None:
    assert data_folder.control_socket_path(deep) != data_folder.control_socket_path(deep.parent / ("z" * 60))


@pytest.mark.parametrize("trap", ["open folder", "link", "file"])
def test_a_socket_folder_that_another_user_may_have_made_is_refused(
    temporary: Path, deep: Path, trap: str
) -> None:
    folder = data_folder.control_socket_path(deep).parent
    if trap == "open folder":
        folder.mkdir()
        folder.chmod(0o777)
    elif trap == "link":
        private = temporary / "elsewhere"
        private.mkdir(mode=0o700)
        folder.symlink_to(private)
    else:
        folder.touch(mode=0o600)
    with fails_with(Code.DATA_DIR_UNUSABLE):
        data_folder.open_data_dir(deep)
    with pytest.raises(UserError):
        data_folder.control_socket_path(deep)


def test_a_temporary_folder_that_is_too_deep_as_well_is_named_in_the_error(
    deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(UserError, match="TMPDIR"):
        data_folder.open_data_dir(deep)


def test_the_log_is_private_in_a_folder_that_was_there_whatever_the_umask(tmp_path: Path) -> None:
    author, before = Author(), os.umask(0)
    try:
        tmp_path.chmod(0o777)
        with data_folder.open_data_dir(tmp_path) as held, UpdateLog.open(held.log, RUN_ID) as log:
            log.append([author.write([1])])
            found = {path.name: mode(path) for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert found == {
        "lock": 0o600,
        "updates.sqlite": 0o600,
        "updates.sqlite-wal": 0o600,
        "updates.sqlite-shm": 0o600,
    }
    assert mode(tmp_path) == 0o777, "who made it has chosen so"

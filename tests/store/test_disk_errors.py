"""Tests of the update log under kills and disk faults."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sfnode.errors import Code, UserError
from sfnode.store import segment_encoding
from sfnode.store.disk_errors import BrokenRowError, private, write_whole
from sfnode.store.log import Record, UpdateLog
from tests.refusals import fails_with
from tests.store.helpers import RUN_ID, Author, scalar_of

HERE = Path(__file__).parent


def run_and_kill(path: Path, begun: int, lines: int) -> int:
    """Kill a process once it has reported `lines` appends; return what it acknowledged last."""
    command = [sys.executable, str(HERE / "append_until_killed.py"), str(path), str(begun)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        acknowledged = [int(process.stdout.readline()) for _ in range(lines)]
        process.kill()
        acknowledged += [int(line) for line in process.stdout.read().splitlines()]
    return acknowledged[-1]


def test_sigkill_loses_nothing_acknowledged_and_leaves_nothing_partial(path: Path) -> None:
    authors, begun = [Author(1), Author(2)], 0
    for lines in (1, 30, 77):
        acknowledged = run_and_kill(path, begun, lines)
        with UpdateLog.open(path, RUN_ID) as log:
            first, second = log.tails()
            assert acknowledged <= first.next <= acknowledged + 3
            assert first.next == second.next
            for author in authors:
                author.write(map(scalar_of, range(begun, first.next)))
                whole = log.read(author.feed, 0, 1_000_000)
                assert whole is not None
                assert whole.stop == first.next
                author.assert_genuine(whole)
            begun = first.next


def test_a_commit_is_synced_to_the_disk(path: Path) -> None:
    with UpdateLog.open(path, RUN_ID) as log:
        assert log._writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert log._writer.execute("PRAGMA synchronous").fetchone() == (2,)


# -- no room -----------------------------------------------------------------------------------------


def test_an_append_over_a_file_size_limit_fails_and_harms_nothing_else(path: Path) -> None:
    command = [sys.executable, str(HERE / "append_until_full.py"), str(path), "200000"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    code, acknowledged, readable, after = map(int, done.stdout.split())
    assert code == Code.DISK_FULL
    assert acknowledged == readable > 0
    assert after == acknowledged + 1
    with UpdateLog.open(path, RUN_ID) as log:
        assert log.updates() == after


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return the path of a file system of 256 KiB."""
    mount, folder = shutil.which("mount"), tmp_path / "disk"
    folder.mkdir()
    if mount is None or os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    command = [mount, "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("this machine does not let us mount a small file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def again(author: Author, steps: int) -> Record:
    """Return the segment that `author` wrote after `steps` updates, written again."""
    twin = Author()
    twin.write([scalar for _, scalar in author.updates[:steps]])
    return twin.write([scalar for _, scalar in author.updates[steps:]])


def append_for_ever(log: UpdateLog, author: Author) -> None:
    while True:
        log.append([author.write([scalar_of(len(author.updates))])])


def test_an_append_to_a_full_disk_fails_and_harms_nothing_else(small_disk: Path) -> None:
    author = Author()
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(64 * 1024))
    with UpdateLog.open(small_disk / "updates.sqlite", RUN_ID) as log:
        with fails_with(Code.DISK_FULL):
            append_for_ever(log, author)
        assert log.updates() == len(author.updates) - 1
        readable = log.read(author.feed, 0, 1_000_000)
        assert readable is not None
        author.assert_genuine(readable)
        ballast.unlink()
        log.append([again(author, log.updates())])
    with UpdateLog.open(small_disk / "updates.sqlite", RUN_ID) as log:
        assert log.updates() == len(author.updates)


def test_a_disk_too_full_for_a_new_log_is_reported(small_disk: Path) -> None:
    with pytest.raises(OSError, match="No space"):
        (small_disk / "ballast").write_bytes(bytes(300 * 1024))
    with fails_with(Code.DISK_FULL):
        UpdateLog.open(small_disk / "updates.sqlite", RUN_ID)


def test_a_log_in_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with fails_with(Code.DATA_DIR_UNUSABLE):
        UpdateLog.open(tmp_path / "nowhere" / "updates.sqlite", RUN_ID)


# -- damage ------------------------------------------------------------------------------------------


@pytest.fixture
def author(path: Path) -> Author:
    """Return the author of the log in `path`, which has 6 rows of 300 updates, too large to be packed."""
    author = Author()
    with UpdateLog.open(path, RUN_ID) as log:
        log.append([author.write(map(scalar_of, range(300))) for _ in range(6)])
    return author


def assert_corrupt(path: Path) -> None:
    with fails_with(Code.LOG_CORRUPT), UpdateLog.open(path, RUN_ID) as log:
        for _ in log.records():
            pass


def test_a_file_of_garbage_is_a_corrupt_log(path: Path) -> None:
    path.write_bytes(b"not a database at all" * 500)
    assert_corrupt(path)


def test_a_foreign_database_is_not_touched(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE recipes (title)")
    assert_corrupt(path)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("recipes",)]


@pytest.mark.usefixtures("author")
def test_an_overwritten_page_is_noticed(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))
    assert_corrupt(path)


@pytest.mark.usefixtures("author")
def test_a_truncated_file_is_noticed(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)
    assert_corrupt(path)


def test_one_flipped_bit_is_noticed_wherever_it_is_read(path: Path, author: Author) -> None:
    with closing(sqlite3.connect(path)) as db:
        (body,) = db.execute("SELECT body FROM segment WHERE first = 900").fetchone()
        rotten = body[:400] + bytes([body[400] ^ 1]) + body[401:]
        db.execute("UPDATE segment SET body = ? WHERE first = 900", (rotten,))
        db.commit()
    assert_corrupt(path)
    with UpdateLog.open(path, RUN_ID) as log:
        with pytest.raises(UserError, match="checksum"):
            log.read(author.feed, 700, 1_000)
        sound = log.read(author.feed, 0, 900)
        assert sound is not None
        author.assert_genuine(sound)


def test_a_missing_row_is_noticed_wherever_it_is_read(path: Path, author: Author) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM segment WHERE first = 900")
        db.commit()
    assert_corrupt(path)
    with UpdateLog.open(path, RUN_ID) as log:
        for first, most in [(700, 1_000), (1_000, 1_000), (1_000, 1)]:
            with pytest.raises(UserError, match="missing"):
                log.read(author.feed, first, most)


@pytest.mark.parametrize(
    ("offset", "value"),
    [(100, 0), (100, 3), (101, 2), (104, 255), (109, 9)],
    ids=["no width", "a wide width", "a part too many", "parts beyond the end", "more updates than scalars"],
)
def test_a_row_with_a_sound_checksum_and_impossible_lengths_is_broken(offset: int, value: int) -> None:
    author = Author(1)
    record = author.write(range(3))
    body = bytearray(segment_encoding.encode(record.segment, record.chain))
    body[offset] = value
    body[:4] = zlib.crc32(body[4:]).to_bytes(4, "little")
    with pytest.raises(BrokenRowError):
        segment_encoding.decode(author.feed, author.key, 0, bytes(body))


def test_a_private_file_is_not_written_into_what_an_earlier_attempt_has_left(tmp_path: Path) -> None:
    left = tmp_path / "key.partial"
    left.write_bytes(b"half of it")
    left.chmod(0o644)
    write_whole(tmp_path / "key.pem", b"a secret", private)
    assert (tmp_path / "key.pem").stat().st_mode & 0o077 == 0
    assert not left.exists()

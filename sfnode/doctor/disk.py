"""Examines the data folder's disk: free space, durable writes, locks.

Tests the folder, or its nearest parent that exists, and leaves nothing there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
import time
from pathlib import Path

from sfnode.doctor.findings import CheckFinding, Subject, milliseconds, note, ok, problem, refused
from sfnode.errors import UserError
from sfnode.manifest import Manifest
from sfnode.node.equipment import require_room
from sfnode.printable import size_text
from sfnode.store.data_folder import holder
from sfnode.store.disk_errors import sync_folder

LOG_BYTES_PER_UPDATE = 12
"""Bytes that the log takes for an update: 5.3 if updates are made one by one (docs/benchmarks.md), and
another 5.3 while SQLite rewrites the file."""

PROBE = 1 << 20
"""Size of the test write, in bytes."""

SLOW_SYNC = 0.1
"""Threshold, in seconds. A slower sync is worth a note, because a node makes up to ten commits a second."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def look_at_disk(data_dir: Path, manifest: Manifest | None) -> list[CheckFinding]:
    """Examine the free space on the data folder's disk, and whether the folder can be used."""
    folder = _existing(data_dir)
    return [_space(folder, manifest), _folder(data_dir, folder)]


def _existing(path: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if place.is_dir())


def _space(folder: Path, manifest: Manifest | None) -> CheckFinding:
    updates = manifest.training.update_budget if manifest else 0
    try:
        free = require_room(folder, updates * LOG_BYTES_PER_UPDATE)
    except UserError as error:
        return refused(Subject.DISK_SPACE, error)
    return ok(Subject.DISK_SPACE, f"{size_text(free)} are free where {folder} is")


def _folder(data_dir: Path, folder: Path) -> CheckFinding:
    if data_dir.exists() and not data_dir.is_dir():
        return _unusable(f"{data_dir} is not a folder")
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".sfnode-doctor-") as file:
            locks = _locks(file.name)
            seconds = _write(file.fileno(), folder)
    except OSError as error:
        if error.errno in _NO_ROOM:
            return _unusable(f"nothing can be written to {folder}: {error.strerror}", "Make room there.")
        return _unusable(f"{folder} cannot be written to: {error.strerror}")
    if not locks:
        return _unusable(
            f"the file system of {folder} does not lock files, so two nodes could use one folder"
        )
    return _usable(data_dir, seconds)


def _usable(data_dir: Path, seconds: float) -> CheckFinding:
    if (process := holder(data_dir)) is not None:
        return note(
            Subject.DATA_FOLDER,
            f"a node runs in {data_dir} (process {process or 'unknown'})",
            "One folder serves one node: `sfnode status` shows it, `sfnode leave` ends it.",
        )
    if seconds > SLOW_SYNC:
        return note(
            Subject.DATA_FOLDER,
            f"the disk of {data_dir} takes {milliseconds(seconds)} for a durable write",
            "It works, but on a faster disk (no network share, no memory card) updates are sent sooner.",
        )
    return ok(Subject.DATA_FOLDER, f"{data_dir} can be written, synced ({milliseconds(seconds)}) and locked")


def _locks(path: str) -> bool:
    """Return whether a lock on this file excludes a second holder."""
    with open(path, "r+b") as first, open(path, "r+b") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _write(descriptor: int, folder: Path) -> float:
    """Return the duration, in seconds, of a small durable write like the log's. Before that, write PROBE
    bytes to test whether the disk is full."""
    os.write(descriptor, bytes(PROBE))
    os.fsync(descriptor)
    begin = time.perf_counter()
    os.write(descriptor, b"one more")
    os.fsync(descriptor)
    seconds = time.perf_counter() - begin
    sync_folder(folder)
    return seconds


def _unusable(what: str, fix: str = "Correct that, or name another folder with --data-dir.") -> CheckFinding:
    return problem(Subject.DATA_FOLDER, what, fix)

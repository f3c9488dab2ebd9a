"""The data folder of a node: the names of its files, the lock for one process, and whether it was copied.

Knows names of files, not what is in them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sfnode.errors import Code, UserError
from sfnode.store.disk_errors import disk_faults, sync_folder, unusable

if TYPE_CHECKING:
    from sfnode.store.log import UpdateLog

MAX_SOCKET_PATH = 103
"""Bytes of an AF_UNIX path: macOS takes 104 with the closing zero, Linux 108."""

PROBE_PATIENCE = 5.0
"""Seconds for which `open_data_dir` waits for processes that only ask who holds the folder. Each of them has
the shared lock for microseconds, so that this takes milliseconds however many they are."""

_PROBE_POLL = 0.001
"""Seconds between two attempts meanwhile."""

_SOCKET = "control.sock"

_LOCATION = "place"
"""Key in the log's meta table under which lies where the log was when its feed was last continued."""

_SIGNED_AT = "signed"
"""Key under which lies where the log was when a decision was last signed in it; empty once others that were
signed elsewhere have come since."""

_MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))


class _Inside:
    """The path of something in a data folder, by its name there."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, layout: Layout, _: object) -> Path:
        return layout.path / self._name


@dataclass(frozen=True)
class Layout:
    """The paths in a data folder, whoever uses it at the moment."""

    path: Path

    log = _Inside("updates.sqlite")
    manifest = _Inside("run.toml")
    lock = _Inside("lock")
    identity = _Inside("identity.pem")
    """The Ed25519 key that signs updates."""
    libp2p_identity = _Inside("libp2p.key")
    """The RSA key that names the node in libp2p; written by the transport."""
    named = _Inside("named.json")
    """The files outside the folder that its owner has named."""
    ports = _Inside("ports")
    """The ports on which the node listened last; written by the transport."""
    contacts = _Inside("contacts.json")
    """The invitation by peers that the node has met, for when it does not run (`run.json`)."""
    model = _Inside("model")
    """The folder of the base model, if it was downloaded from peers."""
    partial_model = _Inside("model.partial")
    """The folder of an unfinished download of the base model."""
    listing = _Inside("model.listing")
    """The listing of the base model (SPEC B1)."""
    bases = _Inside("bases")
    """The folder of published bases, in files that their digests name."""
    data = _Inside("data")
    """The folder of the run's public data, in files that their digests name."""
    checkpoints = _Inside("checkpoints")
    """The folder of the states of checkpoints."""
    samples = _Inside("samples.json")
    """Answers of the base model and of later ones to a few test rows."""

    @property
    def control_socket(self) -> Path:
        return control_socket_path(self.path)


@dataclass(frozen=True)
class DataDir(Layout):
    """A data folder that this process holds until `close`, or until the process ends in whatever way.

    The lock is on an open file description, which a forked child shares: processes that must not outlive the
    node have to be started afresh (exec), which closes the descriptor.
    """

    descriptor: int

    def close(self) -> None:
        """Let others use the folder."""
        os.close(self.descriptor)

    def __enter__(self) -> DataDir:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_data_dir(path: Path) -> DataDir:
    """Create the folder (mode 0700) if need be and take it for this process.

    Raises UserError DATA_DIR_IN_USE when another process holds it, DATA_DIR_UNUSABLE when it cannot be
    created or written, DISK_FULL.
    """
    path = path.resolve()
    with disk_faults(path):
        _make_folder(path)
        descriptor = os.open(Layout(path).lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _take(path, descriptor)
            _make_socket_folder(path)
        except BaseException:
            os.close(descriptor)
            raise
    return DataDir(path, descriptor)


def holder(path: Path) -> int | None:
    """Return the process that holds this folder, 0 if it has not written its number; None if none holds it.

    Asking cannot keep a node from starting: it takes the lock in shared mode for a moment, which
    `open_data_dir` distinguishes from the exclusive lock of a node. (A flock cannot be queried as a record
    lock can; but record locks are lost when a process closes any descriptor of the file.)
    """
    try:
        with Layout(path).lock.open() as lock:
            if not _lock(lock.fileno(), fcntl.LOCK_SH):
                written = lock.read().strip()
                return int(written) if written.isdecimal() else 0
    except OSError:  # there is no folder, or it is not ours to look into
        return None
    return None


def moved(log: UpdateLog) -> bool:
    """Return whether this log cannot be shown to be the very file that our feed was last continued from.

    A copied or restored folder has other inodes, and its original may have gone on: continuing the feed would
    fork it. A log that is still empty has nothing to fork. What this cannot see (a disk image, a snapshot of
    a virtual machine, a file overwritten in place) is left to asking peers (SPEC I3).
    """
    known = log.get_meta(_LOCATION)
    if known is None:
        return log.updates() > 0
    return known != _location(log)


def remember_location(log: UpdateLog) -> None:
    """Record that the feed goes on from this file.

    Call it once `moved` was asked and the new incarnation, if one was needed, is in the log: in this order a
    crash in between costs an incarnation but forks nothing.
    """
    log.set_meta(_LOCATION, _location(log))


def signed_here(log: UpdateLog) -> bool:
    """Return whether the newest decisions in this log were signed in this very file: then nothing that was
    signed can be lacking, as it was durable before anybody got it. What this cannot see: as `moved`."""
    return log.get_meta(_SIGNED_AT) == _location(log)


def remember_signing(log: UpdateLog, ours: bool) -> None:
    """Record whether decisions that are about to be written to this log are `ours`, signed here.

    Should the process end in between: `ours` can only be signed by who has all that was signed before, and
    what others have signed is not here yet.
    """
    here = _location(log) if ours else b""
    if (log.get_meta(_SIGNED_AT) or b"") != here:
        log.set_meta(_SIGNED_AT, here)


def control_socket_path(path: Path) -> Path:
    """Return the path of the control socket of data folder `path`, the same for the node and its clients.

    Inside the folder, or, when that is too long for AF_UNIX, in a private folder under the temporary one
    (`open_data_dir` makes it). Both sides need the same TMPDIR then. Raises UserError DATA_DIR_UNUSABLE when
    that is too long as well, or when another user has made something of that name.
    """
    path = path.resolve()
    inside, outside = path / _SOCKET, _socket_folder(path) / _SOCKET
    if _fits(inside):
        return inside
    if not _fits(outside):
        raise unusable(path, "its name, and that of the temporary folder (TMPDIR), is too long for a socket")
    with disk_faults(path):
        _refuse_folder_of_others(path, outside.parent)
    return outside


def _make_folder(path: Path) -> None:
    if path.is_dir():
        return
    if path.exists():
        raise unusable(path, "it is not a folder")
    path.mkdir(mode=0o700, parents=True)
    sync_folder(path.parent)


def _take(path: Path, descriptor: int) -> None:
    """Lock the folder, or raise UserError DATA_DIR_IN_USE if a node holds it.

    A node holds the lock exclusively, so that not even a shared lock can be taken beside it. A process that
    only asks (`holder`) has it in shared mode, and for a moment.
    """
    deadline = time.monotonic() + PROBE_PATIENCE
    while not _lock(descriptor, fcntl.LOCK_EX):
        if not _lock(descriptor, fcntl.LOCK_SH) or time.monotonic() > deadline:
            raise _in_use(path, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        time.sleep(_PROBE_POLL)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)


def _lock(descriptor: int, mode: int) -> bool:
    """Lock the file if that is possible at once; return whether it was."""
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _in_use(path: Path, descriptor: int) -> UserError:
    process = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
    return UserError(
        Code.DATA_DIR_IN_USE,
        f"{path} is in use by process {process or '(unknown)'}",
        "Stop that node, or give this one another folder with --data-dir.",
    )


def _location(log: UpdateLog) -> bytes:
    """Return what distinguishes this very file from a copy of it."""
    with disk_faults(log.path):
        status = log.path.stat()
        return f"{status.st_dev} {status.st_ino} {log.generation} {_machine()}".encode()


def _machine() -> str:
    """Return a digest of the machine's id (which is confidential), or `-` if it has none."""
    for file in _MACHINE_IDS:
        if file.is_file():
            return hashlib.blake2b(file.read_bytes(), digest_size=16, person=b"sfnode-place").hexdigest()
    return "-"


def _fits(socket: Path) -> bool:
    return len(os.fsencode(socket)) <= MAX_SOCKET_PATH


def _socket_folder(path: Path) -> Path:
    name = hashlib.blake2b(os.fsencode(path), digest_size=12).hexdigest()
    return Path(tempfile.gettempdir()) / f"sfnode-{name}"


def _make_socket_folder(path: Path) -> None:
    if control_socket_path(path).parent != path:
        _socket_folder(path).mkdir(mode=0o700, exist_ok=True)


def _refuse_folder_of_others(path: Path, folder: Path) -> None:
    """Raise UserError unless the socket folder, which lies where everybody may write, is ours alone."""
    try:
        status, owner = folder.lstat(), path.stat().st_uid
    except FileNotFoundError:
        return
    ours = status.st_uid in (os.geteuid(), owner)
    if not (ours and stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) & 0o077 == 0):
        raise unusable(folder, "it should be a folder that only this node's user can enter")

"""The data folder of a node: names its files, locks it for one process, and detects whether it was copied.

This module knows the names of files, not their content.
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
"""Maximum length, in bytes, of an AF_UNIX path. Including the final zero byte, macOS accepts 104 bytes and
Linux 108."""

PROBE_PATIENCE = 5.0
"""Maximum time, in seconds, for which `open_data_dir` waits for processes that only ask which process holds
the folder. Such a process holds the shared lock for microseconds, so even many of them take only
milliseconds."""

_PROBE_POLL = 0.001
"""Time, in seconds, between two attempts to lock the folder."""

_SOCKET = "control.sock"

_LOCATION = "place"
"""Key in the log's meta table. Its value is the log's location when this node last continued its own feed."""

_SIGNED_AT = "signed"
"""Key in the log's meta table. Its value is the log's location when a decision in the log was last signed by
this node. The value is empty if newer decisions, signed elsewhere, were written to the log later."""

_MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))


class _Inside:
    """Python descriptor that returns the path, in a data folder, of the file or folder with a given name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, layout: Layout, _: object) -> Path:
        return layout.path / self._name


@dataclass(frozen=True)
class Layout:
    """The paths in a data folder, whether or not a process uses the folder."""

    path: Path

    log = _Inside("updates.sqlite")
    manifest = _Inside("run.toml")
    lock = _Inside("lock")
    identity = _Inside("identity.pem")
    """The Ed25519 key that signs updates."""
    libp2p_identity = _Inside("libp2p.key")
    """The RSA key that names the node in libp2p; written by the transport."""
    named = _Inside("named.json")
    """The list of files outside the data folder that the node's owner has named."""
    ports = _Inside("ports")
    """The ports on which the node listened last; written by the transport."""
    contacts = _Inside("contacts.json")
    """An invitation with the addresses of peers that the node has met, in the format of `run.json`. It is
    used while the node does not run."""
    model = _Inside("model")
    """The folder of the base model, if the node downloaded it from peers."""
    partial_model = _Inside("model.partial")
    """The folder of the base model while its download is not finished."""
    listing = _Inside("model.listing")
    """The listing of the base model (SPEC B1)."""
    bases = _Inside("bases")
    """The folder of published bases, in files named by their digests."""
    data = _Inside("data")
    """The folder of the run's public data, in files named by their digests."""
    checkpoints = _Inside("checkpoints")
    """The folder of the states of checkpoints."""
    samples = _Inside("samples.json")
    """The file with answers of the base model and of later models to a few test rows."""

    @property
    def control_socket(self) -> Path:
        return control_socket_path(self.path)


@dataclass(frozen=True)
class DataDir(Layout):
    """A data folder that this process has locked. The lock ends with `close`, or when the process ends in any
    way.

    The lock belongs to an open file description, which a forked child process shares. A child that may
    outlive the node must therefore be started with exec, which closes the descriptor in the child.
    """

    descriptor: int

    def close(self) -> None:
        """Unlock the folder."""
        os.close(self.descriptor)

    def __enter__(self) -> DataDir:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_data_dir(path: Path) -> DataDir:
    """Create the folder (mode 0700) if necessary and lock it for this process.

    Raises UserError DATA_DIR_IN_USE if another process holds the folder, DATA_DIR_UNUSABLE if the folder
    cannot be created or written, DISK_FULL.
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
    """Return the id of the process that holds this folder. Return 0 if that process has not written its id
    yet, and None if no process holds the folder.

    A call cannot keep a node from starting. It takes the lock in shared mode for a moment, and
    `open_data_dir` can distinguish a shared lock from a node's exclusive lock. (A flock, unlike a record
    lock, cannot be queried without taking it. But a process loses its record locks on a file when it closes
    any descriptor of the file.)
    """
    try:
        with Layout(path).lock.open() as lock:
            if not _lock(lock.fileno(), fcntl.LOCK_SH):
                written = lock.read().strip()
                return int(written) if written.isdecimal() else 0
    except OSError:  # the folder is missing or unreadable
        return None
    return None


def moved(log: UpdateLog) -> bool:
    """Return whether this log may be another file than the one in which this node last continued its own
    feed.

    The files of a copied or restored folder have other inodes. A node on the original folder may have
    continued the feed. Continuing the feed here, too, would then fork it. For an empty log without a recorded
    location the result is False, as there is nothing to fork. This function does not detect copies in disk
    images, snapshots of virtual machines, and files that were overwritten in place. To detect those, the node
    asks peers (SPEC I3).
    """
    known = log.get_meta(_LOCATION)
    if known is None:
        return log.updates() > 0
    return known != _location(log)


def remember_location(log: UpdateLog) -> None:
    """Record that this node continues its own feed in this file.

    Call this function after `moved` and, if the node needed a new incarnation, after writing the incarnation
    to the log. A crash between the two writes then costs an incarnation, but forks no feed.
    """
    log.set_meta(_LOCATION, _location(log))


def signed_here(log: UpdateLog) -> bool:
    """Return whether the newest decisions in this log were signed in this file and not in a copy. If so, the
    log contains every decision that was signed, because each was durable before it was sent. This function
    does not detect the copies that `moved` does not detect."""
    return log.get_meta(_SIGNED_AT) == _location(log)


def remember_signing(log: UpdateLog, ours: bool) -> None:
    """Record whether the decisions that will be written to this log next are `ours`, that is, signed by this
    node.

    The record stays right even if the process ends before the decisions are written. A node signs a decision
    only while it knows all earlier ones, and decisions signed elsewhere are then not stored yet.
    """
    here = _location(log) if ours else b""
    if (log.get_meta(_SIGNED_AT) or b"") != here:
        log.set_meta(_SIGNED_AT, here)


def control_socket_path(path: Path) -> Path:
    """Return the path of the control socket of data folder `path`, the same for the node and its clients.

    The socket is inside the data folder, unless its path would be too long for AF_UNIX. In that case the
    socket is in a private folder, which `open_data_dir` makes inside the temporary folder, and node and
    clients need the same TMPDIR. Raises UserError DATA_DIR_UNUSABLE if the path in the private folder is too
    long as well, or if the private folder belongs to another user.
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

    A node holds the lock exclusively, so that another process cannot even take it in shared mode. A process
    that only asks who holds the folder (`holder`) takes the lock in shared mode for a moment. This function
    waits for such processes.
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
    """Lock the file if that is possible without waiting. Return whether the file is now locked."""
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
    """Return a description of the log file (machine and inode) that differs between this file and any copy of
    it."""
    with disk_faults(log.path):
        status = log.path.stat()
        return f"{status.st_dev} {status.st_ino} {log.generation} {_machine()}".encode()


def _machine() -> str:
    """Return a digest of the machine's id, or `-` if the machine has no id. The id itself is confidential."""
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
    """Raise UserError unless only this user can enter the socket's private folder. Everybody may create
    folders in the temporary folder around it."""
    try:
        status, owner = folder.lstat(), path.stat().st_uid
    except FileNotFoundError:
        return
    ours = status.st_uid in (os.geteuid(), owner)
    if not (ours and stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) & 0o077 == 0):
        raise unusable(folder, "it should be a folder that only this node's user can enter")

"""The data folder of a node: what lies where, that only one process uses it, and whether it was copied.

It knows names of files, not what is in them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sfnode.errors import Code, UserError
from sfnode.store.faults import disk_faults, sync_folder, unusable
from sfnode.store.log import UpdateLog

MAX_SOCKET_PATH = 103
"""Bytes of an AF_UNIX path: macOS takes 104 with the closing zero, Linux 108."""

_SOCKET = "control.sock"

_PLACE = "place"
"""The key in the log's meta table that says where the log was when its feed was last continued."""

_FS_IOC_GETVERSION = 0x80087601
"""Linux: the generation of an inode, a fresh random number every time the inode is allocated."""

_MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))


@dataclass(frozen=True)
class Layout:
    """Where things are in a data folder, whoever uses it at the moment."""

    path: Path

    @property
    def log(self) -> Path:
        return self.path / "updates.sqlite"

    @property
    def identity(self) -> Path:
        """Ed25519, signs updates."""
        return self.path / "identity.pem"

    @property
    def libp2p_identity(self) -> Path:
        """RSA, the name of the node in libp2p; written by p2pd's owner."""
        return self.path / "libp2p.key"

    @property
    def manifest(self) -> Path:
        return self.path / "run.toml"

    @property
    def model(self) -> Path:
        """The base model, when it came from peers."""
        return self.path / "model"

    @property
    def partial_model(self) -> Path:
        """What has come of it so far."""
        return self.path / "model.partial"

    @property
    def listing(self) -> Path:
        """The listing of the base model (SPEC B1)."""
        return self.path / "model.listing"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def control_socket(self) -> Path:
        return control_socket_path(self.path)


@dataclass(frozen=True)
class DataDir(Layout):
    """A data folder that this process holds until `close` or its end, however it ends.

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
    """The process that holds this folder, 0 if it has not said which it is; None if nobody does."""
    try:
        with Layout(path).lock.open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                said = lock.read().strip()
                return int(said) if said.isdecimal() else 0
    except OSError:  # there is no folder, or it is not ours to look into
        return None
    return None


def moved(log: UpdateLog) -> bool:
    """Whether this log cannot be shown to be the very file that our feed was last continued from.

    A copied or restored folder has other inodes, and its original may have gone on: continuing the feed would
    fork it. A log that is still empty has nothing to fork. What this cannot see (a disk image, a snapshot of
    a virtual machine, a file overwritten in place) is left to asking peers (SPEC I3).
    """
    known = log.get_meta(_PLACE)
    if known is None:
        return log.updates() > 0
    return known != _place(log.path)


def settle(log: UpdateLog) -> None:
    """Record that the feed goes on from this file. Call once `moved` was asked and the new incarnation, if
    one was needed, is in the log: in this order a crash in between costs an incarnation but forks nothing."""
    log.set_meta(_PLACE, _place(log.path))


def control_socket_path(path: Path) -> Path:
    """Where the node that uses data folder `path` listens; the same answer for the node and its clients.

    Inside the folder, or, when that is too long for AF_UNIX, in a private folder under the temporary one
    (`open_data_dir` makes it). Both sides need the same TMPDIR then. Raises UserError DATA_DIR_UNUSABLE when
    that is too long as well, or when somebody else has put himself there.
    """
    path = path.resolve()
    inside, outside = path / _SOCKET, _socket_folder(path) / _SOCKET
    if _fits(inside):
        return inside
    if not _fits(outside):
        raise unusable(path, "its name, and that of the temporary folder (TMPDIR), is too long for a socket")
    with disk_faults(path):
        _refuse_strangers(path, outside.parent)
    return outside


def _make_folder(path: Path) -> None:
    if path.is_dir():
        return
    if path.exists():
        raise unusable(path, "it is not a folder")
    path.mkdir(mode=0o700, parents=True)
    sync_folder(path.parent)


def _take(path: Path, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        raise UserError(
            Code.DATA_DIR_IN_USE,
            f"{path} is in use by process {holder or '(unknown)'}",
            "Stop that node, or give this one another folder with --data-dir.",
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)


def _place(path: Path) -> bytes:
    """What tells this very file from a copy of it."""
    with disk_faults(path):
        status = path.stat()
        return f"{status.st_dev} {status.st_ino} {_generation(path)} {_machine()}".encode()


def _generation(path: Path) -> int:
    """The inode's generation, or 0 where there is none to be had.

    ext4 gives the number of a deleted file to the next one created, so a backup restored over the original
    usually has the original's inode number.
    """
    with path.open("rb") as file:
        try:
            return int(struct.unpack("=q", fcntl.ioctl(file, _FS_IOC_GETVERSION, bytes(8)))[0])
        except OSError:
            return 0


def _machine() -> str:
    """A digest of the machine's id (which is to be kept confidential), or of nothing."""
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


def _refuse_strangers(path: Path, folder: Path) -> None:
    """The temporary folder is everybody's: what lies under our name there must still be ours alone."""
    try:
        status, owner = folder.lstat(), path.stat().st_uid
    except FileNotFoundError:
        return
    ours = status.st_uid in (os.geteuid(), owner)
    if not (ours and stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) & 0o077 == 0):
        raise unusable(folder, "it should be a folder that only this node's user can enter")

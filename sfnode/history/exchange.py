"""Imports archives without a network, through an exchange between two logs of a run in one process.

Each log gets its own machine. One link connects the two machines, and their clock jumps to the next deadline
when both are idle. So everything is verified, bounded and decided as among peers: new updates enter, forks
are resolved as the organiser decides, and known updates change nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.models import bases
from sfnode.node.driver import LogStore
from sfnode.node.startup import OWN_FOLDER, keep_manifest, settled
from sfnode.schema.results import ImportResult
from sfnode.store import archive
from sfnode.store.archive import Unpacked
from sfnode.store.data_folder import DataDir, open_data_dir
from sfnode.store.disk_errors import disk_faults
from sfnode.store.log import UpdateLog
from sfprotocol.anti_entropy import SYNC_INTERVAL
from sfprotocol.events import LinkUp, Received, Writable
from sfprotocol.host import Close, Host, Send
from sfprotocol.machine import Machine
from sfprotocol.messages import Feed, RunParameters, Segment

LINK = 1
"""Id of the link, the same on both sides."""

QUIET = 60 * SYNC_INTERVAL
"""Time, in seconds on the common clock of both machines, after which the exchange ends if neither log has
stored anything new. In this time every delayed or lost message is requested again."""


class PartedError(Exception):
    """Error that ends the exchange: one side closed the link because of a fault in what the other side
    sent."""


class _Side:
    """One log and its machine."""

    def __init__(self, run: RunParameters, update_log: UpdateLog) -> None:
        self.machine: Machine = settled(run, update_log)
        self._store = LogStore(update_log, run, _no_own_feed)
        self._host = Host(self.machine, self._store)
        self._host.post(LinkUp(LINK, ""))
        self._unwritten = False
        """Whether a segment was sent since the machine last got Writable, which allows it to send more."""

    def due(self) -> float:
        """Return the time of the next deadline."""
        return float("-inf") if self._host.waiting else self._host.next_deadline()

    def round(self, now: float, other: _Side) -> bool:
        """Do a round of the host, pass its messages to `other`, and return whether the round stored anything.
        Raises PartedError."""
        commit = self._host.decide(now)
        if commit is not None:
            self._store.append(commit)
        for effect in self._host.carry_out():
            match effect:
                case Send(message=message, frame=frame):
                    other._host.post(Received(LINK, frame))
                    self._unwritten = self._unwritten or isinstance(message, Segment)
                case Close(fault=fault):
                    raise PartedError(fault or "it went away")
        return commit is not None

    def go_on(self, other: _Side) -> None:
        """Tell the machine that it may send more segments, if the other side has room."""
        if self._unwritten and other._host.has_room(LINK):
            self._unwritten = False
            self._host.post(Writable(LINK))


def _no_own_feed(feed: Feed) -> None:
    raise AssertionError("a relay continues no feed")


def exchange(run: RunParameters, one: UpdateLog, other: UpdateLog) -> tuple[Machine, Machine]:
    """Copy to each log what only the other log has, as far as the rules admit it. Return the machines of both
    logs.

    Takes as long as verifying the copied messages. Raises PartedError, UserError DISK_FULL, LOG_CORRUPT.
    """
    sides = _Side(run, one), _Side(run, other)
    now = news = 0.0
    while now - news <= QUIET:
        for side, far in (sides, sides[::-1]):
            while side.due() <= now:
                if side.round(now, far):
                    news = now
            side.go_on(far)
        now = max(now, min(side.due() for side in sides))
    return sides[0].machine, sides[1].machine


def take_in(file: Path, data_dir: Path) -> ImportResult:
    """Verify the archive of a run, and then import all of it into a data folder, which is new or belongs to
    the same run.

    Raises UserError ARCHIVE_UNUSABLE, WRONG_RUN, DATA_DIR_IN_USE, DATA_DIR_UNUSABLE, DISK_FULL. After an
    error the folder is as before, except that an existing log keeps the updates that were found valid.
    """
    with disk_faults(data_dir), TemporaryDirectory(prefix=".sfnode-", dir=_existing(data_dir)) as scratch:
        unpacked = archive.unpack(file, Path(scratch))
        with _opened(data_dir, unpacked.manifest) as held:
            return _taken_in(file, unpacked, held)


def _taken_in(file: Path, unpacked: Unpacked, held: DataDir) -> ImportResult:
    manifest, run = unpacked.manifest, unpacked.manifest.parameters()
    with (
        UpdateLog.open(held.log, run.run_id) as ours,
        UpdateLog.open(unpacked.layout.log, run.run_id) as theirs,
    ):
        updates, decisions = ours.updates(), len(ours.control())
        try:
            machine, _ = exchange(run, ours, theirs)
        except PartedError as error:
            raise archive.unusable(file, f"its log and that of {held.path} do not agree: {error}") from error
        for blob in sorted(unpacked.layout.bases.glob(f"*{bases.SUFFIX}")):
            bases.keep(blob, held.bases, manifest.model.parsed_targets(), manifest.basis_columns)
        result = ImportResult(
            run_id=run.run_id.hex(),
            run_name=manifest.name,
            new_updates=max(0, ours.updates() - updates),
            new_decisions=max(0, len(ours.control()) - decisions),
            updates=machine.frontier.known,
            sealed=machine.organised.run_state.sealed if machine.organised else None,
            digest=machine.frontier.digest().hex(),
            same=machine.frontier.digest().hex() == unpacked.statement.digest,
        )
    if not held.manifest.exists():
        keep_manifest(manifest, held.manifest)
    return result


@contextmanager
def _opened(data_dir: Path, manifest: Manifest) -> Iterator[DataDir]:
    """Lock the folder during the block. If the folder belonged to no run and the block fails, remove the
    files that were written to the folder."""
    made = not data_dir.exists()
    with open_data_dir(data_dir) as held:
        fresh = not (held.manifest.exists() or held.log.exists())
        if held.manifest.exists() and (kept := Manifest.from_toml(held.manifest)).run_id != manifest.run_id:
            raise UserError(
                Code.WRONG_RUN,
                f"{held.path} belongs to run {kept.run_id.hex()[:16]} ({kept.name}), and the archive is of "
                f"{manifest.run_id.hex()[:16]} ({manifest.name})",
                OWN_FOLDER,
            )
        try:
            yield held
        except BaseException:
            if fresh:
                _clear(held, made)
            raise


def _clear(held: DataDir, made: bool) -> None:
    if made:
        shutil.rmtree(held.path, ignore_errors=True)
        return
    for name in (held.log, Path(f"{held.log}-wal"), Path(f"{held.log}-shm")):
        name.unlink(missing_ok=True)
    shutil.rmtree(held.bases, ignore_errors=True)


def _existing(path: Path) -> Path:
    """Return the nearest existing folder above `path`, which is on the same disk as `path`."""
    return next(folder for folder in path.absolute().parents if folder.is_dir())

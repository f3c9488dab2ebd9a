"""The disk of a simulated computer: a real folder, whose files can be lost, copied and restored."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sflab.simulator.world.runs import blob
from sfnode.manifest import Manifest
from sfnode.models.bases import path_in
from sfnode.store import data_folder
from sfnode.store.data_folder import Layout
from sfnode.store.identity import Identity
from sfnode.store.log import UpdateLog
from sfprotocol.messages import Feed

SYNCED = 2
"""`PRAGMA synchronous = FULL`: SQLite syncs a commit before it returns."""

OF_FEED = "feed = (SELECT id FROM feed WHERE origin = ? AND incarnation = ?)"

Files = dict[str, bytes]
"""Contents of a disk's files, keyed by their paths in the folder."""


def prepare(layout: Layout, manifest: Manifest, key: Ed25519PrivateKey) -> None:
    """Make the folder of a node, with the manifest of its run and its own key."""
    layout.path.mkdir(parents=True)
    layout.manifest.write_text(manifest.to_toml())
    if manifest.training.is_first_order:
        layout.bases.mkdir()
        path_in(layout.bases, manifest.training.bases).write_bytes(blob(manifest))
    Identity._of(key).write(layout.identity)


def lose_unsynced(log: UpdateLog) -> None:
    """Close a log as in a power cut: pages that were written but not synced are lost."""
    (level,) = log._writer.execute("PRAGMA synchronous").fetchone()
    synced = log.path.read_bytes()  # without the WAL, which only a commit syncs
    log.close()
    if level < SYNCED:
        _overwrite(log.path, synced)


def copy(layout: Layout) -> Files:
    """Return a backup of a folder. Only committed changes of its log are included."""
    files = {
        str(path.relative_to(layout.path)): path.read_bytes()
        for path in sorted(layout.path.rglob("*"))
        if path.is_file() and not path.name.startswith((layout.log.name, layout.lock.name))
    }
    if layout.log.exists():
        with closing(sqlite3.connect(layout.log)) as log, closing(sqlite3.connect(":memory:")) as backup:
            log.backup(backup)
            files[layout.log.name] = backup.serialize()
    return files


def put_back(layout: Layout, files: Files) -> None:
    """Restore these files in the folder of a stopped node, in place, as from a machine's snapshot."""
    for path in layout.path.glob(layout.log.name + "-*"):
        path.unlink()
    for name, data in files.items():
        path = layout.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        _overwrite(path, data)


def signatures(layout: Layout, feed: Feed) -> list[int]:
    """Return the first step of each of the feed's stored segments, except step 0."""
    with closing(sqlite3.connect(layout.log)) as log:
        return [
            first for (first,) in log.execute(f"SELECT first FROM segment WHERE {OF_FEED}", feed) if first
        ]


def lose(layout: Layout, feed: Feed, kept: int) -> None:
    """Delete a feed's segments from the log of a stopped node, from the segment with step `kept` on."""
    if not layout.log.exists():
        return
    with closing(sqlite3.connect(layout.log, isolation_level=None)) as log:
        begins = f"SELECT max(first) FROM segment WHERE {OF_FEED} AND first <= ?"
        log.execute(f"DELETE FROM segment WHERE {OF_FEED} AND first >= ({begins})", (*feed, *feed, kept))


def take_for_original(layout: Layout, run_id: bytes) -> None:
    """Record a copied log's own file as the original one. The node then does not notice that it is a copy, as
    it does not notice that a whole disk was cloned."""
    with UpdateLog.open(layout.log, run_id) as log:
        data_folder.remember_location(log)


def _overwrite(path: Path, data: bytes) -> None:
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(data)
        file.truncate()

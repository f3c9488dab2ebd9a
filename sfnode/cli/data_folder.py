"""Helpers for commands that use a data folder: ask the running node in it, or open its run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sfnode.cli.options import known_folders
from sfnode.control.client import Client, SyncClient
from sfnode.errors import Code, UserError
from sfnode.store.data_folder import Layout, holder

if TYPE_CHECKING:
    from sfnode.manifest import Manifest
    from sfnode.store.log import UpdateLog


def running_node(data_dir: Path) -> SyncClient:
    """Return a client of the node in this folder. The client does not validate answers, because they are only
    printed."""
    return SyncClient(Layout(data_dir).control_socket, checked=False)


def watched_node(data_dir: Path, *, checked: bool) -> Client:
    """Return an asyncio client of the node in this folder. The client validates answers if `checked`."""
    return Client(Layout(data_dir).control_socket, checked=checked)


def used_folder(data_dir: Path) -> Layout:
    """Return the layout of a folder that has a run. Raises UserError DATA_DIR_UNUSABLE."""
    if not (layout := Layout(data_dir)).manifest.exists():
        raise UserError(
            Code.DATA_DIR_UNUSABLE,
            f"{data_dir} holds no run",
            "Name a folder in which a node has run with --data-dir (`sfnode list` shows them), or take part "
            "in a run first: `sfnode join`, `sfnode swarm`.",
        )
    return layout


def awaited_folder(data_dir: Path) -> None:
    """Raise UserError DATA_DIR_UNUSABLE unless a folder has a run, or a node that is about to join its first
    run. In any other folder no node would ever answer."""
    if holder(data_dir) is None:
        used_folder(data_dir)


def runs_here() -> dict[str, tuple[Manifest, Path]]:
    """Return the manifest and the folder of each run in this user's folders, keyed by run id."""
    from sfnode.manifest import Manifest

    found: dict[str, tuple[Manifest, Path]] = {}
    for folder in known_folders():
        try:
            if (file := Layout(folder).manifest).exists():
                run = Manifest.from_toml(file)
                found.setdefault(run.run_id.hex(), (run, folder))
        except (OSError, UserError):  # of another version, or of another user
            continue
    return found


@contextmanager
def opened_run(data_dir: Path) -> Iterator[tuple[Manifest, UpdateLog]]:
    """Open the manifest and, for reading, the log of this folder. The folder's node may be running.

    Raises UserError DATA_DIR_UNUSABLE if the folder has no run.
    """
    from sfnode.manifest import Manifest
    from sfnode.store.log import UpdateLog

    layout = used_folder(data_dir)
    manifest = Manifest.from_toml(layout.manifest)
    with UpdateLog.open(layout.log, manifest.run_id, read_only=True) as update_log:
        yield manifest, update_log

"""The runs from which a run has come: each began with a state of the one before (`sfnode fork`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sfnode.cli.folders import known_folders
from sfnode.errors import UserError
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Parent
from sfnode.store.data_folder import Layout


class Ancestor(NamedTuple):
    """A run that another has started from."""

    seal: Parent
    """The state that the other began with."""
    run: Manifest | None
    """None if no data folder of this user has it."""
    folder: Path | None

    def __str__(self) -> str:
        return f"{self.seal}{f' ({self.run.name})' if self.run else ''}"


def ancestors(manifest: Manifest) -> list[Ancestor]:
    """Return the runs from which a run has come, the last one first, as far as this user's folders tell."""
    here = dict(_runs())
    found: list[Ancestor] = []
    said = manifest.model.parent
    while said:  # ids are hashes that commit to the parent's: no chain leads back to itself
        run, folder = here.get(said.run_id, (None, None))
        found.append(Ancestor(said, run, folder))
        said = run.model.parent if run else None
    return found


def _runs() -> Iterator[tuple[str, tuple[Manifest, Path]]]:
    for folder in known_folders():
        try:
            if (file := Layout(folder).manifest).exists():
                run = Manifest.from_toml(file)
                yield run.run_id.hex(), (run, folder)
        except (OSError, UserError):  # of another version, or of another user
            continue

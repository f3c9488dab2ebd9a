"""The files of this machine that a node's owner has named. Their paths are kept in the node's data folder.

A manifest comes from others and names no path on this machine. So only the owner can say where a private
table, a base model or a file of the run's data is. A path given on a command line is kept. Later starts and
commands with the same data folder use it, until another path replaces it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.settings import Settings
from sfnode.store.data_folder import Layout
from sfnode.store.disk_errors import disk_faults, write_whole
from sfnode.tasks import public_files
from sfnode.tasks.public_files import Places


class NamedFiles(BaseModel):
    """The named files and folders, as absolute paths, and the permitted plug-ins. `train` is a file with the
    run's shared training data. `data` is a file with this node's private data."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    model: Path | None = None
    data: Path | None = None
    train: Path | None = None
    test: Path | None = None
    validation: Path | None = None
    verifier: tuple[str, ...] = ()

    @classmethod
    def read(cls, layout: Layout) -> Self:
        """Return the named files that a data folder has kept. Raises UserError DATA_DIR_UNUSABLE."""
        try:
            return cls.model_validate_json(layout.named.read_bytes())
        except FileNotFoundError:
            return cls()
        except (OSError, ValidationError) as error:
            raise UserError(
                Code.DATA_DIR_UNUSABLE,
                f"cannot read {layout.named}, the list of the files that you have named before",
                "Remove it, and name them again: --data, --model, --test, --validation, --verifier.",
            ) from error

    def keep(self, layout: Layout) -> None:
        """Keep these paths in a data folder. Raises UserError DISK_FULL and DATA_DIR_UNUSABLE."""
        if self != NamedFiles.read(layout):
            with disk_faults(layout.path):
                write_whole(layout.named, self.model_dump_json(indent=2).encode())

    def and_of(self, settings: Settings) -> NamedFiles:
        """Return a copy in which the files given in `settings` replace those of this object."""
        said = {name: getattr(settings, name) for name in NamedFiles.model_fields if name != "train"}
        return self.model_copy(
            update={
                name: one.expanduser().absolute() if isinstance(one, Path) else one
                for name, one in said.items()
                if one
            }
        )

    def and_beside(self, manifest: Manifest, folder: Path) -> NamedFiles:
        """Return a copy, extended by those files that a manifest names and that are in `folder`, the folder
        of the manifest's file. The caller must make sure that this machine's owner has given that
        manifest."""
        found = dict(public_files.beside(manifest.data, folder).named)
        model = public_files.inside(folder, manifest.model.source) if not self.model else None
        return self.model_copy(update=found | ({"model": model} if model and model.is_dir() else {}))

    def in_settings(self, settings: Settings) -> Settings:
        """Return a copy of a node's settings with these files."""
        return settings.model_copy(update=self.model_dump(exclude={"train"}))

    def places(self, layout: Layout) -> Places:
        """Return the places in which to look for the run's data: the data folder, and these files."""
        named = {role: file for role in public_files.ROLES if (file := getattr(self, role))}
        return Places((layout.data,), named)


def places_of(layout: Layout) -> Places:
    """Return the places in which to look for the run's data: the data folder, and the files that its owner
    has named. Raises as `NamedFiles.read`."""
    return NamedFiles.read(layout).places(layout)


def model_of(layout: Layout, given: Path | None) -> Path | None:
    """Return the folder of a run's base model. This is the folder `given` in the current command, else the
    folder named earlier, else the folder of the downloaded model. Return None if there is none of these.
    Raises as `NamedFiles.read`."""
    downloaded = layout.model if layout.model.is_dir() else None
    return given or NamedFiles.read(layout).model or downloaded

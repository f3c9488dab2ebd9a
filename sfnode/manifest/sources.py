"""Sources of the base model and of rows, as strangers may see them: without the folders of a machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from sfnode.manifest import Manifest
from sfnode.manifest.data import DataRole, is_file

_NAME = re.compile(r"\w[\w.-]{0,95}(/\w[\w.-]{0,95})?", re.ASCII)
"""A name on the hub, which allows 96 characters in each part."""


def names_folders(manifest: Manifest) -> bool:
    """Return whether a manifest names folders of a machine, which not everybody may know."""
    sources = (manifest.model.source, *map(manifest.data.source, get_args(DataRole)))
    return any(public_name(source) != source for source in sources)


def is_on_hub(source: str) -> bool:
    """Return whether a base model is one of the hub: its source has such a name, and is no folder here."""
    return _NAME.fullmatch(source) is not None and not Path(source).exists()


def public_name(source: str) -> str:
    """Return what everybody may know a source by: its name on the hub or in this package, or else the last
    part of its path."""
    named = all(map(_NAME.fullmatch, source.split(":"))) if ":" in source else is_on_hub(source)
    return source if named and not is_file(source) else Path(source).name

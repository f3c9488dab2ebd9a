"""The data folders of this user: profiles, which are folders by name, and a list of where nodes have run.

Imports nothing but the standard library, so that commands start at once.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from sfnode.defaults import DATA_DIR, FOLDERS, PROFILES, located

PROFILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
"""Form of a profile's name: it is the name of a folder."""

MAX_LISTED = 1_000
"""Lines of the list; beyond, those whose folders are gone leave it. Tests and swarms make many."""


def profile_folder(name: str) -> Path:
    """Return the data folder of a profile."""
    return located(PROFILES) / name


def place(folder: Path) -> tuple[str, ...]:
    """Return the options that name a data folder; none for the default one."""
    folder = folder.expanduser().resolve()
    if folder == located(DATA_DIR).resolve():
        return ()
    named = folder.parent == located(PROFILES).resolve() and PROFILE.fullmatch(folder.name)
    return ("--profile", folder.name) if named else ("--data-dir", str(folder))


def known_folders() -> list[Path]:
    """Return the folders that exist: the default one, those of profiles, others in which nodes have run."""
    profiles = located(PROFILES)
    named = sorted(profiles.iterdir()) if profiles.is_dir() else []
    found = dict.fromkeys([located(DATA_DIR), *named, *_listed()])
    return [folder for folder in found if folder.is_dir()]


def note(folder: Path) -> None:
    """Add a folder to the list unless it is there, or is found without it."""
    folder = folder.expanduser().resolve()
    default, profiles = located(DATA_DIR).resolve(), located(PROFILES).resolve()
    listed = _listed()
    if folder == default or folder.parent == profiles or folder in listed:
        return
    full = len(listed) >= MAX_LISTED
    kept = [one for one in listed if one.is_dir()][1 - MAX_LISTED :] if full else []
    with suppress(OSError):  # nothing but `sfnode list` needs it
        file = located(FOLDERS)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with file.open("w" if full else "a", encoding="utf-8") as out:  # others may add theirs now
            out.write("".join(f"{line}\n" for line in (*kept, folder)))


def _listed() -> list[Path]:
    try:
        lines = located(FOLDERS).read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return []
    return [Path(line) for line in lines if line]
